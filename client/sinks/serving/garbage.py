"""How often Python's garbage collector looks for cycles, in a process of databus itself."""

from __future__ import annotations

import gc

_NEW_OBJECTS, _YOUNG, _MIDDLE = 50_000, 20, 20


def collect_rarely() -> None:
    """Look for cycles after 50,000 new objects, not after 700.

    A sink holds thousands of rows, each a few objects and none of them in a cycle. To pass over
    them again and again took a quarter of its CPU. Only for a process that is all ours: in an
    application it is the application's choice.
    """
    gc.set_threshold(_NEW_OBJECTS, _YOUNG, _MIDDLE)
