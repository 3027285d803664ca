"""The GTIDs of a frame's events, as ranges. Pure.

A GTID is a prefix and a number, its last digits: MariaDB's `0-1-17` is `0-1-` and 17, MySQL's
`UUID:17` is `UUID:` and 17. A frame has, of each prefix, the lowest and the highest number. So it
may seem to have GTIDs that it lacks, but never the other way round: events that cannot be read,
and too many prefixes, are taken to be any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from databus.schemas.event.layout import (
    CRC32_DIGEST,
    CRC32_PART_BYTES,
    DIGEST_KIND_MASK,
    HAS_METADATA,
    PART,
    V2,
    struct_of,
)
from databus.schemas.event.v2 import SMALLEST_BYTES

try:
    from databus.relay.log.gtids._frame_gtids import gtids_of as compiled
except ImportError:  # not built
    compiled = None  # type: ignore[assignment]

# By prefix, the lowest and the highest number.
GtidRanges = Mapping[bytes, tuple[int, int]]

MOST_NUMBER = (1 << 64) - 1
MOST_PREFIXES = 16  # of a frame
MOST_PREFIX_BYTES = 255
_MOST_DIGITS = 19  # of a number of 64 bits; a digit before them belongs to the prefix
_DIGITS = b"0123456789"

# Every GTID, for every one begins with this prefix.
ANY: GtidRanges = {b"": (0, MOST_NUMBER)}

_STEP = struct_of(V2.header_length, V2.length, V2.attributes)
_PART = struct_of(PART.length, PART.attributes)


class GtidKey(NamedTuple):
    """A GTID as it is searched for."""

    prefix: bytes
    number: int

    def is_in(self, ranges: GtidRanges) -> bool:
        """Return whether it may be one of these."""
        for prefix in (self.prefix, b""):
            lowest, highest = ranges.get(prefix, (1, 0))
            if lowest <= self.number <= highest:
                return True
        return False


def split_gtid(gtid: bytes) -> GtidKey:
    """Return prefix and number of a GTID, 0 without one."""
    prefix = gtid[:-_MOST_DIGITS] + gtid[-_MOST_DIGITS:].rstrip(_DIGITS)
    return GtidKey(prefix, int(gtid[len(prefix) :] or b"0"))


def prefix_text(prefix: bytes) -> str:
    """Return a prefix as JSON has it."""
    return prefix.decode(errors="surrogateescape")


def prefix_bytes(text: str) -> bytes:
    """Return the prefix that JSON has."""
    return text.encode(errors="surrogateescape")


def merged(ranges: GtidRanges, others: GtidRanges) -> GtidRanges:
    """Return the ranges that have all GTIDs of both."""
    found = dict(ranges)
    for prefix, (lowest, highest) in others.items():
        low, high = found.get(prefix, (lowest, highest))
        found[prefix] = min(low, lowest), max(high, highest)
    return found


def plain_gtids_of(data: bytes) -> GtidRanges:
    """Return the GTIDs of whole events."""
    found: dict[bytes, tuple[int, int]] = {}
    at = 0
    last: bytes | None = None
    try:
        while at < len(data):
            if len(data) - at < SMALLEST_BYTES:
                return ANY
            header_length, length, bits = _STEP.unpack_from(data, at)
            if not SMALLEST_BYTES <= header_length <= length <= len(data) - at:
                return ANY
            gtid = _gtid_in(data[at + header_length : at + length]) if bits & HAS_METADATA else None
            at += length
            if gtid is None or gtid == last:
                continue
            (prefix, number), last = split_gtid(gtid), gtid
            if len(prefix) > MOST_PREFIX_BYTES:
                return ANY
            low, high = found.get(prefix, (number, number))
            found[prefix] = min(low, number), max(high, number)
    except ValueError:
        return ANY
    return found if len(found) <= MOST_PREFIXES else ANY


def _gtid_in(body: bytes) -> bytes | None:
    """Return the GTID of an event's body with metadata; raise ValueError if it cannot be read."""
    if len(body) < CRC32_PART_BYTES:
        raise ValueError("a part is cut")
    size, bits = _PART.unpack_from(body)
    if bits & DIGEST_KIND_MASK != CRC32_DIGEST:
        return None
    data = body[CRC32_PART_BYTES : CRC32_PART_BYTES + size]
    if len(data) < size:
        raise ValueError("a part is cut")
    if data[:1] != b"\x02":  # Avro's number of the branch that is no null
        return None
    # Its length follows: a varint, twice as large.
    double, begin = data[1] if size > 1 else 0x80, 2
    if double > 0x7F:
        if size < 3 or data[2] > 0x7F:
            raise ValueError("too long a GTID")
        double, begin = double & 0x7F | data[2] << 7, 3
    if double & 1 or begin + double // 2 > size:
        raise ValueError("a GTID is cut")
    return data[begin : begin + double // 2]


gtids_of: Callable[[bytes], GtidRanges] = plain_gtids_of if compiled is None else compiled
