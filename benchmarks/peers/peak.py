"""Runs a command and prints, behind its output, the memory that its processes had at most.

    python -m benchmarks.peers.peak COMMAND…

What counts is the anonymous memory of the command and all processes below it, together. Mapped
files are the system's to take back: programs, libraries, and a relay's ring.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import psutil

_SAMPLE_S = 0.05


def main(command: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    peak_bytes = 0
    with subprocess.Popen(command or sys.argv[1:]) as process:
        while process.returncode is None:
            peak_bytes = max(peak_bytes, anonymous_bytes(process.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SAMPLE_S)
    print(json.dumps({"peak_mb": peak_bytes / 1e6}), flush=True)
    return process.returncode


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process and of all below it now; 0 when it has ended."""
    found = 0
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                memory = process.memory_info()
                found += memory.rss - memory.shared
    return found


if __name__ == "__main__":
    sys.exit(main())
