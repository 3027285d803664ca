"""Converts stored rows to the current schema version of their table. Pure.

A store keeps events as they came. A row that was not written since an ALTER is served in
the table's current version, with the SCN at which it was written: columns renamed or
widened, new ones with their defaults. So a reader of a store never sees a row of an older
version after one of a newer version.

Rows that cannot be converted are not served: their source is seeded again (see `store`).

Not every row fits the newest version: NULLs may be filled in before a column becomes NOT
NULL. A row's old value (`before`) is served without the columns that do not fit. An event
of the log whose row does not fit is history, which a later event of that row follows: it
keeps its own version. Only a row of the snapshot must fit. If it does not, the database
has changed the row without logging it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from databus.schemas.avro_rows import RowCodec, row_codec, schema_id
from databus.schemas.errors import RowError, RowsUnknownError
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.metadata import (
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode
from databus.schemas.table_change import Step, Versions, renewed, shape


class _Way(NamedTuple):
    """The conversion from one schema version to another; without steps, rows stay as they are."""

    steps: Sequence[Step]
    old: RowCodec
    new: RowCodec
    digest: bytes

    @property
    def is_open(self) -> bool:
        return not any(step.needs_reload or step.is_emptied for step in self.steps)


class RowsNow:
    """Converts a store's rows as of one SCN, given all schema texts by source id. One thread."""

    def __init__(self, texts: Mapping[int, Sequence[str]], until_scn: int) -> None:
        self._until_scn = until_scn
        self._texts = {schema_id(text): text for listed in texts.values() for text in listed}
        self._versions = {src_id: Versions(listed) for src_id, listed in texts.items()}
        self._changed = {
            src_id: versions.changed_until(until_scn) for src_id, versions in self._versions.items()
        }
        self._ways: dict[tuple[int, bytes, int], _Way | None] = {}

    def text(self, digest: bytes) -> str | None:
        """Return the schema with an id, or None when no source has it."""
        return self._texts.get(digest)

    def changed_scn(self, src_id: int) -> int:
        """Return the SCN of the table's last change; rows before it have older versions."""
        return self._changed.get(src_id, -1)

    def newest(self, src_id: int) -> str | None:
        """Return the text of the schema version that rows are converted to, if it is known."""
        versions = self._versions.get(src_id)
        return None if versions is None else versions.at(self._until_scn)

    def version(self, src_id: int) -> str:
        """Return a text that is another one after each change of the table."""
        text = self.newest(src_id)
        digest = "" if text is None else schema_id(text).hex()
        return f"{digest} since {self.changed_scn(src_id)}"

    def reload_scn(self, src_id: int) -> int:
        """Return the SCN of the last change after which rows had to be read again, or -1."""
        versions = self._versions.get(src_id)
        return -1 if versions is None else versions.reload_until(self._until_scn)[0]

    def why_reload(self, src_id: int) -> str:
        """Return why rows had to be read again at `reload_scn`."""
        versions = self._versions.get(src_id)
        return "" if versions is None else versions.reload_until(self._until_scn)[1]

    def renew(self, data: bytes) -> bytes:
        """Return an event with its row in the newest version, or unchanged.

        Unchanged are events without a row, events that a seeding followed, and events
        whose row does not fit the newest version.
        """
        event, way = self._open_way(data)
        if way is None:
            return data
        now = _along(event, way)
        return data if now.misfits else encode(now.event)

    def renew_known(self, data: bytes) -> bytes:
        """Return an event that columns are copied from: without the columns that do not fit."""
        event, way = self._open_way(data)
        return data if way is None else encode(_along(event, way).event)

    def renew_standing(self, data: bytes) -> bytes:
        """Return a snapshot row's event in the newest version.

        Raises RowsUnknownError for a row that cannot be converted and for one that does
        not fit. Rows that had to be read again were read again; those left have a version
        that is not known.
        """
        event, _ = decode(data)
        if event.opcode is not Opcode.UPSERT or event.payload is None:
            return self.renew(data)
        way = self._way(event)
        if way is None:
            return data
        if not way.is_open:
            closed = [step for step in way.steps if step.needs_reload or step.is_emptied]
            why = "; ".join(step.why_reload for step in closed if step.why_reload)
            raise RowsUnknownError(way.new.source, closed[-1].scn, why)
        now = _along(event, way)
        if now.misfits:
            raise RowsUnknownError(way.new.source, way.steps[-1].scn, now.misfits[0])
        return encode(now.event)

    def _open_way(self, data: bytes) -> tuple[Event, _Way | None]:
        event, _ = decode(data)
        way = None if event.is_control or event.payload is None else self._way(event)
        return event, way if way is not None and way.is_open else None

    def _way(self, event: Event) -> _Way | None:
        src_id, digest = event.src_id, event.schema_id
        versions = self._versions.get(src_id)
        if versions is None:
            return None
        # The steps depend on the row's version and on the changes since, not on the event.
        known = (src_id, digest, versions.place(event.scn))
        if known not in self._ways:
            self._ways[known] = self._find_way(versions, digest, event.scn)
        return self._ways[known]

    def _find_way(self, versions: Versions, digest: bytes, scn: int) -> _Way | None:
        text, newest = self._texts.get(digest), versions.at(self._until_scn)
        if text is None or newest is None:
            return None
        steps = versions.since(text, scn, self._until_scn)
        if not steps and (text == newest or shape(text) != shape(newest)):
            return None  # the step between these versions is not known
        return _Way(steps, row_codec(text), row_codec(newest), schema_id(newest))


class _Along(NamedTuple):
    """A converted event; `misfits` are the columns of its row that do not fit."""

    event: Event
    misfits: Sequence[str] = ()


class _Row(NamedTuple):
    data: bytes
    absent: tuple[int, ...]
    misfits: Sequence[str] = ()


def _along(event: Event, way: _Way) -> _Along:
    """Return an event converted to another version, without the columns that do not fit."""
    assert event.payload is not None
    if not way.steps:
        return _Along(event._replace(payload=event.payload._replace(digest=way.digest)))
    metadata, notes = None, Notes()
    if event.metadata is not None and event.metadata.digest in METADATA_DIGESTS:
        metadata = decode_metadata(event.metadata.data, event.metadata.digest)
        notes = metadata.notes or notes
    row = _row(event.value, notes.absent, way)
    event = event._replace(payload=event.payload._replace(data=row.data, digest=way.digest))
    before, before_absent = None if metadata is None else metadata.before, notes.before_absent
    if before is not None:
        before, before_absent, _ = _row(before, before_absent, way)
    renewed_notes = Notes(
        row.absent, before_absent, _texts(notes.raw, way), _texts(notes.before_raw, way)
    )
    if metadata is None:
        if not row.absent:
            return _Along(event)
        # Only metadata can say which columns are absent.
        metadata = EventMetadata(Op.SNAPSHOT)
    metadata = metadata._replace(before=before, notes=renewed_notes if any(renewed_notes) else None)
    part = metadata_part(encode_metadata(metadata))
    return _Along(event._replace(metadata=part), row.misfits)


def _row(data: bytes, absent: Sequence[int], way: _Way) -> _Row:
    row = renewed(way.old.decode(data, absent), way.steps)
    misfits: list[str] = []
    columns = way.new.written_columns
    while True:
        missing = tuple(at for at, column in enumerate(columns) if column not in row)
        try:
            return _Row(way.new.encode(row, missing), missing, misfits)
        # It names one column that does not fit: try again without that.
        except RowError as error:
            if error.column not in row:
                raise
            del row[error.column]
            misfits.append(str(error))


def _texts(raw: Mapping[str, str], way: _Way) -> Mapping[str, str]:
    """Return the raw texts under the current names of their columns."""
    for step in way.steps:
        names = {fate.was: fate.column for fate in step.fates if fate.was and fate.type_now}
        raw = {names[column]: text for column, text in raw.items() if column in names}
    return raw
