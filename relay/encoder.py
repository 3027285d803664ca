"""From a source's transaction to a window's bytes: Avro rows in version 2 events.

The schema a row is written with is the one its table had at that SCN. A table
that differs from the source's current one makes a new version, registered
before the window leaves here: nobody can read an event whose schema he cannot
ask for. Used by one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from databus.registry.registry import SchemaRegistry
from databus.registry.version import SchemaVersion
from databus.relay.ring_layout import EncodedWindow
from databus.relay.sources.source import Row, RowChange, Transaction
from databus.schemas.control import end_of_period
from databus.schemas.errors import (
    DatabusError,
    ProtocolError,
    RowError,
    SchemaError,
    UnknownSourceError,
)
from databus.schemas.event import Event, Opcode, Part
from databus.schemas.event_v2 import encode
from databus.schemas.keys import key_maker
from databus.schemas.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.rows import RowCodec, row_codec
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema

PARTITION_ID = 0

log = logging.getLogger(__name__)


class UnfitRowError(Exception):
    """A row that cannot be written with its table's schema; never leaves the relay."""

    def __init__(self, scn: int, row_index: int, error: DatabusError) -> None:
        super().__init__(
            f"row {row_index} of the transaction at scn {scn} cannot be captured: {error} "
            f"(to go on without this row: acknowledged_scns = [{scn}])"
        )


class _TableEncoder(NamedTuple):
    """How the rows of one table version are written."""

    table: Table
    src_id: int
    digest: bytes
    codec: RowCodec
    key_of: Callable[[Row], int | bytes]


class WindowEncoder:
    """Encodes the transactions of one physical source.

    `src_ids` are its sources' names and ids; `before_images` says whether the
    row before an update goes into the metadata. In a transaction whose SCN is
    among `acknowledged_scns`, rows that don't fit are left out, and logged.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        src_ids: Mapping[str, int],
        before_images: bool = True,
        acknowledged_scns: Collection[int] = (),
    ) -> None:
        self._registry = registry
        self._src_ids = src_ids
        self._before_images = before_images
        self._acknowledged_scns = frozenset(acknowledged_scns)
        self._current: dict[str, _TableEncoder] = {}

    def encode(self, transaction: Transaction) -> EncodedWindow:
        """Return the window's bytes, its end-of-period event included.

        Raises UnfitRowError; then nothing of it may be published.
        """
        scn, timestamp_ns = transaction.scn, transaction.timestamp_ns
        events = []
        for index, change in enumerate(transaction.changes):
            try:
                events.append(encode(self._event(transaction, index, change)))
            except (RowError, SchemaError, ProtocolError) as error:
                if scn not in self._acknowledged_scns:
                    raise UnfitRowError(scn, index, error) from error
                log.warning("scn %d: row %d was left out, as told: %s", scn, index, error)
        events.append(encode(end_of_period(scn, timestamp_ns, PARTITION_ID)))
        return EncodedWindow(scn, b"".join(events), timestamp_ns)

    def publish_first(self, table: Table) -> None:
        """Register a table that has no schema yet, so that clients can ask before the first row."""
        if not self._registry.versions(table.source):
            self._register(table, 0)

    def _register(self, table: Table, scn: int) -> SchemaVersion:
        if table.source not in self._src_ids:
            raise UnknownSourceError(table.source, list(self._src_ids))
        # Unchecked: a table may be altered in any way, and its rows must be captured.
        return self._registry.register(table.source, avro_schema(table), scn, check=False)

    def _event(self, transaction: Transaction, index: int, change: RowChange) -> Event:
        table = change.table
        encoder = self._current.get(table.source)
        if encoder is None or (encoder.table is not table and encoder.table != table):
            encoder = self._use(table, transaction.scn)
        codec = encoder.codec
        before = None
        if self._before_images and change.before is not None:
            before = codec.encode(change.before)
        metadata = EventMetadata(
            change.op, *_origin_fields(transaction), index, before, change.comment
        )
        return Event(
            transaction.scn,
            transaction.timestamp_ns,
            encoder.src_id,
            PARTITION_ID,
            encoder.key_of(change.row),
            Opcode.DELETE if change.op is Op.DELETE else Opcode.UPSERT,
            # Named by its digest alone: a relay that was started later counts fewer
            # versions, and would number this one differently.
            Part(codec.encode(change.row), encoder.digest),
            metadata_part(encode_metadata(metadata)),
        )

    def _use(self, table: Table, scn: int) -> _TableEncoder:
        version = self._register(table, scn)
        encoder = _TableEncoder(
            table,
            self._src_ids[table.source],
            version.schema_id,
            row_codec(version.text),
            key_maker(table),
        )
        self._current[table.source] = encoder
        return encoder


def _origin_fields(transaction: Transaction) -> tuple[str | None, int, str, int, int]:
    origin = transaction.origin
    return origin.gtid, origin.server_id, origin.file, origin.offset, origin.epoch
