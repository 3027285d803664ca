"""One huge transaction, in its short form, and how memory that grows is told from flat memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.huge_transaction import growth_bytes, main


@pytest.mark.mariadb
def test_a_transaction_that_has_no_room_stops_capture_until_it_has(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    # Python objects of so few rows are no flood; that memory is flat is for the long form to show.
    size = ("--rows", "20000", "--most-growth-mib", "200")
    result = CliRunner().invoke(main, [*size, "--json", str(file)])
    assert result.exit_code == 0, result.output
    told = json.loads(file.read_text())
    assert told["problems"] == []
    assert "ring_bytes" in told["stop_text"]
    assert told["log_kills"] == 4
    assert told["log_seconds"] > 0
    assert told["anonymous_peak_bytes"] > told["anonymous_growth_bytes"]


def test_memory_that_is_given_back_and_taken_again_has_grown_once() -> None:
    assert growth_bytes([100] * 20) == 0
    assert growth_bytes([*[90] * 10, 100, 100, 110, 120, 90, 95, *[90] * 4]) == 20
    assert growth_bytes([*[90] * 10, 120, 100, 95, 100, 90, 100, *[90] * 4]) == 10


def test_memory_that_grows_before_the_buffers_are_full_has_not_grown() -> None:
    assert growth_bytes([*range(10), *[100] * 10]) == 0
    assert growth_bytes([*[0] * 10, *range(100, 110)]) == 9
