"""Digests of windows: equal where two readings of a log have the same rows.

A digest is over what a row change is: table, operation, row after and before, each with its schema.
Where the window stands in the log is not in it, and neither are DDL events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from databus.relay.ring.events import BytesReader, decoded_events
from databus.schemas.event.event import Event
from databus.schemas.event.metadata import metadata_of

_DIGEST_BYTES = 16


class WindowDigest(NamedTuple):
    """A window's SCN and the digest of its rows; b"" for a window without rows."""

    scn: int
    digest: bytes


def window_digests(
    reader: BytesReader, position: int, counts: Callable[[Event], bool]
) -> Iterator[WindowDigest]:
    """Yield the digests of the windows from a position on, over the row events that count."""
    made, rows = blake2b(digest_size=_DIGEST_BYTES), 0
    for event in decoded_events(reader, position):
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
