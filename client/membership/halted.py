"""A group that is halted: no process owns a partition, and whoever halted it owns them all.

So the position of each partition is final, and can be moved, or the number of partitions changed.
The members stay; they finish what they have, and own partitions again afterwards. If the process
that halted the group dies, the group stays halted, and says so, until the command is given again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from databus.client.checkpoints.fenced import FencedCheckpointStore
from databus.groups.generations import NOTHING, Generation, Resize, Vector
from databus.groups.group_record import GroupFacts, GroupRecord
from databus.groups.kept_generation import (
    KeptGeneration,
    begin_of,
    forget_former,
    read_generation,
    write_generation,
)
from databus.groups.names import (
    checkpoint_name,
    consumed_scn,
    group_record_name,
    halt_lease,
    partition_lease,
)
from databus.groups.reading import decode_group, read_group
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
        self,
        records: Records,
        checkpoints: FencedCheckpointStore,
        facts: GroupFacts,
        terms: Mapping[int, int],
    ) -> None:
        """Own the partitions under these terms."""
        self.facts = facts
        """What its members are to agree on afterwards."""
        self._records, self._checkpoints, self._terms = records, checkpoints, terms

    def positions(self) -> dict[int, Checkpoint | None]:
        """Return the final checkpoint of each partition; None = at the `start` setting."""
        facts = self.facts
        kept = read_generation(self._records, facts.group, facts.generation)
        found = {}
        for partition, term in sorted(self._terms.items()):
            name = checkpoint_name(facts.group, facts.generation, partition)
            at = self._checkpoints.begin_term(name, facts.sources, term)
            found[partition] = at or begin_of(kept, partition)
        return found

    def move(self, position: Checkpoint) -> None:
        """Move all partitions to one position."""
        facts = self.facts
        self.positions()  # the terms begin
        # What was consumed before is delivered again, if the position is further back.
        forget_former(self._records, facts.group, facts.generation)
        for partition, term in sorted(self._terms.items()):
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
        self.facts = replace(facts, partitions=partitions, generation=made.number)


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
    read_group(records, group)  # first of all: a group that is not there leaves no lease behind
    leases = LeaseStore(records)
    lease = _acquired(leases, group, wait)
    terms: dict[int, int] = {}
    dependent = DependentLeases(records, leases)
    # With the term: whoever wakes after another one has halted the group must not end that.
    mark = f"{why} by {lease.owner}, term {lease.term}"
    try:
        record = _replaced(records, group, lambda one: replace(one, halted=mark))
        facts = record.facts
        try:
            held = HeldLease(leases, lease)
            for partition, term in _acquire_each(facts, dependent, held, lease, wait):
                terms[partition] = term
                on_wait(len(terms), facts.partitions)
            stopped = HaltedGroup(records, checkpoints, facts, terms)
            yield stopped
            held.term()
            facts = stopped.facts
        finally:
            _replaced(records, group, partial(_resumed, mark=mark, facts=facts))
    finally:
        for partition, term in terms.items():
            dependent.release(partition_lease(group, partition), term)
        leases.release(lease)


def _acquire_each(
    facts: GroupFacts,
    dependent: DependentLeases,
    held: HeldLease,
    lease: Lease,
    wait: Callable[[float], None],
) -> Iterator[tuple[int, int]]:
    """Yield each partition with its term once it is this process's; `held` is `lease`, renewed."""
    missing = list(range(facts.partitions))
    while missing:
        for partition in list(missing):
            held.renew_if_due()
            term = dependent.acquire(partition_lease(facts.group, partition), lease)
            held.term()
            if term is not None:
                missing.remove(partition)
                yield partition, term
        if missing:
            wait(min(_ASK_AGAIN_S, held.due_in_s))


def _acquired(leases: LeaseStore, group: str, wait: Callable[[float], None]) -> Lease:
    """Return the lease of whoever halts a group; wait for that of one that was killed to end."""
    name = halt_lease(group)
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


def _replaced(
    records: Records, group: str, changed: Callable[[GroupRecord], GroupRecord]
) -> GroupRecord:
    made: list[GroupRecord] = []

    def replaced(data: bytes | None) -> bytes:
        record = changed(decode_group(data, group, records.shown))
        made[:] = [record.with_members(record.members)]
        return made[0].encode()

    change(records, group_record_name(group), replaced)
    return made[0]


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return shown if len(numbers) <= 10 else f"{shown} and {len(numbers) - 10} more"
