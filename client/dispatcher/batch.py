"""Joins the windows that are waiting into batches of whole windows. Pure, but for the buffer.

A batch is delivered, replayed and checkpointed like one window: it begins after the window before
it and ends with its last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from databus.client.puller.buffer import Buffer
from databus.client.puller.buffer_items import BufferItem, ReadWindow
from databus.schemas.stream.row_event import joined, runs_in, schema_of, schemas_in
from databus.schemas.stream.row_reader import RowWindow


def join_waiting(first: ReadWindow, buffer: Buffer[BufferItem], rows: int) -> ReadWindow:
    """Return a window joined with those waiting behind it, of at most `rows` rows in all.

    Never waits. A window that is larger stays alone, and so does one with DDL. Rows of another
    schema version begin another batch, so a consumer is notified of the version between two
    batches. A batch begins and ends with a window that has rows: only that may be the mark of a
    checkpoint, which every server must have.
    """
    total = len(first.window.events)
    if not total or total >= rows or first.window.statements:
        return first
    joined, empty = [first.window], 0
    versions = _versions(first.window)
    while isinstance(item := buffer.peek(empty), ReadWindow):
        window = item.window
        if window.statements or item.bindings is not first.bindings:
            break
        if not window.events:
            empty += 1
            continue
        total += len(window.events)
        if total > rows or not _fits(window, versions):
            break
        skipped = [buffer.take() for _ in range(empty)] if empty else ()
        # The buffer may be closed in between.
        if buffer.take() is not item:
            break
        joined += [one.window for one in skipped if isinstance(one, ReadWindow)]
        joined.append(window)
        empty = 0
    return first if len(joined) == 1 else _join(first, joined)


def _join(first: ReadWindow, windows: Sequence[RowWindow]) -> ReadWindow:
    events = joined([window.events for window in windows])
    size_bytes = sum([window.size_bytes for window in windows])
    last = windows[-1]
    whole = RowWindow(last.scn, last.timestamp_ns, events, size_bytes)
    with_rows = sum([1 for window in windows if window.events])
    return ReadWindow(whole, first.bindings, first.since, with_rows)


def _versions(window: RowWindow) -> dict[int, bytes]:
    return dict(schemas_in(window.events).keys())


def _fits(window: RowWindow, versions: dict[int, bytes]) -> bool:
    """Say whether all rows have the schema versions of the batch; add those of new sources."""
    # The usual case, and cheap: nothing is made for windows of one row.
    for run in runs_in(window.events):
        src_id, digest = schema_of(run)
        if versions.get(src_id) != digest:
            break
    else:
        return True
    own = _versions(window)
    if any(versions.get(src_id, digest) != digest for src_id, digest in own.items()):
        return False
    versions.update(own)
    return True
