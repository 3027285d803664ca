# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Write the RowData of rows from their Avro bytes, as `column_writer` defines it.

`compiled_plan` plans the columns. A row that this module does not write itself is left to Python,
whole: bytes that are no row of the schema, a date that Python has not, text of an unknown member.
So the messages and the errors are Python's. No byte beyond the given ones is read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.pycapsule cimport PyCapsule_New
from cpython.unicode cimport PyUnicode_AsUTF8AndSize

include "cells.pxi"

cdef enum Op:
    INSERT
    UPDATE
    DELETE
    SNAPSHOT

cdef struct Column:
    bint is_union
    int first  # its first branch
    int branches
    int kind
    int digits
    uint64_t wide_from
    int64_t wide_type
    int64_t raw_type
    Span position  # fields of the message that are the same in each row
    Span name
    Span mysql_type

cdef struct Value:
    Span text
    int64_t sql_type
    bint is_null
    bint is_latin  # bytes, each a character


include "value_texts.pxi"


cdef class CompiledWriter:
    """Writes the rows of one schema. Immutable, so any thread may use it."""

    cdef Column* _columns
    cdef Branch* _branches
    cdef Py_ssize_t _count
    cdef int64_t* _changes  # of the zone's offset: seconds since 1970, in order
    cdef int64_t* _offsets  # seconds, the first one before all changes
    cdef Py_ssize_t _change_count
    cdef tuple _names
    cdef tuple _members  # by column: member's bytes -> its number
    cdef list _held

    def __cinit__(self, tuple planned not None, tuple changes not None, tuple offsets not None):
        """Write columns as planned by `compiled_plan`; offsets of the zone, and their changes."""
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
        self._change_count = len(changes)
        for at in range(len(changes)):
            self._changes[at] = changes[at]
        for at in range(len(offsets)):
            self._offsets[at] = offsets[at]
        self._held = []
        for at, one in enumerate(planned):
            column = &self._columns[at]
            column.is_union, column.first = one.is_union, <int>first
            column.branches, column.kind = <int>len(one.branches), one.kind
            column.digits = one.digits
            column.wide_from, column.wide_type = one.wide_from, one.wide_type
            column.raw_type = one.raw_type
            column.position = self._hold(one.position)
            column.name = self._hold(one.name)
            column.mysql_type = self._hold(one.mysql_type)
            for code, size, sql_type in one.branches:
                if code == "decimal" and not 0 <= size <= MOST_SCALE:
                    raise ValueError("a decimal of that scale")
                self._branches[first] = Branch(_CODES[code], size, sql_type)
                first += 1
        self._names = tuple(one.column for one in planned)
        self._members = tuple(one.members for one in planned)

    cdef Span _hold(self, bytes data):
        self._held.append(data)
        return Span(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def __dealloc__(self):
        PyMem_Free(self._columns)
        PyMem_Free(self._branches)
        PyMem_Free(self._changes)
        PyMem_Free(self._offsets)

    def row_data(
        self,
        int op,
        bytes row not None,
        bytes before,
        tuple absent not None,
        tuple before_absent not None,
        dict raw not None,
        dict before_raw not None,
    ):
        """Return the bytes of the RowData of a change; None if that is left to Python."""
        cdef Bytes into
        memset(&into, 0, sizeof(into))
        cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(row)
        cdef const uint8_t* other = NULL
        cdef Py_ssize_t other_size = 0
        if before is not None:
            other, other_size = <const uint8_t*>PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before)
        try:
            if self._write(
                &into, op, at, at + PyBytes_GET_SIZE(row), other, other + other_size,
                (absent, before_absent, raw, before_raw),
            ) < 0:
                return None
            return PyBytes_FromStringAndSize(<const char*>into.data, into.size)
        finally:
            release(&into)

    cdef int _write(
        self,
        Bytes* into,
        int op,
        const uint8_t* row,
        const uint8_t* row_end,
        const uint8_t* before,
        const uint8_t* before_end,
        tuple notes,
    ) except -2:
        """Append the RowData of a change; -1 if that is left to Python. `notes` may be None."""
        cdef Cell* cells = <Cell*>PyMem_Calloc(2 * self._count + 1, sizeof(Cell))
        cdef Cell* former = cells + self._count
        cdef Py_ssize_t size = into.size
        cdef int done = -1
        if cells == NULL:
            raise MemoryError
        try:
            if self._read(cells, row, row_end) < 0:
                return -1
            if notes is not None:
                self._note(cells, notes[0], notes[2])
            if op == DELETE:
                done = self._put_all(into, 0x0A, cells, NULL, False, False)
            elif op != UPDATE:
                done = self._put_all(into, 0x12, cells, NULL, True, False)
            elif before == NULL:
                done = self._put_all(into, 0x0A, cells, NULL, False, True)
                if done == 0:
                    done = self._put_all(into, 0x12, cells, NULL, True, False)
            else:
                if self._read(former, before, before_end) < 0:
                    return -1
                if notes is not None:
                    self._note(former, notes[1], notes[3])
                done = self._put_all(into, 0x0A, former, NULL, False, False)
                if done == 0:
                    done = self._put_all(into, 0x12, cells, former, True, False)
            return done
        finally:
            if done < 0:
                into.size = size
            PyMem_Free(cells)

    cdef int _note(self, Cell* cells, tuple absent, dict raw) except -2:
        cdef Py_ssize_t at
        for position in absent:
            if not 0 <= position < self._count:
                raise ValueError(f"column {position} is absent: there is none")
            cells[<Py_ssize_t>position].is_absent = True
        if raw:
            for at in range(self._count):
                text = raw.get(self._names[at])
                if text is not None and cells[at].branch.code == NOTHING:
                    cells[at].raw = PyUnicode_AsUTF8AndSize(text, &cells[at].raw_size)
        return 0

    cdef int _read(self, Cell* cells, const uint8_t* at, const uint8_t* end) noexcept:
        """Find the values of a row; -1 if it is none."""
        cdef Py_ssize_t number
        cdef const Column* column
        cdef int64_t chosen
        for number in range(self._count):
            column = &self._columns[number]
            chosen = 0
            cells[number].begin = at
            if column.is_union and (
                not _read_long(&at, end, &chosen) or not 0 <= chosen < column.branches
            ):
                return -1
            cells[number].branch = &self._branches[column.first + chosen]
            if not _read_cell(&cells[number], &at, end):
                return -1
            cells[number].end = at
        return 0 if at == end else -1

    cdef int _put_all(
        self, Bytes* into, int tag, const Cell* cells, const Cell* former, bint updated, bint keys
    ) except -2:
        """Append the columns; `keys` = only those of the key, whose name says that they are."""
        cdef Py_ssize_t at
        cdef bint is_updated
        cdef const Column* column
        cdef int done
        for at in range(self._count):
            column = &self._columns[at]
            if cells[at].is_absent or (keys and column.name.data[column.name.size - 1] == 0):
                continue
            is_updated = updated
            if former != NULL:
                is_updated = former[at].is_absent or not _are_equal(&cells[at], &former[at])
            done = self._put_column(into, tag, column, at, &cells[at], is_updated)
            if done < 0:
                return done
        return 0

    cdef int _put_column(
        self, Bytes* into, int tag, const Column* column, Py_ssize_t number, const Cell* cell,
        bint updated,
    ) except -2:  # fmt: skip
        cdef uint8_t text[TEXT_BYTES]
        cdef Value value
        cdef Py_ssize_t size, value_size
        cdef uint8_t* to
        if self._value(&value, column, number, cell, text) < 0:
            return -1
        value_size = _text_size(value.text, value.is_latin)
        size = column.position.size + 1 + _varint_size(<uint64_t>value.sql_type)
        size += column.name.size + 4 + column.mysql_type.size
        if not value.is_null:
            size += 1 + _varint_size(value_size) + value_size
        if reserve(into, size + 64) < 0:
            raise MemoryError
        to = into.data + into.size
        to[0] = <uint8_t>tag
        to += 1
        to += write_varint(to, size)
        to = _copied(to, column.position)
        to[0] = 0x10
        to += 1 + write_varint(to + 1, <uint64_t>value.sql_type)
        to = _copied(to, column.name)
        to[0], to[1], to[2], to[3] = 0x28, updated, 0x30, value.is_null
        to += 4
        if not value.is_null:
            to[0] = 0x42
            to += 1 + write_varint(to + 1, value_size)
            to = _text_copied(to, value.text, value.is_latin)
        to = _copied(to, column.mysql_type)
        into.size = to - into.data
        return 0

    cdef int _value(
        self, Value* value, const Column* column, Py_ssize_t number, const Cell* cell, uint8_t* text
    ) except -2:
        """Make the text of a value, in `text` if it is short; -1 if that is left to Python."""
        cdef int code = cell.branch.code
        cdef uint8_t* end = text + TEXT_BYTES
        cdef uint8_t* begin = end
        value.sql_type = cell.branch.sql_type
        value.is_null = value.is_latin = False
        if code == NOTHING:
            value.is_null = cell.raw == NULL
            value.text = Span(<const uint8_t*>cell.raw, cell.raw_size)
            if cell.raw != NULL:
                value.sql_type = column.raw_type
            return 0
        if code == TEXT:
            if column.kind == ENUM or column.kind == SET:
                begin = _number_before(_members_number(self._members[number], column.kind, cell), end)
            else:
                value.text = Span(cell.data, cell.size)
                return 0
        elif code == BYTES or code == FIXED:
            if column.kind == BIT:
                if cell.size > 8:
                    return -1
                begin = _number_before(big(cell.data, cell.size), end)
            else:
                value.is_latin = True
                value.text = Span(cell.data, cell.size)
                while (
                    column.kind == BINARY
                    and value.text.size
                    and value.text.data[value.text.size - 1] == 0
                ):
                    value.text.size -= 1
                return 0
        elif code == LONG:
            if column.wide_from and cell.number >= 0 and <uint64_t>cell.number >= column.wide_from:
                value.sql_type = column.wide_type
            if column.kind == TIME:
                end = _put_time(text, cell.number, column.digits)
                begin = text
            elif column.kind == YEAR and 0 <= cell.number <= 9999:
                end = _put_padded(text, cell.number, 4)
                begin = text
            else:
                begin = _signed_before(cell.number, end)
        elif code == DECIMAL:
            begin = _decimal_before(cell, end, column.wide_from, &value.sql_type, column.wide_type)
        elif code == BOOLEAN:
            if cell.data[0] > 1:
                return -1
            begin = end - 1
            begin[0] = <uint8_t>(48 + cell.data[0])
        elif code == FLOAT or code == DOUBLE:
            begin = text
            end = _put_float(text, cell, code == FLOAT)
        elif code == DATE:
            if not FIRST_DAY <= cell.number <= LAST_DAY:
                return -1
            begin = text
            end = _put_date(text, _civil(cell.number))
        else:
            begin = text
            end = self._put_moment(text, cell.number, code == TIMESTAMP, column.digits)
        if begin == NULL or end == NULL:
            return -1
        value.text = Span(begin, end - begin)
        return 0

    cdef uint8_t* _put_moment(
        self, uint8_t* at, int64_t micros, bint has_zone, int digits
    ) noexcept:
        cdef Moment found
        cdef Py_ssize_t low = 0, high = self._change_count, middle
        cdef int64_t seconds
        if has_zone:
            seconds = micros // SECOND_US - (micros % SECOND_US < 0)
            while low < high:
                middle = (low + high) // 2
                if self._changes[middle] <= seconds:
                    low = middle + 1
                else:
                    high = middle
            micros += self._offsets[low] * SECOND_US
        if not _moment(micros, &found):
            return NULL
        at = _put_date(at, found.day)
        at[0] = c" "
        at = _put_clock(at + 1, found.of_day // 3600, found.of_day % 3600)
        return _put_fraction(at, found.fraction, digits)


cdef int _write_row(
    object writer,
    Bytes* into,
    int op,
    const uint8_t* row,
    const uint8_t* row_end,
    const uint8_t* before,
    const uint8_t* before_end,
) except -2:
    return (<CompiledWriter>writer)._write(into, op, row, row_end, before, before_end, None)


WRITE_ROW = PyCapsule_New(<void*>_write_row, NULL, NULL)


cdef inline bint _are_equal(const Cell* one, const Cell* other) noexcept nogil:
    """Whether two values have the same text: the same bytes in Avro, or the same raw text."""
    cdef Py_ssize_t size = one.end - one.begin
    if size != other.end - other.begin or memcmp(one.begin, other.begin, size) != 0:
        return False
    if one.raw == NULL or other.raw == NULL:
        return one.raw == other.raw
    return one.raw_size == other.raw_size and memcmp(one.raw, other.raw, one.raw_size) == 0
