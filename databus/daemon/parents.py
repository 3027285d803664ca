"""Ends a child process with its parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Let this process get a signal when its parent, process `parent`, ends. Linux only.

    It holds for what this process becomes by `exec`, too.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)
