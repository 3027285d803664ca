"""The ranges that the tasks of a batch read. Pure.

A worker gets a range as JSON, not pickled, so that a worker without this package can
still report that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

from databus.client.spark.planning.offsets import (
    NO_PROOF,
    STOCK_RELAY,
    Group,
    InSnapshot,
    Place,
    Proof,
    read_proof,
    start_of,
)


@dataclass(frozen=True, slots=True)
class LogRange:
    """The windows after `from_scn` up to `to_scn`, of the log that `proof` is of."""

    physical_source: str
    sources: tuple[str, ...]
    from_scn: int
    to_scn: int
    proof: Proof = field(default=NO_PROOF, compare=False)

    @property
    def is_stock(self) -> bool:
        """Whether LinkedIn's relays have the windows."""
        return self.physical_source == STOCK_RELAY


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """The rows after `from_row` up to `to_row` of a source's snapshot.

    `is_final`: a snapshot that is no longer valid is an error, as no later batch will
    start another one.
    """

    physical_source: str
    source: str
    from_row: int
    to_row: int
    at_scn: int
    since_scn: int
    server: str
    store: str
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotEnd:
    """No rows, but the marks that end complete snapshots of these sources."""

    physical_source: str
    sources: tuple[str, ...]
    at_scn: int


@dataclass(frozen=True, slots=True)
class ArchiveRange:
    """The windows after `from_scn` up to `to_scn` of one archived segment.

    `manifest` is the text of its manifest.
    """

    physical_source: str
    sources: tuple[str, ...]
    from_scn: int
    to_scn: int
    manifest: str


Range = LogRange | SnapshotRange | SnapshotEnd
_KINDS = {one.__name__: one for one in (LogRange, SnapshotRange, SnapshotEnd, ArchiveRange)}


def range_to_text(one: Range | ArchiveRange) -> str:
    """Return a range as JSON."""
    return json.dumps({"kind": type(one).__name__, **asdict(one)})


def range_from_text(text: str) -> Range | ArchiveRange:
    """Return the range of a text from `range_to_text`."""
    values = json.loads(text)
    kind = _KINDS[values.pop("kind")]
    if "sources" in values:
        values["sources"] = tuple(values["sources"])
    if "proof" in values:
        values["proof"] = read_proof(*values["proof"])
    return kind(**values)


def ranges_between(group: Group, start: Place | None, end: Place) -> list[Range]:
    """Return the ranges of a batch of one group; raises CheckpointError."""
    physical_source, names = group
    if end == start:
        return []
    if isinstance(end, InSnapshot):
        # Another source, or another snapshot, begins at its first row.
        is_further = isinstance(start, InSnapshot) and end.is_same_session(start)
        is_same_source = is_further and start.source == end.source  # type: ignore[union-attr]
        from_row = start.row if is_same_source else 0  # type: ignore[union-attr]
        return [*_rows_up_to(physical_source, from_row, end)]
    if isinstance(start, InSnapshot):
        # The end of a snapshot is a batch of its own, planned once all its rows were read.
        return [SnapshotEnd(physical_source, names, start.at_scn)] if start.is_whole else []
    from_scn = start_of(end, start)
    proof = NO_PROOF if start is None else start.proof
    if proof == NO_PROOF:
        # Then it is the log that it was planned on. The end's mark may be of other sources: one
        # that joins has caught up with them there.
        proof = Proof(log_window=end.proof.log_window)
    one = LogRange(physical_source, names, from_scn, end.scn, proof)
    return [] if from_scn == end.scn else [one]


def ranges_of_whole(one: LogRange, ends: Sequence[InSnapshot]) -> list[Range]:
    """Return the ranges of a batch that reads a whole snapshot instead of its windows.

    `ends`: the end of the rows of each source.
    """
    physical_source, to_scn = one.physical_source, one.to_scn
    found: list[Range] = [
        replace(rows, is_final=True)
        for end in ends
        for rows in _rows_up_to(physical_source, 0, end)
    ]
    sources, snapshot = tuple(end.source for end in ends), ends[0]
    if snapshot.is_whole:
        found.append(SnapshotEnd(physical_source, sources, snapshot.at_scn))
    # A snapshot that is newer than the batch's end has the rest of the batch, too.
    if snapshot.at_scn < to_scn:
        found.append(LogRange(physical_source, sources, snapshot.at_scn, to_scn, one.proof))
    return found


def cut_windows(one: LogRange, scns: Sequence[int]) -> list[LogRange]:
    """Split a range after some of its windows."""
    ends = pairwise([one.from_scn, *scns, one.to_scn])
    return [replace(one, from_scn=after, to_scn=last) for after, last in ends]


def cut_rows(one: SnapshotRange, parts: int) -> list[SnapshotRange]:
    """Split a range of rows into at most `parts` ranges of about equal size."""
    ids = one.to_row - one.from_row
    # A set: with fewer rows than parts, some bounds are equal.
    bounds = sorted({one.from_row + ids * part // parts for part in range(parts + 1)})
    return [replace(one, from_row=after, to_row=last) for after, last in pairwise(bounds)]


def _rows_up_to(physical_source: str, from_row: int, end: InSnapshot) -> list[SnapshotRange]:
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
        )
    ]
