"""The line that moves while `make` installs: what it shows, and what of a failure."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

from tests import PATIENCE_S
from tests.demo.terminals import in_a_terminal
from tools.repository import ROOT
from tools.show_progress import line_of, newest_line, run

TOOL = [sys.executable, str(ROOT / "tools" / "show_progress.py"), "installing"]
SLOW = "import time; print('Collecting avro', flush=True); time.sleep(0.7)"


def test_what_a_command_prints_is_not_shown_when_it_ends_well() -> None:
    out = io.StringIO()
    assert run("installing", [sys.executable, "-c", "print('much')"], out) == 0
    first, last = out.getvalue().splitlines()
    assert first == "installing …"
    assert last.startswith("installing: done … ")


def test_a_failure_shows_all_that_was_printed_and_has_its_exit_code() -> None:
    out = io.StringIO()
    failing = [sys.executable, "-c", "print('no network'); raise SystemExit(3)"]
    assert run("installing", failing, out) == 3
    assert "installing: failed with 3" in out.getvalue()
    assert out.getvalue().endswith("no network\n")


def test_on_a_terminal_one_line_has_the_seconds_and_the_newest_output() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(terminal: int) -> None:
        command = [*TOOL, sys.executable, "-c", SLOW]
        started.append(subprocess.Popen(command, stdout=terminal))

    shown = in_a_terminal(start)
    assert started[0].wait(PATIENCE_S) == 0
    assert re.search(r"installing … \d+ s: Collecting avro", shown)
    assert shown.count("\n") == 1


def test_the_line_is_cut_to_the_terminal(tmp_path: Path) -> None:
    assert line_of("installing", 3.4, "Collecting avro", 100) == "installing … 3 s: Collecting avro"
    assert len(line_of("installing", 3.4, "Collecting " + "x" * 200, 80)) == 79
    file = tmp_path / "output"
    file.write_bytes(b"Collecting avro\n\n  \xff Using cached\r\n \n")
    assert newest_line(file) == "\ufffd Using cached"
