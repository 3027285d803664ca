"""The views of groups: members, partitions with owners and lags, moves. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple

from databus.groups.group_record import slot_and_term
from databus.groups.moves import DAY_S, Move
from databus.groups.names import member_lease, partition_lease
from databus.groups.reading import PartitionState
from databus.leases.sightings import Holding
from databus.relay.cluster.coordinator import Seen, SeenGroup, SeenLease
from databus.relay.cluster.models import (
    CoordinatorView,
    GroupSummary,
    GroupView,
    LeaseView,
    MemberView,
    MoveView,
    PartitionView,
)
from databus.schemas.checkpoint import Checkpoint


class Newest(NamedTuple):
    """The newest window of a source that is known.

    While the source cannot be read there may be later ones (`is_newest` is false).
    """

    scn: int
    at: float
    is_newest: bool


def behind_s(checkpoint: Checkpoint | None, scn: int | None, newest: Newest | None) -> float | None:
    """Return the lag of a partition, between commit times; None if it is unknown."""
    if checkpoint is None or scn is None or newest is None:
        return None
    if scn >= newest.scn:
        return 0.0 if newest.is_newest else None
    if checkpoint.ts_ns <= 0 or newest.at <= 0:
        return None
    return max(0.0, newest.at - checkpoint.ts_ns / 1e9)


def holding_of(main: tuple[str, int] | None, leases: Mapping[str, SeenLease]) -> Holding:
    """Return whether a lease that depends on a main lease is held, as far as that is known."""
    if main is None:
        return Holding.FREE
    lease = leases.get(main[0])
    if lease is None:
        return Holding.UNKNOWN
    if lease.term != main[1] or lease.holding is Holding.FREE:
        return Holding.RUN_OUT  # its owner has lost it, and nobody has taken it yet
    return lease.holding


def partition_view(
    state: PartitionState, leases: Mapping[str, SeenLease], newest: Newest | None
) -> PartitionView:
    """Return the view of a partition."""
    at = state.checkpoint
    return PartitionView(
        partition=state.partition,
        owner=state.owner,
        assigned=state.assigned,
        term=state.term,
        taken_at=state.taken_at,
        holding=holding_of(state.main, leases),
        state=_state(state),
        scn=state.scn,
        committed_at=at.ts_ns / 1e9 if at is not None and at.ts_ns > 0 else None,
        behind_s=behind_s(at, state.scn, newest),
        problem=state.problem,
    )


def _state(state: PartitionState) -> Literal["not_begun", "bootstrap", "online", "unreadable"]:
    if state.checkpoint is None:
        return "unreadable" if state.problem else "not_begun"
    if state.checkpoint.is_bootstrap:
        return "bootstrap"
    return "not_begun" if state.scn is None else "online"


def summary_of(
    group: SeenGroup, leases: Mapping[str, SeenLease], newest: Newest | None, now_s: float
) -> GroupSummary:
    """Return the summary of a group."""
    record, moves = group.record, group.moves
    facts = None if record is None else record.facts
    views = None
    if group.partitions is not None:
        views = [partition_view(one, leases, newest) for one in group.partitions]
    lags = [one.behind_s for one in views or ()]
    unknown = sum(lag is None for lag in lags)
    late = () if moves is None else moves.within(now_s - DAY_S)
    return GroupSummary(
        name=group.name,
        sources=[] if facts is None else list(facts.sources),
        partitions=0 if facts is None else facts.partitions,
        partition_by=[] if facts is None else list(facts.partition_by),
        generation=0 if facts is None else facts.generation,
        room="" if facts is None else facts.room,
        members=0 if record is None else len(record.members),
        owned=None if views is None else sum(map(_is_owned, views)),
        halted="" if record is None else record.halted,
        behind_s=None if unknown else max((lag for lag in lags if lag is not None), default=None),
        unknown_lags=None if views is None else unknown,
        moves=sum(len(one.partitions) for one in late if one.former),
        all_moves=0 if moves is None else moves.total,
        problem=group.problem,
    )


def _is_owned(view: PartitionView) -> bool:
    return view.owner is not None and view.holding in (Holding.HELD, Holding.UNKNOWN)


def group_view(
    group: SeenGroup, seen: Seen, newest: Newest | None, now_s: float, coordinator: CoordinatorView
) -> GroupView:
    """Return a group with its partitions and moves."""
    late = () if group.moves is None else group.moves.within(now_s - DAY_S)
    states = group.partitions or ()
    return GroupView(
        coordinator=coordinator,
        summary=summary_of(group, seen.leases, newest, now_s),
        processes=_members(group, seen.leases),
        partitions=[partition_view(one, seen.leases, newest) for one in states],
        partitions_at=group.partitions_at,
        newest_scn=None if newest is None else newest.scn,
        newest_at=newest.at if newest is not None and newest.at > 0 else None,
        moves=[_move(one) for one in reversed(late)],
        moves_since=None if group.moves is None else max(group.moves.since_s, now_s - DAY_S),
    )


def _members(group: SeenGroup, leases: Mapping[str, SeenLease]) -> list[MemberView]:
    if group.record is None:
        return []
    counts = Counter(group.record.owners.values())
    found = []
    for name, process in group.record.members.items():
        slot, term = slot_and_term(name)
        lease = leases.get(member_lease(group.name, slot))
        found.append(
            MemberView(
                process=process.process,
                room=process.room,
                partitions=counts[name],
                holding=holding_of((member_lease(group.name, slot), term), leases),
                renewed_at=lease.renewed_at if lease is not None and lease.term == term else None,
            )
        )
    return sorted(found, key=lambda one: one.process)


def _move(move: Move) -> MoveView:
    return MoveView(
        at=move.at_s,
        generation=move.generation,
        former=move.former,
        owner=move.owner,
        partitions=list(move.partitions),
    )


def lease_view(lease: SeenLease) -> LeaseView:
    """Return the view of a lease that depends on none."""
    return LeaseView(
        name=lease.name,
        owner=lease.owner,
        term=lease.term,
        ttl_s=lease.ttl_s,
        renewed_at=lease.renewed_at,
        holding=lease.holding,
        depends_on=None,
    )


def partition_lease_view(
    group: str, state: PartitionState, leases: Mapping[str, SeenLease]
) -> LeaseView:
    """Return the view of the lease of a partition."""
    main = leases.get(state.main[0]) if state.main is not None else None
    return LeaseView(
        name=partition_lease(group, state.partition),
        owner=state.owner or "",
        term=state.term,
        ttl_s=0.0 if main is None else main.ttl_s,
        renewed_at=state.taken_at,
        holding=holding_of(state.main, leases),
        depends_on=None if state.main is None else state.main[0],
    )
