# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Write the columns of rows from their Avro bytes, as `columns` defines them.

`compiled_columns` plans them. A row that this module does not write itself is left to Python, whole:
bytes that are no row of the schema, a date whose time zone is not known here. So the messages and
the errors are Python's. No byte beyond the given ones is read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free

include "../../columns/cells.pxi"
include "../../columns/value_texts.pxi"

cdef enum:
    PROPS_BYTES = 256
    SECOND_MS = 1000
    SNAPSHOT_OP = 3  # the last one of a row
    # Days since 1970 between which the changes of a zone are known.
    FIRST_KNOWN_DAY = -24837  # 1902-01-01
    LAST_KNOWN_DAY = 54422  # 2119-01-02

cdef struct Column:
    bint is_union
    int first  # its first branch
    int branches
    int kind
    int digits
    Span key  # of the map's entry
    Span begin  # fields before isNull
    Span end  # those after value

cdef struct Value:
    Span text
    Py_ssize_t props  # bytes of them
    bint is_null
    bint is_latin  # bytes, each a character


cdef class CompiledColumns:
    """Writes the columns of one schema. Immutable, so any thread may use it."""

    cdef Column* _columns
    cdef Branch* _branches
    cdef Py_ssize_t _count
    cdef int64_t* _changes  # local seconds since 1970 from which on the next offset is
    cdef int64_t* _offsets
    cdef Py_ssize_t _change_count
    cdef int64_t _midnight_us  # of 1970-01-01
    cdef tuple _members
    cdef list _held

    def __cinit__(
        self, tuple planned not None, tuple changes not None, tuple offsets not None,
        int64_t midnight_us,
    ):  # fmt: skip
        """Write columns as planned; offsets of the zone, in seconds, and the changes of them."""
        cdef Py_ssize_t at, first = 0
        cdef Column* column
        self._count = len(planned)
        self._columns = <Column*>PyMem_Calloc(self._count + 1, sizeof(Column))
        self._branches = <Branch*>PyMem_Calloc(
            sum(len(one.branches) for one in planned) + 1, sizeof(Branch)
        )
        self._changes = <int64_t*>PyMem_Calloc(len(changes) + 1, sizeof(int64_t))
        self._offsets = <int64_t*>PyMem_Calloc(len(offsets) + 1, sizeof(int64_t))
        if (
            self._columns == NULL
            or self._branches == NULL
            or self._changes == NULL
            or self._offsets == NULL
        ):
            raise MemoryError
        if len(offsets) != len(changes) + 1:
            raise ValueError("an offset before each change, and one behind the last")
        self._change_count, self._midnight_us = len(changes), midnight_us
        for at in range(len(offsets)):
            self._offsets[at] = offsets[at]
        for at in range(len(changes)):
            # A time that is twice there is the first one, and one that is not there is counted
            # from before: so the offset before the change holds until the later of both.
            self._changes[at] = changes[at] + max(offsets[at], offsets[at + 1])
        self._held = []
        for at, one in enumerate(planned):
            column = &self._columns[at]
            column.is_union, column.first = one.is_union, <int>first
            column.branches, column.kind = <int>len(one.branches), one.kind
            column.digits = one.digits
            column.key = self._hold(one.key)
            column.begin = self._hold(one.begin)
            column.end = self._hold(one.end)
            for code, size in one.branches:
                if code == "decimal" and not 0 <= size <= MOST_SCALE:
                    raise ValueError("a decimal of that scale")
                self._branches[first] = Branch(_CODES[code], size, 0)
                first += 1
        self._members = tuple(one.members for one in planned)

    cdef Span _hold(self, bytes data):
        self._held.append(data)
        return Span(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def __dealloc__(self):
        PyMem_Free(self._columns)
        PyMem_Free(self._branches)
        PyMem_Free(self._changes)
        PyMem_Free(self._offsets)

    def map_fields(self, int tag, bytes row not None):
        """Return the map entries of a row's columns; None if they are left to Python."""
        cdef Bytes into
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(row)
        cdef const uint8_t* end = at + PyBytes_GET_SIZE(row)
        cdef Py_ssize_t number
        cdef Cell cell
        if not 0 < tag < 16:
            raise ValueError("a tag of one byte")
        memset(&into, 0, sizeof(into))
        try:
            for number in range(self._count):
                if not self._read(number, &cell, &at, end):
                    return None
                if self._put(&into, <uint8_t>(tag << 3 | 2), number, &cell) < 0:
                    return None
            if at != end:
                return None
            return PyBytes_FromStringAndSize(<const char*>into.data, into.size)
        finally:
            release(&into)

    cdef bint _read(
        self, Py_ssize_t number, Cell* cell, const uint8_t** at, const uint8_t* end
    ) noexcept:
        cdef const Column* column = &self._columns[number]
        cdef int64_t chosen = 0
        if column.is_union and (
            not _read_long(at, end, &chosen) or not 0 <= chosen < column.branches
        ):
            return False
        cell.branch = &self._branches[column.first + chosen]
        return _read_cell(cell, at, end)

    cdef int _put(self, Bytes* into, uint8_t tag, Py_ssize_t number, const Cell* cell) except -2:
        cdef const Column* column = &self._columns[number]
        cdef uint8_t text[TEXT_BYTES]
        cdef uint8_t props[PROPS_BYTES]
        cdef Value value
        cdef Py_ssize_t size, entry_size, value_size
        cdef uint8_t* to
        if self._value(&value, column, number, cell, text, props) < 0:
            return -1
        value_size = _text_size(value.text, value.is_latin)
        size = column.begin.size + 2 + value.props + column.end.size
        if not value.is_null:
            size += 1 + _varint_size(value_size) + value_size
        entry_size = column.key.size + 1 + _varint_size(size) + size
        if reserve(into, entry_size + 32) < 0:
            raise MemoryError
        to = into.data + into.size
        to[0] = tag
        to += 1 + write_varint(to + 1, entry_size)
        to = _copied(to, column.key)
        to[0] = 0x12
        to += 1 + write_varint(to + 1, size)
        to = _copied(to, column.begin)
        to[0], to[1] = 0x30, value.is_null
        to = _copied(to + 2, Span(&props[0], value.props))
        if not value.is_null:
            to[0] = 0x42
            to += 1 + write_varint(to + 1, value_size)
            to = _text_copied(to, value.text, value.is_latin)
        to = _copied(to, column.end)
        into.size = to - into.data
        return 0

    cdef int _value(
        self, Value* value, const Column* column, Py_ssize_t number, const Cell* cell,
        uint8_t* text, uint8_t* props,
    ) except -2:  # fmt: skip
        """Make the text of a value, in `text` if it is short; -1 if that is left to Python."""
        cdef int code = cell.branch.code
        cdef uint8_t* end = text + TEXT_BYTES
        cdef uint8_t* begin = end
        cdef int64_t unused = 0
        value.is_null, value.is_latin, value.props = code == NOTHING, False, 0
        if code == NOTHING or (code == TEXT and column.kind != ENUM and column.kind != SET):
            value.text = Span(cell.data, 0 if value.is_null else cell.size)
            return 0
        if code == BYTES or code == FIXED:
            value.is_latin = True
            value.text = Span(cell.data, cell.size)
            return 0
        if code == TEXT:
            begin = _number_before(_members_number(self._members[number], column.kind, cell), end)
        elif code == LONG and column.kind == TIME:
            begin = self._time_before(cell.number, column.digits, end, props, &value.props)
        elif code == LONG:
            begin = _signed_before(cell.number, end)
        elif code == DECIMAL:
            begin = _decimal_before(cell, end, 0, &unused, 0)
        elif code == FLOAT or code == DOUBLE:
            begin = text
            end = _put_float(text, cell, code == FLOAT)
        elif code == DATE:
            begin = self._date_before(cell.number, end)
        elif code == DATETIME or code == TIMESTAMP:
            begin = self._moment_before(cell.number, code == DATETIME, end, props, &value.props)
        else:
            return -1
        if begin == NULL or end == NULL:
            return -1
        value.text = Span(begin, end - begin)
        return 0

    cdef uint8_t* _date_before(self, int64_t day, uint8_t* end) noexcept:
        if not FIRST_KNOWN_DAY <= day < LAST_KNOWN_DAY:
            return NULL
        return _signed_before((day * DAY_S - self._offset_at(day * DAY_S)) * SECOND_MS, end)

    cdef uint8_t* _moment_before(
        self, int64_t micros, bint is_local, uint8_t* end, uint8_t* props, Py_ssize_t* size
    ) noexcept:
        cdef int64_t seconds = _floored(micros, SECOND_US)
        if not FIRST_KNOWN_DAY <= _floored(seconds, DAY_S) < LAST_KNOWN_DAY:
            return NULL
        if is_local:
            micros -= self._offset_at(seconds) * SECOND_US
        size[0] = _put_nanos(props, micros) - props
        return _signed_before(_floored(micros, 1000), end)

    cdef uint8_t* _time_before(
        self, int64_t micros, int digits, uint8_t* end, uint8_t* props, Py_ssize_t* size
    ) noexcept:
        cdef uint8_t* to = props
        cdef int64_t day_us = <int64_t>DAY_S * SECOND_US
        if not -400 * day_us < micros < 400 * day_us:
            return NULL
        if not 0 <= micros < day_us:
            # Java's Time is a time of one day.
            to = _put_time(props + 13, micros, digits)
            memcpy(props, b"\x3a\x00\x0a\x07fmtDate\x12\x00", 13)
            props[1], props[12] = <uint8_t>(to - props - 2), <uint8_t>(to - props - 13)
        micros += self._midnight_us
        size[0] = _put_nanos(to, micros) - props
        return _signed_before(_floored(micros, 1000), end)

    cdef int64_t _offset_at(self, int64_t seconds) noexcept:
        """Return the zone's offset at a local time."""
        cdef Py_ssize_t low = 0, high = self._change_count, middle
        while low < high:
            middle = (low + high) // 2
            if self._changes[middle] <= seconds:
                low = middle + 1
            else:
                high = middle
        return self._offsets[low]


cdef inline int64_t _floored(int64_t number, int64_t by) noexcept nogil:
    return number // by - (number % by < 0)


cdef uint8_t* _put_nanos(uint8_t* to, int64_t micros) noexcept nogil:
    """Write the property with the nanoseconds in a second; return its end."""
    cdef uint8_t text[TEXT_BYTES]
    cdef uint8_t* end = text + TEXT_BYTES
    cdef int64_t of_second = micros - _floored(micros, SECOND_US) * SECOND_US
    cdef uint8_t* begin = _number_before(<uint64_t>of_second * 1000, end)
    cdef uint8_t size = <uint8_t>(end - begin)
    memcpy(to, b"\x3a\x00\x0a\x05nanos\x12\x00", 11)
    to[1], to[10] = size + 9, size
    memcpy(to + 11, begin, size)
    return to + 11 + size


def plain_metadata(bytes data not None):
    """Return op, GTID, number of the row, row before and comment of an event's metadata.

    They are a number and texts in UTF-8; None for metadata with notes, or for what is none.
    """
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(data)
    cdef int64_t number, op, index, notes
    cdef Span gtid, text, before, comment
    if not (
        _read_optional(&at, end, &gtid)
        and _read_long(&at, end, &number)  # server id
        and _read_bytes(&at, end, &text.data, &number)  # file
        and _read_long(&at, end, &number)  # offset
        and _read_long(&at, end, &number)  # epoch
        and _read_long(&at, end, &op)
        and _read_long(&at, end, &index)
        and _read_optional(&at, end, &before)
        and _read_optional(&at, end, &comment)
        and _read_long(&at, end, &notes)
    ):
        return None
    if notes != 0 or at != end or not 0 <= op <= SNAPSHOT_OP:
        return None
    return op, _bytes_or_none(gtid), index, _bytes_or_none(before), _bytes_or_none(comment)


cdef inline bint _read_optional(
    const uint8_t** at, const uint8_t* end, Span* found
) noexcept nogil:
    """Read bytes or null, which is no place."""
    cdef int64_t branch, size = 0
    found.data, found.size = NULL, 0
    if not _read_long(at, end, &branch) or not 0 <= branch <= 1:
        return False
    if branch == 1 and not _read_bytes(at, end, &found.data, &size):
        return False
    found.size = size
    return True


cdef inline object _bytes_or_none(Span found):
    if found.data == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>found.data, found.size)


def event_bytes(
    bytes table not None, bytes checkpoint not None, int64_t time_ms, int event_type,
    bytes row not None, bytes rest not None,
):  # fmt: skip
    """Return the RdsEvent of a row, as `packets.event_message` does; `time_ms` is not negative."""
    cdef Bytes into
    cdef Py_ssize_t header_size, place_size = PyBytes_GET_SIZE(checkpoint)
    cdef uint8_t* to
    if not 0 <= event_type < 128:
        raise ValueError("a type of one byte")
    header_size = PyBytes_GET_SIZE(table) + 1 + _varint_size(place_size) + place_size
    header_size += 1 + _varint_size(<uint64_t>time_ms)
    memset(&into, 0, sizeof(into))
    try:
        if reserve(&into, header_size + PyBytes_GET_SIZE(row) + PyBytes_GET_SIZE(rest) + 64) < 0:
            raise MemoryError
        to = into.data
        to[0] = 0x0A
        to += 1 + write_varint(to + 1, header_size)
        to = _copied(to, _span(table))
        to[0] = 0x12
        to += 1 + write_varint(to + 1, place_size)
        to = _copied(to, _span(checkpoint))
        to[0] = 0x20
        to += 1 + write_varint(to + 1, <uint64_t>time_ms)
        to[0], to[1], to[2], to[3], to[4] = 0x10, 0, 0x18, <uint8_t>event_type, 0x22
        to += 5 + write_varint(to + 5, PyBytes_GET_SIZE(row))
        to = _copied(_copied(to, _span(row)), _span(rest))
        return PyBytes_FromStringAndSize(<const char*>into.data, to - into.data)
    finally:
        release(&into)


def message_fields(int tag, list messages not None):
    """Return messages as repeated fields."""
    cdef Bytes into
    cdef Py_ssize_t size = 0
    cdef uint8_t* to
    if not 0 < tag < 16:
        raise ValueError("a tag of one byte")
    for one in messages:
        size += PyBytes_GET_SIZE(<bytes?>one) + 11
    memset(&into, 0, sizeof(into))
    try:
        if reserve(&into, size + 1) < 0:
            raise MemoryError
        to = into.data
        for one in messages:
            to[0] = <uint8_t>(tag << 3 | 2)
            to += 1 + write_varint(to + 1, PyBytes_GET_SIZE(<bytes?>one))
            to = _copied(to, _span(<bytes?>one))
        return PyBytes_FromStringAndSize(<const char*>into.data, to - into.data)
    finally:
        release(&into)


cdef inline Span _span(bytes data) noexcept:
    return Span(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
