"""Binlog events made by hand, for what no server at hand writes."""

from __future__ import annotations

import struct
from zlib import crc32

from pymysqlreplication.constants import BINLOG

FILE = "binlog.000007"


def event(
    type_code: int,
    body: bytes = b"",
    *,
    end_offset: int = 1000,
    timestamp_s: int = 1_700_000_000,
    checksum: bool = False,
    flags: int = 0,
    server_id: int = 9,
) -> bytes:
    """Return an event with header, and CRC32 when asked for."""
    size = 19 + len(body) + (4 if checksum else 0)
    head = struct.pack("<IBIIIH", timestamp_s, type_code, server_id, size, end_offset, flags)
    data = head + body
    return data + struct.pack("<I", crc32(data)) if checksum else data


def rotate(file: str = FILE, offset: int = 4) -> bytes:
    """Return the artificial ROTATE that a stream begins with."""
    body = struct.pack("<Q", offset) + file.encode()
    return event(BINLOG.ROTATE_EVENT, body, end_offset=0, flags=0x20, timestamp_s=0)


def format_description(*, checksum: bool = False) -> bytes:
    """Return the FORMAT_DESCRIPTION of a stream that begins in mid-file."""
    body = struct.pack("<H50sIB", 4, b"8.0.36", 0, 19) + bytes(40) + bytes([int(checksum)])
    # Always with room for a checksum, whether it is one or not.
    made = event(BINLOG.FORMAT_DESCRIPTION_EVENT, body, end_offset=0, checksum=True)
    return made if checksum else made[:-4] + bytes(4)


def query(text: str, *, database: str = "d", end_offset: int = 1000, status: bytes = b"") -> bytes:
    """Return a QUERY event."""
    body = struct.pack("<IIBHH", 1, 0, len(database), 0, len(status))
    body += status + database.encode() + b"\0" + text.encode()
    return event(BINLOG.QUERY_EVENT, body, end_offset=end_offset)


def table_map(
    types: bytes,
    lengths: bytes = b"",
    *,
    table: str = "t",
    number: int = 5,
    nullable: int = 0,
    optional: bytes = b"",
) -> bytes:
    """Return a TABLE_MAP of database `d`."""
    body = struct.pack("<IHH", number, 0, 1) + b"\x01d\0"
    body += bytes([len(table)]) + table.encode() + b"\0"
    body += bytes([len(types)]) + types + bytes([len(lengths)]) + lengths
    body += nullable.to_bytes((len(types) + 7) // 8, "little") + optional
    return event(BINLOG.TABLE_MAP_EVENT, body)


def rows_v2(
    type_code: int, columns: int, images: bytes, *, present: int = 1, number: int = 5
) -> bytes:
    """Return a version 2 rows event with partition data, as MySQL writes them."""
    extra = bytes([1, 7, 0])  # of partition 7
    if type_code == BINLOG.UPDATE_ROWS_EVENT_V2:
        extra = bytes([1, 7, 0, 7, 0])
    body = struct.pack("<IHHH", number, 0, 1, len(extra) + 2) + extra + bytes([columns])
    size = (columns + 7) // 8
    sets = 2 if type_code == BINLOG.UPDATE_ROWS_EVENT_V2 else 1
    body += present.to_bytes(size, "little") * sets + images
    return event(type_code, body)


def xid(*, end_offset: int = 1200) -> bytes:
    """Return a commit."""
    return event(BINLOG.XID_EVENT, struct.pack("<Q", 1), end_offset=end_offset)


def mysql_gtid(sequence: int = 23, *, micros: int = 1_700_000_000_123_456) -> bytes:
    """Return the GTID event of MySQL 8, with the time of the commit."""
    body = b"\0" + bytes.fromhex("3e11fa4771ca11e19e33c80aa9429562")
    body += struct.pack("<Q", sequence) + b"\x02" + struct.pack("<QQ", 1, 2)
    body += micros.to_bytes(7, "little") + b"\xfc\x00\x01" + struct.pack("<I", 80036)
    return event(BINLOG.GTID_LOG_EVENT, body, end_offset=900)
