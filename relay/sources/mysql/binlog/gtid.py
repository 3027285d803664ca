"""Parses GTID events, which begin a transaction. Pure.

    MariaDB (162)   sequence (8), domain (4), flags (1), [group commit id (8)],
                    [XA: format (4), two lengths (1, 1), the xid], [more flags (1), …]
    MySQL (33, 34)  flags (1), uuid (16), number (8), logical clock (1, 8, 8),
                    commit time in microseconds (7, the highest bit saying that the
                    original's follows)
    tagged (42)     version, size, last field that must be known, then fields of
                    number and value; every number is a varint

In a varint the ones at the low end of its first byte say how many bytes follow;
what is left, little-endian, is the number, and a signed one has its sign lowest.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from pymysqlreplication.constants import BINLOG as B

from databus.relay.sources.mysql.binlog.events import GTID_TAGGED, Event
from databus.relay.sources.mysql.rows.columns import ByteReader


class Gtid(NamedTuple):
    """A GTID event, which begins a transaction."""

    text: str | None
    is_standalone: bool | None = None  # MariaDB only: whether one statement follows, or a group
    commit_timestamp_ns: int = 0  # MySQL 8 only: when it was committed on this server
    is_unfinished_ddl: bool = False  # the first half of an ALTER, or one that failed
    is_prepared_xa: bool = False  # MariaDB only: it ends with XA PREPARE


_STANDALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 0x01, 0x02, 0x40, 0x80
_START_ALTER, _ROLLBACK_ALTER = 0x02, 0x08


def parse_mariadb_gtid(event: Event) -> Gtid:
    """Read a MariaDB GTID event; raises ValueError."""
    reader = ByteReader(event.body)
    sequence, domain, flags = struct.unpack("<QIB", reader.take(13))
    if flags & _GROUP_COMMIT:
        reader.take(8)
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        reader.take(4)
        reader.take(reader.number(1) + reader.number(1))
    # Padded with zero bytes, which have no meaning.
    more = reader.number(1) if reader.position < len(event.body) else 0
    return Gtid(
        f"{domain}-{event.server_id}-{sequence}",
        bool(flags & _STANDALONE),
        is_unfinished_ddl=bool(more & (_START_ALTER | _ROLLBACK_ALTER)),
        is_prepared_xa=bool(flags & _PREPARED_XA),
    )


def parse_mysql_gtid(event: Event) -> Gtid:
    """Read a MySQL GTID event of any kind; an anonymous one has no text. Raises ValueError."""
    if event.type_code == GTID_TAGGED:
        return _parse_tagged(event.body)
    reader = ByteReader(event.body, 1)
    uuid, number = UUID(bytes=reader.take(16)), reader.number(8)
    text = f"{uuid}:{number}" if event.type_code == B.GTID_LOG_EVENT else None
    micros = 0
    if len(event.body) >= 49 and reader.number(1) == 2:
        reader.take(16)
        micros = reader.number(7) & (1 << 55) - 1
    return Gtid(text, None, _commit_ns(micros))


# Fields of a tagged GTID, in the order of their numbers. Later fields are not used; the
# event itself names the last one that a reader must know.
_FLAGS, _UUID, _NUMBER, _TAG, _LAST_COMMITTED, _SEQUENCE, _COMMIT_TIME = range(7)
_LAST_KNOWN = 11
_MOST_MICROS = (1 << 63) // 1000  # nanoseconds have 63 bits


def _parse_tagged(body: bytes) -> Gtid:
    reader = ByteReader(body)
    _varint(reader)
    _varint(reader)
    must_know = _varint(reader)
    if must_know > _LAST_KNOWN:
        raise ValueError(f"a tagged GTID with a field {must_know} that is not known")
    uuid, number, tag, micros = b"", 0, "", 0
    while reader.position < len(body):
        field = _varint(reader)
        if field == _UUID:
            uuid = bytes(_varint(reader) for _ in range(16))
        elif field == _NUMBER:
            number = _signed(reader)
        elif field == _TAG:
            tag = reader.take(_varint(reader)).decode("utf-8")
        elif field in (_FLAGS, _LAST_COMMITTED, _SEQUENCE):
            _varint(reader)
        elif field == _COMMIT_TIME:
            micros = _varint(reader)
            break
        else:
            break
    if not uuid:
        raise ValueError("a tagged GTID without a uuid")
    text = f"{UUID(bytes=uuid)}:{tag}:{number}" if tag else f"{UUID(bytes=uuid)}:{number}"
    return Gtid(text, None, _commit_ns(micros))


def _commit_ns(micros: int) -> int:
    if micros >= _MOST_MICROS:
        raise ValueError(f"a commit time of {micros} microseconds since 1970")
    return micros * 1000


def _varint(reader: ByteReader) -> int:
    first = reader.number(1)
    more = 0
    while first >> more & 1 and more < 8:
        more += 1
    rest = reader.number(more) if more else 0
    if more == 8:
        return rest
    return rest << 7 - more | first >> more + 1


def _signed(reader: ByteReader) -> int:
    number = _varint(reader)
    return -(number >> 1) - 1 if number & 1 else number >> 1
