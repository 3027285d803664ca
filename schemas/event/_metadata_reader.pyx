# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Reads the metadata of most events: those of version 2 without notes.

Consumers that look at `op`, `before` or `gtid` need it for each event. `metadata.py` reads with
fastavro what is left: older versions, notes, and what is damaged, of which fastavro says why.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef inline bint _number(const uint8_t* data, Py_ssize_t end, Py_ssize_t* at, int64_t* found):
    """Read a zigzag varint; return whether there is one."""
    cdef uint64_t value = 0
    cdef int shift = 0
    cdef Py_ssize_t place = at[0]
    while place < end and (shift < 63 or shift == 63 and data[place] < 2):  # 64 bits
        value |= <uint64_t>(data[place] & 0x7F) << shift
        place += 1
        if data[place - 1] < 0x80:
            at[0] = place
            found[0] = <int64_t>(value >> 1) ^ -<int64_t>(value & 1)
            return True
        shift += 7
    return False


cdef inline bint _span(
    const uint8_t* data, Py_ssize_t end, Py_ssize_t* at, Py_ssize_t* begin, Py_ssize_t* size
):
    """Read the length of a text or of bytes, and pass them; return whether they are all there."""
    cdef int64_t length
    if not _number(data, end, at, &length) or length < 0 or length > end - at[0]:
        return False
    begin[0] = at[0]
    size[0] = <Py_ssize_t>length
    at[0] += size[0]
    return True


cdef inline bint _optional(
    const uint8_t* data, Py_ssize_t end, Py_ssize_t* at, Py_ssize_t* begin, Py_ssize_t* size
):
    """As `_span`, for a union with null, of which the size is -1."""
    if at[0] >= end:
        return False
    size[0] = -1
    at[0] += 1
    if data[at[0] - 1] == 0:
        return True
    return data[at[0] - 1] == 2 and _span(data, end, at, begin, size)


cdef inline object _text(const uint8_t* data, Py_ssize_t begin, Py_ssize_t size):
    if size < 0:
        return None
    return PyUnicode_DecodeUTF8(<const char*>data + begin, size, NULL)


def read_plain(bytes data not None, tuple ops not None):
    """Return the fields of `EventMetadata` without the notes; None for any other bytes.

    `ops` has the kinds of changes in the order of the schema's symbols.
    """
    cdef const uint8_t* bytes_ = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0
    cdef Py_ssize_t gtid = 0, gtid_size, file = 0, file_size
    cdef Py_ssize_t before = 0, before_size, comment = 0, comment_size
    cdef int64_t server_id, offset, epoch, op, row_index
    if not (
        _optional(bytes_, end, &at, &gtid, &gtid_size)
        and _number(bytes_, end, &at, &server_id)
        and _span(bytes_, end, &at, &file, &file_size)
        and _number(bytes_, end, &at, &offset)
        and _number(bytes_, end, &at, &epoch)
        and _number(bytes_, end, &at, &op)
        and _number(bytes_, end, &at, &row_index)
        and _optional(bytes_, end, &at, &before, &before_size)
        and _optional(bytes_, end, &at, &comment, &comment_size)
        and at == end - 1
        and bytes_[at] == 0
        and 0 <= op < len(ops)
    ):
        return None
    try:
        return (
            ops[op],
            _text(bytes_, gtid, gtid_size),
            server_id,
            _text(bytes_, file, file_size),
            offset,
            epoch,
            row_index,
            None
            if before_size < 0
            else PyBytes_FromStringAndSize(<const char*>bytes_ + before, before_size),
            _text(bytes_, comment, comment_size),
            None,
        )
    except UnicodeDecodeError:
        return None
