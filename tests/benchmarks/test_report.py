"""Figures, targets, percentiles and how they are printed and written."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.__main__ import MODULES, main, module_of
from benchmarks.shared.report import (
    Figure,
    as_json,
    at_least,
    at_most,
    command,
    median,
    percentile,
    show_number,
    table_of,
)


def test_a_target_is_met_at_its_bound() -> None:
    assert Figure("copy", 0.5, "x", at_least(0.5)).is_met
    assert Figure("p50", 3.0, "ms", at_most(3)).is_met


def test_a_target_is_missed_beyond_its_bound() -> None:
    assert Figure("copy", 0.49, "x", at_least(0.5)).is_met is False
    assert Figure("p50", 3.1, "ms", at_most(3)).is_met is False


def test_a_value_that_was_not_measured_misses_its_target() -> None:
    assert Figure("p50", float("nan"), "ms", at_most(3)).is_met is False


def test_a_figure_without_a_target_is_neither_met_nor_missed() -> None:
    assert Figure("rate", 10, "events/s").is_met is None


def test_the_median_ignores_one_slow_repeat() -> None:
    values = iter([1.0, 9.0, 2.0])
    assert median(3, lambda: next(values)) == 2.0


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (50, 50), (99, 99), (99.5, 100), (100, 100)]
)
def test_a_percentile_is_the_nearest_rank(percent: float, expected: int) -> None:
    assert percentile(range(100, 0, -1), percent) == expected


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 99) == 7.0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234567.8, "1,234,568"), (3, "3"), (0.00421, "0.00421"), (123.44, "123.4"), (0.5, "0.5")],
)
def test_numbers_are_written_by_their_size(value: float, shown: str) -> None:
    assert show_number(value) == shown


def test_the_table_says_which_targets_were_missed() -> None:
    console = Console(width=120, file=io.StringIO())
    figures = [Figure("fast", 1, "x", at_least(0.3)), Figure("slow", 9, "ms", at_most(3))]
    with console.capture() as printed:
        console.print(table_of("all", figures))
    lines = printed.get().splitlines()
    assert any("fast" in line and "≥ 0.3" in line and "met" in line for line in lines)
    assert any("slow" in line and "≤ 3" in line and "missed" in line for line in lines)


def test_json_has_every_figure_and_null_for_what_was_not_measured() -> None:
    figures = [Figure("a", 1.5, "ms", at_most(3)), Figure("b", float("nan"), "x")]
    written = json.loads(as_json(figures))
    assert written["figures"] == [
        {"name": "a", "value": 1.5, "unit": "ms", "target": "≤ 3", "met": True},
        {"name": "b", "value": None, "unit": "x", "target": None, "met": None},
    ]
    assert written["host"]["cpus"] >= 1


def test_a_modules_command_prints_the_table_and_writes_the_file(tmp_path: Path) -> None:
    def figures(short: bool = False) -> list[Figure]:
        return [Figure("asked for the short form", float(short), "")]

    file = tmp_path / "figures.json"
    result = CliRunner().invoke(command("one", figures), ["--short", "--json", str(file)])
    assert result.exit_code == 0
    assert "asked for the short form" in result.output
    assert json.loads(file.read_text())["figures"][0]["value"] == 1.0


@pytest.mark.parametrize("name", MODULES)
def test_each_benchmark_has_figures(name: str) -> None:
    assert callable(module_of(name).figures)


def test_all_benchmarks_are_asked_for_their_short_form_in_one_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def measure(name: str, short: bool) -> list[Figure]:
        asked.append((name, short))
        return [Figure(f"figure of {name}", 1, "x")]

    monkeypatch.setattr("benchmarks.__main__.measure", measure)
    result = CliRunner().invoke(main, ["--json", str(tmp_path / "all.json")])
    assert result.exit_code == 0
    assert [name for name, _ in asked] == list(MODULES)
    assert all(short for _, short in asked)
    assert result.output.count("figure of") == len(MODULES)
