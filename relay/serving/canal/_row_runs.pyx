# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Take the rows of a run, as `row_runs` defines it.

A run ends before an event that this module does not read: one with notes, with metadata of another
version, or that is no whole row event. CRCs were checked when the events were stored.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memset

include "../../sources/mysql/binlog/_byte_buffer.pxi"
include "row_events.pxi"


def take_rows(
    bytes body not None, Py_ssize_t begin, Py_ssize_t most_bytes, writer, bytes schema_id not None
):
    """Return the fields of a RowChange, how many rows they are, and where the run ends.

    None if the first event is left to Python. `writer` is a CompiledWriter of the schema.
    """
    cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(body)
    cdef const uint8_t* end = data + PyBytes_GET_SIZE(body)
    cdef const uint8_t* schema = <const uint8_t*>PyBytes_AS_STRING(schema_id)
    cdef const uint8_t* at
    cdef Bytes into, row
    cdef RowEvent event
    cdef Py_ssize_t count
    if not 0 <= begin <= PyBytes_GET_SIZE(body) or PyBytes_GET_SIZE(schema_id) != SCHEMA_ID_BYTES:
        raise ValueError("no run begins there")
    memset(&into, 0, sizeof(into))
    memset(&row, 0, sizeof(row))
    at = data + begin
    try:
        count = put_rows(&into, &row, &event, &at, end, at + most_bytes, writer, schema)
        if not count:
            return None
        return PyBytes_FromStringAndSize(<const char*>into.data, into.size), count, at - data
    finally:
        release(&into)
        release(&row)
