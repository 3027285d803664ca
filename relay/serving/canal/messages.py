"""Canal's entries as bytes: header, transaction, row change. Pure.

    Entry      1 header, 2 entryType, 3 storeValue
    Header     1 version, 2 logfileName, 3 logfileOffset, 4 serverId, 5 serverenCode,
               6 executeTime, 7 sourceType, 8 schemaName, 9 tableName, 10 eventLength,
               11 eventType, 12 props (Pair*)
    RowChange  1 tableId, 2 eventType, 10 isDdl, 11 sql, 12 rowDatas, 14 ddlSchemaName

What is read with a default that depends on the client's language is always written: entryType,
sourceType, eventType of what has one, and isDdl.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from databus.relay.serving.protobuf import bytes_field, number_field, text_field

ROW_DATAS = 12


class EntryType(IntEnum):
    """What an entry is."""

    TRANSACTION_BEGIN = 1
    ROW_DATA = 2
    TRANSACTION_END = 3


class EventType(IntEnum):
    """What an entry's rows or its statement did."""

    INSERT = 1
    UPDATE = 2
    DELETE = 3
    CREATE = 4
    ALTER = 5
    ERASE = 6
    QUERY = 7
    TRUNCATE = 8
    RENAME = 9
    CINDEX = 10
    DINDEX = 11


class Place(NamedTuple):
    """Where an entry is, and when its transaction was committed."""

    file: str
    offset: int
    server_id: int
    time_ms: int
    gtid: str | None = None


_VERSION = number_field(1, 1)
_ENCODING = text_field(5, "UTF-8")
_MYSQL = number_field(7, 2)
_NO_TABLE = text_field(8, "") + text_field(9, "")
_KIND_FIELDS = {kind: number_field(11, kind) for kind in EventType}
_IS_DDL, _IS_NO_DDL = number_field(10, 1), number_field(10, 0)


def begin_entry(place: Place, size_bytes: int) -> bytes:
    """Return the entry that begins a transaction."""
    return _entry(_header(place, size_bytes), EntryType.TRANSACTION_BEGIN, b"")


def end_entry(place: Place, size_bytes: int, transaction_id: str) -> bytes:
    """Return the entry that ends a transaction."""
    value = text_field(2, transaction_id)
    return _entry(_header(place, size_bytes), EntryType.TRANSACTION_END, value)


def rows_entry(
    place: Place, size_bytes: int, table: str, kind: EventType, rows: bytes, count: int
) -> bytes:
    """Return the entry of rows; `rows` are fields of a RowChange."""
    header = _header(place, size_bytes, table, kind, count)
    value = number_field(1, 0) + number_field(2, kind) + _IS_NO_DDL + rows
    return _entry(header, EntryType.ROW_DATA, value)


def statement_entry(
    place: Place, size_bytes: int, table: str, kind: EventType, sql: str, database: str
) -> bytes:
    """Return the entry of a DDL statement."""
    header = _header(place, size_bytes, table, kind)
    value = number_field(2, kind) + _IS_DDL + text_field(11, sql) + text_field(14, database)
    return _entry(header, EntryType.ROW_DATA, value)


def query_entry(place: Place, size_bytes: int, sql: str, database: str) -> bytes:
    """Return the entry of a statement that changed rows and was logged as it is."""
    header = _header(place, size_bytes, "", EventType.QUERY)
    value = number_field(2, EventType.QUERY) + _IS_NO_DDL + text_field(11, sql)
    return _entry(header, EntryType.ROW_DATA, value + text_field(14, database))


def split_table(table: str) -> tuple[str, str]:
    """Return a table's schema and name; what is before the first dot is the schema."""
    schema, dot, name = table.partition(".")
    return (schema, name) if dot else ("", table)


def _header(
    place: Place, size_bytes: int, table: str = "", kind: EventType | None = None, count: int = 0
) -> bytes:
    parts = [
        _file_fields(place.file),
        number_field(3, place.offset),
        _server_fields(place.server_id),
        number_field(6, place.time_ms),
        table_fields(table),
        number_field(10, size_bytes),
    ]
    if kind is not None:
        parts.append(_KIND_FIELDS[kind])
    if place.gtid:
        parts.append(_gtid_field(place.gtid))
    if count:
        parts.append(_count_field(count))
    return b"".join(parts)


# What consecutive entries share.
@lru_cache(maxsize=16)
def _file_fields(file: str) -> bytes:
    return _VERSION + text_field(2, file)


@lru_cache(maxsize=16)
def _server_fields(server_id: int) -> bytes:
    return number_field(4, server_id) + _ENCODING


@lru_cache(maxsize=1024)
def table_fields(table: str) -> bytes:
    """Return the fields of a header that name the kind of source and the table, "" for none."""
    if not table:
        return _MYSQL + _NO_TABLE
    schema, name = split_table(table)
    return _MYSQL + text_field(8, schema) + text_field(9, name)


@lru_cache(maxsize=16)
def _gtid_field(gtid: str) -> bytes:
    return _pair(12, "curtGtid", gtid)


@lru_cache(maxsize=1024)
def _count_field(count: int) -> bytes:
    return _pair(12, "rowsCount", str(count))


def _pair(field: int, key: str, value: str) -> bytes:
    return bytes_field(field, text_field(1, key) + text_field(2, value))


def _entry(header: bytes, kind: EntryType, value: bytes) -> bytes:
    return bytes_field(1, header) + number_field(2, kind) + bytes_field(3, value)
