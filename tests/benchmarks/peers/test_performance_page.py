"""The tables of docs/performance.md: written from what the benchmarks' `--json` has."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.peers.programs import SOURCES
from benchmarks.performance_page import MISSED, PAGE, SECTIONS, read_run, written
from benchmarks.shared.report import Figure, as_json, at_least, at_most

EMPTY = """\
# Page

<!-- figures: {} -->
old
<!-- end of figures -->

The rest.
"""


def page_of(section: str, *runs: Sequence[Figure]) -> str:
    """Return the page with one table, written from files with these figures."""
    return written(EMPTY.format(section), [read_run(as_json(run)) for run in runs])


def test_a_table_has_its_figures_and_where_they_were_measured() -> None:
    figures = [
        Figure("seeding", 1234567, "rows/s"),
        Figure("seeding / keyed SELECT by PyMySQL", 0.5, "x", at_least(0.6)),
        Figure("relay, all", 3, "MB/s"),
    ]
    page = page_of("seeding", figures)
    assert "| seeding | 1,234,567 rows/s |  |\n" in page
    assert "| seeding / keyed SELECT by PyMySQL | 0.5 x | ≥ 0.6: **missed** |\n" in page
    assert re.search(r"\nMeasured \d{4}-\d\d-\d\d at commit \w+\+? on \d+ cores of ", page)
    assert "relay, all" not in page
    assert "old" not in page
    assert page.endswith("<!-- end of figures -->\n\nThe rest.\n")


def test_the_readers_of_one_log_have_a_line_each() -> None:
    figures = [Figure(f"{kind}: one", 1000, "rows/s") for kind in ("bulk", "single")]
    assert "| one | 1,000 | 1,000 |  |  |  |\n" in page_of("peers", figures)


def test_the_last_file_with_a_figure_counts() -> None:
    target = at_most(3)
    runs = [[Figure("seeding", 9, "s", target)], [Figure("seeding", 2, "s", target)]]
    assert "| 2 s | ≤ 3: met |" in page_of("seeding", *runs)
    assert "| 9 s |" not in page_of("seeding", *runs)


def test_what_was_not_measured_is_said_to_be_so() -> None:
    page = page_of("seeding", [Figure("seeding", math.nan, "x", at_least(2))])
    assert "| seeding | not measured x | ≥ 2: **missed** |" in page


def test_what_misses_its_target_is_what_the_tables_say_whenever_they_were_written() -> None:
    page = EMPTY.format("missed") + EMPTY.format("seeding") + EMPTY.format("growth")
    for value in (9, 2):
        seeding = read_run(as_json([Figure("seeding", value, "s", at_most(3))]))
        growth = read_run(as_json([Figure("rows: exponent", 1.5, "", at_most(1.05))]))
        page = written(written(page, [growth]), [seeding])
        missed = page.split("<!-- end of figures -->")[0]
        assert "| rows: exponent | 1.5 | ≤ 1.05: **missed** |" in missed
        assert ("| seeding | 9 s | ≤ 3: **missed** |" in missed) is (value == 9)
    page = written(page, [read_run(as_json([Figure("rows: exponent", 1, "", at_most(1.05))]))])
    assert "None of the figures above misses its target." in page


def test_a_table_without_figures_in_the_files_stays() -> None:
    assert page_of("latency", [Figure("seeding", 1, "x")]) == EMPTY.format("latency")


def test_a_section_that_nothing_fills_is_an_error() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        page_of("nonsense", [Figure("seeding", 1, "x")])


def test_the_page_has_every_section_once() -> None:
    named = re.findall(r"<!-- figures: ([a-z ]+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(named) == sorted([*SECTIONS, MISSED])


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("go_mysql/go.mod", r"go-mysql-org/go-mysql v([\d.]+)"),
        ("rust/Cargo.lock", r'name = "mysql_cdc"\nversion = "([\d.]+)"'),
        ("rust/Cargo.lock", r'name = "mysql_async"\nversion = "([\d.]+)"'),
        ("java/connector/pom.xml", r"-java</artifactId>\s*<version>([\d.]+)"),
        ("java/debezium/pom.xml", r"-mysql</artifactId>\s*<version>([\d.]+)"),
        ("java/canal/pom.xml", r"canal.parse</artifactId>\s*<version>([\d.]+)"),
    ],
)
def test_the_page_names_the_versions_that_are_built(file: str, pattern: str) -> None:
    found = re.search(pattern, Path(SOURCES, file).read_text(encoding="utf-8"))
    assert found is not None
    assert found[1].rstrip(".") in PAGE.read_text(encoding="utf-8")


def test_figures_are_read_back_as_they_were_written() -> None:
    figures = [Figure("a", 1.5, "ms", at_most(1000)), Figure("b", 2, "x"), Figure("c", 3, "")]
    text = as_json(figures)
    assert read_run(text).figures == figures
    assert json.loads(text)["host"].keys() >= {"at", "commit", "cpu", "cpus", "python"}
