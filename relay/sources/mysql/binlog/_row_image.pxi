# Full row images to Avro in one pass, values written as they are found.
#
# The steps that most columns have are here, and write through a pointer: room is made once for
# the whole row. A value that they do not write (a zero date, an invalid value) goes to `put_value`, which has the rules of every step. What is written is the same.


cdef inline uint64_t big_group(const uint8_t* at, int size) noexcept nogil:
    """Read a big-endian number of 1 to 4 bytes."""
    if size == 1:
        return at[0]
    elif size == 2:
        return <uint32_t>at[0] << 8 | at[1]
    elif size == 3:
        return <uint32_t>at[0] << 16 | <uint32_t>at[1] << 8 | at[2]
    return big(at, 4)


cdef inline uint8_t* decimal_at(
    const Column* column, uint8_t* out, const uint8_t* data
) noexcept nogil:
    """Write a decimal as `put_decimal` does; NULL if it has too many digits or invalid ones."""
    cdef int group, width, size
    cdef uint64_t magnitude = 0, value
    cdef uint64_t flip = 0 if data[0] & 0x80 else <uint64_t>0xFFFFFFFF
    cdef uint64_t sign = 0x80
    if column.group_count == 0:
        return NULL
    for group in range(column.group_count):
        width = _DIGIT_BYTES[column.groups[group]]
        value = big_group(data, width) ^ (flip >> 8 * (4 - width)) ^ sign << 8 * (width - 1)
        sign = 0
        if value >= _TENS[column.groups[group]]:
            return NULL
        magnitude = magnitude * _TENS[column.groups[group]] + value
        data += width
    # As many bytes as the magnitude and a sign bit need.
    size = (64 - __builtin_clzll(magnitude | 1) + 8) // 8 if magnitude else 1
    out[0] = <uint8_t>(2 * size)
    if flip:
        magnitude = 0 - magnitude
    write_big(out + 1, magnitude << 8 * (8 - size), 8)
    return out + 1 + size


cdef inline uint8_t* datetime_at(
    const Column* column, uint8_t* out, const uint8_t* data
) noexcept nogil:
    """Write a DATETIME as `put_datetime` does; NULL if it is not a valid one."""
    cdef uint64_t packed = (big(data, 4) << 8 | data[4]) & <uint64_t>0x7FFFFFFFFF
    cdef int months = <int>(packed >> 22), day = packed >> 17 & 0x1F
    cdef int year = months // 13, month = months % 13
    cdef int64_t hour = packed >> 12 & 0x1F, minute = packed >> 6 & 0x3F, second = packed & 0x3F
    cdef int64_t micros = 0
    if column.digits:
        micros = <int64_t>big_group(data + 5, column.size - 5) * _UNITS[column.digits]
    if hour > 23 or minute > 59 or second > 59 or micros > 999999 or not is_date(year, month, day):
        return NULL
    second += hour * 3600 + minute * 60 + days_of(year, month, day) * 86400
    return long_at(out, second * 1000000 + micros)


cdef inline uint8_t* value_at(
    const Column* column, uint8_t* out, const uint8_t* at, Py_ssize_t size
) noexcept nogil:
    """Write one value and return its end; NULL, with nothing said, if `put_value` has to."""
    cdef int step = column.step, shift
    cdef const uint8_t* data = at + column.width
    cdef Py_ssize_t length = size - column.width
    cdef int64_t number, micros = 0
    out[0] = 2
    out += column.branch_bytes
    if step == STEP_INT:
        shift = 64 - 8 * column.size
        return long_at(out, <int64_t>(little(data, column.size) << shift) >> shift)
    elif step == STEP_UINT:
        return long_at(out, <int64_t>little(data, column.size))
    elif step == STEP_UTF8:
        if not is_ascii(data, length) and skip_utf8(data, length) != length:
            return NULL
        return sized_at(out, data, length)
    elif step == STEP_BYTES:
        return sized_at(out, data, length)
    elif step == STEP_COPIED:
        if length == 8:
            memcpy(out, data, 8)
            return out + 8
        if length != 4 or (little(data, 4) & 0x7FFFFFFF) > 0x7F800000:
            return NULL
        memcpy(out, data, 4)
        return out + 4
    elif step == STEP_DECIMAL:
        return decimal_at(column, out, data)
    elif step == STEP_DATETIME:
        return datetime_at(column, out, data)
    elif step == STEP_TIMESTAMP:
        number = <int64_t>big(data, 4)
        if column.digits:
            micros = <int64_t>big_group(data + 4, column.size - 4) * _UNITS[column.digits]
        if number == 0 or micros > 999999:
            return NULL
        return long_at(out, number * 1000000 + micros)
    elif step == STEP_DATE:
        number = <int64_t>little(data, 3)
        if not is_date(number >> 9, number >> 5 & 0xF, number & 0x1F):
            return NULL
        return long_at(out, days_of(number >> 9, number >> 5 & 0xF, number & 0x1F))
    return NULL


cdef const uint8_t* put_image(
    const Plan* plan, Row* row, const uint8_t* at, const uint8_t* end
) noexcept nogil:
    """Write a full row image as Avro; return the image's end, or NULL if Python has to."""
    cdef Bytes* into = row.into
    cdef const uint8_t* nulls = at
    cdef const Column* column = plan.columns
    cdef uint8_t* out
    cdef uint8_t* written
    cdef Py_ssize_t size, begin
    cdef int index
    if end - at < (plan.count + 7) // 8 or reserve(into, plan.room + (end - at)) < 0:
        return NULL
    at += (plan.count + 7) // 8
    row.begin, row.raw_count = into.size, 0
    out = into.data + into.size
    for index in range(plan.count):
        begin = out - into.data
        if nulls[index >> 3] >> (index & 7) & 1:
            if not column.nullable:
                return NULL
            out[0] = 0
            out += 1
        else:
            size = value_size(column, at, end - at)
            if size < 0:
                return NULL
            written = value_at(column, out, at, size)
            if written == NULL:
                into.size = begin
                if put_value(plan, row, index, at, size) < 0:
                    return NULL
                if reserve(into, plan.room + (end - at)) < 0:
                    return NULL
                written = into.data + into.size
            out = written
            at += size
        if column.key_place >= 0:
            row.keys[column.key_place].start = begin - row.begin
            row.keys[column.key_place].size = out - into.data - begin
        column += 1
    into.size = out - into.data
    row.size = into.size - row.begin
    return at
