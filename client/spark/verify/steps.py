"""How far a comparison or a repair is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done, and how far; `total` may be a guess, None when nobody knows."""

    name: str
    done: int
    total: int | None
    unit: str = "rows"


OnStep = Callable[[Step], None]


def unseen(step: Step) -> None:
    """Show nothing."""
