"""The capture benchmark in its shortest form: every reader reads, and what is read is counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.capture.log import (
    NARROW,
    begin_stretch,
    end_stretch,
    server_with_log,
    session_of,
    write_singles,
)
from benchmarks.capture.readers import WrongCountError, read_with_capture, settings_of
from benchmarks.capture.run import main

RATIOS = ("bulk_ratio", "single_ratio", "bulk_of_raw", "single_of_raw")
FORMS = ("bulk", "single")


@pytest.mark.mariadb
@pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning")  # mysql-replication's
def test_the_command_writes_the_ratios_and_what_they_are_made_of(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    size = ("--rows", "4000", "--transactions", "4000", "--repeats", "1")
    result = CliRunner().invoke(main, [*size, "--json", str(file)])
    assert result.exit_code == 0, result.output
    told = json.loads(file.read_text())
    for suffix in ("", "_wide"):
        assert all(told[f"{name}{suffix}"] > 0 for name in RATIOS)
        for form in FORMS:
            rates = (told[f"{form}_{what}{suffix}_rows_per_s"] for what in ("capture", "library"))
            assert next(rates) / next(rates) == pytest.approx(told[f"{form}_ratio{suffix}"])
    assert (told["bulk_rows"], told["bulk_transactions"]) == (4000, 4)
    assert (told["single_rows"], told["single_transactions"]) == (4000, 4000)


@pytest.mark.mariadb
def test_rows_that_are_missing_are_an_error(tmp_path: Path) -> None:
    with server_with_log("FULL") as server:
        with session_of(server) as cursor:
            begun = begin_stretch(cursor, NARROW)
            stretch = end_stretch(cursor, NARROW, begun, 20, write_singles(cursor, NARROW, 20))
        settings = settings_of(server, tmp_path, stretch, 1 << 20)
        read_with_capture(settings, stretch)
        (tmp_path / "again").mkdir()
        settings = settings_of(server, tmp_path / "again", stretch, 1 << 20)
        with pytest.raises(WrongCountError, match="20 events in 20 windows"):
            read_with_capture(settings, replace(stretch, rows=21))
