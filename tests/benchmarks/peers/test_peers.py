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
from benchmarks.peers.table import lines_of
from benchmarks.shared.report import Figure
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
        for mode in ("raw", "library", "ring", "row", "window", "batch"):
            ours.main([mode, *login, *place])
            reading = json.loads(capsys.readouterr().out)
            assert reading.keys() == {"rows", "seconds", "cpu_seconds"}
            # What came with the first look began the clock.
            assert reading["rows"] < ROWS + 1
            if mode == "library":
                assert reading["rows"] == ROWS - 1
    finally:
        with session_of(mysql_server) as cursor:
            cursor.execute(f"DROP DATABASE {DATABASE}")


_HOLDER = "held = bytearray(100 << 20); print('held', flush=True); input()"
_PARENT = f"""
import subprocess, sys
held = bytearray(100 << 20)
subprocess.run([sys.executable, "-c", {_HOLDER!r}], check=True)
"""


def test_the_memory_of_a_reader_is_that_of_all_its_processes() -> None:
    command = [sys.executable, "-c", _PARENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as parent:  # type: ignore[call-overload]
        assert parent.stdout.readline() == "held\n"
        # Both hold as much; what is mapped from files is not counted.
        assert 200 << 20 < peak.anonymous_bytes(parent.pid) < 280 << 20
        parent.communicate("\n")
    assert peak.anonymous_bytes(parent.pid) == 0


def test_the_memory_of_a_reader_is_told_behind_its_output() -> None:
    command = [sys.executable, "-m", "benchmarks.peers.peak", sys.executable, "-c", "print('read')"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, measured = done.stdout.splitlines()
    assert read == "read"
    assert json.loads(measured).keys() == {"peak_mb"}


def test_the_table_has_a_line_for_each_reader() -> None:
    figures = [
        Figure("bulk: quick", 2_000_000, "rows/s"),
        Figure("bulk: quick", 0.5, "CPU s/M rows"),
        Figure("bulk: quick", 30, "MB"),
        Figure("single: quick", 100_000, "rows/s"),
        Figure("single: quick", 9, "CPU s/M rows"),
        Figure("single: quick", 40, "MB"),
        Figure("bulk: slow", 1000, "rows/s"),
    ]
    assert lines_of(figures) == [
        ("slow", "1,000", "", "", "", ""),
        ("quick", "2,000,000", "100,000", "0.5", "9", "40"),
    ]


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
