"""Ptubes' protobuf messages, written. Pure.

Only what the stock client reads is written; the numbers are those of its `RdsPacket`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from databus.relay.serving.protobuf import bytes_field, number_field, text_field
from databus.relay.serving.ptubes.places import Place
from databus.schemas.event.control import LoggedStatement

try:
    from databus.relay.serving.ptubes.rows._row_columns import event_bytes, message_fields
except ImportError:  # not built: Python writes all
    is_compiled = False
else:
    is_compiled = True

INSERT, UPDATE, DELETE = 1, 2, 3
QUERY, TRANSACTION_END, HEARTBEAT = 7, 16, 17

COMMIT_TABLE = "__controlDB__.__commit__"
HEARTBEAT_TABLE = "buffalo_heartbeat.heartbeat"

TIMING_ERROR, SERVER_BUSY, SERVER_ERROR = -1, -2, -100
_PARTITIONED_MESSAGE = 1
_GTID_OFFSET = 1
_VERSION = 1


def pair_field(tag: int, key: str, value: str) -> bytes:
    """Return a field with a Pair."""
    return bytes_field(tag, text_field(1, key) + text_field(2, value))


def checkpoint_message(place: Place) -> bytes:
    """Return a Checkpoint."""
    return window_of_checkpoint(place) + number_field(3, place.row_index)


def window_of_checkpoint(place: Place) -> bytes:
    """Return the fields of a Checkpoint that all rows of a window share."""
    return b"".join(
        (
            text_field(1, place.uuid),
            number_field(2, place.transaction_id),
            number_field(4, place.server_id),
            number_field(5, place.file),
            number_field(6, place.offset),
            number_field(7, place.timestamp_ms),
            number_field(8, _GTID_OFFSET),
        )
    )


def header_of_table(table: str, partition_key: str, primary_key: str) -> bytes:
    """Return the fields of an RdsHeader that all events of a table share."""
    fields = [text_field(3, "PROTOCOL_BUFFER"), text_field(6, table)]
    if partition_key:
        fields.append(text_field(8, partition_key))
    if primary_key:
        fields.append(text_field(10, primary_key))
    return b"".join(fields)


def event_message(
    table: bytes,
    checkpoint: bytes,
    time_ms: int,
    event_type: int,
    row: bytes | None = None,
    *,
    is_ddl: bool = False,
    rest: bytes = b"",
) -> bytes:
    """Return an RdsEvent. `table` is its header's part by `header_of_table`."""
    header = b"".join((table, bytes_field(2, checkpoint), number_field(4, time_ms)))
    fields = [bytes_field(1, header), number_field(2, is_ddl), number_field(3, event_type)]
    if row is not None:
        fields.append(bytes_field(4, row))
    return b"".join((*fields, rest))


def row_event(
    table: bytes, checkpoint: bytes, time_ms: int, event_type: int, row: bytes, rest: bytes
) -> bytes:
    """Return the RdsEvent of a row."""
    if time_ms >= 0 and is_compiled:
        return event_bytes(table, checkpoint, time_ms, event_type, row, rest)
    return event_message(table, checkpoint, time_ms, event_type, row, rest=rest)


def statement_event(table: str, logged: LoggedStatement, checkpoint: bytes, time_ms: int) -> bytes:
    """Return the RdsEvent of a DDL statement, or of a DML statement that has no rows."""
    rest = text_field(6, table) + text_field(7, logged.statement)
    header = header_of_table(table, "", "")
    is_ddl = not logged.is_dml
    return event_message(header, checkpoint, time_ms, QUERY, is_ddl=is_ddl, rest=rest)


def commit_event(checkpoint: bytes, time_ms: int) -> bytes:
    """Return the RdsEvent of a transaction's end."""
    header = header_of_table(COMMIT_TABLE, "", "")
    return event_message(header, checkpoint, time_ms, TRANSACTION_END)


def heartbeat_event(checkpoint: bytes, now_ms: int) -> bytes:
    """Return the RdsEvent of a heartbeat."""
    column = number_field(1, 0) + number_field(2, -5) + text_field(3, "utime")
    column += number_field(6, 0) + text_field(8, str(now_ms)) + text_field(10, "BIGINT")
    row = bytes_field(2, text_field(1, "utime") + bytes_field(2, column))
    header = header_of_table(HEARTBEAT_TABLE, "utime", "utime")
    return event_message(header, checkpoint, now_ms, HEARTBEAT, row)


def envelope(by_partition: Mapping[int, Sequence[bytes]], latest: bytes | None) -> bytes:
    """Return the RdsEnvelope of events; the client throws one away that says it has none."""
    count = sum(map(len, by_partition.values()))
    if not count or latest is None:
        return number_field(2, _PARTITIONED_MESSAGE)
    return b"".join(
        (
            number_field(1, _VERSION),
            number_field(2, _PARTITIONED_MESSAGE),
            bytes_field(3, b"".join(_messages(by_partition))),
            number_field(6, count),
            bytes_field(8, latest),
        )
    )


def _messages(by_partition: Mapping[int, Sequence[bytes]]) -> Iterable[bytes]:
    for partition, events in by_partition.items():
        sizes = number_field(1, len(events)) + number_field(2, sum(map(len, events)))
        if is_compiled:
            message = sizes + message_fields(3, list(events))
        else:
            message = sizes + b"".join([bytes_field(3, event) for event in events])
        yield bytes_field(1, number_field(1, partition) + bytes_field(2, message))


def error_envelope(code: int, text: str) -> bytes:
    """Return the RdsEnvelope of an error: the client logs it and picks a server again."""
    return b"".join(
        (number_field(2, _PARTITIONED_MESSAGE), number_field(4, code), text_field(5, text[:2000]))
    )
