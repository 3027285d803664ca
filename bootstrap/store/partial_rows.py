"""Rows that lack columns: made whole as they come into a store, or by the seeder later.

A source that is served has whole rows only: an event that lacks a column which
the stored row does not have either is refused, for a value would have to be
guessed. While a source is being seeded its rows may not be there yet; such an
event is taken as it is, and the row waits for the seeder: what the seeder reads
of it is what the columns held, or what they were changed to by an event that is
still to come. Where the seeder meets no such row, it was deleted since, which
the log says before the source is served; or the row came after its place was
read, with columns that nobody logged: then the source is seeded anew.

All functions work within a transaction of the caller's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from databus.bootstrap.store import snapshot_table as snapshot_rows
from databus.bootstrap.store import source_table as source_rows
from databus.bootstrap.store.values import SourceState, SourceStatus, StoredEvent
from databus.bootstrap.store.whole_rows import TextOf, fill, notes_of
from databus.schemas.errors import BootstrapError

Indexed = tuple[int, StoredEvent]


class Seen(NamedTuple):
    """What a window has said of a source so far: rows by key, and whether it was emptied."""

    rows: dict[int | bytes, StoredEvent]
    is_emptied: bool = False


def complete(
    connection: sqlite3.Connection,
    state: SourceState,
    indexed: Sequence[Indexed],
    text_of: TextOf,
    renew: Callable[[bytes], bytes] = lambda event: event,
) -> Sequence[Indexed]:
    """Return a window's events of a source, their rows made whole.

    `renew` gives a stored event with its row as it is by then. Raises
    BootstrapError for one of a source that is served and cannot be.
    """
    if not any(event.is_partial for _, event in indexed):
        return indexed
    seen = Seen({})
    found = []
    for index, event in indexed:
        if event.is_truncate:
            seen = Seen({}, is_emptied=True)
        elif event.is_partial:
            event = _complete(connection, state, event, seen, text_of, renew)
        if not event.is_truncate:
            seen.rows[event.key] = event
        found.append((index, event))
    return found


def complete_chunk(
    connection: sqlite3.Connection,
    state: SourceState,
    events: Sequence[StoredEvent],
    text_of: TextOf,
) -> list[StoredEvent]:
    """Return a chunk's events; for a row that waits for its columns, the row's own, made whole."""
    if state.partial_scn <= state.seed_scn:
        return list(events)
    waiting = snapshot_rows.by_key(connection, state.src_id, [event.key for event in events])
    return [
        _fill_waiting(waiting[event.key].event, waiting[event.key].scn, event, text_of)
        if event.key in waiting and not waiting[event.key].is_deleted
        else event
        for event in events
    ]


def _fill_waiting(row: bytes, scn: int, read: StoredEvent, text_of: TextOf) -> StoredEvent:
    if scn <= read.scn or not notes_of(row).absent:
        return read
    waiting = StoredEvent(scn, read.key, False, row, is_partial=True)
    return fill(waiting, read.event, text_of, lets_go=True).event


def _complete(
    connection: sqlite3.Connection,
    state: SourceState,
    event: StoredEvent,
    seen: Seen,
    text_of: TextOf,
    renew: Callable[[bytes], bytes],
) -> StoredEvent:
    stored = _stored_row(connection, state, event, seen)
    whole, missing = fill(event, None if stored is None else renew(stored), text_of)
    if event.is_deleted or not whole.is_partial:
        return whole._replace(is_partial=False)
    if state.status is SourceStatus.ACTIVE:
        raise BootstrapError(
            f"{state.name}: the row of key {_shown(event.key)} at scn {event.scn} lacks "
            f"{', '.join(missing[:10])}, and the store has no value of it: seed the table again "
            f"(`databus bootstrap seed --source {state.name}`), or have all columns logged "
            "(binlog_row_image = FULL)"
        )
    connection.execute(source_rows.NOTE_PARTIAL, (event.scn, state.src_id))
    return whole


def _stored_row(
    connection: sqlite3.Connection, state: SourceState, event: StoredEvent, seen: Seen
) -> bytes | None:
    """Return the row's last event, also one of the same window; None when there is no row."""
    last = seen.rows.get(event.key)
    if last is not None:
        return None if last.is_deleted else last.event
    if seen.is_emptied:
        return None
    row = snapshot_rows.by_key(connection, state.src_id, [event.key]).get(event.key)
    if row is None or row.is_deleted or not _is_known(state, row.scn):
        return None
    return row.event


def _is_known(state: SourceState, scn: int) -> bool:
    """Whether nothing is missing from a row of this SCN on.

    Before it is seeded a source may have rows from before a hole in its log.
    """
    if state.status is SourceStatus.ACTIVE or scn > state.log_floor_scn:
        return True
    return 0 <= state.seed_scn <= scn


def _shown(key: int | bytes) -> str:
    return str(key) if isinstance(key, int) else key.decode("utf-8", "backslashreplace")
