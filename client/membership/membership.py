"""A process's place in its group, in the store of leases. Blocks; for one thread.

    group/NAME/members/SLOT       a lease: a process is there, and renews this only
    group/NAME/partitions/NUMBER  a lease that depends on that of a member
    groups/NAME                   the record of the group, see `databus/groups/group_record.py`
    moves/NAME                    which partitions moved of late, for people

A process takes the first slot that is free, so a group has no more slots than it ever had processes
at a time. Each member watches the next few, in a circle. The first one to see that another's lease
ran out takes it from it and writes the group's record without it; then that process is a member no
more, whenever it wakes. So what a group asks of the store while nothing happens does not depend on
the number of its partitions, and grows with its processes, not with their square: each asks 30
times in `ttl_s`, of which 3 write. Six processes with a `ttl_s` of 10 s ask 18 times a second.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection
from dataclasses import replace

from databus.groups.group_record import (
    GroupFacts,
    GroupRecord,
    Process,
    member_name,
    slot_and_term,
)
from databus.groups.moves import note_taken
from databus.groups.names import group_record_name, member_lease, note_group, partition_lease
from databus.leases.dependent import DependentLeases
from databus.leases.errors import LeaseUnavailableError
from databus.leases.holding import HeldLease
from databus.leases.records import Records, Stored
from databus.leases.store import Lease, LeaseStore

log = logging.getLogger(__name__)

_WATCHED = 3
_TRIES = 20  # others that join or leave may write in between


def halted_text(group: str, halted: str) -> str:
    """Return what to say of a group that is halted."""
    return (
        f"group {group!r} is halted, {halted}: nothing is delivered until that command has ended; "
        "if it was killed, give it again: `databus group resize` or `reset`"
    )


class Membership:
    """One process in one group. It holds at most one slot at a time.

    `leases` keeps its leases in `records`, which are closed by whoever opened them.
    """

    def __init__(
        self, records: Records, leases: LeaseStore, facts: GroupFacts, process: Process
    ) -> None:
        """Ask for nothing yet."""
        self.facts = facts
        self.slot: HeldLease | None = None
        """The lease of its slot; any thread may ask it for its `term`."""
        self.name = ""
        """The member's name in the group's record, while it has a slot."""
        self.halted = ""
        """Why no process may own partitions now, as the group's record said last."""
        self._records, self._leases, self._process = records, leases, process
        self._partitions = DependentLeases(records, leases)
        self._lease: Lease | None = None
        self._former = ""
        self._key = group_record_name(facts.group)

    def join(self, ttl_s: float) -> None:
        """Take a slot; raise SettingsError if the group has other facts, LeaseError."""
        self._read()
        for slot in itertools.count():
            lease = self._leases.acquire(self._slot(slot), self._process.process, ttl_s)
            if lease is not None:
                self._lease, self.slot = lease, HeldLease(self._leases, lease)
                self.name = member_name(slot, lease.term)
                return

    def lose(self) -> None:
        """Take note that the slot has another owner, or none; `join` takes another one."""
        self._lease, self.slot, self._former, self.name = None, None, self.name, ""

    def leave(self) -> None:
        """Release the slot, after the partitions. Raises LeaseError."""
        if self._lease is not None:
            self._leases.release(self._lease)
            self.lose()

    def look(
        self, *, is_leaving: bool = False, on_change: Callable[..., None] | None = None
    ) -> GroupRecord:
        """Return the group's record, written anew if a process came, went or leaves.

        Call it at least every quarter of `ttl_s`. `on_change` may be called when the record
        changes. Raises SettingsError if the group has other facts than this process, LeaseError.
        """
        for _ in range(_TRIES):
            stored, record = self._read(on_change)
            gone = {one for one in record.members if self._was_ours(one)}
            if self.name:
                watched = record.after(self.name, _WATCHED)
                gone |= {one for one in watched if one not in gone and self._has_gone(one)}
            members = {name: one for name, one in record.members.items() if name not in gone}
            if is_leaving:
                members.pop(self.name, None)
            elif self.name:
                members[self.name] = self._process
            if members == record.members:
                return record
            changed = record.with_members(members)
            if stored is None:
                note_group(self._records, self.facts.group)
            if self._records.replace(self._key, changed.encode(), stored):
                return changed
        raise LeaseUnavailableError(self._records.shown, f"{self._key} changes all the time")

    def acquire(self, partition: int) -> int | None:
        """Return the term of a partition that is this process's now; None while another has it.

        The slot may have been lost meanwhile: look at it afterwards. Raises LeaseError.
        """
        if self._lease is None:
            return None
        return self._partitions.acquire(partition_lease(self.facts.group, partition), self._lease)

    def note_taken(self, partitions: Collection[int]) -> None:
        """Have it known to people that this process has taken partitions. Raises LeaseError."""
        facts, process = self.facts, self._process.process
        note_taken(self._records, facts.group, facts.generation, process, partitions)

    def release(self, partition: int, term: int) -> None:
        """Let others have a partition. Raises LeaseError."""
        self._partitions.release(partition_lease(self.facts.group, partition), term)

    def _read(
        self, on_change: Callable[..., None] | None = None
    ) -> tuple[Stored | None, GroupRecord]:
        stored = self._records.read(self._key, on_change)
        if stored is None:
            return None, GroupRecord(self.facts)
        record = GroupRecord.decode(stored.data, self.facts.group, self._records.shown)
        known = record.facts
        own = replace(self.facts, partitions=known.partitions, generation=known.generation)
        known.check_same(own)
        # Those two are the group's: the settings of a process are for a new group only.
        self.facts = known
        if record.halted and record.halted != self.halted:
            log.warning("%s", halted_text(known.group, record.halted))
        self.halted = record.halted
        return stored, record

    def _was_ours(self, member: str) -> bool:
        """Whether a member is this process under a term before, or who had its slot before it."""
        if member == self._former:
            return True
        if not self.name or member == self.name:
            return False
        return slot_and_term(member)[0] == slot_and_term(self.name)[0]

    def _has_gone(self, member: str) -> bool:
        slot, term = slot_and_term(member)
        return self._leases.has_ended(self._slot(slot), term)

    def _slot(self, number: int) -> str:
        return member_lease(self.facts.group, number)
