"""The attacks, by section of what was found: each a name, what is to be seen, and what is done."""

from __future__ import annotations

from benchmarks.adversity.attacks.attack import Attack
from benchmarks.adversity.attacks.replaced_log import replaced_logs
from benchmarks.adversity.attacks.unreachable import unreachable_databases

__all__ = ["Attack", "all_attacks"]


def all_attacks() -> list[Attack]:
    """Return every attack, in the order in which they are run."""
    return [*replaced_logs(), *unreachable_databases()]
