"""What the tasks of a batch read: ranges that a worker gets as text and reads alone. Pure.

As JSON, not pickled: a worker without this package can then still say so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from databus.client.spark.offsets import InSnapshot, Place, start_of


@dataclass(frozen=True, slots=True)
class LogRange:
    """The windows after `from_scn` up to `to_scn`, of one shard of the keys."""

    physical_source: str
    sources: tuple[str, ...]
    from_scn: int
    to_scn: int
    generation: int
    shard: int = 0
    shards: int = 1


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """The rows after `from_row` up to `to_row` of a source's snapshot, of one shard."""

    physical_source: str
    source: str
    from_row: int
    to_row: int
    at_scn: int
    since_scn: int
    server: str
    store: str
    generation: int
    shard: int = 0
    shards: int = 1


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """No rows: the marks that whole snapshots of these sources are over."""

    physical_source: str
    sources: tuple[str, ...]
    at_scn: int
    generation: int


Range = LogRange | SnapshotRange | SnapshotEnd
_KINDS = {kind.__name__: kind for kind in (LogRange, SnapshotRange, SnapshotEnd)}


def range_to_text(one: Range) -> str:
    """Return it as JSON."""
    return json.dumps({"kind": type(one).__name__, **asdict(one)})


def range_from_text(text: str) -> Range:
    """Read what `range_to_text` wrote."""
    values = json.loads(text)
    kind = _KINDS[values.pop("kind")]
    if "sources" in values:
        values["sources"] = tuple(values["sources"])
    return kind(**values)


def ranges_between(
    physical_source: str, sources: Sequence[str], start: Place | None, end: Place, shards: int
) -> list[Range]:
    """Return what a batch of one physical source reads; raises CheckpointError."""
    if end == start:
        return []
    if isinstance(end, InSnapshot):
        return _of_snapshot(physical_source, start, end, shards)
    if isinstance(start, InSnapshot):
        # A snapshot ends with a batch of its own: only when it is known that all was there.
        if not start.is_whole:
            return []
        return [SnapshotEnd(physical_source, tuple(sources), start.at_scn, start.generation)]
    from_scn = start_of(end, start)
    if from_scn == end.scn:
        return []
    names = tuple(sources)
    return [
        LogRange(physical_source, names, from_scn, end.scn, end.generation, shard, shards)
        for shard in range(shards)
    ]


def _of_snapshot(
    physical_source: str, start: Place | None, end: InSnapshot, shards: int
) -> list[Range]:
    is_further = isinstance(start, InSnapshot) and end.is_same_session(start)
    is_same_source = is_further and start.source == end.source  # type: ignore[union-attr]
    from_row = start.row if is_same_source else 0  # type: ignore[union-attr]
    if from_row == end.row:
        return []
    return [
        SnapshotRange(
            physical_source,
            end.source,
            from_row,
            end.row,
            end.at_scn,
            end.since_scn,
            end.server,
            end.store,
            end.generation,
            shard,
            shards,
        )
        for shard in range(shards)
    ]
