"""Parse the progress of a batch from Spark: a query's place, lag and speed. Pure.

Spark reports a query's progress as JSON. Offsets in it are JSON objects or their
texts; a missing offset is absent, null, or the text `null` or `None`. A source is of
format databus if its offset has that form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from databus.client.spark.planning.offsets import AtScn, InSnapshot, Place, from_offset
from databus.client.spark.planning.planner import SNAPSHOT

_KEYS = frozenset({"physical", "sources", "v"})
_WHOLE = "triggerExecution"  # the part of durationMs that is the total of the others


@dataclass(frozen=True, slots=True)
class SnapshotStats:
    """An unfinished snapshot: rows are read up to row `row` (an id of the store) of `source`."""

    source: str
    row: int
    at_scn: int
    since_scn: int  # 0: of the whole table


@dataclass(frozen=True, slots=True)
class PlaceStats:
    """A query's place in one physical source.

    `scn`: everything up to it is read; None in a snapshot, or before the first window.
    `newest_scn`: the newest window that a relay has reported, or None. `lag_s`: from
    the commit of window `scn` to that of the newest window, so 0 when everything is
    read, however old it is; None if a time is not known, as right after a snapshot.
    `stopped`: the state of a source that its relay does not capture; then the newest
    SCN and the lag are not known. `rung`: where the last batch was read from, `relay`,
    or the `log` or a `snapshot` of a bootstrap server; "" if not known.
    """

    physical_source: str
    scn: int | None
    newest_scn: int | None = None
    lag_s: float | None = None
    snapshot: SnapshotStats | None = None
    stopped: str = ""
    rung: str = ""

    @property
    def lag_scn(self) -> int | None:
        """The lag in SCNs, whose difference is not a count; None if not known."""
        if self.scn is None or self.newest_scn is None or self.stopped:
            return None
        return max(0, self.newest_scn - self.scn)


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One micro-batch.

    `rows`: read from sources of format databus; a batch that two actions read counts
    twice. `rows_out`: counted by the sink; None if it does not count, like
    foreachBatch. `parts_s`: the parts of `duration_s` under Spark's names (`addBatch`
    is reading and writing).
    """

    batch_id: int
    rows: int
    rows_per_s: float
    duration_s: float
    parts_s: Mapping[str, float]
    places: tuple[PlaceStats, ...]
    rows_out: int | None = None

    @property
    def scns(self) -> dict[str, int]:
        """By physical source, the SCN up to which everything is read; none in a snapshot."""
        return {one.physical_source: one.scn for one in self.places if one.scn is not None}

    @property
    def newest_scns(self) -> dict[str, int]:
        """By physical source, the newest SCN that a relay has reported."""
        return {
            one.physical_source: one.newest_scn for one in self.places if one.newest_scn is not None
        }

    @property
    def lag_s(self) -> float | None:
        """The lag of the physical source that is furthest behind; None if none is known."""
        return max((one.lag_s for one in self.places if one.lag_s is not None), default=None)

    @property
    def stopped(self) -> dict[str, str]:
        """The states of the physical sources that are not captured."""
        return {one.physical_source: one.stopped for one in self.places if one.stopped}


def batch_stats(progress: Mapping[str, Any]) -> BatchStats | None:
    """Return the stats of a query's progress; None for a query of other formats.

    Raises CheckpointError for a malformed offset of format databus.
    """
    ours = [
        (source, offset)
        for source in progress.get("sources", ())
        if (offset := offset_of(source.get("endOffset"))) is not None
    ]
    if not ours:
        return None
    durations = progress.get("durationMs", {})
    out = int(progress.get("sink", {}).get("numOutputRows", -1))
    return BatchStats(
        batch_id=int(progress["batchId"]),
        rows=sum(int(source.get("numInputRows") or 0) for source, _ in ours),
        # Missing or null for a batch that took no time.
        rows_per_s=sum(float(source.get("processedRowsPerSecond") or 0) for source, _ in ours),
        duration_s=float(durations.get(_WHOLE, progress.get("batchDuration", 0))) / 1000,
        parts_s={name: ms / 1000 for name, ms in sorted(durations.items()) if name != _WHOLE},
        places=_places((offset, offset_of(source.get("latestOffset"))) for source, offset in ours),
        rows_out=out if out >= 0 else None,
    )


def offset_of(value: Any) -> Mapping[str, Any] | None:
    """Return an offset of format databus; None for another format, or a missing offset."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) and value.keys() >= _KEYS else None


def place_stats(
    name: str, place: Place, newest: Place | None, stopped: str = "", rung: str = ""
) -> PlaceStats:
    """Return a query's place in a physical source, and its lag behind the newest window."""
    at_newest = newest if isinstance(newest, AtScn) and newest.scn >= 0 else None
    newest_scn = None if at_newest is None else at_newest.scn
    if isinstance(place, InSnapshot):
        snapshot = SnapshotStats(place.source, place.row, place.at_scn, place.since_scn)
        return PlaceStats(name, None, newest_scn, None, snapshot, stopped, SNAPSHOT)
    scn = place.scn if place.scn >= 0 else None
    lag_s = None if stopped else _lag_s(place, at_newest)
    return PlaceStats(name, scn, newest_scn, lag_s, stopped=stopped, rung=rung)


def _lag_s(place: AtScn, newest: AtScn | None) -> float | None:
    if newest is None:
        return None
    if place.scn >= newest.scn:
        return 0.0
    if not place.time_ms or not newest.time_ms:
        return None
    return max(0, newest.time_ms - place.time_ms) / 1000


def _places(
    offsets: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
) -> tuple[PlaceStats, ...]:
    """Return one place per physical source; of several in the same one, the furthest behind."""
    found: dict[str, PlaceStats] = {}
    for end, latest in offsets:
        newest = {} if latest is None else _read(latest)
        rungs = {} if latest is None else latest.get("rungs", {})
        stopped = end.get("stopped", {})
        for name, place in _read(end).items():
            told = stopped.get(name, ""), rungs.get(name, "")
            one = place_stats(name, place, newest.get(name), *told)
            # The query as a whole is only as far as its slowest source.
            if name not in found or _order(one) < _order(found[name]):
                found[name] = one
    return tuple(found[name] for name in sorted(found))


def _read(offset: Mapping[str, Any]) -> Mapping[str, Place]:
    return from_offset(offset).places


def _order(place: PlaceStats) -> int:
    return -1 if place.scn is None else place.scn
