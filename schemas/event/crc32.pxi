# CRC-32 with the polynomial 0xEDB88320, reflected: of events, and as zlib computes it.
#
# An event's CRC starts with 0 and is not inverted (`crc.py`); zlib's, which the MySQL
# binlog has, starts with 0xFFFFFFFF and is inverted in the end. The sum between is the same.
#
# For the compiled modules, which include this text: they have no zlib header to
# rely on, and calling Python's zlib for pieces of fifty bytes would cost more
# than the sum itself. Two ways, the same numbers:
#
# * By carry-less multiplication, on x86 processors that have it (found out when
#   the module is loaded), from 16 bytes on: 128 bits are folded onto the next
#   128, and what is left in the end is reduced (Gopal et al., "Fast CRC
#   computation for generic polynomials using PCLMULQDQ", 2009, from which the
#   constants are). Zeros in front of the first byte change no sum that began
#   with 0, so a length that is no multiple of 16 is filled up there, and short
#   pieces, of which a header is one, need no second way for their rest.
# * By table elsewhere, eight bytes a step: table k has the sum of a byte that k
#   zero bytes follow, so that eight bytes are taken with eight look-ups that do
#   not wait for each other (Kounavis and Berry, "Novel table lookup-based
#   algorithms for high-performance CRC generation", 2008).

from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    static uint32_t crc32_tables[8][256];
    static int crc32_can_fold = 0;

    static void crc32_prepare(void) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t value = byte;
            for (int bit = 0; bit < 8; bit++)
                value = (value >> 1) ^ (0xEDB88320u & (0u - (value & 1)));
            crc32_tables[0][byte] = value;
        }
        for (int table = 1; table < 8; table++)
            for (int byte = 0; byte < 256; byte++) {
                uint32_t value = crc32_tables[table - 1][byte];
                crc32_tables[table][byte] = (value >> 8) ^ crc32_tables[0][value & 0xFF];
            }
    #if defined(__x86_64__) && defined(__GNUC__)
        __builtin_cpu_init();
        crc32_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    #endif
    }

    static uint32_t crc32_by_table(const uint8_t* data, ptrdiff_t size, uint32_t value) {
        const uint32_t (*tables)[256] = (const uint32_t (*)[256])crc32_tables;
        for (; size >= 8; data += 8, size -= 8) {
            uint32_t low = value ^ (data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
                                    | (uint32_t)data[3] << 24);
            value = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF]
                    ^ tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24]
                    ^ tables[3][data[4]] ^ tables[2][data[5]]
                    ^ tables[1][data[6]] ^ tables[0][data[7]];
        }
        for (; size > 0; data++, size--)
            value = (value >> 8) ^ tables[0][(value ^ data[0]) & 0xFF];
        return value;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    /* Where a byte goes that is moved up by 16 - n: row n; 0x80 fills with zero. */
    static const uint8_t crc32_up[32] = {
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
        0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    };

    #define CRC32_LOAD(at) _mm_loadu_si128((const __m128i*)(at))
    #define CRC32_FOLD(sum, by, next) \\
        _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), next), \\
                      _mm_clmulepi64_si128(sum, by, 0x11))

    __attribute__((target("pclmul,sse4.1")))
    static uint32_t crc32_by_folding(const uint8_t* data, ptrdiff_t size, uint32_t value) {
        const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i low_words = _mm_setr_epi32(~0, 0, ~0, 0);
        __m128i begin = _mm_cvtsi32_si128((int)value);
        __m128i sum, product;
        ptrdiff_t odd = size & 15;
        if (odd) {
            sum = _mm_xor_si128(CRC32_LOAD(data), begin);
            sum = _mm_shuffle_epi8(sum, CRC32_LOAD(crc32_up + odd));
            /* What of the four bytes begun with lies beyond those few goes to the next ones. */
            begin = _mm_cvtsi32_si128(odd < 4 ? (int)(value >> 8 * odd) : 0);
            data += odd;
            size -= odd;
            sum = CRC32_FOLD(sum, by_16, _mm_xor_si128(CRC32_LOAD(data), begin));
        } else {
            sum = _mm_xor_si128(CRC32_LOAD(data), begin);
        }
        data += 16;
        size -= 16;
        if (size >= 112) {
            __m128i second = CRC32_LOAD(data), third = CRC32_LOAD(data + 16);
            __m128i fourth = CRC32_LOAD(data + 32);
            data += 48;
            size -= 48;
            for (; size >= 64; data += 64, size -= 64) {
                sum = CRC32_FOLD(sum, by_64, CRC32_LOAD(data));
                second = CRC32_FOLD(second, by_64, CRC32_LOAD(data + 16));
                third = CRC32_FOLD(third, by_64, CRC32_LOAD(data + 32));
                fourth = CRC32_FOLD(fourth, by_64, CRC32_LOAD(data + 48));
            }
            sum = CRC32_FOLD(sum, by_16, second);
            sum = CRC32_FOLD(sum, by_16, third);
            sum = CRC32_FOLD(sum, by_16, fourth);
        }
        for (; size > 0; data += 16, size -= 16)
            sum = CRC32_FOLD(sum, by_16, CRC32_LOAD(data));
        /* 128 bits to 96, to 64, and those to the remainder (Barrett). */
        product = _mm_clmulepi64_si128(sum, by_16, 0x10);
        sum = _mm_xor_si128(_mm_srli_si128(sum, 8), product);
        product = _mm_srli_si128(sum, 4);
        sum = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words),
                                   _mm_set_epi64x(0, 0x0163cd6124), 0x00);
        sum = _mm_xor_si128(sum, product);
        const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        product = _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), barrett, 0x10);
        product = _mm_clmulepi64_si128(_mm_and_si128(product, low_words), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, product), 1);
    }
    #else
    #define crc32_by_folding crc32_by_table
    #endif

    static inline uint32_t crc32_go_on(const uint8_t* data, ptrdiff_t size, uint32_t value) {
        if (size >= 16 && crc32_can_fold)
            return crc32_by_folding(data, size, value);
        return crc32_by_table(data, size, value);
    }
    """
    void crc32_prepare() noexcept nogil
    uint32_t crc32_by_table(const uint8_t* data, Py_ssize_t size, uint32_t value) noexcept nogil
    uint32_t crc32_go_on(const uint8_t* data, Py_ssize_t size, uint32_t value) noexcept nogil

crc32_prepare()


cdef inline uint32_t event_crc32(const uint8_t* data, Py_ssize_t size, uint32_t begin=0) noexcept nogil:
    """Return an event's CRC of `size` bytes, continued from that of the bytes before them."""
    return crc32_go_on(data, size, begin)


cdef inline uint32_t zlib_crc32(const uint8_t* data, Py_ssize_t size, uint32_t begin=0) noexcept nogil:
    """Return zlib's CRC of `size` bytes, continued from that of the bytes before them."""
    return ~crc32_go_on(data, size, ~begin)
