"""What Spark tells of a batch, as figures: where a query is, how far behind, how fast. Pure.

Spark gives a query's progress as JSON. Offsets in it are JSON, too, or texts of
it; one that there is not is missing, null, or one of the texts `null` and `None`.
A source is one of format databus when its offset looks like one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from databus.client.spark.planning.offsets import AtScn, InSnapshot, Place, Places, from_offset

_KEYS = frozenset({"physical", "sources", "v"})
_WHOLE = "triggerExecution"  # of durationMs: all the others together


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """A snapshot under way: rows are read up to row `row` (an id of the store) of `source`."""

    source: str
    row: int
    at_scn: int
    since_scn: int  # 0: of the whole table


@dataclass(frozen=True, slots=True)
class PlaceFigures:
    """Where a query is in one physical source.

    `scn`: everything up to it is read; None in a snapshot, or where there was no
    window yet. `newest_scn`: of the newest window that a relay has spoken of,
    None when none has. `lag_s`: from the commit of window `scn` to that of the
    newest, so 0 when all is read, however long ago that was committed; None when
    a time is not known, as right after a snapshot. `stopped`: the state of a
    source that its relay does not capture; then nobody knows the newest, or a lag.
    """

    physical_source: str
    scn: int | None
    newest_scn: int | None = None
    lag_s: float | None = None
    snapshot: SnapshotFigures | None = None
    stopped: str = ""

    @property
    def lag_scn(self) -> int | None:
        """How far it is behind, in SCNs, which are no count of anything; None when not known."""
        if self.scn is None or self.newest_scn is None or self.stopped:
            return None
        return max(0, self.newest_scn - self.scn)


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """One micro-batch.

    `rows` were read from the sources of format databus: a batch that is read by
    two actions counts twice. `rows_out` is what the sink has counted, None when
    it does not, as that of foreachBatch. `parts_s`: what of `duration_s` went
    into which part, in Spark's words (`addBatch` is reading and writing).
    """

    batch_id: int
    rows: int
    rows_per_s: float
    duration_s: float
    parts_s: Mapping[str, float]
    places: tuple[PlaceFigures, ...]
    rows_out: int | None = None


def batch_figures(progress: Mapping[str, Any]) -> BatchFigures | None:
    """Return the figures of a query's progress; None for a query without our sources.

    Raises CheckpointError for an offset of ours that makes no sense.
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
    return BatchFigures(
        batch_id=int(progress["batchId"]),
        rows=sum(int(source.get("numInputRows") or 0) for source, _ in ours),
        # Not there, or null, of a batch that took no time.
        rows_per_s=sum(float(source.get("processedRowsPerSecond") or 0) for source, _ in ours),
        duration_s=float(durations.get(_WHOLE, progress.get("batchDuration", 0))) / 1000,
        parts_s={name: ms / 1000 for name, ms in sorted(durations.items()) if name != _WHOLE},
        places=_places((offset, offset_of(source.get("latestOffset"))) for source, offset in ours),
        rows_out=out if out >= 0 else None,
    )


def offset_of(value: Any) -> Mapping[str, Any] | None:
    """Return an offset of format databus; None for one of another format, or for none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) and value.keys() >= _KEYS else None


def place_figures(name: str, place: Place, newest: Place | None, stopped: str = "") -> PlaceFigures:
    """Return where a query is in a physical source, and how far behind its newest window."""
    at_newest = newest if isinstance(newest, AtScn) and newest.scn >= 0 else None
    newest_scn = None if at_newest is None else at_newest.scn
    if isinstance(place, InSnapshot):
        snapshot = SnapshotFigures(place.source, place.row, place.at_scn, place.since_scn)
        return PlaceFigures(name, None, newest_scn, None, snapshot, stopped)
    scn = place.scn if place.scn >= 0 else None
    lag_s = None if stopped else _lag_s(place, at_newest)
    return PlaceFigures(name, scn, newest_scn, lag_s, stopped=stopped)


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
) -> tuple[PlaceFigures, ...]:
    """Return one place for each physical source: of two in the same, the one farther behind."""
    found: dict[str, PlaceFigures] = {}
    for end, latest in offsets:
        newest = {} if latest is None else _read(latest)
        stopped = end.get("stopped", {})
        for name, place in _read(end).items():
            one = place_figures(name, place, newest.get(name), stopped.get(name, ""))
            if name not in found or _order(one) < _order(found[name]):
                found[name] = one
    return tuple(found[name] for name in sorted(found))


def _read(offset: Mapping[str, Any]) -> Places:
    return from_offset(offset, offset["sources"])


def _order(place: PlaceFigures) -> int:
    return -1 if place.scn is None else place.scn
