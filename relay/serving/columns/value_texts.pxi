# The texts of numbers, dates and times. For the compiled module beside it, which includes this.


cdef inline uint8_t* _number_before(uint64_t number, uint8_t* end) noexcept nogil:
    """Write a number that ends before `end`; return where it begins."""
    while True:
        end -= 1
        end[0] = <uint8_t>(48 + number % 10)
        number //= 10
        if number == 0:
            return end


cdef inline uint8_t* _signed_before(int64_t number, uint8_t* end) noexcept nogil:
    # Not negated as it is: the smallest number has no positive one.
    end = _number_before(0 - <uint64_t>number if number < 0 else <uint64_t>number, end)
    if number < 0:
        end -= 1
        end[0] = c"-"
    return end


cdef uint8_t* _decimal_before(
    const Cell* cell, uint8_t* end, uint64_t wide_from, int64_t* sql_type, int64_t wide_type
) noexcept nogil:
    """Write a decimal that ends before `end`; return where it begins, NULL if left to Python."""
    cdef uint8_t magnitude[MOST_DECIMAL_BYTES]
    cdef Py_ssize_t size = cell.size, at, first = 0
    cdef int64_t scale = cell.branch.size, written = 0
    cdef bint is_negative
    cdef uint32_t carry
    if not 0 < size <= MOST_DECIMAL_BYTES:
        return NULL
    memcpy(magnitude, cell.data, size)
    is_negative = magnitude[0] >> 7
    if is_negative:
        carry = 1
        for at in range(size - 1, -1, -1):
            carry += <uint8_t>~magnitude[at]
            magnitude[at] = <uint8_t>carry
            carry >>= 8
    while first < size and magnitude[first] == 0:
        first += 1
    if wide_from and not is_negative and (
        size - first > 8 or big(magnitude + first, size - first) >= wide_from
    ):
        sql_type[0] = wide_type
    while first < size or written <= scale:
        if written == scale and scale:
            end -= 1
            end[0] = c"."
        carry = 0
        for at in range(first, size):
            carry = carry << 8 | magnitude[at]
            magnitude[at] = <uint8_t>(carry // 10)
            carry %= 10
        while first < size and magnitude[first] == 0:
            first += 1
        end -= 1
        end[0] = <uint8_t>(48 + carry)
        written += 1
    if is_negative:
        end -= 1
        end[0] = c"-"
    return end


cdef inline uint8_t* _put_padded(uint8_t* at, int64_t number, int digits) noexcept nogil:
    cdef int place
    for place in range(digits - 1, -1, -1):
        at[place] = <uint8_t>(48 + number % 10)
        number //= 10
    return at + digits


cdef inline uint8_t* _put_date(uint8_t* at, Day day) noexcept nogil:
    at = _put_padded(at, day.year, 4)
    at[0] = c"-"
    at = _put_padded(at + 1, day.month, 2)
    at[0] = c"-"
    return _put_padded(at + 1, day.day, 2)


cdef inline uint8_t* _put_clock(uint8_t* at, int64_t hours, int64_t of_hour) noexcept nogil:
    cdef uint8_t digits[TEXT_BYTES]
    cdef uint8_t* begin
    if hours < 100:
        at = _put_padded(at, hours, 2)
    else:
        begin = _number_before(hours, digits + TEXT_BYTES)
        memcpy(at, begin, digits + TEXT_BYTES - begin)
        at += digits + TEXT_BYTES - begin
    at[0] = c":"
    at = _put_padded(at + 1, of_hour // 60, 2)
    at[0] = c":"
    return _put_padded(at + 1, of_hour % 60, 2)


cdef inline uint8_t* _put_fraction(uint8_t* at, int64_t micros, int digits) noexcept nogil:
    if digits < 0:
        digits = 6 if micros else 0
    if digits == 0:
        return at
    at[0] = c"."
    _put_padded(at + 1, micros, 6)
    return at + 1 + (digits if digits < 6 else 6)


cdef uint8_t* _put_time(uint8_t* at, int64_t micros, int digits) noexcept nogil:
    cdef uint64_t rest = 0 - <uint64_t>micros if micros < 0 else <uint64_t>micros
    cdef int64_t seconds = <int64_t>(rest // SECOND_US)
    if micros < 0:
        at[0] = c"-"
        at += 1
    at = _put_clock(at, seconds // 3600, seconds % 3600)
    return _put_fraction(at, <int64_t>(rest % SECOND_US), digits)


cdef uint8_t* _put_float(uint8_t* to, const Cell* cell, bint is_single) except NULL:
    """Write a number as Java does; see `texts.java_double`."""
    cdef char text[TEXT_BYTES]
    cdef char* found
    cdef float single
    cdef double value
    cdef int digits
    if is_single:
        memcpy(&single, cell.data, 4)
        value = single
    else:
        memcpy(&value, cell.data, 8)
    if isnan(value):
        memcpy(to, b"NaN", 3)
        return to + 3
    if isinf(value):
        memcpy(to, b"-Infinity", 9)
        if value < 0:
            return to + 9
        memcpy(to, b"Infinity", 8)
        return to + 8
    if is_single:
        for digits in range(1, 9):
            snprintf(text, TEXT_BYTES, b"%.*e", digits, value)
            if strtof(text, NULL) == single:
                break
        return _put_scientific(to, text, value)
    found = PyOS_double_to_string(value, c"r", 0, 0, NULL)
    try:
        if _digit_count(found) < 2:
            snprintf(text, TEXT_BYTES, b"%.1e", value)
            return _put_scientific(to, text, value)
        return _put_scientific(to, found, value)
    finally:
        PyMem_Free_string(found)


cdef int _digit_count(const char* text) noexcept nogil:
    """Return the number of digits from the first that is no zero, up to the exponent."""
    cdef int count = 0
    while text[0] and text[0] != c"e":
        if c"0" <= text[0] <= c"9" and (count or text[0] != c"0"):
            count += 1
        text += 1
    return count


cdef uint8_t* _put_scientific(uint8_t* to, const char* text, double value) noexcept nogil:
    """Write the digits of a number's text in Java's form; it has at most 17."""
    cdef char digits[TEXT_BYTES]
    cdef int count = 0, power = 0, before_point = 0, at
    cdef bint is_fraction = False
    if text[0] == c"-":
        to[0] = c"-"
        to += 1
        text += 1
        value = -value
    while text[0] and text[0] != c"e":
        if text[0] == c".":
            is_fraction = True
        else:
            if count or text[0] != c"0":
                digits[count] = text[0]
                count += 1
            elif is_fraction:
                before_point -= 1
            if not is_fraction and count:
                before_point += 1
        text += 1
    if text[0] == c"e":
        text += 1
        is_fraction = text[0] == c"-"
        if text[0] == c"-" or text[0] == c"+":
            text += 1
        while text[0]:
            power = power * 10 + text[0] - 48
            text += 1
        before_point += -power if is_fraction else power
    while count > 0 and digits[count - 1] == c"0":
        count -= 1
    if count == 0:
        memcpy(to, b"0.0", 3)
        return to + 3
    if 1e-3 <= value < 1e7:
        if before_point <= 0:
            to[0], to[1] = c"0", c"."
            to += 2
            for at in range(-before_point):
                to[0] = c"0"
                to += 1
            memcpy(to, digits, count)
            return to + count
        for at in range(before_point if before_point > count else count):
            if at == before_point:
                to[0] = c"."
                to += 1
            to[0] = digits[at] if at < count else c"0"
            to += 1
        if count <= before_point:
            to[0], to[1] = c".", c"0"
            to += 2
        return to
    to[0], to[1] = digits[0], c"."
    to += 2
    if count == 1:
        to[0] = c"0"
        to += 1
    memcpy(to, digits + 1, count - 1)
    to += count - 1
    to[0] = c"E"
    to += 1
    power = before_point - 1
    if power < 0:
        to[0] = c"-"
        to += 1
        power = -power
    if power >= 100:
        to = _put_padded(to, power, 3)
    elif power >= 10:
        to = _put_padded(to, power, 2)
    else:
        to = _put_padded(to, power, 1)
    return to
