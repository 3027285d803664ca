"""Parses, compares and encodes GTID sets of MySQL and GTID positions of MariaDB. Pure.

    MySQL     uuid:1-3:7,uuid:tag:1-5,…   every transaction by name; a tag holds until
                                          the next one of the same uuid
    MariaDB   domain-server-sequence,…    the last transaction of each domain

A request names a set as: the number of entries (8 bytes), then for each its
uuid (16), [tag], the number of intervals (8) and for each the first number and
the one behind the last (8, 8). With tags (MySQL 8.3 and later) the number of
entries has format 1 in its highest and lowest byte, and a tag is its length,
doubled, in a byte, and its text.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from databus.relay.sources.mysql.rows.columns import ByteReader

_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_INTERVAL = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_LAST = (1 << 63) - 1
_TAGGED = 1 << 56 | 1

Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MysqlGtidSet:
    """Intervals (first, behind the last) by (uuid, tag), in order, none touching the next."""

    intervals: Mapping[tuple[str, str], Intervals] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MysqlGtidSet:
        """Read a set as servers print it; intervals may overlap. Raises ValueError."""
        found: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for part in filter(None, re.sub(r"\s", "", text).split(",")):
            uuid, *rest = part.split(":")
            if len(uuid) != 36:
                raise ValueError(f"{uuid!r} is not a UUID")
            key = str(UUID(uuid)), ""
            if not rest:
                raise ValueError(f"{part!r} has no numbers")
            for piece in rest:
                number = _INTERVAL.fullmatch(piece)
                # A piece that is not an interval is a tag, for all intervals up to the next one.
                if number is None:
                    key = key[0], _tag(piece)
                else:
                    found.setdefault(key, []).append(_interval(number))
            if _INTERVAL.fullmatch(rest[-1]) is None:
                raise ValueError(f"{part!r} ends with a tag that has no numbers")
        return cls({key: _merged(found[key]) for key in sorted(found)})

    def __sub__(self, other: MysqlGtidSet) -> MysqlGtidSet:
        left = {
            key: _without(intervals, other.intervals.get(key, ()))
            for key, intervals in self.intervals.items()
        }
        return MysqlGtidSet({key: intervals for key, intervals in left.items() if intervals})

    def __str__(self) -> str:
        parts = []
        for (uuid, tag), intervals in self.intervals.items():
            numbers = (str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in intervals)
            parts.append(":".join((uuid, *([tag] if tag else []), *numbers)))
        return ",".join(parts)

    def encoded(self) -> bytes:
        """Return the set in the encoding of COM_BINLOG_DUMP_GTID."""
        # Servers before 8.3 do not know the tagged format, so it is used only with tags.
        is_tagged = any(tag for _uuid, tag in self.intervals)
        count = len(self.intervals)
        parts = [struct.pack("<Q", _TAGGED | count << 8 if is_tagged else count)]
        for (uuid, tag), intervals in self.intervals.items():
            parts.append(UUID(uuid).bytes)
            if is_tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(struct.pack("<Q", len(intervals)))
            parts += [struct.pack("<QQ", first, behind) for first, behind in intervals]
        return b"".join(parts)


def decode_gtid_set(data: bytes) -> MysqlGtidSet:
    """Return a set of the encoding that servers log and ask for; raises ValueError."""
    reader = ByteReader(data)
    head = reader.number(8)
    is_tagged = head >> 56 == 1
    found: dict[tuple[str, str], Intervals] = {}
    for _ in range(head >> 8 & 0xFFFF_FFFF_FFFF if is_tagged else head):
        uuid = str(UUID(bytes=reader.take(16)))
        tag = reader.take(reader.number(1) >> 1).decode("ascii") if is_tagged else ""
        count = reader.number(8)
        found[uuid, tag] = tuple((reader.number(8), reader.number(8)) for _ in range(count))
    return MysqlGtidSet(found)


def parse_mariadb_position(text: str) -> dict[int, tuple[int, int]]:
    """Return (server, sequence) by domain; raises ValueError."""
    found: dict[int, tuple[int, int]] = {}
    for part in filter(None, re.sub(r"\s", "", text).split(",")):
        gtid = _MARIADB.fullmatch(part)
        if gtid is None:
            raise ValueError(f"{part!r} is not a GTID of MariaDB")
        domain, server, sequence = (int(digits) for digits in gtid.groups())
        if domain in found:
            raise ValueError(f"domain {domain} is there twice")
        found[domain] = server, sequence
    return found


def purged_problem(wanted: str, purged: str, executed: str) -> str:
    """Describe the transactions after a set that a MySQL server has purged; "" when none are."""
    missing = MysqlGtidSet.parse(purged) - MysqlGtidSet.parse(wanted)
    if not missing.intervals:
        return ""
    return (
        f"what is to be read after gtid-set:{wanted} begins with {missing}, which the server has "
        f"purged: it has {executed or 'nothing'} and no longer {purged}; the changes between "
        "cannot be read any more"
    )


def _tag(piece: str) -> str:
    if not _TAG.fullmatch(piece.lower()):
        raise ValueError(f"{piece!r} is neither a number nor a tag")
    return piece.lower()


def _interval(number: re.Match[str]) -> tuple[int, int]:
    first = int(number[1])
    last = int(number[2] or number[1])
    if not 0 < first <= last < _LAST:
        raise ValueError(f"{number[0]!r} is not an interval of numbers from 1 on")
    return first, last + 1


def _merged(intervals: Sequence[tuple[int, int]]) -> Intervals:
    merged: list[tuple[int, int]] = []
    for first, behind in sorted(intervals):
        # Also if they only touch: the server expects intervals with gaps between.
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], behind)
        else:
            merged.append((first, behind))
    return tuple(merged)


def _without(intervals: Intervals, others: Intervals) -> Intervals:
    left: list[tuple[int, int]] = []
    for first, behind in intervals:
        at = first
        for other_first, other_behind in others:
            if other_behind <= at or other_first >= behind:
                continue
            if other_first > at:
                left.append((at, other_first))
            at = other_behind
        if at < behind:
            left.append((at, behind))
    return tuple(left)
