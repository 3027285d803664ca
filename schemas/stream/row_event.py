"""One row's event as a client's readers return it, and sequences of them.

Most of a window's events stay packed in the response's bytes until somebody looks at them:
`PackedRows` of the compiled `_row_cutter`, a sequence like the tuple that Python's reader returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from databus.schemas.event import v2 as event_v2
from databus.schemas.event.event import CRC32_BYTES, MD5_BYTES, Event, Opcode, Part
from databus.schemas.event.layout import (
    CRC32_PART_BYTES,
    MD5_PART_BYTES,
    PART,
    V2_LONG_KEY_HEADER_BYTES as HEADER_BYTES,
    V2_SMALLEST_BYTES,
    VERSION_SHIFT,
    struct_of,
)

# One row's event, with its own bytes. `place` is the offset of the payload's part in them: parts
# are copied only on demand, and a store takes the whole. If `wire_bytes` must encode the event,
# the bytes begin with a header of zeros.
#   SCN, timestamp (ns), src_id, partition id, key, opcode, digest of the row's
#   schema, digest of the metadata's (None = no metadata), bytes, place, is plain:
#   there is a row, and the metadata is known to have no notes on it
RowEvent = tuple[int, int, int, int, int | bytes, int, bytes, bytes | None, bytes, int, bool]
SCN: Final = 0
TIMESTAMP_NS: Final = 1
SRC_ID: Final = 2
KEY: Final = 4
OPCODE: Final = 5
ROW_DIGEST: Final = 6
METADATA_DIGEST: Final = 7
WIRE: Final = 8
PLACE: Final = 9
IS_PLAIN: Final = 10
NO_ROW_DIGEST = b""  # of an event about all rows of a table
LOST_ROW_DIGEST = b"?"  # of any other event without a row; no schema has this digest

try:
    from databus.schemas.stream import _row_cutter as row_cutter
except ImportError:  # not built
    sealed: Callable[[list[Any]], Sequence[RowEvent]] = tuple
else:
    sealed = row_cutter.sealed

_part_attributes = struct_of(PART.attributes)
_VERSION_2 = bytes([event_v2.VERSION])


def row_bytes(event: RowEvent) -> bytes:
    """Return the row's Avro bytes."""
    return event[WIRE][event[PLACE] + MD5_PART_BYTES :]


def metadata_bytes(event: RowEvent) -> bytes:
    """Return the metadata's Avro bytes; only when its digest is not None."""
    return event[WIRE][_body_at(event[KEY]) + CRC32_PART_BYTES : event[PLACE]]


def runs_in(events: Sequence[RowEvent]) -> Sequence[Any]:
    """Return events as they are held: `RowEvent`s, and `PackedRun`s of several of them each."""
    return events if isinstance(events, tuple) else events.runs  # type: ignore[attr-defined]


def schema_of(run: Any) -> tuple[int, bytes]:
    """Return the src_id and the schema digest of an event, or of a run's events."""
    if isinstance(run, tuple):
        return run[SRC_ID], run[ROW_DIGEST]
    return run.src_id, run.digest


def schemas_in(events: Sequence[RowEvent]) -> dict[tuple[int, bytes], None]:
    """Return the (src_id, schema digest) pairs of events, in order of their first appearance."""
    return dict.fromkeys(map(schema_of, runs_in(events)))


def joined(windows: Iterable[Sequence[RowEvent]]) -> Sequence[RowEvent]:
    """Return the events of several windows, packed ones left as they are."""
    return sealed([run for events in windows for run in runs_in(events)])


def _body_at(key: int | bytes) -> int:
    return HEADER_BYTES if isinstance(key, int) else V2_SMALLEST_BYTES + len(key)


def wire_bytes(event: RowEvent) -> bytes:
    """Return the event's version 2 bytes: those received, if they can be used as they are.

    A version 1 event is encoded, and so is an event that is marked as replicated or traced
    (the result has no such marks) or has an unusual kind of schema digest.
    """
    wire = event[WIRE]
    return wire if wire[0] == event_v2.VERSION else _encoded(event)


def _encoded(event: RowEvent) -> bytes:
    # fmt: off
    (scn, timestamp_ns, src_id, partition_id, key, opcode, row_digest, metadata_digest,
     wire, place, _) = event
    # fmt: on
    row = metadata = None
    if row_digest not in (NO_ROW_DIGEST, LOST_ROW_DIGEST):
        row = Part(row_bytes(event), row_digest, _schema_version(wire, place))
    if metadata_digest is not None:
        version = _schema_version(wire, _body_at(key))
        metadata = Part(metadata_bytes(event), metadata_digest, version)
    return event_v2.encode(
        Event(scn, timestamp_ns, src_id, partition_id, key, Opcode(opcode), row, metadata)
    )


def _begin(part: Part, size_bytes: int) -> bytes:
    """Return the header of a part; only its schema version is ever read."""
    attributes = part.schema_version << VERSION_SHIFT
    return _part_attributes.pack(attributes).ljust(size_bytes, b"\0")


def _schema_version(wire: bytes, place: int) -> int:
    attributes: int = _part_attributes.unpack_from(wire, place)[0]
    return attributes >> VERSION_SHIFT


def _keeps_bytes(event: Event, wire: bytes) -> bool:
    """Return whether `wire_bytes` can return the received bytes."""
    row, metadata = event.payload, event.metadata
    return (
        wire[:1] == _VERSION_2
        and not (event.is_replicated or event.is_traced)
        and (row is None or len(row.digest) == MD5_BYTES)
        and (metadata is None or len(metadata.digest) == CRC32_BYTES)
    )


def _substitute(event: Event) -> bytes:
    """Return a substitute for the received bytes: a header of zeros, then the parts."""
    row, metadata = event.payload, event.metadata
    head = b"" if metadata is None else _begin(metadata, CRC32_PART_BYTES) + metadata.data
    tail = b"" if row is None else _begin(row, MD5_PART_BYTES) + row.data
    return bytes(_body_at(event.key)) + head + tail


def row_event(event: Event, wire: bytes = b"") -> RowEvent:
    """Return a decoded event as the plain tuple; `wire` are the bytes it was decoded from."""
    row, metadata = event.payload, event.metadata
    head_bytes = 0 if metadata is None else CRC32_PART_BYTES + len(metadata.data)
    return (
        event.scn,
        event.timestamp_ns,
        event.src_id,
        event.partition_id,
        event.key,
        int(event.opcode),
        row.digest if row else NO_ROW_DIGEST if event.is_truncate else LOST_ROW_DIGEST,
        None if metadata is None else metadata.digest,
        wire if _keeps_bytes(event, wire) else _substitute(event),
        _body_at(event.key) + head_bytes,
        False,
    )
