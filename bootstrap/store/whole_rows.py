"""From an event whose row lacks columns to one whose row is whole. Pure.

A source with `partial_rows = "deliver"` gives events without the columns that
the server did not log. What such a column holds is what it held before: the
stored row of that key says it. Both the snapshot and the log get the whole
row, for whoever reads a page has no row to fill it from: a catch-up may be all
that a consumer is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from databus.bootstrap.store.values import StoredEvent
from databus.schemas.avro_rows import Row, RowCodec, row_codec
from databus.schemas.errors import RowError
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import (
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode

TextOf = Callable[[bytes], str]  # the schema with an id; raises BootstrapError for none


class Whole(NamedTuple):
    """What became of an event; `missing` are the row's columns that are not known."""

    event: StoredEvent
    missing: tuple[str, ...]


class _KnownRow(NamedTuple):
    """What is known of a row: its columns, and the raw texts among them."""

    values: Mapping[str, Any]
    raw: Mapping[str, str]


_NOTHING_KNOWN = _KnownRow({}, {})


def fill(
    partial: StoredEvent, stored: bytes | None, text_of: TextOf, *, lets_go: bool = False
) -> Whole:
    """Return the event with what it lacks taken from the row's stored event.

    Columns that are not there either keep their filler and stay noted as absent.
    With `lets_go` those that the stored row's schema does not have are no longer:
    the table has no such column any more. Raises ProtocolError for damage.
    """
    event, _ = decode(partial.event)
    metadata = _metadata_of(event)
    notes = metadata.notes or Notes()
    codec = row_codec(text_of(event.schema_id))
    known = _NOTHING_KNOWN if stored is None else _known(stored, text_of)
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
    """Return an event's notes, empty ones where it has none."""
    metadata = decode(event)[0].metadata
    if metadata is None or metadata.digest not in METADATA_DIGESTS:
        return Notes()
    return decode_metadata(metadata.data, metadata.digest).notes or Notes()


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
    """Return the row's bytes with what is known, the columns that are absent still, the raw texts.

    A value that the schema has no place for, since the column was altered, is not known.
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
    """Return which of the columns' known values have no place in the schema."""

    def fits(*names: str) -> bool:
        try:
            codec.encode({**row, **{name: known.values[name] for name in names}})
        except RowError:
            return False
        return True

    # One by one only where it matters: nearly always all fit.
    return set() if fits(*columns) else {column for column in columns if not fits(column)}
