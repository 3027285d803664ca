# Numbers and lengths of Avro's binary encoding. For the compiled modules, which include this text.


cdef inline bint _read_long(const uint8_t** at, const uint8_t* end, int64_t* value) noexcept nogil:
    """Read a zigzag number; False if it is cut, or has more than 64 bits."""
    cdef uint64_t number = 0
    cdef const uint8_t* here = at[0]
    cdef int shift = 0
    while here < end:
        number |= <uint64_t>(here[0] & 0x7F) << shift
        if here[0] <= 0x7F:
            # Of the tenth byte, 64 bits have room for one bit only.
            if shift == 63 and here[0] > 1:
                return False
            value[0] = <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
            at[0] = here + 1
            return True
        here += 1
        shift += 7
        if shift > 63:
            return False
    return False


cdef inline bint _read_bytes(
    const uint8_t** at, const uint8_t* end, const uint8_t** data, int64_t* size
) noexcept nogil:
    """Read a length and point `data` at the bytes after it, which are skipped."""
    if not _read_long(at, end, size) or size[0] < 0 or size[0] > end - at[0]:
        return False
    data[0] = at[0]
    at[0] += size[0]
    return True
