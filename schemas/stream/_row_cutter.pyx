# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The plainest row events of a stream, cut out of it at C speed; and whole events counted.

`row_reader` has the rules, and reads everything itself where this module was
not built: this one only goes ahead of it. It takes version 2 row events as the
relay makes them (long key, MD5 payload, CRC32 metadata or none, both CRCs
right) as long as they are of one window, source and schema, and stops in front
of whatever else comes: the end of a window, another schema, damage. Nothing is
read beyond the bytes given.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cython cimport no_gc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from databus.schemas.event.metadata import METADATA_DIGEST

include "../event/crc32.pxi"
include "row_events.pxi"

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject* thing)

cdef enum:
    LEAST_BYTES = BODY_AT + CRC32_PART_BYTES + MD5_PART_BYTES  # of a row's event

cdef frozenset _NONE = frozenset()
cdef object _new = tuple.__new__


cdef inline bint _begins_event(const uint8_t* at) noexcept nogil:
    return at[VERSION_AT] == VERSION and _u4(at + MAGIC_AT) == <uint32_t>MAGIC


cdef Py_ssize_t _find_row(const uint8_t* at, Py_ssize_t left) noexcept nogil:
    """Return where in the body the payload's part begins; -1 when it is not the plainest event."""
    cdef uint32_t length, bits
    cdef Py_ssize_t body_bytes, place
    if left < LEAST_BYTES or not _begins_event(at):
        return -1
    if _u4(at + HEADER_LENGTH_AT) != LONG_KEY_HEADER_BYTES:
        return -1
    length, bits = _u4(at + LENGTH_AT), _u2(at + ATTRIBUTES_AT)
    if bits != PLAIN_UPSERT and bits != PLAIN_DELETE:
        return -1
    if length > left or length < LEAST_BYTES:
        return -1
    if event_crc32(at + COVERED_AT, BODY_AT - COVERED_AT) != _u4(at + HEADER_CRC_AT):
        return -1
    body_bytes = length - BODY_AT
    if event_crc32(at + BODY_AT, body_bytes) != _u4(at + BODY_CRC_AT):
        return -1
    return _check_parts(at + BODY_AT, body_bytes)


cdef Py_ssize_t _check_parts(const uint8_t* body, Py_ssize_t body_bytes) noexcept nogil:
    cdef Py_ssize_t place = <Py_ssize_t>_u4(body + PART_LENGTH_AT) + CRC32_PART_BYTES
    if (_u2(body + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK) != CRC32_DIGEST or place > body_bytes - MD5_PART_BYTES:
        return -1
    if <Py_ssize_t>_u4(body + place + PART_LENGTH_AT) != body_bytes - place - MD5_PART_BYTES:
        return -1
    if (_u2(body + place + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK) != MD5_DIGEST:
        return -1
    return place


cdef inline bint _has_digest(const uint8_t* at, Py_ssize_t place, bytes digest) noexcept:
    """Whether a row's schema has this digest, which has 16 bytes."""
    return memcmp(at + BODY_AT + place + PART_MD5_AT, PyBytes_AS_STRING(digest), 16) == 0


# Fewer rows than this are made into tuples at once: a run of its own would cost more.
cdef enum:
    FEWEST_PACKED = 4


@no_gc
cdef class PackedRun:
    """Consecutive row events of one window, source and schema, where they lie in a response.

    `data` has `count` of them from `begin` to `end`.
    """

    cdef readonly bytes data
    cdef readonly Py_ssize_t begin
    cdef readonly Py_ssize_t end
    cdef readonly Py_ssize_t count
    cdef readonly object scn
    cdef readonly object src_id
    cdef readonly bytes digest

    def __len__(self):
        return self.count

    cdef tuple event(self, Py_ssize_t place):
        """Return the tuple of one of its events."""
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(self.data) + self.begin
        while place > 0:
            at += _u4(at + LENGTH_AT)
            place -= 1
        return _row_event(at, self.scn, self.src_id, self.digest, _metadata_digest(at, None))

    cdef add_to(self, list events):
        """Append the tuples of the events."""
        cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(self.data)
        cdef const uint8_t* at = begin + self.begin
        cdef bytes told = None
        while at < begin + self.end:
            told = _metadata_digest(at, told)
            events.append(_row_event(at, self.scn, self.src_id, self.digest, told))
            at += _u4(at + LENGTH_AT)


cdef _pack(
    list events,
    bytes data,
    Py_ssize_t begin,
    Py_ssize_t end,
    Py_ssize_t count,
    object scn,
    object src_id,
    bytes digest,
):
    """Append the events from `begin` to `end` to those of their window."""
    cdef PackedRun run
    if count == 0:
        return
    run = PackedRun.__new__(PackedRun)
    run.data, run.begin, run.end, run.count = data, begin, end, count
    run.scn, run.src_id, run.digest = scn, src_id, digest
    if count < FEWEST_PACKED:
        run.add_to(events)
    else:
        events.append(run)


@no_gc
cdef class PackedRows:
    """The events of a window, of which most are still packed: a sequence of `RowEvent`s.

    `runs` has its `PackedRun`s, and as tuples the events that are in none of them. Each access
    makes tuples anew.
    """

    cdef readonly tuple runs
    cdef Py_ssize_t _count

    def __init__(self, events):
        self.runs = tuple(events)
        self._count = 0
        for run in self.runs:
            self._count += (<PackedRun>run).count if type(run) is PackedRun else 1

    def __len__(self):
        return self._count

    def __iter__(self):
        return iter(self._all())

    def __getitem__(self, place):
        # Mostly the first or the last one, so not all of them for it.
        if isinstance(place, slice):
            return self._all()[place]
        at = place + self._count if place < 0 else place
        if at < 0:
            raise IndexError(place)
        for run in self.runs:
            if type(run) is not PackedRun:
                if at == 0:
                    return run
                at -= 1
            elif at < (<PackedRun>run).count:
                return (<PackedRun>run).event(at)
            else:
                at -= (<PackedRun>run).count
        raise IndexError(place)

    def __eq__(self, other):
        if type(other) is PackedRows:
            other = (<PackedRows>other)._all()
        return self._all() == other if type(other) is tuple else NotImplemented

    def __hash__(self):
        return hash(self._all())

    def __repr__(self):
        return f"PackedRows({self._all()!r})"

    cdef tuple _all(self):
        cdef list events = []
        for run in self.runs:
            if type(run) is PackedRun:
                (<PackedRun>run).add_to(events)
            else:
                events.append(run)
        return tuple(events)


def sealed(list events not None):
    """Return the events of a window, for good: a tuple, or PackedRows if some are packed."""
    for run in events:
        if type(run) is PackedRun:
            return PackedRows(events)
    return tuple(events)


def take_rows(
    bytes data not None,
    Py_ssize_t offset,
    long long scn,
    int src_id,
    bytes digest not None,
    list events not None,
):
    """Append the row events from `offset` on to `events`; return where the first other one begins.

    `scn` -1 = that of the first one. They are appended as `PackedRun`s and `RowEvent`s.
    """
    cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t first = offset, count = 0
    cdef const uint8_t* at
    cdef Py_ssize_t place
    if PyBytes_GET_SIZE(digest) != 16 or offset < 0 or src_id < 0:
        return offset
    while offset < end:
        at = begin + offset
        place = _find_row(at, end - offset)
        if place < 0 or <int32_t>_u4(at + SRC_ID_AT) != src_id or not _has_digest(at, place, digest):
            break
        if scn == -1:
            scn = _i8(at + SCN_AT)
        elif _i8(at + SCN_AT) != scn:
            break
        count += 1
        offset += _u4(at + LENGTH_AT)
    _pack(events, data, first, offset, count, scn, src_id, digest)
    return offset


cdef bint _ends_window(const uint8_t* at, Py_ssize_t left) noexcept nogil:
    """Whether a whole end-of-period event begins here, as a relay makes it."""
    return (
        left >= BODY_AT
        and _begins_event(at)
        and _u4(at + HEADER_LENGTH_AT) == LONG_KEY_HEADER_BYTES
        and <int32_t>_u4(at + SRC_ID_AT) == EOP_SRC_ID
        and _u2(at + ATTRIBUTES_AT) == LONG_KEY
        and _u4(at + LENGTH_AT) == BODY_AT
        and _u4(at + BODY_CRC_AT) == 0
        and event_crc32(at + COVERED_AT, BODY_AT - COVERED_AT) == _u4(at + HEADER_CRC_AT)
    )


def take_windows(
    bytes data not None,
    Py_ssize_t offset,
    Py_ssize_t begin,
    Py_ssize_t window_bytes,
    Py_ssize_t max_window_bytes,
    long long scn,
    list events not None,
    frozenset known not None,
    list windows not None,
    type window_type not None,
):
    """Take events from `offset` on, of known schemas; append the windows that they complete.

    `events` are those of the incomplete window, with `scn` (-1 = none), which has `window_bytes`
    before `data` and its next ones from `begin` on. Return where the first event begins that is
    not taken, where its window begins in `data`, and its window's SCN.
    """
    cdef const uint8_t* data_at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t first = offset, count = 0  # of the run that is being read
    cdef const uint8_t* at
    cdef Py_ssize_t place, size_bytes
    cdef int src_id = -1
    cdef bytes digest = None, found
    cdef object window_scn, taken, window
    if not events:
        scn = -1
    if not 0 <= begin <= offset:
        return offset, begin, scn
    while offset < end:
        at = data_at + offset
        place = _find_row(at, end - offset)
        if place < 0:
            size_bytes = window_bytes + offset + BODY_AT - begin
            if (
                not _ends_window(at, end - offset)
                or (scn != -1 and _i8(at + SCN_AT) != scn)
                or size_bytes > max_window_bytes
            ):
                break
            window_scn = _i8(at + SCN_AT)
            _pack(events, data, first, offset, count, window_scn, src_id, digest)
            taken = sealed(events)
            events.clear()
            window = _new(
                window_type, (window_scn, _i8(at + TIMESTAMP_NS_AT), taken, size_bytes, _NONE, ())
            )
            # Neither can be part of a cycle, whatever is done to them.
            if type(taken) is tuple:
                PyObject_GC_UnTrack(<PyObject*>taken)
            PyObject_GC_UnTrack(<PyObject*>window)
            windows.append(window)
            offset += BODY_AT
            begin, window_bytes, scn = offset, 0, -1
            first, count = offset, 0
            continue
        if (
            digest is None
            or <int32_t>_u4(at + SRC_ID_AT) != src_id
            or not _has_digest(at, place, digest)
        ):
            found = PyBytes_FromStringAndSize(<const char*>at + BODY_AT + place + PART_MD5_AT, 16)
            if (<int32_t>_u4(at + SRC_ID_AT), found) not in known:
                break
            _pack(events, data, first, offset, count, scn, src_id, digest)
            first, count = offset, 0
            src_id, digest = <int32_t>_u4(at + SRC_ID_AT), found
            if src_id < 0:
                break
        if scn == -1:
            scn = _i8(at + SCN_AT)
        elif _i8(at + SCN_AT) != scn:
            break
        count += 1
        offset += _u4(at + LENGTH_AT)
    _pack(events, data, first, offset, count, scn, src_id, digest)
    return offset, begin, scn


cdef Py_ssize_t _end_of_part(const uint8_t* body, Py_ssize_t place, Py_ssize_t body_bytes) noexcept nogil:
    """Return where the part at `place` ends; -1 when it is none, or not all within the body."""
    cdef uint32_t kind
    cdef Py_ssize_t data_at
    if body_bytes - place < PART_MD5_AT:
        return -1
    kind = _u2(body + place + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK
    if kind == MD5_DIGEST:
        data_at = place + MD5_PART_BYTES
    elif kind == CRC32_DIGEST:
        data_at = place + CRC32_PART_BYTES
    else:
        return -1
    if <Py_ssize_t>_u4(body + place + PART_LENGTH_AT) > body_bytes - data_at:
        return -1
    return data_at + <Py_ssize_t>_u4(body + place + PART_LENGTH_AT)


cdef bint _is_whole_inside(
    const uint8_t* at, const uint8_t* body, Py_ssize_t body_bytes
) noexcept nogil:
    """Whether opcode, source and parts of an event with right CRCs fit each other."""
    cdef uint32_t bits = _u2(at + ATTRIBUTES_AT), keys = bits & (LONG_KEY | BYTE_KEY)
    cdef Py_ssize_t place = 0
    if bits > 0xFF or bits & OPCODE_MASK == OPCODE_MASK or (keys != LONG_KEY and keys != BYTE_KEY):
        return False
    if (<int32_t>_u4(at + SRC_ID_AT) < 0) != (bits & OPCODE_MASK == OPCODE_CONTROL):
        return False
    if bits & HAS_METADATA:
        place = _end_of_part(body, place, body_bytes)
    if place >= 0 and bits & HAS_PAYLOAD:
        place = _end_of_part(body, place, body_bytes)
    return place == body_bytes


cdef Py_ssize_t _whole_length(const uint8_t* at, Py_ssize_t left) noexcept nogil:
    """Return how long the event is that begins here; 0 when not all of it is as it was made."""
    cdef Py_ssize_t header_bytes = BODY_AT, length
    if left < SMALLEST_BYTES or not _begins_event(at):
        return 0
    if not _u2(at + ATTRIBUTES_AT) & LONG_KEY:
        header_bytes = SMALLEST_BYTES + <Py_ssize_t>_u4(at + KEY_LENGTH_AT)
    length = <Py_ssize_t>_u4(at + LENGTH_AT)
    if <Py_ssize_t>_u4(at + HEADER_LENGTH_AT) != header_bytes or length < header_bytes or length > left:
        return 0
    if event_crc32(at + COVERED_AT, header_bytes - COVERED_AT) != _u4(at + HEADER_CRC_AT):
        return 0
    if event_crc32(at + header_bytes, length - header_bytes) != _u4(at + BODY_CRC_AT):
        return 0
    if not _is_whole_inside(at, at + header_bytes, length - header_bytes):
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
