# How the rows of one table version become Avro, one step a column.
#
# `binlog/row_plan.py` chooses the step for each column. Each step must write the same value
# as the reader in `rows/values.py`. A step that cannot write a value (an invalid date, text
# that is not in its character set, a truncated value) returns NULL: the event goes to
# Python, which reads it or raises the error.

cdef enum Step:
    STEP_INT, STEP_UINT, STEP_UINT64, STEP_COPIED, STEP_YEAR, STEP_BITS, STEP_DECIMAL
    STEP_TIME
    STEP_DATE, STEP_DATETIME, STEP_TIMESTAMP
    STEP_ENUM, STEP_SET, STEP_PADDED, STEP_UUID
    STEP_BYTES, STEP_UTF8, STEP_TABLE, STEP_CONVERTED

STEPS = {
    "int": STEP_INT, "uint": STEP_UINT, "uint64": STEP_UINT64, "copied": STEP_COPIED,
    "year": STEP_YEAR, "bits": STEP_BITS, "decimal": STEP_DECIMAL, "date": STEP_DATE,
    "time": STEP_TIME, "datetime": STEP_DATETIME, "timestamp": STEP_TIMESTAMP,
    "enum": STEP_ENUM, "set": STEP_SET, "padded": STEP_PADDED, "uuid": STEP_UUID,
    "bytes": STEP_BYTES, "utf8": STEP_UTF8, "table": STEP_TABLE, "converted": STEP_CONVERTED,
}

# 0.0 equals -0.0, and two invalid dates are both null.
_INEXACT = frozenset({STEP_COPIED, STEP_DATE, STEP_DATETIME, STEP_TIMESTAMP})

cdef enum KeyKind:
    KEY_LONG, KEY_TEXT, KEY_MADE

KEYS = {"long": KEY_LONG, "text": KEY_TEXT, "made": KEY_MADE}

cdef enum:
    MOST_COLUMNS = 4096
    ABSENT = -1
    NULL_VALUE = -2
    MOST_DIGITS = 65
    # 65 digits and the sign need 28 bytes.
    DECIMAL_LIMBS = 8

cdef struct Column:
    int step
    int size  # bytes of a fixed-size value, of a member's number, or the length of a padded one
    int width  # bytes of the length prefix of a variable-size value
    int nullable  # whether its Avro type is a union with null
    int digits  # digits of a fraction of a second
    int precision
    int scale
    int key_place  # position in the key, from 0; -1 when it is not in the key
    int zero_is_null
    int branch_bytes  # 1 when `put_image` writes the branch of a union before the value
    int group_count  # of a decimal's digits that `decimal_at` reads; 0 when it has too many
    uint8_t groups[4]  # digits of each group
    int member_count
    const uint8_t* members  # the members' names, concatenated
    const int32_t* member_ends
    const uint8_t* table  # 256 x (size, up to 3 bytes of UTF-8)
    const uint8_t* name
    int name_size

# The content of a `RowPlan`, for code that runs without the GIL.
cdef struct Plan:
    Column* columns
    int count
    int key_kind
    int key_count
    int* key_columns
    int has_inexact_key  # equal values may differ in Avro, and different ones may be equal there
    int delivers_partial
    Py_ssize_t room  # that `put_image` needs, besides the size of the image
    int32_t src_id
    uint8_t digest[16]
    void* owner

cdef struct Span:
    Py_ssize_t start  # ABSENT or NULL_VALUE when there is none
    Py_ssize_t size

# An invalid date, kept as text for the event's metadata.
cdef struct Raw:
    int column
    int size
    uint8_t text[32]

cdef enum:
    MOST_RAW = 64

cdef struct Row:
    Bytes own  # where it is written, unless it goes into a window at once
    Bytes* into  # where it is written: `size` bytes of Avro from `begin` on
    Py_ssize_t begin
    Py_ssize_t size
    Span* keys  # where the key's values are in the Avro, in the key's order
    int raw_count
    Raw raw[MOST_RAW]


cdef class RowPlan:
    """The plan to write the rows of one table version; made by `binlog/row_plan.py`."""

    cdef Plan plan
    cdef list converters  # by column; None but for "converted"
    cdef list kept  # keeps alive the memory that the columns point to
    cdef object make_key

    def __cinit__(self, list columns not None, *, int src_id, bytes digest not None, str key not None,
                  list key_columns not None, make_key, bint delivers_partial):
        cdef int index, place
        if not 0 < len(columns) <= MOST_COLUMNS or len(digest) != 16:
            raise ValueError("no plan for this table")
        self.plan.columns = <Column*>calloc(len(columns), sizeof(Column))
        self.plan.key_columns = <int*>calloc(len(key_columns) + 1, sizeof(int))
        if self.plan.columns == NULL or self.plan.key_columns == NULL:
            raise MemoryError
        self.plan.count, self.plan.key_count = len(columns), len(key_columns)
        self.plan.src_id = src_id
        memcpy(self.plan.digest, <const uint8_t*>digest, 16)
        self.plan.key_kind = KEYS[key]
        self.plan.delivers_partial = delivers_partial
        self.plan.owner = <void*>self
        self.make_key = make_key
        self.converters, self.kept = [], []
        self.plan.room = 16  # `varint_at` and `decimal_at` write 8 bytes at once
        for index in range(self.plan.count):
            self._fill(&self.plan.columns[index], columns[index])
            # The branch of a union; the length or the number; a decimal has no more.
            self.plan.room += 1 + 10
        for place, index in enumerate(key_columns):
            if not 0 <= index < self.plan.count:
                raise ValueError("a key of columns that are not there")
            self.plan.columns[index].key_place = place
            self.plan.key_columns[place] = index
            if self.plan.columns[index].step in _INEXACT:
                self.plan.has_inexact_key = True

    def __dealloc__(self):
        free(self.plan.columns)
        free(self.plan.key_columns)

    cdef int _fill(self, Column* column, dict given) except -1:
        cdef bytes name = given["name"].encode()
        column.step = STEPS[given["step"]]
        column.size, column.width = given.get("size", 0), given.get("width", 0)
        if not 0 <= column.size <= 1024 or not 0 <= column.width <= 4:
            raise ValueError("a column of impossible size")
        column.nullable = given["nullable"]
        column.digits = given.get("digits", 0)
        column.precision, column.scale = given.get("precision", 0), given.get("scale", 0)
        if not 0 <= column.scale <= column.precision <= MOST_DIGITS:
            raise ValueError("a decimal of impossible digits")
        self._group_digits(column)
        column.branch_bytes = column.nullable or STEP_DATE <= column.step <= STEP_TIMESTAMP
        column.zero_is_null = given.get("zero_is_null", False)
        column.key_place = -1
        column.name, column.name_size = <const uint8_t*>PyBytes_AS_STRING(name), len(name)
        self.kept.append(name)
        self._keep_members(column, given.get("members"))
        self._keep_table(column, given.get("table"))
        self.converters.append(given.get("convert"))
        return 0

    cdef int _group_digits(self, Column* column) except -1:
        """Keep the digits of each group of a decimal whose unscaled number has 63 bits."""
        cdef int whole = column.precision - column.scale
        if column.step != STEP_DECIMAL or column.precision > 18:
            return 0
        digits = [whole % 9, *[9] * (whole // 9), *[9] * (column.scale // 9), column.scale % 9]
        for count in digits:
            if count:
                column.groups[column.group_count] = count
                column.group_count += 1
        return 0

    cdef int _keep_members(self, Column* column, members) except -1:
        if members is None:
            return 0
        cdef bytes joined = b"".join(members)
        ends = array("i")
        cdef Py_ssize_t end = 0
        for member in members:
            end += len(member)
            ends.append(end)
        cdef bytes packed = ends.tobytes()
        self.kept += [joined, packed]
        column.member_count = len(members)
        column.members = <const uint8_t*>PyBytes_AS_STRING(joined)
        column.member_ends = <const int32_t*>PyBytes_AS_STRING(packed)
        return 0

    cdef int _keep_table(self, Column* column, table) except -1:
        cdef bytes packed
        if table is not None:
            packed = table
            if len(packed) != 1024:
                raise ValueError("a character set's table has four bytes for each of its 256")
            self.kept.append(packed)
            column.table = <const uint8_t*>PyBytes_AS_STRING(packed)
        return 0


cdef inline Py_ssize_t value_size(
    const Column* column, const uint8_t* at, Py_ssize_t left
) noexcept nogil:
    """Return a value's size with its length prefix; -1 when it is truncated."""
    cdef Py_ssize_t size
    if column.width == 0:
        size = column.size
    else:
        if left < column.width:
            return -1
        size = column.width + <Py_ssize_t>little(at, column.width)
    return size if size <= left else -1


cdef int put_decimal(Bytes* into, const Column* column, const uint8_t* data) noexcept nogil:
    """Write a packed decimal as Avro has it: the unscaled number, big-endian, two's complement.

    As many bytes as its magnitude and a sign bit need, as the reference writes it.
    """
    cdef uint32_t limbs[DECIMAL_LIMBS]
    cdef int used = 1, at = 0, group, digits, width, place, negative, top, bits, size
    cdef int whole = column.precision - column.scale
    cdef int* widths = _DIGIT_BYTES
    cdef uint32_t value, unit
    cdef uint64_t carry
    cdef uint8_t flip, byte
    cdef uint8_t text[4 * DECIMAL_LIMBS + 1]
    limbs[0] = 0
    negative = not data[0] & 0x80
    flip = 0xFF if negative else 0
    cdef int leading = whole % 9, wholes = whole // 9, parts = column.scale // 9
    cdef int trailing = column.scale % 9
    for group in range(wholes + parts + 2):
        if group == 0:
            digits = leading
        elif group == wholes + parts + 1:
            digits = trailing
        else:
            digits = 9
        width = widths[digits]
        value = 0
        for place in range(width):
            byte = data[at] ^ flip
            if at == 0:
                byte ^= 0x80
            value = value << 8 | byte
            at += 1
        unit = _TENS[digits]
        if value >= unit and digits:
            return -1
        carry = value
        for place in range(used):
            carry += <uint64_t>limbs[place] * unit
            limbs[place] = <uint32_t>carry
            carry >>= 32
        if carry:
            if used == DECIMAL_LIMBS:
                return -1
            limbs[used] = <uint32_t>carry
            used += 1
    top = used - 1
    while top > 0 and limbs[top] == 0:
        top -= 1
    bits = 32 * top
    value = limbs[top]
    while value:
        bits += 1
        value >>= 1
    size = (bits + 8) // 8
    carry = 1
    for place in range(size):
        byte = 0
        if place // 4 < used:
            byte = <uint8_t>(limbs[place // 4] >> 8 * (place % 4))
        if negative:
            carry += <uint8_t>~byte
            byte = <uint8_t>carry
            carry >>= 8
        text[size - 1 - place] = byte
    return put_sized(into, text, size)


cdef int _DIGIT_BYTES[10]
_DIGIT_BYTES[:] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
cdef uint32_t _TENS[10]
_TENS[:] = [1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000]
cdef int64_t _UNITS[7]
_UNITS[:] = [1000000, 10000, 10000, 100, 100, 1, 1]  # microseconds, by digits of the fraction


cdef inline int is_leap(int year) noexcept nogil:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


cdef inline int is_date(int year, int month, int day) noexcept nogil:
    if not (1 <= year <= 9999 and 1 <= month <= 12 and 1 <= day <= 31):
        return False
    if month == 2:
        return day <= 28 + is_leap(year)
    return day <= 30 or not (month == 4 or month == 6 or month == 9 or month == 11)


cdef inline int64_t days_of(int year, int month, int day) noexcept nogil:
    """Return the days from 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms")."""
    cdef int64_t shifted = year - (month <= 2)
    cdef int64_t era = shifted // 400
    cdef int64_t of_era = shifted - era * 400
    cdef int64_t of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef int put_zero_date(
    Row* row, const Column* column, int index, int year, int month, int day,
    int64_t clock_s, int64_t micros, int has_clock
) noexcept nogil:
    """Write null for an invalid date and keep its text; -1 when that is not allowed."""
    cdef Bytes text
    cdef Raw* raw
    cdef int place
    if not column.zero_is_null or row.raw_count == MOST_RAW or year > 9999 or month > 12:
        return -1
    raw = &row.raw[row.raw_count]
    raw.column = index
    text.data, text.size, text.room, text.is_lent = raw.text, 0, 32, True
    put_digits(&text, year, 4)
    put(&text, b"-", 1)
    put_digits(&text, month, 2)
    put(&text, b"-", 1)
    put_digits(&text, day, 2)
    if has_clock:
        put(&text, b" ", 1)
        put_digits(&text, clock_s // 3600, 2)
        put(&text, b":", 1)
        put_digits(&text, clock_s // 60 % 60, 2)
        put(&text, b":", 1)
        put_digits(&text, clock_s % 60, 2)
        if column.digits:
            put(&text, b".", 1)
            for place in range(6 - column.digits):
                micros //= 10
            put_digits(&text, micros, column.digits)
    raw.size = <int>text.size
    row.raw_count += 1
    # Avro's null: the first branch of its union.
    return put(row.into, b"\x00", 1)


cdef int put_date(Row* row, const Column* column, int index, const uint8_t* data) noexcept nogil:
    cdef uint32_t packed = <uint32_t>little(data, 3)
    cdef int year = packed >> 9, month = packed >> 5 & 0xF, day = packed & 0x1F
    if not (year and month and day):
        return put_zero_date(row, column, index, year, month, day, 0, 0, False)
    if not is_date(year, month, day):
        return -1
    if put(row.into, b"\x02", 1) < 0:
        return -1
    return put_long(row.into, days_of(year, month, day))


cdef int put_datetime(Row* row, const Column* column, int index, const uint8_t* data) noexcept nogil:
    cdef uint64_t packed = big(data, 5) & <uint64_t>0x7FFFFFFFFF
    cdef int months = <int>(packed >> 22), day = packed >> 17 & 0x1F
    cdef int year = months // 13, month = months % 13
    cdef int64_t hour = packed >> 12 & 0x1F, minute = packed >> 6 & 0x3F, second = packed & 0x3F
    cdef int64_t micros = <int64_t>big(data + 5, column.size - 5) * _UNITS[column.digits]
    cdef int64_t clock_s = hour * 3600 + minute * 60 + second
    if hour > 23 or minute > 59 or second > 59 or micros > 999999:
        return -1
    if not (year and month and day):
        return put_zero_date(row, column, index, year, month, day, clock_s, micros, True)
    if not is_date(year, month, day):
        return -1
    if put(row.into, b"\x02", 1) < 0:
        return -1
    return put_long(
        row.into, (days_of(year, month, day) * 86400 + clock_s) * 1000000 + micros
    )


cdef int put_timestamp(Row* row, const Column* column, int index, const uint8_t* data) noexcept nogil:
    cdef int64_t seconds = <int64_t>big(data, 4)
    cdef int64_t micros = <int64_t>big(data + 4, column.size - 4) * _UNITS[column.digits]
    if micros > 999999:
        return -1
    if seconds == 0 and micros == 0:
        return put_zero_date(row, column, index, 0, 0, 0, 0, 0, True)
    if put(row.into, b"\x02", 1) < 0:
        return -1
    return put_long(row.into, seconds * 1000000 + micros)


cdef int put_time(Bytes* into, const Column* column, const uint8_t* data) noexcept nogil:
    cdef int bits = 8 * (column.size - 3)
    cdef int64_t number = <int64_t>big(data, column.size) - (<int64_t>0x800000 << bits)
    cdef int64_t sign = 1
    if number < 0:
        sign, number = -1, -number
    cdef int64_t whole = number >> bits, part = number & ((<int64_t>1 << bits) - 1)
    cdef int64_t seconds = (whole >> 12 & 0x3FF) * 3600 + (whole >> 6 & 0x3F) * 60 + (whole & 0x3F)
    return put_long(into, sign * (seconds * 1000000 + part * _UNITS[column.digits]))


cdef int put_member(Bytes* into, const Column* column, const uint8_t* data) noexcept nogil:
    cdef uint64_t ordinal = little(data, column.size)
    cdef int32_t begin = 0
    if ordinal > <uint64_t>column.member_count:
        return -1
    if ordinal == 0:
        return put(into, b"\x00", 1)
    if ordinal > 1:
        begin = column.member_ends[ordinal - 2]
    return put_sized(into, column.members + begin, column.member_ends[ordinal - 1] - begin)


cdef int put_members(Bytes* into, const Column* column, const uint8_t* data) noexcept nogil:
    """Write a set: the names of its members, joined by commas."""
    cdef uint64_t bits = little(data, column.size)
    cdef Py_ssize_t size = 0
    cdef int place
    cdef int32_t begin = 0, end
    if column.member_count < 64 and bits >> column.member_count:
        return -1
    for place in range(column.member_count):
        end = column.member_ends[place]
        if bits >> place & 1:
            size += end - begin + (size > 0 or bits & ((<uint64_t>1 << place) - 1) != 0)
        begin = end
    if put_long(into, size) < 0 or reserve(into, size) < 0:
        return -1
    begin = 0
    for place in range(column.member_count):
        end = column.member_ends[place]
        if bits >> place & 1:
            if bits & ((<uint64_t>1 << place) - 1):
                put(into, b",", 1)
            put(into, column.members + begin, end - begin)
        begin = end
    return 0


cdef int put_padded(Bytes* into, const Column* column, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write a BINARY(n): the zero bytes at its end are not logged."""
    cdef Py_ssize_t wanted = column.size if size < column.size else size
    if put_long(into, wanted) < 0 or reserve(into, wanted) < 0:
        return -1
    memcpy(into.data + into.size, data, size)
    memset(into.data + into.size + size, 0, wanted - size)
    into.size += wanted
    return 0


cdef int put_uuid(Bytes* into, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef uint8_t text[36]
    cdef int place, at = 0
    cdef uint8_t byte
    if size > 16:
        return -1
    for place in range(16):
        if place == 4 or place == 6 or place == 8 or place == 10:
            text[at] = 45
            at += 1
        byte = data[place] if place < size else 0
        text[at], text[at + 1] = _HEX[byte >> 4], _HEX[byte & 0xF]
        at += 2
    return put_sized(into, text, 36)


cdef const uint8_t* _HEX = b"0123456789abcdef"


cdef int put_by_table(Bytes* into, const Column* column, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write text of a character set of single bytes as UTF-8."""
    cdef Py_ssize_t length = 0, place
    cdef const uint8_t* entry
    for place in range(size):
        entry = column.table + 4 * data[place]
        if entry[0] == 0:
            return -1
        length += entry[0]
    if put_long(into, length) < 0 or reserve(into, length + 4) < 0:
        return -1
    for place in range(size):
        entry = column.table + 4 * data[place]
        memcpy(into.data + into.size, entry + 1, 3)
        into.size += entry[0]
    return 0


cdef int put_converted(const Plan* plan, Bytes* into, int index, const uint8_t* data, Py_ssize_t size) noexcept with gil:
    """Convert a value in Python and write the result: bytes, or text in UTF-8."""
    cdef bytes made
    try:
        made = (<RowPlan>plan.owner).converters[index](PyBytes_FromStringAndSize(<const char*>data, size))
    except:  # any error: Python reads the event again, and raises it
        return -1
    return put_sized(into, <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))


cdef int put_value(
    const Plan* plan, Row* row, int index, const uint8_t* at, Py_ssize_t size
) noexcept nogil:
    """Write one value, of `size` bytes at `at` with its length prefix."""
    cdef const Column* column = &plan.columns[index]
    cdef Bytes* into = row.into
    cdef int step = column.step
    cdef int shift
    cdef const uint8_t* data = at + column.width
    cdef Py_ssize_t length = size - column.width
    cdef uint8_t text[9]
    # These steps write the null branch themselves.
    if column.nullable and not STEP_DATE <= step <= STEP_TIMESTAMP and put(into, b"\x02", 1) < 0:
        return -1
    # One `switch` in C.
    if step == STEP_DATE:
        return put_date(row, column, index, data)
    elif step == STEP_DATETIME:
        return put_datetime(row, column, index, data)
    elif step == STEP_TIMESTAMP:
        return put_timestamp(row, column, index, data)
    elif step == STEP_INT:
        shift = 64 - 8 * column.size
        return put_long(into, <int64_t>(little(data, column.size) << shift) >> shift)
    elif step == STEP_UINT:
        return put_long(into, <int64_t>little(data, column.size))
    elif step == STEP_UTF8:
        if skip_utf8(data, length) != length:
            return -1
        return put_sized(into, data, length)
    elif step == STEP_BYTES or step == STEP_BITS:
        return put_sized(into, data, length)
    elif step == STEP_COPIED:
        if length == 4 and (little(data, 4) & 0x7FFFFFFF) > 0x7F800000:
            return -1  # NaN: Python's has other bits
        return put(into, data, length)
    elif step == STEP_DECIMAL:
        return put_decimal(into, column, data)
    elif step == STEP_TIME:
        return put_time(into, column, data)
    elif step == STEP_ENUM:
        return put_member(into, column, data)
    elif step == STEP_SET:
        return put_members(into, column, data)
    elif step == STEP_TABLE:
        return put_by_table(into, column, data, length)
    elif step == STEP_PADDED:
        return put_padded(into, column, data, length)
    elif step == STEP_UUID:
        return put_uuid(into, data, length)
    elif step == STEP_YEAR:
        return put_long(into, data[0] + 1900 if data[0] else 0)
    elif step == STEP_UINT64:
        text[0] = 0
        write_big(text + 1, little(data, 8), 8)
        shift = 0
        while shift < 8 and text[shift] == 0 and not text[shift + 1] & 0x80:
            shift += 1
        return put_sized(into, text + shift, 9 - shift)
    elif step == STEP_CONVERTED:
        return put_converted(plan, into, index, at, size)
    return -1


cdef int put_filler(const Plan* plan, Row* row, int index) noexcept nogil:
    """Write the placeholder of a value that is not in the log: null, or else a zero."""
    cdef const Column* column = &plan.columns[index]
    cdef int place
    if column.nullable:
        return put(row.into, b"\x00", 1)
    if column.step == STEP_COPIED:
        for place in range(column.size):
            if put(row.into, b"\x00", 1) < 0:
                return -1
        return 0
    if column.step == STEP_DECIMAL or column.step == STEP_UINT64:
        return put(row.into, b"\x02\x00", 2)
    return put(row.into, b"\x00", 1)


cdef inline int has_any(const uint8_t* present, int count) noexcept nogil:
    """Return whether an image has any column."""
    cdef int index
    for index in range(count):
        if present[index >> 3] >> (index & 7) & 1:
            return True
    return False


cdef const uint8_t* take_image(
    const Plan* plan, const uint8_t* at, const uint8_t* end, const uint8_t* present, int is_full,
    Span* spans, const uint8_t* base
) noexcept nogil:
    """Locate a row image's values, as offsets from `base`; return its end, or NULL."""
    cdef int index, number = 0
    cdef Py_ssize_t null_bytes, size
    cdef const uint8_t* nulls = at
    cdef int columns = plan.count
    if not is_full:
        columns = 0
        for index in range(plan.count):
            columns += present[index >> 3] >> (index & 7) & 1
    null_bytes = (columns + 7) // 8
    if end - at < null_bytes:
        return NULL
    at += null_bytes
    for index in range(plan.count):
        if not is_full and not present[index >> 3] >> (index & 7) & 1:
            spans[index].start = ABSENT
            continue
        if nulls[number >> 3] >> (number & 7) & 1:
            spans[index].start = NULL_VALUE
        else:
            size = value_size(&plan.columns[index], at, end - at)
            if size < 0:
                return NULL
            spans[index].start, spans[index].size = at - base, size
            at += size
        number += 1
    return at


cdef int put_row(
    const Plan* plan, Row* row, const Span* spans, const Span* others, const uint8_t* base
) noexcept nogil:
    """Write a row as Avro; values missing in `spans` are taken from `others`, if given."""
    cdef int index, place
    cdef Py_ssize_t begin
    cdef const Span* span
    row.begin = row.into.size
    row.raw_count = 0
    for index in range(plan.count):
        span = &spans[index]
        if span.start == ABSENT and others != NULL:
            span = &others[index]
        begin = row.into.size
        if span.start >= 0:
            if put_value(plan, row, index, base + span.start, span.size) < 0:
                return -1
        elif span.start == ABSENT:
            if put_filler(plan, row, index) < 0:
                return -1
        elif not plan.columns[index].nullable or put(row.into, b"\x00", 1) < 0:
            return -1
        place = plan.columns[index].key_place
        if place >= 0:
            row.keys[place].start = begin - row.begin if span.start != ABSENT else ABSENT
            row.keys[place].size = row.into.size - begin
    row.size = row.into.size - row.begin
    return 0


cdef inline const uint8_t* avro_of(const Row* row) noexcept nogil:
    return row.into.data + row.begin


cdef int put_escaped(Bytes* into, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place
    if reserve(into, 2 * size) < 0:
        return -1
    for place in range(size):
        if data[place] == 44 or data[place] == 92:  # a comma, a backslash
            into.data[into.size] = 92
            into.size += 1
        into.data[into.size] = data[place]
        into.size += 1
    return 0


cdef int put_hex(Bytes* into, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t place
    if reserve(into, 2 * size) < 0:
        return -1
    for place in range(size):
        into.data[into.size] = _HEX[data[place] >> 4]
        into.data[into.size + 1] = _HEX[data[place] & 0xF]
        into.size += 2
    return 0


cdef const uint8_t* read_long(const uint8_t* at, int64_t* number) noexcept nogil:
    """Read an Avro long that was written here."""
    cdef uint64_t packed = 0
    cdef int shift = 0
    while at[0] & 0x80:
        packed |= <uint64_t>(at[0] & 0x7F) << shift
        shift += 7
        at += 1
    packed |= <uint64_t>at[0] << shift
    number[0] = <int64_t>(packed >> 1) ^ -<int64_t>(packed & 1)
    return at + 1


cdef int put_key_text(Bytes* into, const Column* column, const uint8_t* avro) noexcept nogil:
    """Write the text form of a key column's value, given as Avro; see `schemas/event/keys.py`."""
    cdef int64_t number
    cdef uint64_t magnitude
    if column.nullable:
        if avro[0] == 0:
            return put(into, b"\\N", 2)
        avro += 1
    avro = read_long(avro, &number)
    if column.step in (STEP_INT, STEP_UINT, STEP_YEAR):
        magnitude = <uint64_t>number
        if number < 0:
            magnitude = 0 - magnitude
            if put(into, b"-", 1) < 0:
                return -1
        return put_digits(into, magnitude, 1)
    if column.step == STEP_UINT64:
        magnitude = big(avro + (number > 8), number - (number > 8))
        return put_digits(into, magnitude, 1)
    if column.step in (STEP_BYTES, STEP_BITS, STEP_PADDED):
        if put(into, b"\\x", 2) < 0:
            return -1
        return put_hex(into, avro, number)
    return put_escaped(into, avro, number)


cdef int put_key(const Plan* plan, const Row* row, Bytes* key, int64_t* number) noexcept nogil:
    """Make a row's key; return 1 if it is the long in `number`, 0 if in `key`, -1 on failure."""
    cdef int place
    cdef const Column* column
    cdef const uint8_t* avro
    key.size = 0
    for place in range(plan.key_count):
        if row.keys[place].start == ABSENT:
            return -1
    if plan.key_kind == KEY_MADE:
        return make_key(plan, row, key)
    if plan.key_kind == KEY_LONG:
        column, avro = &plan.columns[plan.key_columns[0]], avro_of(row) + row.keys[0].start
        if not (column.nullable and avro[0] == 0):
            avro = read_long(avro + column.nullable, number)
            if column.step != STEP_UINT64:
                return 1
            if number[0] <= 8:  # bytes: the size of a signed long
                number[0] = <int64_t>big(avro, number[0])
                return 1
    for place in range(plan.key_count):
        if place and put(key, b",", 1) < 0:
            return -1
        column = &plan.columns[plan.key_columns[place]]
        if put_key_text(key, column, avro_of(row) + row.keys[place].start) < 0:
            return -1
    return 0


cdef int make_key(const Plan* plan, const Row* row, Bytes* key) noexcept with gil:
    """Ask Python for a key of types whose text forms only it knows."""
    cdef bytes made
    try:
        made = (<RowPlan>plan.owner).make_key(PyBytes_FromStringAndSize(<const char*>avro_of(row), row.size))
    except:  # as above
        return -1
    key.size = 0
    return put(key, <const uint8_t*>PyBytes_AS_STRING(made), PyBytes_GET_SIZE(made))


cdef int has_other_key(const Plan* plan, const Row* before, const Row* after) noexcept nogil:
    """Return whether an update changes the row's key; -1 when only Python can tell."""
    cdef int place
    cdef const Span* old
    cdef const Span* new
    if plan.has_inexact_key and (before.raw_count or after.raw_count):
        return -1
    for place in range(plan.key_count):
        old, new = &before.keys[place], &after.keys[place]
        if old.start == ABSENT or new.start == ABSENT:
            return -1
        if old.size == new.size and memcmp(
            avro_of(before) + old.start, avro_of(after) + new.start, old.size
        ) == 0:
            continue
        return -1 if plan.has_inexact_key else 1
    return 0
