# CRC-32 as zlib computes it (polynomial 0xEDB88320, reflected), eight bytes a step.
#
# For the compiled modules, which include this text: they have no zlib header to
# rely on, and calling Python's zlib for pieces of fifty bytes would cost more
# than the sum itself. Eight tables of 256: table k has the sum of a byte that k
# zero bytes follow, so that eight bytes are taken with eight look-ups that do
# not wait for each other (Kounavis and Berry, "Novel table lookup-based
# algorithms for high-performance CRC generation", 2008).

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t _TABLES[8][256]


cdef void _fill() noexcept nogil:
    cdef uint32_t value
    cdef int byte, bit, table
    for byte in range(256):
        value = byte
        for bit in range(8):
            value = (value >> 1) ^ (<uint32_t>0xEDB88320 & (0 - (value & 1)))
        _TABLES[0][byte] = value
    for table in range(1, 8):
        for byte in range(256):
            value = _TABLES[table - 1][byte]
            _TABLES[table][byte] = (value >> 8) ^ _TABLES[0][value & 0xFF]


_fill()


cdef uint32_t crc32(const uint8_t* data, Py_ssize_t size, uint32_t begin=0) noexcept nogil:
    """Return the CRC of `size` bytes, going on from that of the bytes before them."""
    cdef uint32_t value = ~begin
    cdef uint32_t low
    while size >= 8:
        low = value ^ (
            data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16 | <uint32_t>data[3] << 24
        )
        value = (
            _TABLES[7][low & 0xFF]
            ^ _TABLES[6][low >> 8 & 0xFF]
            ^ _TABLES[5][low >> 16 & 0xFF]
            ^ _TABLES[4][low >> 24]
            ^ _TABLES[3][data[4]]
            ^ _TABLES[2][data[5]]
            ^ _TABLES[1][data[6]]
            ^ _TABLES[0][data[7]]
        )
        data += 8
        size -= 8
    while size > 0:
        value = (value >> 8) ^ _TABLES[0][(value ^ data[0]) & 0xFF]
        data += 1
        size -= 1
    return ~value
