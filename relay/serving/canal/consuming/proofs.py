"""What a cursor has of its log, so that another log is recognised when it is read again.

An SCN alone proves nothing: another log may have one just there. So a cursor has a window with
rows, of any table, that its log had (`mark`). Where no row was captured before a cursor, it has the
timestamp of its own, empty window: the same relay may still hold it.
"""

from __future__ import annotations

from databus.relay.physical_source import PhysicalSource
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.consuming.cursors import checkpoint_of
from databus.relay.serving.reading.marks import mark_up_to
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import RelayLogError, RingError


def marked(
    source: PhysicalSource,
    place: Place,
    before: Checkpoint | None,
    src_ids: frozenset[int] | None,
    *,
    looks: bool,
) -> Checkpoint:
    """Return what is kept of a place that was reached just now.

    `before` is what was kept last. `looks`: search the ring for rows that the consumer did not get,
    of the sources `src_ids` first.
    """
    scn, offset = place.settled
    mark = None if before is None else before.mark
    if place.rows_scn > 0 and (mark is None or mark[0] < place.rows_scn):
        found = source.reader.window_at(place.rows_scn)
        if found is not None and found[0] == place.rows_scn:
            mark = found
    if mark is None or (looks and mark[0] < scn):
        mark = mark_up_to(source.reader, scn, src_ids) or mark
    is_empty = mark is None and offset == WINDOW_DONE
    return checkpoint_of(place, mark, _timestamp_of(source, scn) if is_empty else -1)


def is_proved(source: PhysicalSource, kept: Checkpoint) -> bool:
    """Return whether a cursor can be read on: its mark is checked then, or its log is this one."""
    if kept.mark is not None:
        return True
    return kept.ts_ns > 0 and _timestamp_of(source, kept.window_scn) == kept.ts_ns


def _timestamp_of(source: PhysicalSource, scn: int) -> int:
    """Return the timestamp of a window; -1 if it is not held."""
    try:
        found = source.history.window_at(scn)
    except (RingError, RelayLogError):
        return -1
    return found[1] if found is not None and found[0] == scn else -1
