"""Who holds the write lock of a store, as the kernel says it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.ownership.lock_holder import find_holder, shown_holder
from databus.bootstrap.store.store import Store

FILE = "fe:00:4242"
WRITING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("writes", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("line", "pid"),
    [
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:4242 120 120", 4711),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:4242 120 127", 4711),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:4242 0 EOF", 4711),
        ("1: POSIX  ADVISORY  READ 4711 fe:00:4242 120 120", 0),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:4243 120 120", 0),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:4242 121 121", 0),
        ("1: POSIX  ADVISORY  WRITE 4711 fe:00:4242 100 119", 0),
        ("1: FLOCK  ADVISORY  WRITE 4711 fe:00:4242 0 EOF", 0),
        ("1: -> POSIX  ADVISORY  WRITE 4712 fe:00:4242 120 120", 0),  # it waits
    ],
)
def test_the_holder_is_found_in_the_table_of_locks(line: str, pid: int) -> None:
    assert find_holder(["2: FLOCK  ADVISORY  WRITE 1 fe:00:1 0 EOF", line], FILE) == pid


def test_a_process_that_writes_is_named_and_one_that_is_stopped_with_what_to_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with closing(Store.open(path)):
        assert shown_holder(path) == ""
        with subprocess.Popen(
            [sys.executable, "-c", WRITING, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as writer:
            try:
                assert writer.stdout is not None
                writer.stdout.readline()
                assert shown_holder(path) == f"process {writer.pid} holds its lock"
                os.kill(writer.pid, signal.SIGSTOP)
                os.waitpid(writer.pid, os.WUNTRACED)
                assert f"end it (kill -KILL {writer.pid})" in shown_holder(path)
                assert shown_holder(path, tmp_path / "no-such-table") == ""
            finally:
                writer.kill()
        assert shown_holder(path) == ""
    assert shown_holder(tmp_path / "other.db") == ""
