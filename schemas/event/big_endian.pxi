# Numbers in network byte order, as events have them. For the compiled modules, which include
# this text; the bytes may have any alignment.


cdef inline uint32_t _u2(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 8) | at[1]


cdef inline uint32_t _u4(const uint8_t* at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline int64_t _i8(const uint8_t* at) noexcept nogil:
    return <int64_t>((<uint64_t>_u4(at) << 32) | _u4(at + 4))
