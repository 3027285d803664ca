# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""The compiled part of `java_hashes`: the hash of a key, and which events need a look.

A table with a primary key of one integer has it in each event's header: events of partitions
that a client does not have are passed by without being decoded.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

include "../../../../schemas/event/big_endian.pxi"
include "../../../../schemas/event/layout.pxi"

cdef enum:
    IDS = 32767


cdef inline int32_t _partition_id(uint32_t code, uint32_t hashed) noexcept nogil:
    cdef int32_t h = <int32_t>(31 * (31 + code) + hashed)
    h = h % <int32_t>IDS  # the remainder of C and of Java, which has the sign of h
    return -h if h < 0 else h


cdef inline uint32_t _hash_of_long(int64_t value) noexcept nogil:
    cdef uint64_t word = <uint64_t>value
    return <uint32_t>(word ^ (word >> 32))


cdef uint32_t _hash_of_text(str text):
    cdef uint32_t h = 0
    cdef Py_UCS4 c
    for c in text:
        if c > 0xFFFF:
            h = 31 * h + 0xD800 + ((<uint32_t>c - 0x10000) >> 10)
            h = 31 * h + 0xDC00 + ((<uint32_t>c - 0x10000) & 0x3FF)
        else:
            h = 31 * h + <uint32_t>c
    return h


cdef uint32_t _hash_of_bytes(bytes data) noexcept:
    cdef uint32_t h = 1
    cdef const uint8_t* at = data
    cdef Py_ssize_t i
    for i in range(len(data)):
        h = 31 * h + <uint32_t><int32_t><signed char>at[i]
    return h


def partition_id(key):
    """Return the partition id of a key, from 0 to 32766."""
    if isinstance(key, str):
        return _partition_id(1, _hash_of_text(key))
    if isinstance(key, bytes):
        return _partition_id(1, _hash_of_bytes(key))
    return _partition_id(0, _hash_of_long(<int64_t><uint64_t>(key & 0xFFFFFFFFFFFFFFFF)))


def skip_unowned(bytes data, Py_ssize_t at, bytes owned, bytes long_keyed):
    """Return where the next event begins that is to be looked at.

    `owned` has a byte for each partition, `long_keyed` one for each source id: whether an event of
    it with a long key is passed by where its partition is not owned.
    """
    cdef const uint8_t* begin = data
    cdef const uint8_t* own = owned
    cdef const uint8_t* keyed = long_keyed
    cdef Py_ssize_t end = len(data), total = len(owned), sources = len(long_keyed)
    cdef int32_t src_id
    cdef Py_ssize_t length
    with nogil:
        while end - at >= LONG_KEY_HEADER_BYTES:
            src_id = <int32_t>_u4(begin + at + SRC_ID_AT)
            if src_id < 0 or src_id >= sources or not keyed[src_id]:
                break
            if not _u2(begin + at + ATTRIBUTES_AT) & LONG_KEY:
                break
            if own[_partition_id(0, _hash_of_long(_i8(begin + at + LONG_KEY_AT))) % total]:
                break
            length = _u4(begin + at + LENGTH_AT)
            if length < SMALLEST_BYTES or length > end - at:
                break
            at += length
    return at
