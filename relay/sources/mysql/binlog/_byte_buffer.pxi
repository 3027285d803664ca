# A growing byte buffer, and number encodings, for the compiled modules here.
#
# A function that runs out of memory returns -1 and leaves the buffer unchanged; the caller
# leaves the event to Python, which raises an error with the position.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove


cdef extern from *:
    """
    #include <string.h>

    /* Most of what is copied has a few bytes: a call costs more than they do. */
    static inline void copy_bytes(uint8_t* to, const uint8_t* from, Py_ssize_t size) {
        if (size > 64) {
            memcpy(to, from, size);
        } else if (size >= 32) {
            memcpy(to, from, 32);
            memcpy(to + size - 32, from + size - 32, 32);
        } else if (size >= 16) {
            memcpy(to, from, 16);
            memcpy(to + size - 16, from + size - 16, 16);
        } else if (size >= 8) {
            memcpy(to, from, 8);
            memcpy(to + size - 8, from + size - 8, 8);
        } else if (size >= 4) {
            memcpy(to, from, 4);
            memcpy(to + size - 4, from + size - 4, 4);
        } else {
            while (size-- > 0) to[size] = from[size];
        }
    }
    """
    void copy_bytes(uint8_t* to, const uint8_t* begin, Py_ssize_t size) noexcept nogil
    int __builtin_clzll(unsigned long long number) noexcept nogil
    uint32_t __builtin_bswap32(uint32_t number) noexcept nogil
    uint64_t __builtin_bswap64(uint64_t number) noexcept nogil


cdef struct Bytes:
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t room
    int is_lent  # the memory is not its own: it does not grow
    int is_short  # more would have been needed


cdef inline int reserve(Bytes* into, Py_ssize_t more) noexcept nogil:
    """Reserve room for `more` bytes at the end."""
    return 0 if into.size + more <= into.room else _grow(into, more)


cdef int _grow(Bytes* into, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t room
    cdef uint8_t* data
    if into.is_lent:
        into.is_short = True
        return -1
    room = into.room * 2 if into.room > 256 else 512
    if room < into.size + more:
        room = into.size + more
    data = <uint8_t*>realloc(into.data, room)
    if data == NULL:
        return -1
    into.data, into.room = data, room
    return 0


cdef void release(Bytes* of) noexcept nogil:
    free(of.data)
    of.data, of.size, of.room, of.is_lent, of.is_short = NULL, 0, 0, False, False


cdef inline int put(Bytes* into, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    if reserve(into, size) < 0:
        return -1
    copy_bytes(into.data + into.size, data, size)
    into.size += size
    return 0


cdef inline Py_ssize_t write_varint(uint8_t* at, uint64_t number) noexcept nogil:
    """Write seven bits a byte, lowest first; returns how many bytes (at most 10)."""
    cdef Py_ssize_t size = 0
    while number > 0x7F:
        at[size] = <uint8_t>(number & 0x7F) | 0x80
        number >>= 7
        size += 1
    at[size] = <uint8_t>number
    return size + 1


cdef inline uint8_t* varint_at(uint8_t* at, uint64_t number) noexcept nogil:
    """Write a varint and return its end. May change 8 bytes at `at`, or its 10."""
    cdef Py_ssize_t size
    if number < 1 << 7:
        at[0] = <uint8_t>number
        return at + 1
    if number < 1 << 14:
        at[0], at[1] = <uint8_t>number | 0x80, <uint8_t>(number >> 7)
        return at + 2
    if number >> 56:
        return at + write_varint(at, number)
    # Each step moves the upper half of a group up, until each byte has seven bits.
    size = (70 - __builtin_clzll(number)) // 7
    number = (number & 0x0FFFFFFF) | (number & <uint64_t>0x00FFFFFFF0000000) << 4
    number = (number & <uint64_t>0x00003FFF00003FFF) | (number & <uint64_t>0x0FFFC0000FFFC000) << 2
    number = (number & <uint64_t>0x007F007F007F007F) | (number & <uint64_t>0x3F803F803F803F80) << 1
    number |= <uint64_t>0x8080808080808080 & ((<uint64_t>1 << 8 * (size - 1)) - 1)
    memcpy(at, &number, 8)
    return at + size


cdef inline uint8_t* long_at(uint8_t* at, int64_t number) noexcept nogil:
    """Write a number as Avro does, as `varint_at`."""
    return varint_at(at, zigzag(number))


cdef inline uint8_t* sized_at(uint8_t* at, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write bytes as Avro does and return their end; may change 8 bytes more."""
    at = varint_at(at, <uint64_t>size << 1)
    copy_bytes(at, data, size)
    return at + size


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline int put_long(Bytes* into, int64_t number) noexcept nogil:
    """Write a number as Avro does: zigzag, then varint."""
    if reserve(into, 10) < 0:
        return -1
    into.size += write_varint(into.data + into.size, zigzag(number))
    return 0


cdef inline int put_sized(Bytes* into, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write bytes as Avro does: the length, then the bytes."""
    if reserve(into, size + 10) < 0:
        return -1
    into.size += write_varint(into.data + into.size, zigzag(size))
    copy_bytes(into.data + into.size, data, size)
    into.size += size
    return 0


cdef inline uint64_t little(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Read a little-endian number of at most 8 bytes."""
    cdef uint64_t number = 0
    cdef uint32_t low = 0
    cdef Py_ssize_t place
    if size == 1:
        return at[0]
    elif size == 2:
        return at[0] | <uint32_t>at[1] << 8
    elif size == 3:
        return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16
    elif size == 4:
        memcpy(&low, at, 4)
        return low
    elif size == 6:
        memcpy(&low, at, 4)
        return low | <uint64_t>(at[4] | <uint32_t>at[5] << 8) << 32
    elif size == 8:
        memcpy(&number, at, 8)
        return number
    for place in range(size):
        number |= <uint64_t>at[place] << 8 * place
    return number


cdef inline uint64_t big(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Read a big-endian number of at most 8 bytes."""
    cdef uint64_t number = 0
    cdef Py_ssize_t place
    if size >= 4:
        number = (
            <uint64_t>at[0] << 24 | <uint64_t>at[1] << 16 | <uint64_t>at[2] << 8 | at[3]
        )
        at += 4
        size -= 4
    for place in range(size):
        number = number << 8 | at[place]
    return number


cdef inline void write_big(uint8_t* at, uint64_t number, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place
    cdef uint32_t low
    if size == 8:
        number = __builtin_bswap64(number)
        memcpy(at, &number, 8)
    elif size == 4:
        low = __builtin_bswap32(<uint32_t>number)
        memcpy(at, &low, 4)
    else:
        for place in range(size):
            at[size - 1 - place] = <uint8_t>(number >> 8 * place)


cdef inline int put_digits(Bytes* into, uint64_t number, int width) noexcept nogil:
    """Write a number's decimal digits, zeros in front up to `width`."""
    cdef int digits = 1
    cdef uint64_t rest = number // 10
    while rest:
        digits += 1
        rest //= 10
    if digits < width:
        digits = width
    if reserve(into, digits) < 0:
        return -1
    into.size += digits
    cdef uint8_t* at = into.data + into.size
    while digits:
        digits -= 1
        at -= 1
        at[0] = <uint8_t>(48 + number % 10)
        number //= 10
    return 0


cdef inline int is_ascii(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Return whether no byte has its high bit set."""
    cdef uint64_t four[4]
    cdef uint64_t all_of = 0
    cdef uint32_t low
    cdef const uint8_t* end = data + size
    if size >= 8:
        while end - data >= 32:
            memcpy(four, data, 32)
            all_of |= four[0] | four[1] | four[2] | four[3]
            data += 32
        while end - data >= 8:
            memcpy(four, data, 8)
            all_of |= four[0]
            data += 8
        memcpy(four, end - 8, 8)
        all_of |= four[0]
    elif size >= 4:
        memcpy(&low, data, 4)
        all_of = low
        memcpy(&low, end - 4, 4)
        all_of |= low
    else:
        while data < end:
            all_of |= data[0]
            data += 1
    return not all_of & <uint64_t>0x8080808080808080


cdef Py_ssize_t skip_utf8(const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Return the length of the longest prefix that is UTF-8 as RFC 3629 defines it."""
    cdef Py_ssize_t at = 0
    cdef uint64_t eight
    cdef uint8_t first, second
    while at < size:
        if size - at >= 8:
            memcpy(&eight, data + at, 8)
            if not eight & <uint64_t>0x8080808080808080:
                at += 8
                continue
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if size - at < 2:
            return at
        second = data[at + 1]
        if 0xC2 <= first <= 0xDF:
            if second & 0xC0 != 0x80:
                return at
            at += 2
        elif first & 0xF0 == 0xE0:
            if size - at < 3 or second & 0xC0 != 0x80 or data[at + 2] & 0xC0 != 0x80:
                return at
            # No overlong encoding, and no half of a surrogate pair.
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return at
            at += 3
        elif 0xF0 <= first <= 0xF4:
            if size - at < 4 or second & 0xC0 != 0x80:
                return at
            if data[at + 2] & 0xC0 != 0x80 or data[at + 3] & 0xC0 != 0x80:
                return at
            if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
                return at
            at += 4
        else:
            return at
    return at
