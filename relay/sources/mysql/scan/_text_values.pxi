# How the text of a value becomes Avro, for `_text_rows.pyx`.
#
# `text_plan.py` chooses the step for each column; a step writes what `scan/columns.py` makes of
# the text. One that cannot returns -1: Python then reads the rows, or raises the error.

cdef enum:
    MOST_EXACT_DIGITS = 18  # of a decimal number in an int64

cdef double _POWERS[23]
_POWERS[:] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
]


cdef int put_text_value(
    const Plan* plan, Bytes* into, int index, const uint8_t* text, Py_ssize_t size
) noexcept nogil:
    """Write one value, given as the server's text."""
    cdef const Column* column = &plan.columns[index]
    cdef int step = column.step
    cdef int64_t number = 0
    cdef uint64_t magnitude = 0
    cdef uint8_t packed[9]
    cdef int shift = 0
    # A date is nullable whatever the column says, and writes the branch itself.
    if STEP_DATE <= step <= STEP_TIMESTAMP:
        return put_text_date(into, column, text, size)
    if column.nullable and put(into, b"\x02", 1) < 0:
        return -1
    if step == STEP_INT or step == STEP_UINT or step == STEP_YEAR:
        return put_long(into, number) if read_signed(text, size, &number) == 0 else -1
    elif step == STEP_UTF8:
        return put_sized(into, text, size) if skip_utf8(text, size) == size else -1
    elif step == STEP_BYTES:
        return put_sized(into, text, size)
    elif step == STEP_DECIMAL:
        return put_text_decimal(into, column, text, size)
    elif step == STEP_COPIED:
        return put_text_double(into, column, text, size)
    elif step == STEP_TIME:
        return put_text_time(into, text, size)
    elif step == STEP_TABLE:
        return put_by_table(into, column, text, size)
    elif step == STEP_ENUM or step == STEP_SET or step == STEP_UINT64:
        if read_digits(text, size, &magnitude) < 0:
            return -1
        if step == STEP_UINT64:
            packed[0] = 0
            write_big(packed + 1, magnitude, 8)
            while shift < 8 and packed[shift] == 0 and not packed[shift + 1] & 0x80:
                shift += 1
            return put_sized(into, packed + shift, 9 - shift)
        # A member's number, as the binlog has it.
        for shift in range(8):
            packed[shift] = <uint8_t>(magnitude >> 8 * shift)
        if step == STEP_ENUM:
            return put_member(into, column, packed)
        return put_members(into, column, packed)
    elif step == STEP_CONVERTED:
        return put_converted(plan, into, index, text, size)
    return -1


cdef int read_digits(const uint8_t* text, Py_ssize_t size, uint64_t* number) noexcept nogil:
    """Read a number of digits alone; -1 when it is not one, or not below 2 ** 64."""
    cdef Py_ssize_t place
    cdef uint64_t found = 0, digit
    if size < 1:
        return -1
    for place in range(size):
        digit = <uint64_t>text[place] - 48
        if digit > 9:
            return -1
        if found > <uint64_t>1844674407370955161 or (found == <uint64_t>1844674407370955161 and digit > 5):
            return -1
        found = 10 * found + digit
    number[0] = found
    return 0


cdef int read_signed(const uint8_t* text, Py_ssize_t size, int64_t* number) noexcept nogil:
    """Read an integer; -1 when it is not one of 64 bits."""
    cdef uint64_t found = 0
    cdef int is_negative = size > 0 and text[0] == 45
    if read_digits(text + is_negative, size - is_negative, &found) < 0:
        return -1
    if found > <uint64_t>0x7FFFFFFFFFFFFFFF + is_negative:
        return -1
    number[0] = <int64_t>(0 - found if is_negative else found)
    return 0


cdef int put_text_decimal(
    Bytes* into, const Column* column, const uint8_t* text, Py_ssize_t size
) noexcept nogil:
    """Write a decimal of at most 18 digits: the unscaled number, as `put_decimal` does."""
    cdef int is_negative = size > 0 and text[0] == 45
    cdef Py_ssize_t place, point = size
    cdef uint64_t found = 0, digit, left
    cdef int digits = 0, bits = 0, bytes_wide, shift
    cdef uint8_t packed[8]
    for place in range(is_negative, size):
        if text[place] == 46 and point == size:
            point = place
            continue
        digit = <uint64_t>text[place] - 48
        digits += 1
        if digit > 9 or digits > MOST_EXACT_DIGITS:
            return -1
        found = 10 * found + digit
    if digits == 0 or (size - point - 1 if point < size else 0) != column.scale:
        return -1
    left = found
    while left:
        bits += 1
        left >>= 1
    bytes_wide = (bits + 8) // 8
    if is_negative:
        found = 0 - found
    for shift in range(bytes_wide):
        packed[bytes_wide - 1 - shift] = <uint8_t>(found >> 8 * shift)
    return put_sized(into, packed, bytes_wide)


cdef int put_text_double(
    Bytes* into, const Column* column, const uint8_t* text, Py_ssize_t size
) noexcept nogil:
    cdef double number = 0
    cdef float single
    if read_double(text, size, &number) < 0 and read_any_double(text, size, &number) < 0:
        return -1
    if column.size == 8:
        return put(into, <uint8_t*>&number, 8)
    single = <float>number
    return put(into, <uint8_t*>&single, 4)


cdef int read_double(const uint8_t* text, Py_ssize_t size, double* number) noexcept nogil:
    """Read a number whose digits and power of ten are both exact as doubles; else return -1.

    The quotient or product of two exact doubles is the nearest one (Clinger 1990).
    """
    cdef Py_ssize_t place = 0
    cdef uint64_t digits = 0, digit
    cdef int is_negative = size > 0 and text[0] == 45, power = 0, has_point = False, count = 0
    cdef int64_t exponent = 0
    cdef double found
    place = is_negative
    while place < size:
        if text[place] == 46 and not has_point:
            has_point = True
        else:
            digit = <uint64_t>text[place] - 48
            if digit > 9:
                break
            count += 1
            if count > 17:
                return -1
            digits = 10 * digits + digit
            power -= has_point
        place += 1
    if count == 0 or digits > <uint64_t>1 << 53:
        return -1
    if place < size:
        if text[place] != 101 or size - place < 2 or size - place > 5:
            return -1
        place += 1 + (text[place + 1] == 43)
        if read_signed(text + place, size - place, &exponent) < 0:
            return -1
        power += <int>exponent
    if not -22 <= power <= 22:
        return -1
    found = <double>digits
    found = found / _POWERS[-power] if power < 0 else found * _POWERS[power]
    number[0] = -found if is_negative else found
    return 0


cdef int read_any_double(const uint8_t* text, Py_ssize_t size, double* number) noexcept with gil:
    try:
        number[0] = PyFloat_AsDouble(float(PyBytes_FromStringAndSize(<const char*>text, size)))
    except:  # Python reads the rows again, and raises it
        return -1
    return 0


cdef inline int two_digits(const uint8_t* text) noexcept nogil:
    """Return a number of two digits; far below zero when they are none."""
    cdef int high = text[0] - 48, low = text[1] - 48
    return 10 * high + low if 0 <= high <= 9 and 0 <= low <= 9 else -100000


cdef int read_fraction(const uint8_t* text, Py_ssize_t size, int64_t* micros) noexcept nogil:
    """Read what follows the seconds: nothing, or a point and up to six digits."""
    cdef uint64_t found = 0
    cdef Py_ssize_t place
    micros[0] = 0
    if size == 0:
        return 0
    if text[0] != 46 or not 2 <= size <= 7 or read_digits(text + 1, size - 1, &found) < 0:
        return -1
    for place in range(7 - size):
        found *= 10
    micros[0] = <int64_t>found
    return 0


cdef int put_text_date(
    Bytes* into, const Column* column, const uint8_t* text, Py_ssize_t size
) noexcept nogil:
    """Write YYYY-MM-DD or YYYY-MM-DD HH:MM:SS.ffffff; null when there is no such date."""
    cdef int year, month, day, hour = 0, minute = 0, second = 0
    cdef int64_t micros = 0, days
    if size < 10 or text[4] != 45 or text[7] != 45:
        return -1
    year, month, day = 100 * two_digits(text) + two_digits(text + 2), two_digits(text + 5), two_digits(text + 8)
    if year < 0 or month < 0 or day < 0:
        return -1
    if column.step == STEP_DATE:
        if size != 10:
            return -1
    else:
        if size < 19 or text[10] != 32 or text[13] != 58 or text[16] != 58:
            return -1
        hour, minute, second = two_digits(text + 11), two_digits(text + 14), two_digits(text + 17)
        if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
            return -1
        if read_fraction(text + 19, size - 19, &micros) < 0:
            return -1
    if not is_date(year, month, day):
        return put(into, b"\x00", 1) if column.zero_is_null else -1
    if put(into, b"\x02", 1) < 0:
        return -1
    days = days_of(year, month, day)
    if column.step == STEP_DATE:
        return put_long(into, days)
    return put_long(
        into, (days * 86400 + hour * 3600 + minute * 60 + second) * 1000000 + micros
    )


cdef int put_text_time(Bytes* into, const uint8_t* text, Py_ssize_t size) noexcept nogil:
    """Write [-]HH:MM:SS.ffffff, of two or three digits of hours, in microseconds."""
    cdef int is_negative = size > 0 and text[0] == 45, minute, second
    cdef uint64_t hours = 0
    cdef int64_t micros = 0, whole
    cdef Py_ssize_t wide = 2
    text += is_negative
    size -= is_negative
    if size >= 9 and text[2] != 58:
        wide = 3
    if size < wide + 6 or text[wide] != 58 or text[wide + 3] != 58:
        return -1
    minute, second = two_digits(text + wide + 1), two_digits(text + wide + 4)
    if read_digits(text, wide, &hours) < 0 or minute < 0 or second < 0:
        return -1
    if read_fraction(text + wide + 6, size - wide - 6, &micros) < 0:
        return -1
    whole = (<int64_t>hours * 3600 + minute * 60 + second) * 1000000 + micros
    return put_long(into, -whole if is_negative else whole)
