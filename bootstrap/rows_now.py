"""What stored rows are now: through every change of their table since they were written. Pure.

A store keeps events as they came. A row that was not written since an ALTER is
told in the table's version of now, at the SCN that it was written at: renamed
and wider columns, defaults of new ones. So whoever reads a store never sees
rows of an older version behind those of a newer one.

What cannot be told that way is not served: its source is seeded anew (`store`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from databus.schemas.errors import BootstrapTooOldError
from databus.schemas.event import Event, Opcode
from databus.schemas.event_v2 import decode, encode
from databus.schemas.metadata import (
    METADATA_DIGESTS,
    Notes,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.rows import RowCodec, row_codec, schema_id
from databus.schemas.table_change import Step, Versions, renewed, shape


class _Way(NamedTuple):
    """How rows of one version become rows of another; no steps: they are as they are."""

    steps: Sequence[Step]
    old: RowCodec
    new: RowCodec
    digest: bytes

    @property
    def is_open(self) -> bool:
        return not any(step.needs_reload or step.is_emptied for step in self.steps)


class RowsNow:
    """The rows of a store as of one SCN, given every schema's text by source id. One thread."""

    def __init__(self, texts: Mapping[int, Sequence[str]], until_scn: int) -> None:
        self._until_scn = until_scn
        self._texts = {schema_id(text): text for listed in texts.values() for text in listed}
        self._versions = {src_id: Versions(listed) for src_id, listed in texts.items()}
        self._changed = {
            src_id: versions.changed_until(until_scn) for src_id, versions in self._versions.items()
        }
        self._ways: dict[tuple[int, bytes, int], _Way | None] = {}

    def text(self, digest: bytes) -> str | None:
        """Return the schema with an id; None when no source has it."""
        return self._texts.get(digest)

    def changed_scn(self, src_id: int) -> int:
        """Return the SCN of the table's last change, before which rows are of older versions."""
        return self._changed.get(src_id, -1)

    def reload_scn(self, src_id: int) -> int:
        """Return the SCN of the last change that rows had to be read again for; -1 for none."""
        versions = self._versions.get(src_id)
        return -1 if versions is None else versions.reload_until(self._until_scn)[0]

    def why_reload(self, src_id: int) -> str:
        """Return why rows had to be read again at `reload_scn`."""
        versions = self._versions.get(src_id)
        return "" if versions is None else versions.reload_until(self._until_scn)[1]

    def renew(self, data: bytes) -> bytes:
        """Return an event with its row as it is now; as it is where there is nothing to tell.

        That is one without a row, and one that was followed by a seeding.
        """
        event, _ = decode(data)
        if event.is_control or event.payload is None:
            return data
        way = self._way(event)
        if way is None or not way.is_open:
            return data
        return encode(_along(event, way))

    def renew_standing(self, data: bytes) -> bytes:
        """Return the event of a snapshot's row; raises BootstrapTooOldError for one to be read."""
        event, _ = decode(data)
        if event.opcode is Opcode.UPSERT and event.payload is not None:
            way = self._way(event)
            if way is not None and not way.is_open:
                why = "; ".join(step.why_reload for step in way.steps if step.why_reload)
                raise BootstrapTooOldError(
                    f"rows of source {event.src_id} must be read again: {why}; ask again later"
                )
        return self.renew(data)

    def _way(self, event: Event) -> _Way | None:
        src_id, digest = event.src_id, event.schema_id
        versions = self._versions.get(src_id)
        if versions is None:
            return None
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
            return None  # nobody says how the one became the other
        return _Way(steps, row_codec(text), row_codec(newest), schema_id(newest))


def _along(event: Event, way: _Way) -> Event:
    """Return an event with its rows in the other version."""
    assert event.payload is not None
    if not way.steps:
        return event._replace(payload=event.payload._replace(digest=way.digest))
    metadata, notes = None, Notes()
    if event.metadata is not None and event.metadata.digest in METADATA_DIGESTS:
        metadata = decode_metadata(event.metadata.data, event.metadata.digest)
        notes = metadata.notes or notes
    value, absent = _row(event.value, notes.absent, way)
    event = event._replace(payload=event.payload._replace(data=value, digest=way.digest))
    if metadata is None:
        return event
    before, before_absent = metadata.before, notes.before_absent
    if before is not None:
        before, before_absent = _row(before, before_absent, way)
    told = Notes(absent, before_absent, _texts(notes.raw, way), _texts(notes.before_raw, way))
    metadata = metadata._replace(before=before, notes=told if any(told) else None)
    return event._replace(metadata=metadata_part(encode_metadata(metadata)))


def _row(data: bytes, absent: Sequence[int], way: _Way) -> tuple[bytes, tuple[int, ...]]:
    row = renewed(way.old.decode(data, absent), way.steps)
    columns = way.new.written_columns
    missing = tuple(at for at, column in enumerate(columns) if column not in row)
    return way.new.encode(row, missing), missing


def _texts(raw: Mapping[str, str], way: _Way) -> Mapping[str, str]:
    """Return the raw texts under the names that their columns have now."""
    for step in way.steps:
        names = {fate.was: fate.column for fate in step.fates if fate.was and fate.type_now}
        raw = {names[column]: text for column, text in raw.items() if column in names}
    return raw
