# Dates and times of Avro's numbers. For the compiled modules, which include this text.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    # Python's dates, in days since 1970.
    FIRST_DAY = -719162
    LAST_DAY = 2932896
    DAY_S = 86400
    SECOND_US = 1000000

cdef struct Day:
    int year
    int month
    int day

cdef struct Moment:
    Day day
    int of_day  # seconds
    int fraction  # microseconds


cdef Day _civil(int64_t days) noexcept nogil:
    """Return the date of a number of days since 1970 that `date` allows.

    By multiplications and shifts for the divisions (Neri and Schneider, "Euclidean affine functions
    and their application to calendar algorithms", 2022). A year begins on the first of March, so
    that a leap day ends it.
    """
    cdef uint32_t shifted = 4 * <uint32_t>(days + 719468) + 3  # since 0000-03-01
    cdef uint32_t century = shifted // 146097
    cdef uint32_t of_century = (shifted % 146097) | 3
    cdef uint64_t product = <uint64_t>2939745 * of_century
    cdef uint32_t year = 100 * century + <uint32_t>(product >> 32)
    cdef uint32_t of_year = <uint32_t>product // 2939745 // 4
    cdef uint32_t months = 2141 * of_year + 197913
    cdef uint32_t month = months >> 16
    cdef Day found
    found.day = <int>((months & 0xFFFF) // 2141 + 1)
    found.month = <int>(month - 12 if of_year >= 306 else month)
    found.year = <int>(year + (1 if of_year >= 306 else 0))
    return found


cdef bint _moment(int64_t micros, Moment* found) noexcept nogil:
    """Read microseconds since 1970; False if Python has no such date."""
    cdef int64_t seconds = micros // SECOND_US, fraction = micros % SECOND_US, days
    cdef int of_day
    # The divisions are C's, which round to zero; where they are Python's, nothing is left to do.
    if fraction < 0:
        seconds -= 1
        fraction += SECOND_US
    days = seconds // DAY_S
    of_day = <int>(seconds % DAY_S)
    if of_day < 0:
        days -= 1
        of_day += DAY_S
    if not FIRST_DAY <= days <= LAST_DAY:
        return False
    found.day = _civil(days)
    found.of_day = of_day
    found.fraction = <int>fraction
    return True
