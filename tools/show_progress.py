"""Runs a command that says much or nothing, with one line that moves while it works.

    python3 tools/show_progress.py "installing Python packages" pip install ...

The line has the seconds, and the newest of what the command prints. Without a terminal it is
printed anew every ten seconds. If the command fails, all of its output follows, and its exit code
is this one's. Needs nothing but Python: it runs before anything is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

REFRESH_S = 0.2
ANEW_S = 10.0
_TAIL_BYTES = 4096


def line_of(label: str, seconds: float, newest: str, width: int) -> str:
    """Return the line that moves, cut to a terminal's width."""
    text = f"{label} … {seconds:.0f} s" + (f": {newest}" if newest else "")
    return text if len(text) < width else text[: max(0, width - 2)] + "…"


def newest_line(file: Path) -> str:
    """Return the last line in a file that has text."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        lines = opened.read().decode(errors="replace").splitlines()
    return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")


def run(label: str, command: list[str], out: TextIO) -> int:
    """Run a command and show its progress; return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "output"
        with file.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        seconds = _watch(process, label, file, out)
        code = process.returncode
        ended = "" if code == 0 else f"failed with {code}"
        _show(out, line_of(f"{label}: {ended or 'done'}", seconds, "", 1000), is_last=True)
        if code:
            out.write(file.read_text(encoding="utf-8", errors="replace"))
    return code


def _watch(process: subprocess.Popen[bytes], label: str, file: Path, out: TextIO) -> float:
    """Show the line until the process ends; return how long it took, in seconds."""
    started_s = shown_s = time.monotonic()
    interval_s = REFRESH_S if out.isatty() else ANEW_S
    _show(out, f"{label} …")
    while True:
        try:
            process.wait(REFRESH_S)
        except subprocess.TimeoutExpired:
            now_s = time.monotonic()
            if now_s - shown_s >= interval_s:
                shown_s = now_s
                width = shutil.get_terminal_size().columns
                _show(out, line_of(label, now_s - started_s, newest_line(file), width))
        except KeyboardInterrupt:
            process.wait()  # it got the signal, too
        else:
            return time.monotonic() - started_s


def _show(out: TextIO, text: str, *, is_last: bool = False) -> None:
    if out.isatty():
        out.write(f"\r\x1b[K{text}" + ("\n" if is_last else ""))
    else:
        out.write(f"{text}\n")
    out.flush()


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1], sys.argv[2:], sys.stdout))
