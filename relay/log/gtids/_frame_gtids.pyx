# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The compiled walk over a frame's events for `frame_gtids`, by whose rules it goes.

It runs for each event that a log is given. Rows of one transaction have the same GTID: it is
split into prefix and number once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp

include "../../../schemas/event/big_endian.pxi"
include "../../../schemas/event/layout.pxi"

cdef enum:
    MOST_PREFIXES = 16
    MOST_PREFIX_BYTES = 255
    MOST_DIGITS = 19

cdef enum Verdict:
    NONE = 0
    FOUND = 1
    UNREADABLE = 2

cdef struct Text:
    const uint8_t* begin
    int64_t length

cdef struct Range:
    Text prefix
    uint64_t lowest
    uint64_t highest

cdef struct Ranges:
    Range ranges[MOST_PREFIXES]
    int32_t count
    int32_t last  # the one that was found last


cdef inline bint _is_same(const Text* one, const Text* other) noexcept nogil:
    return one.length == other.length and memcmp(one.begin, other.begin, one.length) == 0


cdef inline Verdict _read_gtid(const uint8_t* part, int64_t left, Text* gtid) noexcept nogil:
    """Find the GTID in the metadata that begins a body."""
    cdef int64_t size, length, begin = 2
    cdef const uint8_t* data = part + CRC32_PART_BYTES
    if left < CRC32_PART_BYTES:
        return UNREADABLE
    if _u2(part + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK != CRC32_DIGEST:
        return NONE
    size = _u4(part + PART_LENGTH_AT)
    if size > left - CRC32_PART_BYTES:
        return UNREADABLE
    if size == 0 or data[0] != 2:
        return NONE
    length = data[1] if size > 1 else 0x80
    if length > 0x7F:
        if size < 3 or data[2] > 0x7F:
            return UNREADABLE
        length = length & 0x7F | <int64_t>data[2] << 7
        begin = 3
    if length & 1 or begin + length // 2 > size:
        return UNREADABLE
    gtid.begin = data + begin
    gtid.length = length // 2
    return FOUND


cdef bint _add(Ranges* found, const Text* gtid) noexcept nogil:
    """Take a GTID into its range; return False if there is no room for one more."""
    cdef Text prefix = gtid[0]
    cdef uint64_t number = 0
    cdef int64_t at
    cdef int32_t slot = found.last
    while prefix.length > 0 and gtid.length - prefix.length < MOST_DIGITS:
        if not 48 <= prefix.begin[prefix.length - 1] <= 57:
            break
        prefix.length -= 1
    if prefix.length > MOST_PREFIX_BYTES:
        return False
    for at in range(prefix.length, gtid.length):
        number = number * 10 + gtid.begin[at] - 48
    if not found.count or not _is_same(&found.ranges[slot].prefix, &prefix):
        slot = 0
        while slot < found.count and not _is_same(&found.ranges[slot].prefix, &prefix):
            slot += 1
        if slot == MOST_PREFIXES:
            return False
        if slot == found.count:
            found.ranges[slot] = Range(prefix, number, number)
            found.count += 1
        found.last = slot
    if number < found.ranges[slot].lowest:
        found.ranges[slot].lowest = number
    elif number > found.ranges[slot].highest:
        found.ranges[slot].highest = number
    return True


cdef bint _collect(const uint8_t* at, int64_t left, Ranges* found) noexcept nogil:
    """Take the GTIDs of all events; return False if they cannot be read, or are too many."""
    cdef int64_t header_length, length
    cdef Verdict verdict
    cdef Text gtid, last
    last.begin = at
    last.length = -1  # none yet
    while left > 0:
        if left < SMALLEST_BYTES:
            return False
        header_length, length = _u4(at + HEADER_LENGTH_AT), _u4(at + LENGTH_AT)
        if not SMALLEST_BYTES <= header_length <= length <= left:
            return False
        if _u2(at + ATTRIBUTES_AT) & HAS_METADATA:
            verdict = _read_gtid(at + header_length, length - header_length, &gtid)
            if verdict == UNREADABLE:
                return False
            if verdict == FOUND and not _is_same(&gtid, &last):
                if not _add(found, &gtid):
                    return False
                last = gtid
        at += length
        left -= length
    return True


def gtids_of(bytes data not None):
    """See `frame_gtids.plain_gtids_of`."""
    cdef Ranges found
    cdef Range* one
    found.count = found.last = 0
    if not _collect(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &found):
        return {b"": (0, <uint64_t>-1)}
    ranges = {}
    for slot in range(found.count):
        one = &found.ranges[slot]
        prefix = PyBytes_FromStringAndSize(<const char*>one.prefix.begin, one.prefix.length)
        ranges[prefix] = one.lowest, one.highest
    return ranges
