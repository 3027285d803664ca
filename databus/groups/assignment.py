"""Which process of a group owns which partition.

The assignment depends on its arguments alone, so whoever computes it gets the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def assign(members: Collection[str], partitions: int, present: Mapping[int, str]) -> dict[int, str]:
    """Return the owner of each partition; empty without members.

    Members own equally many partitions, or one more. `present` are the owners so far: as few
    partitions as possible change theirs. Those of a member that is gone have to, and those in
    `present` that are not below `partitions` are left out.
    """
    held: dict[str, list[int]] = {member: [] for member in sorted(members)}
    if not held:
        return {}
    free: list[int] = []
    for partition in range(partitions):
        held.get(present.get(partition, ""), free).append(partition)
    least, remainder = divmod(partitions, len(held))
    # The members with most partitions keep one more: giving it to another member is a move.
    by_count = sorted(held, key=lambda member: -len(held[member]))
    limits = {member: least + (rank < remainder) for rank, member in enumerate(by_count)}
    for member, own in held.items():
        free += own[limits[member] :]
        del own[limits[member] :]
    free.sort()
    given = iter(free)
    for member, own in held.items():
        own += [next(given) for _ in range(limits[member] - len(own))]
    return {partition: member for member, own in held.items() for partition in own}


def moves(before: Mapping[int, str], after: Mapping[int, str]) -> list[int]:
    """Return the partitions that another member owns than before, or a first one."""
    return [partition for partition, owner in after.items() if before.get(partition) != owner]


def members_of_room(rooms: Mapping[str, str], preferred: str) -> list[str]:
    """Return the members that own partitions: those of the preferred room while it has any.

    `rooms` has the room of each member. Without a preferred room ("") all of them do.
    """
    chosen = sorted(member for member, room in rooms.items() if room == preferred)
    return chosen if preferred and chosen else sorted(rooms)
