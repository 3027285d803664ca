"""The benchmark of peers: our readers read all rows, and a missing tool chain is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.capture.log import DATABASE, session_of
from benchmarks.peers import ours, peak
from benchmarks.peers.log import write_stretch
from benchmarks.peers.programs import PEERS, buildable, command_of
from databus.demo.private_mariadb import HOST, PrivateMariaDB

pytest_plugins = ["tests.mysql"]

ROWS = 1000


@pytest.mark.mysql
@pytest.mark.filterwarnings("ignore:'db' is deprecated")
def test_our_readers_read_every_row_of_a_stretch(
    mysql_server: PrivateMariaDB, capsys: pytest.CaptureFixture[str]
) -> None:
    with session_of(mysql_server) as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
    try:
        stretch = write_stretch(mysql_server, "single", ROWS)
        login = [HOST, str(mysql_server.port), mysql_server.user, mysql_server.password]
        place = [stretch.file, str(stretch.begin.offset), stretch.table.source, str(ROWS)]
        for mode in ("raw", "library", "ring", "row", "window"):
            ours.main([mode, *login, *place])
            reading = json.loads(capsys.readouterr().out)
            assert reading.keys() == {"rows", "seconds", "cpu_seconds"}
            # What came with the first look began the clock.
            assert reading["rows"] < ROWS + 1
            if mode in ("library", "row"):
                assert reading["rows"] == ROWS - 1
    finally:
        with session_of(mysql_server) as cursor:
            cursor.execute(f"DROP DATABASE {DATABASE}")


def test_the_memory_of_a_reader_is_told_behind_its_output() -> None:
    peaks = [peak_of(f"held = bytearray({size_mb} << 20); print('read')") for size_mb in (200, 1)]
    assert peaks[0] > 200 > peaks[1]


def peak_of(program: str) -> float:
    """Run a program of Python that prints "read"; return its memory as it is measured."""
    command = [sys.executable, "-m", "benchmarks.peers.peak", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, measured = done.stdout.splitlines()
    assert read == "read"
    found: float = json.loads(measured)["peak_mb"]
    return found


def test_a_reader_that_fails_fails_with_its_memory_measured() -> None:
    assert peak.main([sys.executable, "-c", "raise SystemExit(3)"]) == 3


def test_a_reader_without_its_tool_chain_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command_of.cache_clear()
    told: list[str] = []
    assert buildable(list(PEERS), told.append) == []
    assert "go-mysql, syncer is left out: there is no go" in told
    assert "Rust mysql_cdc is left out: there is no cargo" in told
    assert "Canal embedded is left out: there is no mvn" in told
