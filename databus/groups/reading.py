"""What the records of a group say of it now: facts, and of each partition owner and position.

Each partition takes two requests of the store; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from databus.groups.group_record import GroupRecord
from databus.groups.kept_checkpoint import decode_kept, kept_name
from databus.groups.kept_generation import begin_of, read_generation
from databus.groups.names import checkpoint_name, consumed_scn, group_record_name, partition_lease
from databus.leases.dependent import main_of
from databus.leases.errors import LeaseError
from databus.leases.lease_record import LeaseRecord
from databus.leases.records import Records
from databus.leases.store import key_of
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

CHECKPOINTS = "checkpoints/"
"""Where the checkpoints of a store of records lie."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as its records say.

    `assigned` is the process that is to own it, `owner` the one whose lease it is, under `term`,
    since `taken_at` (Unix seconds); None = nobody. Whether that process still lives is not known
    here: `main` is the lease that its own depends on, with the term. `scn` is None while the
    partition has none. `problem` says which record cannot be read.
    """

    partition: int
    assigned: str | None = None
    owner: str | None = None
    main: tuple[str, int] | None = None
    term: int = 0
    taken_at: float | None = None
    checkpoint: Checkpoint | None = None
    problem: str = ""

    @property
    def scn(self) -> int | None:
        """SCN of the last window that was consumed whole."""
        scn = consumed_scn(self.checkpoint)
        return None if scn < 0 else scn


def read_group(records: Records, group: str) -> GroupRecord:
    """Return the record of a group; raise LeaseError if there is none."""
    stored = records.read(group_record_name(group))
    return decode_group(None if stored is None else stored.data, group, records.shown)


def decode_group(data: bytes | None, group: str, store: str) -> GroupRecord:
    """Return the record of a group; raise LeaseError if there is none, or it is damaged."""
    if data is None:
        raise LeaseError(f"{store} has no group {group!r}: see `databus group list`")
    return GroupRecord.decode(data, group, store)


def read_partitions(records: Records, record: GroupRecord) -> Iterator[PartitionState]:
    """Yield the partitions of a group, in order; raise LeaseError if the store cannot be used."""
    facts = record.facts
    kept = read_generation(records, facts.group, facts.generation)
    mains: dict[str, LeaseRecord] = {}
    for partition in range(facts.partitions):
        member = record.owners.get(partition)
        assigned = None if member is None else record.members[member].process
        lease, problem = _lease(records, partition_lease(facts.group, partition))
        main = main_of(lease.owner)
        if main is not None and main[0] not in mains:
            mains[main[0]], more = _lease(records, main[0])
            problem = problem or more
        at, more = _checkpoint(records, record, partition)
        yield PartitionState(
            partition,
            assigned,
            None if main is None else owner_name(mains[main[0]], main),
            main,
            lease.term,
            date_s(lease.renewed) if lease.owner else None,
            at or begin_of(kept, partition),
            problem or more,
        )


def owner_name(record: LeaseRecord, main: tuple[str, int]) -> str | None:
    """Return who has a main lease under a term; None if that one has lost it."""
    return record.owner if record.term == main[1] and record.owner else None


def date_s(text: str) -> float | None:
    """Return the date of a lease's record in Unix seconds; None if it has none."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _lease(records: Records, name: str) -> tuple[LeaseRecord, str]:
    stored = records.read(key_of(name))
    if stored is None:
        return LeaseRecord(name), ""
    try:
        return LeaseRecord.decode(stored.data, name, records.shown), ""
    except LeaseError as error:
        return LeaseRecord(name), str(error)


def _checkpoint(
    records: Records, record: GroupRecord, partition: int
) -> tuple[Checkpoint | None, str]:
    facts = record.facts
    name = checkpoint_name(facts.group, facts.generation, partition)
    place = f"{CHECKPOINTS}{kept_name(name, facts.sources)}"
    stored = records.read(place)
    try:
        kept = None if stored is None else decode_kept(stored.data, f"{records.shown} {place}")
    except CheckpointError as error:
        return None, str(error)
    return None if kept is None else kept.checkpoint, ""
