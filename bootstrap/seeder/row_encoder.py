"""Encodes a scanned row as the event of a snapshot.

The event is the one that the relay would have made of the row at that SCN, except for
its metadata: `op` is snapshot, and there is no position in the change log. No I/O.

A scan whose rows never were Python objects writes the same events itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from databus.bootstrap.store.values import StoredEvent
from databus.relay.sources.source import Row, TableEncoder
from databus.relay.sources.table_scan import Chunk, SnapshotForm
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.keys import key_maker
from databus.schemas.event.layout import PART
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode, encode_part
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema

PARTITION_ID = 0  # the same as the relay's


class RowEvents:
    """Makes the events of one table's rows as of one SCN.

    `text` is the Avro schema of the rows: a known version of the table's schema, or else
    one made from the table's definition alone. Raises SchemaError when the table has none.
    """

    def __init__(
        self, table: Table, src_id: int, scn: int, timestamp_ns: int, text: str | None = None
    ) -> None:
        self.table = table
        self.text = text or avro_schema(table)
        self._src_id = src_id
        self._scn = scn
        self._timestamp_ns = timestamp_ns
        self._digest = schema_id(self.text)
        self._codec = row_codec(self.text)
        self._key_of = key_maker(table)
        encoder = TableEncoder(table, src_id, self._digest, self._codec, self._key_of)
        self._form = SnapshotForm(encoder, scn, timestamp_ns, *_around_index())

    def encode_chunk(self, chunk: Chunk) -> Sequence[StoredEvent]:
        """Return the events of a chunk, which may have to be read; raises as `encode` does."""
        written = chunk.write_events and chunk.write_events(self._form)
        if written is None:
            return self.encode(chunk.rows)
        scn = self._scn
        return [StoredEvent(scn, key, False, event) for key, event in written]

    def encode(self, rows: Iterable[Row]) -> list[StoredEvent]:
        """Return the events of a chunk's rows in order; raises RowError when a row does not fit.

        The row index in an event's metadata is the row's index in the chunk.
        """
        scn, timestamp_ns, src_id, digest = (
            self._scn,
            self._timestamp_ns,
            self._src_id,
            self._digest,
        )
        write_row, key_of = self._codec.encode, self._key_of
        events = []
        for index, row in enumerate(rows):
            key = key_of(row)
            # fmt: off
            event = encode(Event(
                scn, timestamp_ns, src_id, PARTITION_ID, key, Opcode.UPSERT,
                Part(write_row(row), digest), _metadata_part(index),
            ))
            # fmt: on
            events.append(StoredEvent(scn, key, False, event))
        return events


# Every chunk has the same few thousand indexes: cached, each costs one look-up.
@lru_cache(maxsize=8192)
def _metadata_part(index: int) -> Part:
    return metadata_part(encode_metadata(EventMetadata(Op.SNAPSHOT, row_index=index)))


def _around_index() -> tuple[bytes, bytes]:
    """Return a snapshot's metadata part before and after the row's index, without the length.

    The index is the fourth byte from the end: no value before, no comment and no notes follow.
    """
    part = encode_part(metadata_part(encode_metadata(EventMetadata(Op.SNAPSHOT))))
    return part[PART.attributes.offset : -4], part[-3:]
