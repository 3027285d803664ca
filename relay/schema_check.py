"""Check that a ring was written with the schema registry at hand, by its newest rows.

A ring's events name their source by id and their schema by digest, and only the registry
resolves them. With the `schemas.db` of another relay, or a new one, the same ids would mean
other tables, in the ring and in everything captured from now on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from databus.registry.registry import SchemaRegistry
from databus.registry.store import STORE_FILE
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import ProtocolError, RingError, ScnNotFoundError
from databus.schemas.event.event import NO_SCHEMA_ID
from databus.schemas.event.v2 import SMALLEST_BYTES, decode, peek

_BLOCKS = 4  # read backwards from the end, until one has a row
_BLOCK_BYTES = 1 << 20  # of each, at most


def check_schemas(reader: RingReader, path: Path, registry: SchemaRegistry) -> None:
    """Raise RingError if the registry does not have the schemas of a ring's newest rows."""
    known = {
        (src_id, version.schema_id)
        for name, src_id in registry.sources().items()
        for version in registry.versions(name)
    }
    end = reader.tail
    for _ in range(_BLOCKS):
        begin = reader.block_before_position(end)
        if begin is None:
            return
        found = set(_written_with(reader, begin, end))
        for src_id, schema_id in sorted(found - known):
            raise _foreign(path, src_id, schema_id)
        if found:
            return
        end = begin


def _written_with(reader: RingReader, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the source and schema of each row of a block; stop at damage."""
    try:
        data = reader.read(begin, min(end - begin, _BLOCK_BYTES))
        at = 0
        while len(data) - at >= SMALLEST_BYTES and at + peek(data, at).length <= len(data):
            event, at = decode(data, at)
            if not event.is_control and event.schema_id != NO_SCHEMA_ID:
                yield event.src_id, event.schema_id
    except (ProtocolError, RingError, ScnNotFoundError):
        return  # the serving reader reports damage


def _foreign(path: Path, src_id: int, schema_id: bytes) -> RingError:
    store = path.with_name(STORE_FILE)
    return RingError(
        f"ring {path} has rows of source id {src_id} with schema {schema_id.hex()}, and the "
        f"schema store {store} has no such version: the two were not written together, and its "
        f"ids may mean other tables. Put the right {STORE_FILE} back (or its .copy under that "
        f"name, or the right ring); without one, move {path} and its MaxSCN away: capture then "
        "begins anew, as at a first start, and consumers bootstrap"
    )
