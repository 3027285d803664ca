# The plainest row events, as `_row_cutter` finds them, read where they lie. For the compiled
# modules, which include this text; all CRCs have been checked.

include "../event/big_endian.pxi"
include "../event/layout.pxi"

cdef enum:
    BODY_AT = LONG_KEY_HEADER_BYTES

# The version of the metadata that has notes: `metadata.METADATA_DIGEST`.
cdef bytes _NOTED = METADATA_DIGEST


cdef inline Py_ssize_t _place_of(const uint8_t* at) noexcept nogil:
    """Return where in an event its row's part begins."""
    return BODY_AT + CRC32_PART_BYTES + <Py_ssize_t>_u4(at + BODY_AT + PART_LENGTH_AT)


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


cdef inline bint _is_plain(const uint8_t* at, Py_ssize_t place) noexcept:
    """Whether the metadata is known to have no notes on the row; see `row_reader.RowEvent`."""
    return memcmp(at + BODY_AT + PART_CRC32_AT, PyBytes_AS_STRING(_NOTED), 4) != 0 or _has_no_notes(
        at + BODY_AT + CRC32_PART_BYTES, place - BODY_AT - CRC32_PART_BYTES
    )


cdef tuple _row_event(const uint8_t* at, object scn, object src_id, bytes digest, bytes told):
    """Return the tuple of an event; see `row_reader.RowEvent`. `told` is its metadata's digest."""
    cdef Py_ssize_t place = _place_of(at)
    cdef tuple row = (
        scn,
        _i8(at + TIMESTAMP_NS_AT),
        src_id,
        <int16_t>_u2(at + PARTITION_ID_AT),
        _i8(at + LONG_KEY_AT),
        _u2(at + ATTRIBUTES_AT) & OPCODE_MASK,
        digest,
        told,
        PyBytes_FromStringAndSize(<const char*>at, _u4(at + LENGTH_AT)),
        place,
        True if _is_plain(at, place) else False,
    )
    # Numbers and bytes: the garbage collector would find that out at its first look.
    PyObject_GC_UnTrack(<PyObject*>row)
    return row


cdef inline bytes _metadata_digest(const uint8_t* at, bytes last):
    """Return the digest of an event's metadata: nearly always the last one's, so one object."""
    cdef const uint8_t* digest = at + BODY_AT + PART_CRC32_AT
    if last is not None and memcmp(PyBytes_AS_STRING(last), digest, 4) == 0:
        return last
    return PyBytes_FromStringAndSize(<const char*>digest, 4)
