"""The planned content of a batch, read from the query's own offset log."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from databus.client.spark.planning.offsets import InSnapshot, Place, from_offset, start_of

PHYSICAL = "shop"
HEAD_LINES = 2  # of an offset file: its version, and the batch's figures
# Rows of a snapshot, the end of one, windows, or a snapshot in place of windows that are gone.
Kind = Literal["snapshot", "end", "windows", "instead"]


@dataclass(frozen=True, slots=True)
class Span:
    """A batch: `windows` are those after `from_scn` up to `to_scn`."""

    kind: Kind
    from_scn: int
    to_scn: int
    snapshot: str = ""  # which one, when rows of one come
    is_whole: bool = False


def span_of(checkpoint: Path, batch_id: int) -> Span:
    """Return the span of a planned batch."""
    end, start = _place(checkpoint, batch_id), _place(checkpoint, batch_id - 1)
    if isinstance(end, InSnapshot):
        name = f"{end.since_scn}/{end.at_scn}/{end.store}"
        return Span("snapshot", end.since_scn, end.at_scn, name, end.is_whole)
    assert end is not None, "a batch leads somewhere"
    if isinstance(start, InSnapshot):
        return Span("end", start.at_scn, end.scn, is_whole=start.is_whole)
    return Span("windows", start_of(end, start), end.scn)


def _place(checkpoint: Path, batch_id: int) -> Place | None:
    if batch_id < 0:
        return None
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    return from_offset(json.loads(text.splitlines()[HEAD_LINES])).places.get(PHYSICAL)
