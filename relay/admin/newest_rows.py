"""The newest rows of a source in a ring, shown to people.

The search goes backwards from the ring's end, one block of its SCN index at a time. It reads
a limited number of bytes: no rows are found of a source without rows there, and only the
first rows of a transaction that is larger.
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
from databus.schemas.event.metadata import EventMetadata, Notes, Op, metadata_of
from databus.schemas.event.v2 import SMALLEST_BYTES, decode, peek

SEARCHED_BYTES = 2 << 20
_STEP_BYTES = 256 << 10
_MOST_CHARS = 1000
_LARGEST_EXACT = 1 << 53  # above it JavaScript's numbers are inexact

SchemaById = Callable[[bytes], SchemaVersion]


class NewestRows:
    """One search at the end of a ring, a limited number of bytes per step."""

    def __init__(
        self,
        reader: RingReader,
        source: str,
        src_id: int,
        limit: int,
        schema_by_id: SchemaById,
        max_bytes: int = SEARCHED_BYTES,
    ) -> None:
        self._reader = reader
        self._source = source
        self._src_id = src_id
        self._limit = limit
        self._schema_by_id = schema_by_id
        self._left_bytes = max_bytes
        self._steps = self._run()

    def step(self) -> list[RowView] | None:
        """Continue the search; return the rows, the newest last, when it is complete."""
        return next(self._steps)

    def _run(self) -> Iterator[list[RowView] | None]:
        events: list[tuple[int, Event]] = []
        end = self._reader.tail
        while len(events) < self._limit and self._left_bytes > 0:
            begin = self._reader.block_before_position(end)
            if begin is None:
                break
            try:
                events = [*(yield from self._search(begin, end)), *events]
            except ScnNotFoundError:
                break  # overwritten meanwhile, like everything older
            end = begin
        yield [self._view(index, event) for index, event in events[-self._limit :]]

    def _search(self, begin: int, end: int) -> Generator[None, None, list[tuple[int, Event]]]:
        """Return the source's events of one block, each with its index in its window."""
        found: list[tuple[int, Event]] = []
        length = min(end - begin, self._left_bytes)
        self._left_bytes -= length
        data = self._reader.read(begin, length)
        index = at = yielded_at = 0
        while len(data) - at >= SMALLEST_BYTES:
            event = peek(data, at)
            if at + event.length > len(data):
                break
            if event.src_id == self._src_id:
                found.append((index, decode(data, at)[0]))
                # Only the newest rows of the block are needed.
                del found[: -self._limit]
            # Rows are numbered within their window.
            index = 0 if event.is_eop else index + 1
            at += event.length
            if at - yielded_at >= _STEP_BYTES:
                yielded_at = at
                yield
        return found

    def _view(self, index: int, event: Event) -> RowView:
        metadata = metadata_of(event)
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


def _op_of(event: Event, metadata: EventMetadata | None) -> str:
    if metadata is not None:
        return metadata.op.value
    return Op.TRUNCATE.value if event.is_truncate else event.opcode.name.lower()


def _shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON for the page; only long values are cut."""
    return {name: _shown(json_value(value)) for name, value in row.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MOST_CHARS:
        return f"{value[:_MOST_CHARS]}… ({len(value)} characters)"
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
        return str(value)
    return value
