"""Completes rows that lack columns, as they enter a store or when the seeder reads them.

With `partial_rows = "deliver"` a source sends events without the columns that the server
did not log. Such a column is unchanged, so its value is in the stored row with that key.
Snapshot and log both get the whole row, because a consumer may receive the log alone and
has no row to complete it from.

A source that is served has whole rows only. An event is refused when the stored row lacks
the column as well, since its value would be a guess. While a source is being seeded, its
rows may not be stored yet: the event is stored as it is, and its row waits for the
seeder. The seeder reads the value that the column had, or one that a later event sets. If
the seeder finds no such row, either it was deleted since, and the log says so before the
source is served; or the row was inserted behind the seeder's position, with columns that
were not logged: then the source is seeded again.

All functions run inside the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from databus.bootstrap.store import snapshot_table, source_table
from databus.bootstrap.store.values import SourceState, SourceStatus, StoredEvent
from databus.schemas.avro_rows import Row, RowCodec, row_codec
from databus.schemas.errors import BootstrapError, RowError
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    decode_metadata,
    encode_metadata,
    metadata_of,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode

Indexed = tuple[int, StoredEvent]


class Seen(NamedTuple):
    """The events of one window and source so far: rows by key, and whether it was truncated."""

    rows: dict[int | bytes, StoredEvent]
    is_emptied: bool = False


def complete(
    connection: sqlite3.Connection,
    state: SourceState,
    indexed: Sequence[Indexed],
    text_of: TextOf,
    renew: Callable[[bytes], bytes] = lambda event: event,
) -> Sequence[Indexed]:
    """Return a window's events of a source with their rows completed.

    `renew` converts a stored event to the current schema version. Raises BootstrapError
    when a row of a served source cannot be completed.
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
    """Return a chunk's events; a row that waits for columns gets its own event, completed."""
    if state.partial_scn <= state.seed_scn:
        return list(events)
    waiting = snapshot_table.by_key(connection, state.src_id, [event.key for event in events])
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
    # Nobody needs the columns of a deleted row.
    if event.is_deleted or not whole.is_partial:
        return whole._replace(is_partial=False)
    if state.status is SourceStatus.ACTIVE:
        raise BootstrapError(
            f"{state.name}: the row of key {_shown(event.key)} at scn {event.scn} lacks "
            f"{', '.join(missing[:10])}, and the store has no value of it: seed the table again "
            f"(`databus bootstrap seed --source {state.name}`), or have all columns logged "
            "(binlog_row_image = FULL)"
        )
    # Whoever would need this event from the log gets the snapshot instead (`ACTIVATE`).
    connection.execute(source_table.NOTE_PARTIAL, (event.scn, state.src_id))
    return whole


def _stored_row(
    connection: sqlite3.Connection, state: SourceState, event: StoredEvent, seen: Seen
) -> bytes | None:
    """Return the row's last event, including events of this window; None without a row."""
    last = seen.rows.get(event.key)
    if last is not None:
        return None if last.is_deleted else last.event
    if seen.is_emptied:
        return None
    row = snapshot_table.by_key(connection, state.src_id, [event.key]).get(event.key)
    if row is None or row.is_deleted or not _is_known(state, row.scn):
        return None
    return row.event


def _is_known(state: SourceState, scn: int) -> bool:
    """Return whether the log has every change of a row since this SCN.

    Before it is seeded, a source may have rows from before a gap in its log.
    """
    if state.status is SourceStatus.ACTIVE or scn > state.log_floor_scn:
        return True
    return 0 <= state.seed_scn <= scn


def _shown(key: int | bytes) -> str:
    return str(key) if isinstance(key, int) else key.decode("utf-8", "backslashreplace")


TextOf = Callable[[bytes], str]  # returns the schema with an id, or raises BootstrapError


class Whole(NamedTuple):
    """A completed event; `missing` are the columns whose values are still unknown."""

    event: StoredEvent
    missing: tuple[str, ...]


class _KnownRow(NamedTuple):
    """The known columns of a row, and those of them that are raw texts."""

    values: Mapping[str, Any]
    raw: Mapping[str, str]


_NOTHING_KNOWN = _KnownRow({}, {})


def fill(
    partial: StoredEvent, stored: bytes | None, text_of: TextOf, *, lets_go: bool = False
) -> Whole:
    """Return the event with its absent columns taken from the row's stored event.

    A column that is absent there too keeps its filler and its annotation. With `lets_go`,
    columns that the stored row's schema does not have lose the annotation: the table has
    no such column any more. Raises ProtocolError for a damaged event.
    """
    event, _ = decode(partial.event)
    metadata = _metadata_of(event)
    notes = metadata.notes or Notes()
    codec = row_codec(text_of(event.schema_id))
    known = _NOTHING_KNOWN if stored is None else _known(stored, text_of)
    # Columns that the database's row does not have any more.
    gone = frozenset(codec.written_columns).difference(known.values) if lets_go else frozenset()
    value, absent, raw = _filled(codec, event.value, notes.absent, notes.raw, known, gone)
    before, before_absent, before_raw = metadata.before, notes.before_absent, notes.before_raw
    if before is not None:
        before, before_absent, before_raw = _filled(
            codec, before, before_absent, before_raw, known, gone
        )
    filled = Notes(absent, before_absent, raw, before_raw)
    metadata = metadata._replace(before=before, notes=filled if any(filled) else None)
    assert event.payload is not None
    whole = event._replace(
        payload=event.payload._replace(data=value),
        metadata=metadata_part(encode_metadata(metadata)),
    )
    missing = tuple(codec.written_columns[at] for at in absent)
    return Whole(partial._replace(event=encode(whole), is_partial=bool(absent)), missing)


def notes_of(event: bytes) -> Notes:
    """Return an event's annotations, which may be empty."""
    metadata = metadata_of(decode(event)[0])
    return (metadata and metadata.notes) or Notes()


def _metadata_of(event: Event) -> EventMetadata:
    assert event.metadata is not None, "only metadata says that columns are absent"
    return decode_metadata(event.metadata.data, event.metadata.digest)


def _known(stored: bytes, text_of: TextOf) -> _KnownRow:
    event, _ = decode(stored)
    notes = notes_of(stored)
    return _KnownRow(
        row_codec(text_of(event.schema_id)).decode(event.value, notes.absent), notes.raw
    )


def _filled(
    codec: RowCodec,
    data: bytes,
    absent: tuple[int, ...],
    raw: Mapping[str, str],
    known: _KnownRow,
    gone: frozenset[str],
) -> tuple[bytes, tuple[int, ...], Mapping[str, str]]:
    """Return the row's bytes with the known values, the columns still absent, the raw texts.

    A value that does not fit the schema, because the column was altered, counts as unknown.
    """
    if not absent:
        return data, (), raw
    row = codec.decode(data)
    columns = codec.written_columns
    found = {columns[at] for at in absent if columns[at] in known.values}
    found -= _misfits(codec, row, known, found)
    texts = {**raw, **{column: known.raw[column] for column in found & known.raw.keys()}}
    return (
        codec.encode({**row, **{column: known.values[column] for column in found}}),
        tuple(at for at in absent if columns[at] not in found | gone),
        {column: texts[column] for column in columns if column in texts},
    )


def _misfits(codec: RowCodec, row: Row, known: _KnownRow, columns: set[str]) -> set[str]:
    """Return the columns whose known values do not fit the schema."""

    def fits(*names: str) -> bool:
        try:
            codec.encode({**row, **{name: known.values[name] for name in names}})
        except RowError:
            return False
        return True

    # One by one only after a failure: nearly always all fit.
    return set() if fits(*columns) else {column for column in columns if not fits(column)}
