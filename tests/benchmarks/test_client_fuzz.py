"""The client's fuzz in its short form."""

from __future__ import annotations

import random

from click.testing import CliRunner

from benchmarks.client_fuzz.making import make_page, make_stream
from benchmarks.client_fuzz.reading import Way
from benchmarks.client_fuzz.run import main


def test_damaged_streams_and_pages_give_equal_rows_or_errors() -> None:
    result = CliRunner().invoke(main, ["--rounds", "1000", "--seed", "7"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip().endswith("no findings")


def test_what_is_damaged_can_be_read_before() -> None:
    draw = random.Random(3)
    for is_page, data in ((False, make_stream(draw, 40)), (True, make_page(draw, 40))):
        for is_compiled in (True, False):
            outcome = Way(is_compiled).read([data], is_page)
            assert outcome.problem == ""
            assert len(outcome.found) == (1 if is_page else 40)
            assert any("'c1'" in text for text in map(repr, outcome.found))
