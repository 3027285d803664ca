"""A group that is halted: no process owns a partition, and whoever halted it owns them all.

So the position of each partition is final, and can be moved, or the number of partitions changed.
The members stay; they finish what they have, and own partitions again afterwards. If the process
that halted the group dies, the group stays halted, and says so, until the command is given again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from databus.client.checkpoints.fenced import FencedCheckpointStore
from databus.client.group.generations import NOTHING, Generation, Resize, Vector
from databus.client.group.group_record import GroupFacts, GroupRecord
from databus.client.membership.kept_generation import (
    KeptGeneration,
    forget_former,
    read_generation,
    write_generation,
)
from databus.client.membership.membership import group_record_name
from databus.client.membership.partition_checkpoints import checkpoint_name, consumed_scn
from databus.leases.dependent import DependentLeases
from databus.leases.errors import LeaseError
from databus.leases.holding import HeldLease
from databus.leases.records import Records, change
from databus.leases.store import Lease, LeaseStore
from databus.schemas.checkpoint import Checkpoint

TTL_S = 10.0
_ASK_AGAIN_S = TTL_S / 8
_ENDED_AFTER_S = 2 * TTL_S  # of one that was killed: 1.25 * TTL_S after it was seen first

OnWait = Callable[[int, int], None]
"""Called with the number of partitions that are owned by now, and that of all."""


class HaltedGroup:
    """A group whose partitions are all owned by this process, each under a term of its own."""

    def __init__(
        self, records: Records, checkpoints: FencedCheckpointStore, record: GroupRecord
    ) -> None:
        self.record = record
        self.terms: dict[int, int] = {}
        self._records, self._checkpoints = records, checkpoints

    @property
    def facts(self) -> GroupFacts:
        """What its members agree on."""
        return self.record.facts

    def positions(self) -> dict[int, Checkpoint | None]:
        """Return the final checkpoint of each partition; None = at the `start` setting."""
        facts = self.facts
        kept = read_generation(self._records, facts.group, facts.generation)
        found = {}
        for partition, term in sorted(self.terms.items()):
            name = checkpoint_name(facts.group, facts.generation, partition)
            at = self._checkpoints.begin_term(name, facts.sources, term)
            found[partition] = at or (None if kept is None else kept.begins(partition))
        return found

    def move(self, position: Checkpoint) -> None:
        """Move all partitions to one position."""
        facts = self.facts
        self.positions()  # the terms begin
        # What was consumed before is delivered again, if the position is further back.
        forget_former(self._records, facts.group, facts.generation)
        for partition, term in sorted(self.terms.items()):
            name = checkpoint_name(facts.group, facts.generation, partition)
            self._checkpoints.save_under(name, facts.sources, position, term)

    def resize(self, partitions: int) -> None:
        """Change the number of partitions; raise LeaseError while one is in a bootstrap.

        No row comes twice because of it, and none is left out.
        """
        facts, positions = self.facts, self.positions()
        in_bootstrap = [one for one, at in positions.items() if at is not None and at.is_bootstrap]
        if in_bootstrap:
            raise LeaseError(
                f"partitions {_listed(in_bootstrap)} of group {facts.group!r} are in a bootstrap, "
                "which has no position that others could go on from: try again when it is over"
            )
        kept = read_generation(self._records, facts.group, facts.generation)
        former = () if kept is None else kept.generation.former
        nothing = Vector((NOTHING,) * facts.partitions)
        resize = Resize(Generation(facts.generation, nothing, former), partitions)
        for partition, at in positions.items():
            resize.found_final(partition, consumed_scn(at))
        made = resize.finish()
        write_generation(self._records, facts.group, KeptGeneration(made, _begins(positions)))
        self.record = replace(
            self.record,
            facts=replace(facts, partitions=partitions, generation=made.number),
            owners={},
        )


def _begins(positions: dict[int, Checkpoint | None]) -> dict[int, Checkpoint]:
    return {consumed_scn(at): at for at in positions.values() if at is not None}


@contextmanager
def halted(
    records: Records,
    checkpoints: FencedCheckpointStore,
    group: str,
    why: str,
    on_wait: OnWait,
    wait: Callable[[float], None],
) -> Iterator[HaltedGroup]:
    """Halt a group, wait until all its partitions are free, and let it go on at the end.

    If the body fails, it goes on as it was. Raises LeaseError if there is no such group, or if
    somebody else has halted it.
    """
    record = read_group(records, group)
    leases = LeaseStore(records)
    lease = _acquired(leases, group, wait)
    held = HeldLease(leases, lease)
    # With the term: whoever wakes after another one has halted the group must not end that.
    mark = f"{why} by {lease.owner}, term {lease.term}"
    stopped = HaltedGroup(records, checkpoints, record)
    dependent = DependentLeases(records, leases)
    changed = record
    try:
        record = changed = _replaced(records, group, lambda one: replace(one, halted=mark))
        stopped.record = record
        missing = list(range(record.facts.partitions))
        while missing:
            for partition in list(missing):
                held.renew_if_due()
                term = dependent.acquire(_partition(group, partition), lease)
                held.term()
                if term is not None:
                    stopped.terms[partition] = term
                    missing.remove(partition)
                    on_wait(len(stopped.terms), record.facts.partitions)
            if missing:
                wait(min(_ASK_AGAIN_S, held.due_in_s))
        yield stopped
        held.term()
        changed = stopped.record
    finally:
        try:
            _replaced(records, group, partial(_resumed, mark=mark, facts=changed.facts))
        finally:
            for partition, term in stopped.terms.items():
                dependent.release(_partition(group, partition), term)
            leases.release(lease)


def _acquired(leases: LeaseStore, group: str, wait: Callable[[float], None]) -> Lease:
    """Return the lease of whoever halts a group; wait for that of one that was killed to end."""
    name = f"group/{group}/halt"
    for _ in range(round(_ENDED_AFTER_S / _ASK_AGAIN_S)):
        lease = leases.acquire(name, f"{socket.gethostname()}:{os.getpid()}", TTL_S)
        if lease is not None:
            return lease
        wait(_ASK_AGAIN_S)
    raise LeaseError(
        f"{leases.look(name).owner} is at work on group {group!r}: wait until it has ended"
    )


def _resumed(record: GroupRecord, mark: str, facts: GroupFacts) -> GroupRecord:
    if record.halted != mark:
        raise LeaseError(
            f"group {facts.group!r} was halted anew, {record.halted or 'and goes on'}: nothing of "
            "this command counts"
        )
    return replace(record, facts=facts, halted="")


def read_group(records: Records, group: str) -> GroupRecord:
    """Return the record of a group; raise LeaseError if there is none."""
    stored = records.read(group_record_name(group))
    if stored is None:
        raise LeaseError(f"{records.shown} has no group {group!r}: see `databus group list`")
    return GroupRecord.decode(stored.data, group, records.shown)


def _replaced(
    records: Records, group: str, changed: Callable[[GroupRecord], GroupRecord]
) -> GroupRecord:
    read_group(records, group)
    made: list[GroupRecord] = []

    def replaced(data: bytes | None) -> bytes:
        if data is None:
            raise LeaseError(f"the record of group {group!r} was removed from {records.shown}")
        record = changed(GroupRecord.decode(data, group, records.shown))
        made[:] = [record.with_members(record.members)]
        return made[0].encode()

    change(records, group_record_name(group), replaced)
    return made[0]


def _partition(group: str, number: int) -> str:
    return f"group/{group}/partitions/{number}"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return shown if len(numbers) <= 10 else f"{shown} and {len(numbers) - 10} more"
