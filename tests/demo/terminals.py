"""What a process writes where its output is a terminal."""

from __future__ import annotations

import os
import pty
from collections.abc import Callable


def in_a_terminal(start: Callable[[int], None]) -> str:
    """Return everything that a process writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    start(theirs)
    os.close(theirs)
    read = bytearray()
    try:
        while part := os.read(ours, 65536):
            read += part
    except OSError:
        pass  # how Linux says that the other side was closed
    finally:
        os.close(ours)
    return read.decode(errors="replace")
