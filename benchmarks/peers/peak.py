"""Runs a command and prints, behind its output, the memory of its largest process.

    python -m benchmarks.peers.peak COMMAND…

A process of its own for each command: the system keeps one maximum for all children together.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence


def main(command: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    code = subprocess.call(command or sys.argv[1:])
    peak_kb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"peak_mb": peak_kb / 1024}), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
