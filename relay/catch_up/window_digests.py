"""Digests of windows: equal where two readings of a log have the same rows.

A digest is over what a row change is: table, operation, row after and before, each with its schema.
Where the window stands in the log is not in it, and neither are DDL events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple, Protocol

from databus.schemas.event.event import Event
from databus.schemas.event.metadata import metadata_of
from databus.schemas.event.v2 import SMALLEST_BYTES, decode, peek

CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 16


class BytesReader(Protocol):
    """Reads the bytes of events."""

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on; b"" at the end."""
        ...


class WindowDigest(NamedTuple):
    """A window's SCN and the digest of its rows; b"" for a window without rows."""

    scn: int
    digest: bytes


def window_digests(
    reader: BytesReader, position: int, counts: Callable[[Event], bool]
) -> Iterator[WindowDigest]:
    """Yield the digests of the windows from a position on, over the row events that count."""
    made, rows = blake2b(digest_size=_DIGEST_BYTES), 0
    for event in _events(reader, position):
        if event.is_eop:
            yield WindowDigest(event.scn, made.digest() if rows else b"")
            made, rows = blake2b(digest_size=_DIGEST_BYTES), 0
        elif not event.is_control and counts(event):
            made.update(_row_bytes(event))
            rows += 1


def _row_bytes(event: Event) -> bytes:
    metadata = metadata_of(event)
    op = event.opcode.name if metadata is None else metadata.op.value
    before = None if metadata is None else metadata.before
    payload = None if event.payload is None else event.payload.data
    return repr((event.src_id, op, event.key, event.schema_id, payload, before)).encode()


def _events(reader: BytesReader, position: int) -> Iterator[Event]:
    size_bytes = CHUNK_BYTES
    while data := reader.read(position, size_bytes):
        at = 0
        while len(data) - at >= SMALLEST_BYTES:
            end = at + peek(data, at).length
            if end > len(data):
                break
            yield decode(data, at)[0]
            at = end
        # An event that is larger is read whole the next time.
        size_bytes = CHUNK_BYTES if at else 2 * size_bytes
        position += at
