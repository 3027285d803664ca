# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The CRC of events in compiled code, for Python code that would call it per event.

It costs what `zlib.crc32` costs. `crc.py` says which numbers it gives.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE

include "crc32.pxi"


def event_crc(data, uint32_t begin=0):
    """See `crc.event_crc_in_python`."""
    cdef Py_buffer view
    cdef uint32_t found
    if PyBytes_CheckExact(data):
        return event_crc32(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), begin)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    found = event_crc32(<const uint8_t*>view.buf, view.len, begin)
    PyBuffer_Release(&view)
    return found


def checksum(const uint8_t[::1] data, uint32_t begin=0, bint by_table=False, bint is_zlibs=False):
    """Return an event's or zlib's CRC, by this machine's fastest method or by table; for tests."""
    cdef const uint8_t* at = &data[0] if data.shape[0] else NULL
    if by_table and is_zlibs:
        return <uint32_t>~crc32_by_table(at, data.shape[0], ~begin)
    if by_table:
        return crc32_by_table(at, data.shape[0], begin)
    if is_zlibs:
        return zlib_crc32(at, data.shape[0], begin)
    return event_crc32(at, data.shape[0], begin)
