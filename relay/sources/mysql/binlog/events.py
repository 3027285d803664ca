"""Parses binlog events: header, checksum, and the bodies that the source needs. Pure.

    header   time in seconds (4), type (1), server id (4), size (4),
             end offset in its file (4), flags (2)
    body     size - 19 bytes, the last 4 a CRC32 of all before when the file has checksums

Rows events are read in `rows/changes.py`, TABLE_MAP in `rows/columns.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.rows.charsets import decoder_of
from databus.relay.sources.mysql.rows.columns import ByteReader

HEADER_SIZE = 19
HEADER = struct.Struct("<IBIIIH")
_THREAD_SPECIFIC, _ARTIFICIAL, _IGNORABLE = 0x4, 0x20, 0x80

# Event types for which mysql-replication has no constant.
APPEND_BLOCK, DELETE_FILE = 9, 11
TRANSACTION_CONTEXT, VIEW_CHANGE = 36, 37
TRANSACTION_PAYLOAD, HEARTBEAT_V2, GTID_TAGGED = 40, 41, 42
QUERY_COMPRESSED = 165

# Events without information about rows.
HARMLESS = frozenset(
    {
        B.STOP_EVENT,
        B.PREVIOUS_GTIDS_LOG_EVENT,
        TRANSACTION_CONTEXT,
        VIEW_CHANGE,
        B.MARIADB_BINLOG_CHECKPOINT_EVENT,
        B.MARIADB_GTID_GTID_LIST_EVENT,
        B.MARIADB_START_ENCRYPTION_EVENT,
        B.IGNORABLE_LOG_EVENT,
        # Values for the statement that follows; the statement itself is parsed.
        B.INTVAR_EVENT,
        B.RAND_EVENT,
        B.USER_VAR_EVENT,
        B.BEGIN_LOAD_QUERY_EVENT,
        APPEND_BLOCK,
        DELETE_FILE,
    }
)

# The problem of an INCIDENT event.
LOST = (
    "the server reports that changes were lost from its log; seed the consumers again, and then "
    "let capture continue"
)

NAMES = {
    code: name.removesuffix("_EVENT")
    for name, code in vars(B).items()
    if name.endswith(("_EVENT", "_EVENT_V1", "_EVENT_V2")) and not name.startswith("INTVAR_")
} | {
    TRANSACTION_CONTEXT: "TRANSACTION_CONTEXT",
    VIEW_CHANGE: "VIEW_CHANGE",
    TRANSACTION_PAYLOAD: "TRANSACTION_PAYLOAD",
    HEARTBEAT_V2: "HEARTBEAT_V2",
    GTID_TAGGED: "GTID_TAGGED",
    QUERY_COMPRESSED: "QUERY_COMPRESSED",
    **dict.fromkeys(range(166, 172), "ROWS_COMPRESSED"),
}


class Event(NamedTuple):
    """An event without its checksum; `body` begins after the header.

    `end_offset` is the header's 32-bit value until `LogCursor` replaces it with the real one.
    """

    timestamp_s: int
    type_code: int
    server_id: int
    size: int
    end_offset: int
    flags: int
    body: bytes

    @property
    def start_offset(self) -> int:
        """The offset in its file at which it begins."""
        return self.end_offset - self.size

    @property
    def is_artificial(self) -> bool:
        """Whether the server generated it for this stream only."""
        return bool(self.flags & _ARTIFICIAL)

    @property
    def is_ignorable(self) -> bool:
        """Whether a reader that does not know its type may skip it."""
        return bool(self.flags & _IGNORABLE)


def event_name(type_code: int) -> str:
    """Return an event type's name and number, for messages."""
    return f"{NAMES.get(type_code, 'unknown event')} ({type_code})"


class EventReader:
    """Splits events and checks their CRC32.

    A file's FORMAT_DESCRIPTION event tells whether the file has checksums. That event itself
    always has one; the ROTATE event before it is checked to find out.
    """

    def __init__(self) -> None:
        self.has_checksum = False

    def read(self, data: bytes) -> Event:
        """Return one event; raises ValueError on damage."""
        if len(data) < HEADER_SIZE:
            raise ValueError(f"an event of {len(data)} bytes")
        header = HEADER.unpack_from(data)
        type_code, size = header[1], header[3]
        if size != len(data):
            raise ValueError(f"{event_name(type_code)} says {size} bytes and has {len(data)}")
        end = size
        if type_code == B.FORMAT_DESCRIPTION_EVENT:
            end -= 4
            # Its last byte before the checksum: 0 = none in this file, 1 = CRC32.
            self.has_checksum = data[end - 1] == 1
            _check(data, type_code, is_wanted=self.has_checksum)
        elif type_code == B.ROTATE_EVENT:
            end -= 4 if _has_valid_checksum(data) else 0
        elif self.has_checksum:
            end -= 4
            _check(data, type_code, is_wanted=True)
        return Event._make((*header, data[HEADER_SIZE:end]))


def _has_valid_checksum(data: bytes) -> bool:
    return crc32(data[:-4]) == int.from_bytes(data[-4:], "little")


def _check(data: bytes, type_code: int, *, is_wanted: bool) -> None:
    if is_wanted and not _has_valid_checksum(data):
        raise ValueError(f"the checksum of {event_name(type_code)} is wrong")


class Query(NamedTuple):
    """A QUERY event."""

    database: str
    text: str
    sql_mode: int = 0
    server_charset: str = ""  # the default for databases created without one
    explicit_timestamps: bool | None = None  # None: not in the event
    uses_own_tables: bool = False  # temporary tables of its session
    time_s: int = 0  # when the statement began, since 1970; 0: not known


# Status variables: code → size in bytes, or -1 for a text with a one-byte length. Only
# those up to the last one used here: they come in order.
_VARIABLES = {0: 4, 1: 8, 3: 4, 4: 6, 5: -1, 6: -1, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1}
_FLAGS, _SQL_MODE, _CHARSET, _INVOKER, _DATABASES, _EXPLICIT_TIMESTAMPS = 0, 1, 4, 11, 12, 16
# MariaDB's flag; MySQL has a status variable instead.
_EXPLICIT_FLAG = 1 << 24


def parse_query(event: Event, collations: Mapping[int, str], extra: int = 0) -> Query:
    """Read a QUERY event; an EXECUTE_LOAD_QUERY has 13 bytes more in front of its body.

    `collations` gives the character set of a collation id.
    """
    body = event.body
    schema_length = body[8]
    status_length = int.from_bytes(body[11:13], "little")
    start = 13 + extra
    text_at = start + status_length + schema_length + 1
    if len(body) < text_at:
        raise ValueError("the QUERY event ends too early")
    statement = body[text_at:]
    database = body[text_at - 1 - schema_length : text_at - 1].decode("utf-8", "replace")
    if statement in (b"BEGIN", b"COMMIT"):
        return Query(database, statement.decode())
    variables = _status_variables(body[start : start + status_length])
    sql_mode = int.from_bytes(variables.get(_SQL_MODE, b""), "little")
    text = _statement_text(statement, variables.get(_CHARSET), collations)
    charsets = variables.get(_CHARSET, b"")
    server_charset = collations.get(int.from_bytes(charsets[4:6], "little"), "")
    explicit = variables.get(_EXPLICIT_TIMESTAMPS)
    is_explicit = None if explicit is None else explicit != b"\0"
    if int.from_bytes(variables.get(_FLAGS, b""), "little") & _EXPLICIT_FLAG:
        is_explicit = True
    uses_own_tables = bool(event.flags & _THREAD_SPECIFIC)
    return Query(
        database, text, sql_mode, server_charset, is_explicit, uses_own_tables, event.timestamp_s
    )


def _status_variables(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    reader = ByteReader(data)
    while reader.position < len(data):
        code = reader.number(1)
        size = _VARIABLES.get(code)
        if size is not None:
            found[code] = reader.take(size if size >= 0 else reader.number(1))
        elif code == _INVOKER:
            reader.take(reader.number(1))
            reader.take(reader.number(1))
        elif code == _DATABASES:
            _skip_databases(reader)
        else:
            break
    return found


def _skip_databases(reader: ByteReader) -> None:
    count = reader.number(1)
    for _ in range(count if count < 254 else 0):  # 254: too many to be listed
        reader.position = reader.data.index(b"\0", reader.position) + 1


def _statement_text(statement: bytes, charset: bytes | None, collations: Mapping[int, str]) -> str:
    collation_id = int.from_bytes(charset[:2], "little") if charset is not None else 0
    decode = decoder_of(collations.get(collation_id, ""))
    try:
        return decode(statement) if decode else statement.decode("utf-8", "replace")
    except UnicodeDecodeError:
        return statement.decode("utf-8", "replace")


def parse_rotate(body: bytes) -> tuple[str, int]:
    """Return the next file's name and the offset in it."""
    return body[8:].decode("utf-8"), int.from_bytes(body[:8], "little")


def parse_heartbeat(event: Event) -> tuple[str, int]:
    """Return the file and offset that an idle stream has reached; raises ValueError.

    Version 2 has fields of tag, length and value: 1 the file, 2 the offset, 0 the end.
    """
    if event.type_code != HEARTBEAT_V2:
        return event.body.decode("utf-8"), event.end_offset
    reader = ByteReader(event.body)
    file, offset = "", 0
    while reader.position < len(event.body) and (tag := reader.packed()):
        value = reader.take(reader.packed())
        if tag == 1:
            file = value.decode("utf-8")
        elif tag == 2:
            offset = ByteReader(value).packed()
    return file, offset
