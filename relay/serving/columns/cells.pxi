# The values of a row in Avro, before they have texts. For the compiled modules, which include this.

from libc.math cimport isinf, isnan
from libc.stdio cimport snprintf
from libc.stdlib cimport strtof
from libc.string cimport memchr, memcmp, memset, strlen

include "../../sources/mysql/binlog/_byte_buffer.pxi"
include "../../../schemas/rows/avro_numbers.pxi"
include "../../../schemas/rows/civil_days.pxi"

cdef extern from "Python.h":
    char* PyOS_double_to_string(double value, char code, int precision, int flags, int* kind) except NULL
    void PyMem_Free_string "PyMem_Free"(void* text)

cdef enum:
    TEXT_BYTES = 128  # more than a number, a date or a time has
    MOST_DECIMAL_BYTES = 32
    MOST_SCALE = 60

cdef enum Code:
    NOTHING
    BOOLEAN
    LONG
    FLOAT
    DOUBLE
    TEXT
    BYTES
    FIXED
    DATE
    DATETIME
    TIMESTAMP
    DECIMAL

_CODES = {
    "null": NOTHING,
    "boolean": BOOLEAN,
    "int": LONG,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "string": TEXT,
    "bytes": BYTES,
    "fixed": FIXED,
    "date": DATE,
    "datetime": DATETIME,
    "timestamp": TIMESTAMP,
    "decimal": DECIMAL,
}

cdef enum Kind:  # as in `column_plan`
    PLAIN
    TIME
    YEAR
    BIT
    BINARY
    ENUM
    SET

cdef struct Branch:
    int code
    int64_t size  # bytes of a fixed; scale of a decimal
    int64_t sql_type

cdef struct Span:
    const uint8_t* data
    Py_ssize_t size

cdef struct Cell:
    const Branch* branch
    const uint8_t* begin  # in Avro
    const uint8_t* end
    const uint8_t* data
    int64_t size
    int64_t number
    const char* raw  # the server's text of what has no value in Avro
    Py_ssize_t raw_size
    bint is_absent


cdef bint _read_cell(Cell* cell, const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef int code = cell.branch.code
    if code == NOTHING:
        return True
    if code == LONG or code == DATE or code == DATETIME or code == TIMESTAMP:
        return _read_long(at, end, &cell.number)
    if code == TEXT or code == BYTES or code == DECIMAL:
        return _read_bytes(at, end, &cell.data, &cell.size)
    cell.size = cell.branch.size
    if code == BOOLEAN:
        cell.size = 1
    elif code == FLOAT:
        cell.size = 4
    elif code == DOUBLE:
        cell.size = 8
    if cell.size > end - at[0]:
        return False
    cell.data = at[0]
    at[0] += cell.size
    return True


cdef inline Py_ssize_t _varint_size(uint64_t number) noexcept nogil:
    return (70 - __builtin_clzll(number | 1)) // 7


cdef inline uint8_t* _copied(uint8_t* to, Span data) noexcept nogil:
    copy_bytes(to, data.data, data.size)
    return to + data.size


cdef inline Py_ssize_t _text_size(Span text, bint is_latin) noexcept nogil:
    """Return the bytes that a text has as UTF-8; bytes of Latin-1 above 0x7F have two."""
    cdef Py_ssize_t at, size = text.size
    if is_latin:
        for at in range(text.size):
            size += text.data[at] >> 7
    return size


cdef inline uint8_t* _text_copied(uint8_t* to, Span text, bint is_latin) noexcept nogil:
    """Copy a text as UTF-8; return where it ends."""
    cdef Py_ssize_t at
    if not is_latin:
        return _copied(to, text)
    for at in range(text.size):
        if text.data[at] < 0x80:
            to[0] = text.data[at]
            to += 1
        else:
            to[0] = 0xC0 | text.data[at] >> 6
            to[1] = 0x80 | (text.data[at] & 0x3F)
            to += 2
    return to


cdef uint64_t _members_number(dict members, int kind, const Cell* cell) except? 0:
    """Return a member's place, or the bits of members; unknown ones count as none."""
    cdef uint64_t bits = 0
    cdef const uint8_t* at = cell.data
    cdef const uint8_t* end = cell.data + cell.size
    cdef const uint8_t* comma
    if kind == ENUM:
        found = members.get(PyBytes_FromStringAndSize(<const char*>at, cell.size))
        return 0 if found is None else <uint64_t>found
    while at < end:
        comma = <const uint8_t*>memchr(at, c",", end - at)
        if comma == NULL:
            comma = end
        found = members.get(PyBytes_FromStringAndSize(<const char*>at, comma - at))
        if found is not None:
            bits |= <uint64_t>1 << (<int>found - 1)
        at = comma + 1
    return bits
