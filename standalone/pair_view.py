"""What the relay's page says of the pair in the same process."""

from __future__ import annotations

from databus.bootstrap.admin.status import StoreStatus
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.relay_monitor import behind_s
from databus.bootstrap.server.checks import seeded_percent
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.relay.admin.page_parts.bootstrap_beside import (
    PairedSource,
    PairedState,
    PairedTable,
    Pairs,
)

_STATES: dict[SourceStatus, PairedState] = {
    SourceStatus.NEW: "waiting",
    SourceStatus.SEEDING: "seeding",
    SourceStatus.SEEDING_CATCH_UP: "catching_up",
    SourceStatus.ACTIVE: "serving",
    SourceStatus.INACTIVE: "stopped",
    SourceStatus.FELL_OFF_RELAY: "behind",
}
_WORST_FIRST: tuple[PairedState, ...] = (
    *("stopped", "behind", "paused", "seeding", "catching_up", "waiting", "serving"),
)


def pairs_of(pair: Pair, url: str) -> Pairs:
    """Return the state of each store of a pair, and of its tables."""
    problems = pair.problems()
    return Pairs(
        url=url,
        sources=[
            _source(pair, name, store, problems.get(name, []))
            for name, store in pair.stores.items()
        ],
    )


def _source(pair: Pair, name: str, store: StoreStatus, problems: list[str]) -> PairedSource:
    tables = [_table(pair, name, store, one) for one in store.sources]
    point = pair.relays.newest.get(name)
    is_current = point is not None and name not in pair.relays.troubles
    return PairedSource(
        physical_source=name,
        where="this process",
        state="paused" if pair.is_paused(name) else _worst(tables, is_well=not problems),
        scn=store.scn if store.scn >= 0 else None,
        behind_s=behind_s(point, store.scn, store.timestamp_ns) if point and is_current else None,
        problems=problems,
        tables=tables,
    )


def _worst(tables: list[PairedTable], *, is_well: bool) -> PairedState:
    states = {table.state for table in tables} or {"waiting"}
    if not is_well and states == {"serving"}:
        return "behind"  # what is there is served, and does not get newer
    return next(state for state in _WORST_FIRST if state in states)


def _table(pair: Pair, name: str, store: StoreStatus, source: SourceState) -> PairedTable:
    is_read = source.status is SourceStatus.SEEDING
    rate = pair.seed_rates.rows_per_s(name, source.name)
    left = source.seed_estimate - source.seed_rows
    sizes = store.sizes.sources.get(source.name) if store.sizes else None
    seeded = source.seed_rows if is_read else None
    return PairedTable(
        source=source.name,
        state=_STATES[source.status],
        rows=seeded if sizes is None or is_read else sizes.rows,
        estimate=source.seed_estimate if is_read and source.seed_estimate > 0 else None,
        percent=seeded_percent(source) if is_read else None,
        left_s=left / rate if is_read and rate and left > 0 else None,
        problem=source.problem,
    )
