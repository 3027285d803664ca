"""Binlog events made by hand, for what no server at hand writes."""

from __future__ import annotations

import struct
from zlib import compress, crc32

import zstandard
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


def format_description(*, checksum: bool = False, end_offset: int = 0) -> bytes:
    """Return the FORMAT_DESCRIPTION of a stream that begins in mid-file, or of a file."""
    body = struct.pack("<H50sIB", 4, b"8.0.36", 0, 19) + bytes(40) + bytes([int(checksum)])
    # Always with room for a checksum, whether it is one or not.
    made = event(BINLOG.FORMAT_DESCRIPTION_EVENT, body, end_offset=end_offset, checksum=True)
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
    return event(BINLOG.TABLE_MAP_EVENT, body, end_offset=0)


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
    return event(type_code, body, end_offset=0)


def xid(*, end_offset: int = 1500) -> bytes:
    """Return a commit."""
    return event(BINLOG.XID_EVENT, struct.pack("<Q", 1), end_offset=end_offset)


def mysql_gtid(sequence: int = 23, *, micros: int = 1_700_000_000_123_456) -> bytes:
    """Return the GTID event of MySQL 8, with the time of the commit."""
    body = b"\0" + bytes.fromhex("3e11fa4771ca11e19e33c80aa9429562")
    body += struct.pack("<Q", sequence) + b"\x02" + struct.pack("<QQ", 1, 2)
    body += micros.to_bytes(7, "little") + b"\xfc\x00\x01" + struct.pack("<I", 80036)
    return event(BINLOG.GTID_LOG_EVENT, body, end_offset=900)


def placed(*stream: bytes, start: int) -> list[bytes]:
    """Return events that follow each other in a file, with the offsets they then have."""
    found = []
    for data in stream:
        start += len(data)
        found.append(data[:13] + struct.pack("<I", start & 0xFFFFFFFF) + data[17:])
    return found


def deflated(plain: bytes) -> bytes:
    """Return bytes as MariaDB compresses them."""
    size = len(plain).to_bytes(4, "big").lstrip(b"\0") or b"\0"
    return bytes([0x80 | len(size)]) + size + compress(plain)


def packed(number: int) -> bytes:
    """Return a length-encoded number."""
    if number < 251:
        return bytes([number])
    if number < 1 << 16:
        return b"\xfc" + number.to_bytes(2, "little")
    return (
        b"\xfd" + number.to_bytes(3, "little")
        if number < 1 << 24
        else (b"\xfe" + number.to_bytes(8, "little"))
    )


def payload(*inside: bytes, compression: int = 0, size: int | None = None) -> bytes:
    """Return a TRANSACTION_PAYLOAD of MySQL: events without checksum and position."""
    plain = b"".join(data[:13] + bytes(4) + data[17:] for data in inside)
    body = zstandard.ZstdCompressor().compress(plain) if compression == 0 else plain
    plain_size = len(plain) if size is None else size
    fields = [(2, packed(compression)), (3, packed(plain_size)), (1, packed(len(body)))]
    head = b"".join(packed(tag) + packed(len(value)) + value for tag, value in fields)
    return event(40, head + b"\0" + body, end_offset=0)


def varint(number: int) -> bytes:
    """Return a number of MySQL's tagged serialization: ones at the low end say how many follow."""
    for more in range(8):
        if number < 1 << 7 * (more + 1):
            return (number << more + 1 | (1 << more) - 1).to_bytes(more + 1, "little")
    return b"\xff" + number.to_bytes(8, "little")


def tagged_gtid(tag: str, number: int, *, micros: int = 1_700_000_000_123_456) -> bytes:
    """Return the GTID event of MySQL 8.3 and later."""
    uuid = bytes.fromhex("3e11fa4771ca11e19e33c80aa9429562")
    fields = [
        varint(1),
        b"".join(varint(byte) for byte in uuid),
        varint(number << 1),
        varint(len(tag)) + tag.encode(),
        varint(5 << 1),
        varint(6 << 1),
        varint(micros),
        varint(micros - 1000),
        varint(314),
        varint(80400),
    ]
    message = b"".join(varint(index) + value for index, value in enumerate(fields))
    return event(42, varint(1) + varint(len(message) + 3) + varint(9) + message, end_offset=0)


def heartbeat(file: str, offset: int) -> bytes:
    """Return the heartbeat of a stream that has come to a place."""
    return event(BINLOG.HEARTBEAT_LOG_EVENT, file.encode(), end_offset=offset, timestamp_s=0)


def heartbeat_v2(file: str, offset: int) -> bytes:
    """Return MySQL's newer heartbeat, with an offset of any size."""
    number = packed(offset)
    body = b"\x01" + packed(len(file)) + file.encode() + b"\x02" + packed(len(number)) + number
    return event(41, body + b"\0", end_offset=0, timestamp_s=0)
