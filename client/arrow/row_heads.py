"""What `_databus` says of a row, read from its event: op, position, time, before image."""

from __future__ import annotations

from collections.abc import Sequence

from databus.client.arrow.batch_builder import Head
from databus.schemas.columns.avro_columns import AvroColumn
from databus.schemas.errors import ProtocolError, RowError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, metadata_of

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


def checked_metadata(event: Event) -> EventMetadata | None:
    """Return the metadata of an event, whose row index fits Arrow's column; None without any."""
    metadata = metadata_of(event)
    if metadata is not None and not _INT_MIN <= metadata.row_index <= _INT_MAX:
        raise ProtocolError(f"row index {metadata.row_index} is out of range")
    return metadata


def op_of(event: Event, metadata: EventMetadata | None) -> Op:
    """Return a row's op; without metadata inserts look like updates."""
    if metadata is not None:
        return metadata.op
    return Op.DELETE if event.opcode == Opcode.DELETE else Op.UPDATE


def check_row(event: Event, metadata: EventMetadata | None) -> Part:
    """Return the row; raises ProtocolError for an event that is no row's."""
    if event.payload is None:
        raise ProtocolError("a row event has no payload")
    if metadata is not None and metadata.op is Op.TRUNCATE:
        raise ProtocolError("a row event has op truncate")
    return event.payload


def before_of(
    metadata: EventMetadata | None, source: str, columns: Sequence[AvroColumn], scn: int
) -> bytes | None:
    """Return the before image of an update, if it is whole.

    `columns` are those of the row's schema. Raises RowError if the row itself is partial.
    """
    if metadata is None:
        return None
    notes = metadata.notes
    if notes is not None and notes.absent:
        names = [columns[at].name if 0 <= at < len(columns) else f"#{at}" for at in notes.absent]
        raise RowError(
            source,
            ", ".join(names),
            f"was not logged at scn {scn}: the source delivers partial rows. Set "
            "binlog_row_image=FULL on its server, or read from the bootstrap server, "
            "which has whole rows",
        )
    if metadata.op is not Op.UPDATE or (notes is not None and notes.before_absent):
        return None
    return metadata.before


class HeadMaker:
    """Makes the heads of rows in the order of the stream."""

    def __init__(self) -> None:
        self._bare_scn: int | None = None  # window of the last event without metadata
        self._bare_rows = 0  # number of such events in that window

    def head(self, event: Event, metadata: EventMetadata | None, op: str) -> Head:
        """Return the head; events without metadata are numbered in their window."""
        time_us = event.timestamp_ns // 1000
        if metadata is None:
            return Head(op, event.scn, self._bare_index(event.scn), time_us, None)
        return Head(op, event.scn, metadata.row_index, time_us, metadata.gtid)

    def _bare_index(self, scn: int) -> int:
        """Count an event without metadata, and return its index."""
        if scn != self._bare_scn:
            self._bare_scn, self._bare_rows = scn, 0
        self._bare_rows += 1
        return self._bare_rows - 1
