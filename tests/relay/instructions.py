"""How files are after each instruction of a ring's writer: where a kill may leave them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any, TypeVar

Look = TypeVar("Look")


def looks_at_each_instruction(
    work: Callable[[], None], look: Callable[[], Look], modules: Collection[str]
) -> list[Look]:
    """Run `work`; return what `look` found before each bytecode of the modules, if it changed."""
    taken: list[Look] = []

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_globals.get("__name__") not in modules:
            return None
        frame.f_trace_opcodes = True
        found = look()
        if not taken or found != taken[-1]:
            taken.append(found)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return taken
