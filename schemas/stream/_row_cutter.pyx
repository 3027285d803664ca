# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The plainest row events of a stream, cut out of it at C speed; and whole events counted.

`row_reader` has the rules, and reads everything itself where this module was
not built: this one only goes ahead of it. It takes version 2 row events as the
relay makes them (long key, MD5 payload, CRC32 metadata or none, both CRCs
right) as long as they are of one window, source and schema, and stops in front
of whatever else comes: the end of a window, another schema, damage. The layout
is that of `event_v2`; nothing is read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from databus.schemas.event.metadata import METADATA_DIGEST

include "../event/crc32.pxi"

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject* thing)

# Where the fields of the header are, and where its 53 bytes end.
cdef enum:
    HEADER_CRC_AT = 9
    COVERED_AT = 13
    LENGTH_AT = 17
    BITS_AT = 21
    TIMESTAMP_AT = 23
    SRC_ID_AT = 31
    PARTITION_AT = 35
    SCN_AT = 37
    KEY_AT = 45
    SMALLEST_BYTES = 49
    BODY_AT = 53
    CRC32_PART_BYTES = 10  # length 4, attributes 2, digest 4; then the data
    MD5_PART_BYTES = 22  # length 4, attributes 2, digest 16; then the data

# The version of the metadata that has notes: `metadata.METADATA_DIGEST`.
cdef bytes _NOTED = METADATA_DIGEST

cdef const uint8_t* _BEGIN = b"\x02\xca\xfe\xde\xed\x00\x00\x00\x35"  # version, magic, 53
cdef const uint8_t* _VERSION_2 = b"\x02\xca\xfe\xde\xed"  # version, magic
cdef uint32_t _LONG_KEY = 0x04
cdef uint32_t _UPSERT_BITS = 0x01 | 0x04 | 0x40 | 0x80
cdef uint32_t _DELETE_BITS = 0x02 | 0x04 | 0x40 | 0x80


cdef inline uint32_t _u2(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 8) | at[1]


cdef inline uint32_t _u4(const uint8_t* at) noexcept nogil:
    return (_u2(at) << 16) | _u2(at + 2)


cdef inline int64_t _i8(const uint8_t* at) noexcept nogil:
    return <int64_t>((<unsigned long long>_u4(at) << 32) | _u4(at + 4))


cdef Py_ssize_t _find_row(const uint8_t* at, Py_ssize_t left, const char* digest) noexcept nogil:
    """Return where in the body the payload's part begins; -1 when it is not the plainest event."""
    cdef uint32_t length, bits
    cdef Py_ssize_t body_bytes, place
    if left < BODY_AT + CRC32_PART_BYTES + MD5_PART_BYTES or memcmp(at, _BEGIN, 9) != 0:
        return -1
    length, bits = _u4(at + LENGTH_AT), _u2(at + BITS_AT)
    if bits != _UPSERT_BITS and bits != _DELETE_BITS:
        return -1
    if length > left or length < BODY_AT + CRC32_PART_BYTES + MD5_PART_BYTES:
        return -1
    if crc32(at + COVERED_AT, BODY_AT - COVERED_AT) != _u4(at + HEADER_CRC_AT):
        return -1
    body_bytes = length - BODY_AT
    if crc32(at + BODY_AT, body_bytes) != _u4(at + HEADER_CRC_AT + 4):
        return -1
    return _check_parts(at + BODY_AT, body_bytes, digest)


cdef Py_ssize_t _check_parts(
    const uint8_t* body, Py_ssize_t body_bytes, const char* digest
) noexcept nogil:
    cdef Py_ssize_t place = <Py_ssize_t>_u4(body) + CRC32_PART_BYTES
    if (_u2(body + 4) & 3) != 1 or place > body_bytes - MD5_PART_BYTES:
        return -1
    if <Py_ssize_t>_u4(body + place) != body_bytes - place - MD5_PART_BYTES:
        return -1
    if (_u2(body + place + 4) & 3) != 0 or memcmp(body + place + 6, digest, 16) != 0:
        return -1
    return place


cdef inline Py_ssize_t _end_of_number(
    const uint8_t* data, Py_ssize_t at, Py_ssize_t end
) noexcept nogil:
    while at < end and data[at] > 0x7F:
        at += 1
    return at + 1


cdef Py_ssize_t _end_of_text(const uint8_t* data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Return where a text ends that begins at `at`; `end` or more when that is not in `data`."""
    cdef long long length = 0
    cdef int shift = 0
    while at < end and data[at] > 0x7F and shift < 42:
        length |= <long long>(data[at] & 0x7F) << shift
        shift += 7
        at += 1
    if at >= end or data[at] > 0x7F:
        return end
    length |= <long long>data[at] << shift
    length >>= 1
    return end if length > end else at + 1 + <Py_ssize_t>length


cdef Py_ssize_t _end_of_branch(const uint8_t* data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    if at >= end or data[at] == 0:
        return at + 1
    return _end_of_text(data, at + 1, end)


cdef bint _has_no_notes(const uint8_t* data, Py_ssize_t end) noexcept nogil:
    """Whether metadata has none for certain: its fields in order, the last of them null."""
    cdef Py_ssize_t at = _end_of_branch(data, 0, end)  # gtid
    at = _end_of_number(data, at, end)  # server_id
    at = _end_of_text(data, at, end)  # file
    at = _end_of_number(data, at, end)  # offset
    at = _end_of_number(data, at, end)  # epoch
    at = _end_of_number(data, at, end)  # op
    at = _end_of_number(data, at, end)  # row_index
    at = _end_of_branch(data, at, end)  # before
    at = _end_of_branch(data, at, end)  # comment
    return at == end - 1 and data[at] == 0


def take_rows(
    bytes data not None,
    Py_ssize_t offset,
    long long scn,
    int src_id,
    bytes digest not None,
    list events not None,
):
    """Append the row events from `offset` on to `events`; return where the first other one begins.

    `scn` -1 = that of the first one. See `row_reader.RowEvent` for the tuples.
    """
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef const char* wanted = PyBytes_AS_STRING(digest)
    cdef const uint8_t* at
    cdef Py_ssize_t place
    cdef uint32_t length
    cdef bytes metadata_digest = bytes(4)
    cdef object window_scn = None
    cdef tuple row
    cdef bint has_notes = False  # of the version of the metadata: whether there may be any
    if PyBytes_GET_SIZE(digest) != 16 or offset < 0 or src_id < 0:
        return offset
    while offset < end:
        at = begin + offset
        place = _find_row(at, end - offset, wanted)
        if place < 0 or <int32_t>_u4(at + SRC_ID_AT) != src_id:
            break
        if scn == -1:
            scn = _i8(at + SCN_AT)
        elif _i8(at + SCN_AT) != scn:
            break
        if window_scn is None:
            window_scn = scn
        length = _u4(at + LENGTH_AT)
        # Nearly always that of the event before: one object for all.
        if memcmp(PyBytes_AS_STRING(metadata_digest), at + BODY_AT + 6, 4) != 0:
            metadata_digest = PyBytes_FromStringAndSize(<const char*>at + BODY_AT + 6, 4)
            has_notes = metadata_digest == _NOTED
        row = (
            window_scn,
            _i8(at + TIMESTAMP_AT),
            src_id,
            <int16_t>_u2(at + PARTITION_AT),
            _i8(at + KEY_AT),
            at[BITS_AT + 1] & 3,
            digest,
            metadata_digest,
            PyBytes_FromStringAndSize(<const char*>at + BODY_AT, length - BODY_AT),
            place,
            True
            if not has_notes
            or _has_no_notes(at + BODY_AT + CRC32_PART_BYTES, place - CRC32_PART_BYTES)
            else False,
        )
        # Numbers and bytes: the garbage collector would find that out at its first look.
        PyObject_GC_UnTrack(<PyObject*>row)
        events.append(row)
        offset += length
    return offset


cdef Py_ssize_t _whole_length(const uint8_t* at, Py_ssize_t left) noexcept nogil:
    """Return how long the event is that begins here; 0 when not all of it is as it was made."""
    cdef Py_ssize_t header_bytes = BODY_AT, length
    if left < BODY_AT or memcmp(at, _VERSION_2, 5) != 0:
        return 0
    if not _u2(at + BITS_AT) & _LONG_KEY:
        header_bytes = SMALLEST_BYTES + <Py_ssize_t>_u4(at + KEY_AT)
    length = <Py_ssize_t>_u4(at + LENGTH_AT)
    if <Py_ssize_t>_u4(at + 5) != header_bytes or length < header_bytes or length > left:
        return 0
    if crc32(at + COVERED_AT, header_bytes - COVERED_AT) != _u4(at + HEADER_CRC_AT):
        return 0
    if crc32(at + header_bytes, length - header_bytes) != _u4(at + HEADER_CRC_AT + 4):
        return 0
    return length


def pass_whole(bytes data not None, Py_ssize_t offset):
    """Return where the first event from `offset` on begins that is not whole, and how many are."""
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t count = 0, length
    if offset < 0:
        return offset, 0
    with nogil:
        while offset < end:
            length = _whole_length(begin + offset, end - offset)
            if length == 0:
                break
            offset += length
            count += 1
    return offset, count
