"""The newest rows of a source in a ring, for people who want to see what passes.

Looked for from the ring's end back, a block of its SCN index at a time, so
that what comes first is what is newest. Only so many bytes at the end are
looked at, whatever they hold: of a source that has no row there, none is found;
and of a transaction larger than that, the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from databus.registry.version import SchemaVersion
from databus.relay.admin.models import RowView
from databus.relay.ring.reader import RingReader
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.event import Event
from databus.schemas.event.json import json_value
from databus.schemas.event.metadata import (
    METADATA_DIGESTS,
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
)
from databus.schemas.event.v2 import SMALLEST_BYTES, decode, peek

LOOKED_AT_BYTES = 2 << 20
_STEP_BYTES = 256 << 10
_MOST_CHARS = 1000
_LARGEST_EXACT = 1 << 53  # beyond it JavaScript's numbers skip some

SchemaById = Callable[[bytes], SchemaVersion]


class NewestRows:
    """One look at the end of a ring, a bounded number of bytes a step."""

    def __init__(
        self,
        reader: RingReader,
        source: str,
        src_id: int,
        limit: int,
        schema_by_id: SchemaById,
        max_bytes: int = LOOKED_AT_BYTES,
    ) -> None:
        self._reader = reader
        self._source = source
        self._src_id = src_id
        self._limit = limit
        self._schema_by_id = schema_by_id
        self._left_bytes = max_bytes
        self._steps = self._run()

    def step(self) -> list[RowView] | None:
        """Look further; returns the rows, the newest last, when that was all there is to look."""
        return next(self._steps)

    def _run(self) -> Iterator[list[RowView] | None]:
        events: list[tuple[int, Event]] = []
        end = self._reader.tail
        while len(events) < self._limit and self._left_bytes > 0:
            begin = self._reader.block_before_position(end)
            if begin is None:
                break
            try:
                events = [*(yield from self._look(begin, end)), *events]
            except ScnNotFoundError:
                break  # the writer has come by: what is older is gone
            end = begin
        yield [self._view(index, event) for index, event in events[-self._limit :]]

    def _look(self, begin: int, end: int) -> Generator[None, None, list[tuple[int, Event]]]:
        """Return the source's events of one block, each with its place in its window."""
        found: list[tuple[int, Event]] = []
        length = min(end - begin, self._left_bytes)
        self._left_bytes -= length
        data = self._reader.read(begin, length)
        index = at = looked_at = 0
        while len(data) - at >= SMALLEST_BYTES:
            event = peek(data, at)
            if at + event.length > len(data):
                break
            if event.src_id == self._src_id:
                found.append((index, decode(data, at)[0]))
                del found[: -self._limit]
            index = 0 if event.is_eop else index + 1
            at += event.length
            if at - looked_at >= _STEP_BYTES:
                looked_at = at
                yield
        return found

    def _view(self, index: int, event: Event) -> RowView:
        metadata = _metadata_of(event)
        notes = (metadata and metadata.notes) or Notes()
        row: Mapping[str, Any] = {}
        before = version = None
        if event.payload is not None:
            schema = self._schema_by_id(event.schema_id)
            codec, version = row_codec(schema.text), schema.version
            row = codec.decode(event.payload.data, notes.absent)
            if metadata is not None and metadata.before is not None:
                before = codec.decode(metadata.before, notes.before_absent)
        return RowView(
            scn=event.scn,
            index=index,
            at=event.timestamp_ns / 1e9,
            source=self._source,
            op=_op_of(event, metadata),
            schema_version=version,
            row=_shown_row(row),
            before=None if before is None else _shown_row(before),
        )


def _metadata_of(event: Event) -> EventMetadata | None:
    if event.metadata is None or event.metadata.digest not in METADATA_DIGESTS:
        return None
    return decode_metadata(event.metadata.data, event.metadata.digest)


def _op_of(event: Event, metadata: EventMetadata | None) -> str:
    if metadata is not None:
        return metadata.op.value
    return Op.TRUNCATE.value if event.is_truncate else event.opcode.name.lower()


def _shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON that a page can show: nothing lost but the rest of what is long."""
    return {name: _shown(json_value(value)) for name, value in row.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MOST_CHARS:
        return f"{value[:_MOST_CHARS]}… ({len(value)} characters)"
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
        return str(value)
    return value
