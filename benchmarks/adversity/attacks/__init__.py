"""The attacks by section: each has a name, the expected observation, and the actions."""

from __future__ import annotations

from benchmarks.adversity.attacks.attack import Attack
from benchmarks.adversity.attacks.damage import damaged_files
from benchmarks.adversity.attacks.exhausted import exhausted_machines
from benchmarks.adversity.attacks.replaced_log import replaced_logs
from benchmarks.adversity.attacks.strangers import strangers
from benchmarks.adversity.attacks.unreachable import unreachable_databases
from benchmarks.adversity.attacks.wire import bad_wires

__all__ = ["Attack", "all_attacks"]


def all_attacks() -> list[Attack]:
    """Return every attack, in the order in which they are run."""
    found = [
        *replaced_logs(),
        *bad_wires(),
        *unreachable_databases(),
        *damaged_files(),
        *exhausted_machines(),
        *strangers(),
    ]
    return sorted(found, key=lambda attack: attack.section)
