"""The names of a group's records, leases and checkpoints, and the list of all groups.

all-groups                    the names of all groups, for people
groups/NAME                   the record of a group: `group_record.py`
generations/NAME/NUMBER       where partitions begin after a resize: `kept_generation.py`
moves/NAME                    which partitions moved of late: `moves.py`
group/NAME/members/SLOT       a lease: a process is there
group/NAME/partitions/NUMBER  a lease that depends on that of a member
group/NAME/halt               a lease: a command has halted the group
NAME#GENERATION.PARTITION     the checkpoint of a partition
"""

from __future__ import annotations

import json

from databus.groups.generations import NOTHING
from databus.leases.records import Records, change, record_name
from databus.schemas.checkpoint import Checkpoint

_ALL_GROUPS = "all-groups"


def group_record_name(group: str) -> str:
    """Return the name of a group's record."""
    return f"groups/{record_name(group, group)}"


def member_lease(group: str, slot: int) -> str:
    """Return the name of the lease of a member's slot."""
    return f"group/{group}/members/{slot}"


def partition_lease(group: str, partition: int) -> str:
    """Return the name of a partition's lease."""
    return f"group/{group}/partitions/{partition}"


def halt_lease(group: str) -> str:
    """Return the name of the lease of whoever has halted a group."""
    return f"group/{group}/halt"


def checkpoint_name(group: str, generation: int, partition: int) -> str:
    """Return the name of a partition's checkpoint."""
    return f"{group}#{generation}.{partition}"


def consumed_scn(checkpoint: Checkpoint | None) -> int:
    """Return the SCN of the last window that a partition consumed whole; NOTHING if none is known.

    In a bootstrap none is: the rows are those of no single moment.
    """
    scn = None if checkpoint is None else checkpoint.restart_scn
    return NOTHING if scn is None else scn


def note_group(records: Records, group: str) -> None:
    """Add a group to the list of all groups, for people. Raises LeaseError."""
    change(records, _ALL_GROUPS, lambda data: _encode_groups({*_decode_groups(data), group}))


def all_groups(records: Records) -> list[str]:
    """Return the names of all groups that ever had a member; raise LeaseError."""
    stored = records.read(_ALL_GROUPS)
    return sorted(_decode_groups(None if stored is None else stored.data))


def _encode_groups(groups: set[str]) -> bytes:
    return json.dumps(sorted(groups)).encode()


def _decode_groups(data: bytes | None) -> list[str]:
    # It is a list for people: one that is damaged begins anew.
    try:
        found = [] if data is None else json.loads(data)
    except ValueError:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
