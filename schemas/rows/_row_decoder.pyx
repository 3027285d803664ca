# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Decode a row's Avro bytes directly into a dict.

`row_decoding` plans the decoding of a schema; `avro_rows` defines the result. A row that this
module does not decode itself goes to the Python decoder, whole: bytes that end early or go on, a
branch that the schema has not, text that is not UTF-8, a value that its Python type does not
allow. So the values and the errors are the Python decoder's. No byte beyond the given ones is read.

The dict is a copy of a dict that has all columns: its size and its keys are right from the start.
A value is put where the copy keeps it, which is the same place in each copy, instead of looking for
its key. The place is found out when the decoder is made, and tried; if that fails, keys are looked
for. It has only values that the garbage collector need not follow, so it is not tracked.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.datetime cimport date_new, datetime_new, import_datetime
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.float cimport PyFloat_FromDouble
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from datetime import timezone
from decimal import Context, Decimal
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

include "avro_numbers.pxi"
include "civil_days.pxi"
include "decode_row.pxi"

import_datetime()

cdef extern from *:
    """
    /* Where a dict has its keys, and behind them, in a layout of its own, the values. */
    #define KEYS_OF(row) ((char*)((PyDictObject*)(row))->ma_keys)

    static inline void put_at(PyObject** place, PyObject* value) {
        PyObject* former = *place;
        Py_INCREF(value);
        *place = value;
        Py_DECREF(former);
    }
    """
    char* KEYS_OF(object row)
    void put_at(PyObject** place, object value)
    bint PyType_IS_GC(PyTypeObject* kind)
    PyTypeObject* Py_TYPE(object value)

cdef enum Code:
    NOTHING
    BOOLEAN
    LONG
    FLOAT
    DOUBLE
    TEXT
    BYTES
    FIXED
    ENUM
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
    "enum": ENUM,
    "date": DATE,
    "datetime": DATETIME,
    "timestamp": TIMESTAMP,
    "decimal": DECIMAL,
}

cdef enum:
    SUFFIX_BYTES = 24
    DIGITS_BYTES = 20

cdef struct Branch:
    int code
    bint has_reader
    int64_t size  # bytes of a fixed; symbols of an enum
    uint64_t limit  # of a decimal: above every absolute value that its precision allows; 0 = none
    int suffix_bytes
    char suffix[SUFFIX_BYTES]  # of a decimal: its exponent

cdef struct Column:
    bint is_union
    int first  # its first branch
    int branches

# What a value is called that the Python decoder must decode.
cdef object _OTHER = object()
cdef object _Decimal = Decimal
# Faster than the type itself, which looks for keywords. No value needs so many digits.
cdef object _new_decimal = Context(prec=40).create_decimal
cdef object _UTC = timezone.utc


cdef class RowDecoder:
    """Decodes the rows of one schema. Immutable, so any thread may use it."""

    cdef Column* _columns
    cdef Branch* _branches
    cdef Py_ssize_t* _places  # by column: of its value, behind a copy's keys; NULL = not known
    cdef Py_ssize_t _count
    cdef tuple _names
    cdef tuple _details  # by branch: symbols of an enum, or a logical type's reader and schema
    cdef dict _empty
    cdef object _fallback

    def __cinit__(self, tuple names not None, tuple columns not None, fallback):
        """Decode columns as planned by `row_decoding`; `fallback` decodes what is left."""
        cdef Py_ssize_t at, first = 0
        cdef list details = []
        self._count = len(names)
        self._columns = <Column*>PyMem_Calloc(self._count + 1, sizeof(Column))
        self._branches = <Branch*>PyMem_Calloc(
            sum(len(branches) for _, branches in columns) + 1, sizeof(Branch)
        )
        if self._columns == NULL or self._branches == NULL:
            raise MemoryError
        for at, (is_union, branches) in enumerate(columns):
            self._columns[at].is_union = is_union
            self._columns[at].first = <int>first
            self._columns[at].branches = <int>len(branches)
            for branch in branches:
                details.append(self._plan(&self._branches[first], branch))
                first += 1
        self._names = names
        self._details = tuple(details)
        self._empty = dict.fromkeys(names)
        self._fallback = fallback
        self._find_places()

    def __dealloc__(self):
        PyMem_Free(self._columns)
        PyMem_Free(self._branches)
        PyMem_Free(self._places)

    cdef _find_places(self):
        """Find out where copies of `_empty` keep their values, and try whether they are there."""
        cdef dict marked = dict.fromkeys(self._names), copied
        cdef Py_ssize_t at, column, size
        cdef dict columns = {}
        for column in range(self._count):
            marked[self._names[column]] = marker = object()
            columns[<size_t><PyObject*>marker] = column
        copied = PyDict_Copy(marked)
        size = copied.__sizeof__() - dict.__basicsize__
        self._places = <Py_ssize_t*>PyMem_Calloc(self._count + 1, sizeof(Py_ssize_t))
        if self._places == NULL:
            raise MemoryError
        for at in range(0, size - <Py_ssize_t>sizeof(PyObject*) + 1, sizeof(PyObject*)):
            found = columns.pop(<size_t>(<PyObject**>(KEYS_OF(copied) + at))[0], None)
            if found is not None:
                self._places[<Py_ssize_t>found] = at
        if columns or not self._are_places_right():
            PyMem_Free(self._places)
            self._places = NULL

    cdef bint _are_places_right(self) except -1:
        cdef dict tried = PyDict_Copy(self._empty)
        cdef Py_ssize_t column
        for column in range(self._count):
            put_at(<PyObject**>(KEYS_OF(tried) + self._places[column]), column)
        return list(tried.items()) == [(name, at) for at, name in enumerate(self._names)]

    cdef object _plan(self, Branch* branch, planned):
        branch.code = _CODES[planned.code]
        branch.size = planned.size
        branch.limit = planned.limit
        branch.has_reader = planned.reader is not None
        suffix = planned.suffix.encode()
        branch.suffix_bytes = <int>len(suffix)
        if branch.suffix_bytes > SUFFIX_BYTES:
            raise ValueError(planned.suffix)
        memcpy(branch.suffix, PyBytes_AS_STRING(suffix), branch.suffix_bytes)
        return (planned.symbols, planned.reader, planned.schema)

    def decode(self, bytes data not None, Py_ssize_t offset=0, Py_ssize_t end=-1):
        """Return the row that `data` holds from `offset` on, up to `end` (-1 = its own end)."""
        return self._decoded(data, offset, end)

    cdef object _decoded(self, bytes data, Py_ssize_t offset, Py_ssize_t end):
        cdef const uint8_t* begin = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef object row = None
        if end < 0:
            end = PyBytes_GET_SIZE(data)
        if 0 <= offset <= end <= PyBytes_GET_SIZE(data):
            try:
                row = self._row(begin + offset, begin + end)
            except Exception:
                row = None
        return self._fallback(data[offset:end]) if row is None else row

    cdef dict _row(self, const uint8_t* at, const uint8_t* end):
        """Return the row; None if it is the Python decoder's."""
        cdef dict row = PyDict_Copy(self._empty)
        cdef Py_ssize_t column
        cdef const Column* planned
        cdef int64_t index
        cdef object value
        for column in range(self._count):
            planned = &self._columns[column]
            index = 0
            if planned.is_union and (
                not _read_long(&at, end, &index) or index < 0 or index >= planned.branches
            ):
                return None
            value = self._value(planned.first + index, &at, end)
            if value is _OTHER:
                return None
            if value is None:  # as in the copy
                continue
            # A dict with a value that the garbage collector must follow is tracked by its own code.
            if self._places != NULL and not PyType_IS_GC(Py_TYPE(value)):
                put_at(<PyObject**>(KEYS_OF(row) + self._places[column]), value)
            else:
                PyDict_SetItem(row, <object>PyTuple_GET_ITEM(self._names, column), value)
        return row if at == end else None

    cdef object _value(self, Py_ssize_t number, const uint8_t** at, const uint8_t* end):
        cdef const Branch* branch = &self._branches[number]
        cdef object value = _read_value(branch, at, end)
        if value is _OTHER or branch.code == NOTHING:
            return value
        if branch.code == ENUM:
            value = self._details[number][0][value]
        if branch.has_reader and not (branch.code == DECIMAL and type(value) is _Decimal):
            _, reader, schema = self._details[number]
            value = reader(value, schema, None)
        return value


cdef object _decode_row(object decoder, bytes data, Py_ssize_t begin, Py_ssize_t end):
    return (<RowDecoder>decoder)._decoded(data, begin, end)


DECODE_ROW = PyCapsule_New(<void*>_decode_row, NULL, NULL)


cdef object _read_value(const Branch* branch, const uint8_t** at, const uint8_t* end):
    """Return a value before its logical type's reader; `_OTHER` if it cannot be read."""
    cdef int64_t number = 0, size = branch.size
    cdef const uint8_t* data = NULL
    cdef int code = branch.code
    cdef float single
    cdef double wide
    if code == LONG or code == DATE or code == DATETIME or code == TIMESTAMP or code == ENUM:
        if not _read_long(at, end, &number):
            return _OTHER
        if code == LONG:
            return PyLong_FromLongLong(number)
        if code == DATE:
            return _date(number)
        if code == ENUM:
            return number if 0 <= number < size else _OTHER
        return _datetime(number, None if code == DATETIME else _UTC)
    if code == TEXT or code == BYTES or code == DECIMAL:
        if not _read_bytes(at, end, &data, &size):
            return _OTHER
        if code == TEXT:
            return PyUnicode_DecodeUTF8(<char*>data, size, NULL)
        if code == DECIMAL and 0 < size <= 8:
            return _decimal(branch, data, size)
        return PyBytes_FromStringAndSize(<char*>data, size)
    if code == NOTHING:
        return None
    if code == BOOLEAN:
        size = 1
    elif code == FLOAT:
        size = 4
    elif code == DOUBLE:
        size = 8
    if size > end - at[0]:
        return _OTHER
    data = at[0]
    at[0] += size
    if code == BOOLEAN:
        return _OTHER if data[0] > 1 else data[0] == 1
    if code == FLOAT:
        memcpy(&single, data, 4)
        return PyFloat_FromDouble(single)
    if code == DOUBLE:
        memcpy(&wide, data, 8)
        return PyFloat_FromDouble(wide)
    return PyBytes_FromStringAndSize(<char*>data, size)


cdef object _decimal(const Branch* branch, const uint8_t* data, int64_t size):
    """Return a decimal, or its bytes if its precision would round it."""
    cdef uint64_t value = 0
    cdef int64_t at
    cdef char text[DIGITS_BYTES + SUFFIX_BYTES + 1]
    cdef char* begin = text + DIGITS_BYTES + 1
    cdef bint is_negative = data[0] & 0x80
    if is_negative:
        value = ~<uint64_t>0
    for at in range(size):
        value = (value << 8) | data[at]
    if is_negative:
        value = 0 - value
    if branch.limit and value >= branch.limit:
        return PyBytes_FromStringAndSize(<char*>data, size)
    memcpy(begin, branch.suffix, branch.suffix_bytes)
    size = branch.suffix_bytes
    while True:
        begin -= 1
        size += 1
        begin[0] = <char>(c"0" + value % 10)
        value //= 10
        if value == 0:
            break
    if is_negative:
        begin -= 1
        size += 1
        begin[0] = c"-"
    return _new_decimal(PyUnicode_DecodeASCII(begin, size, NULL))


cdef object _date(int64_t days):
    if not FIRST_DAY <= days <= LAST_DAY:
        return _OTHER
    cdef Day day = _civil(days)
    return date_new(day.year, day.month, day.day)


cdef object _datetime(int64_t micros, object zone):
    cdef Moment found
    if not _moment(micros, &found):
        return _OTHER
    return datetime_new(
        found.day.year,
        found.day.month,
        found.day.day,
        found.of_day // 3600,
        found.of_day // 60 % 60,
        found.of_day % 60,
        found.fraction,
        zone,
    )
