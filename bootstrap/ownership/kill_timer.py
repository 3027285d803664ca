"""A timer of the kernel that kills this process: it runs out also when the process is stopped.

A stopped process (SIGSTOP, a debugger) does nothing more, but SIGKILL ends it all the same. The
clock does not count the time in which the machine was suspended, in which nobody else was waiting
either. Linux only; without the call nothing is set, and `is_there` is false.
"""

from __future__ import annotations

import ctypes
import math
import signal
import time

_SIGEV_SIGNAL = 0


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),  # 64 bytes in all
    )


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class KillTimer:
    """One timer, which is not set at first. Close it. Thread-safe."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _SigEvent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        try:
            failed = self._library.timer_create(
                time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)
            )
        except AttributeError:  # a C library without it
            failed = -1
        self.is_there = not failed

    def set(self, after_s: float) -> None:
        """Kill this process after so many seconds, and not when it was set to before; 0 = never."""
        if self.is_there:
            fraction, seconds = math.modf(after_s)
            spec = _TimerSpec(0, 0, int(seconds), int(fraction * 1e9))
            self._library.timer_settime(self._timer, 0, ctypes.byref(spec), None)

    def close(self) -> None:
        """Remove the timer."""
        if self.is_there:
            self.is_there = False
            self._library.timer_delete(self._timer)
