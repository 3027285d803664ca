# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Decode plain row events of a response directly into the buffers of Arrow arrays.

`event_batches` defines the rules, and decodes everything itself if this module was
not built. This module decodes ends of windows, and version 2 row events with the
metadata of a relay of this project and without notes on the row. It stops before
any other event: an unknown schema, a truncate, damage, a value that its column's
type does not allow. No byte beyond the given ones is read.

A row that turns out not to be plain needs no undo: its values are written at the
row's index, and the row count grows only after the whole row.

The buffers follow Arrow's columnar format: a validity bitmap and the values, those
of variable length as int32 offsets and bytes. They are handed over without a copy.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_Free
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strlen

from databus.schemas.event.metadata import METADATA_DIGEST, METADATA_DIGESTS

include "../../schemas/event/big_endian.pxi"
include "../../schemas/event/crc32.pxi"
include "../../schemas/event/layout.pxi"
include "../../schemas/rows/avro_numbers.pxi"

cdef extern from "Python.h":
    int Py_DTSF_ADD_DOT_0
    char* PyOS_double_to_string(double value, char code, int digits, int flags, int* kind) except NULL

cdef enum:
    # Attributes that do not change how a row is decoded.
    IGNORED_BITS = REPLICATED | TRACE
    ROW_BITS = HAS_METADATA | HAS_PAYLOAD
    # Ops of the metadata.
    INSERT = 0
    UPDATE = 1
    DELETE = 2
    SNAPSHOT = 3
    TRUNCATE = 4
    # Rows that a batch has room for at first, and bytes of a column of variable length.
    FIRST_ROWS = 64
    FIRST_BYTES = 1024
    MOST_FIRST_BYTES = 1 << 22
    MOST_BRANCHES = 8
    HEAD_COLUMNS = 5
    # From this size on, events are decoded without the GIL.
    LARGE_BYTES = 1 << 20

# The types of values. DIGITS: decimals of 128 bits; MICROS: datetimes in microseconds;
# ANY: a value of SQLite, stored as text.
cdef enum Code:
    BOOLEAN
    INT
    LONG
    FLOAT
    DOUBLE
    DATE
    MICROS
    DIGITS
    TEXT
    BYTES
    ANY
    NULL_BRANCH

_CODES = {
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "date": DATE,
    "time": LONG,
    "datetime": MICROS,
    "timestamp": MICROS,
    "decimal": DIGITS,
    "wide decimal": BYTES,
    "string": TEXT,
    "bytes": BYTES,
    "any": ANY,
}
_BRANCHES = {"null": NULL_BRANCH, "long": LONG, "double": DOUBLE, "string": TEXT, "bytes": BYTES}

# The range of Python's dates, in days since 1970. The Python decoder refuses others.
cdef int64_t _FIRST_DAY = -719162
cdef int64_t _LAST_DAY = 2932896
cdef int64_t _DAY_US = 86400000000

# The result of decoding one event or value.
cdef enum Verdict:
    TAKEN = 0
    OTHER = 1  # left to the Python decoder
    NO_MEMORY = 2

cdef struct Column:
    int code
    int width  # bytes of a value; 0 = variable; -1 = one bit
    bint has_nulls
    uint8_t* valid
    uint8_t* values
    int32_t* offsets  # where each value begins, then the end; only of variable width
    int64_t room  # bytes of values of varying length
    int64_t first_room

cdef struct Field:
    int code
    int branches  # of a union; 0 = not a union
    int null_branch
    uint8_t branch_codes[MOST_BRANCHES]
    uint64_t limit_high  # above every absolute value that the decimal's type allows
    uint64_t limit_low

cdef struct Plan:
    int32_t src_id
    uint8_t digest[16]
    int columns
    Field* fields
    Column* head
    Column* row
    Column* before
    uint8_t* before_valid
    int64_t rows
    int64_t room  # rows
    int64_t first_room
    int64_t before_room
    int64_t before_rows  # rows for which `before` is written, null or not
    int64_t befores  # rows with a before image
    int64_t size_bytes  # of the events

cdef struct Metadata:
    const uint8_t* gtid  # NULL = none
    int64_t gtid_bytes
    int op
    int32_t row_index
    const uint8_t* before
    int64_t before_bytes

cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end
    int64_t scn  # of the open window; -1 = none
    bint is_mixed  # it has events of other windows
    int64_t window_scn
    int64_t window_time_ns
    int full

cdef struct Options:
    bint keeps_events  # a row's only column is its whole event
    bint has_before
    bint as_snapshot
    int64_t batch_rows
    int64_t batch_bytes
    uint8_t noted[4]
    uint8_t unnoted[4]

cdef struct Plans:
    Plan** plans
    int count
    int room
    int32_t* slots  # by hash: number of a plan, -1 = free
    int slot_mask
    int last

cdef const char* _INSERT_TEXT = b"insert"
cdef const char* _UPDATE_TEXT = b"update"
cdef const char* _DELETE_TEXT = b"delete"
cdef const char* _SNAPSHOT_TEXT = b"snapshot"


# -- Avro ----------------------------------------------------------------------------------


cdef inline bint _read_int(const uint8_t** at, const uint8_t* end, int32_t* value) noexcept nogil:
    cdef int64_t number = 0
    if not _read_long(at, end, &number) or number < INT32_MIN or number > INT32_MAX:
        return False
    value[0] = <int32_t>number
    return True


cdef inline bint _is_ascii(const uint8_t* at, int64_t size) noexcept nogil:
    cdef uint64_t word = 0, some = 0
    while size >= 8:
        memcpy(&word, at, 8)
        some |= word
        at += 8
        size -= 8
    while size > 0:
        some |= at[0]
        at += 1
        size -= 1
    return (some & 0x8080808080808080u) == 0


cdef bint _is_utf8(const uint8_t* at, int64_t size) noexcept nogil:
    """Whether Python would decode it: no overlong forms, no surrogates (RFC 3629)."""
    cdef const uint8_t* end = at + size
    cdef uint8_t first, second
    cdef int more
    if _is_ascii(at, size):
        return True
    while at < end:
        first = at[0]
        at += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if end - at < more:
            return False
        second = at[0]
        if (
            (first == 0xE0 and second < 0xA0)
            or (first == 0xED and second > 0x9F)
            or (first == 0xF0 and second < 0x90)
            or (first == 0xF4 and second > 0x8F)
        ):
            return False
        while more > 0:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True


cdef inline bint _read_text(
    const uint8_t** at, const uint8_t* end, const uint8_t** data, int64_t* size
) noexcept nogil:
    return _read_bytes(at, end, data, size) and _is_utf8(data[0], size[0])


cdef inline bint _read_branch(
    const uint8_t** at, const uint8_t* end, bint* is_there
) noexcept nogil:
    """Read the branch of a union of null and another type."""
    if at[0] >= end or (at[0][0] != 0 and at[0][0] != 2):
        return False
    is_there[0] = at[0][0] == 2
    at[0] += 1
    return True


cdef bint _read_metadata(
    const uint8_t* at, const uint8_t* end, bint may_have_notes, Metadata* metadata
) noexcept nogil:
    """Read an event's metadata; False if it is malformed, or has notes."""
    cdef int64_t number = 0, size = 0, op = 0
    cdef const uint8_t* text = NULL
    cdef int32_t epoch = 0
    cdef bint is_there = False
    metadata.gtid = metadata.before = NULL
    metadata.gtid_bytes = metadata.before_bytes = 0
    if not _read_branch(&at, end, &is_there):
        return False
    if is_there and not _read_text(&at, end, &metadata.gtid, &metadata.gtid_bytes):
        return False
    if not (
        _read_long(&at, end, &number)  # server_id
        and _read_text(&at, end, &text, &size)  # file
        and _read_long(&at, end, &number)  # offset
        and _read_int(&at, end, &epoch)
        and _read_long(&at, end, &op)
        and _read_int(&at, end, &metadata.row_index)
        and _read_branch(&at, end, &is_there)
    ):
        return False
    if is_there and not _read_bytes(&at, end, &metadata.before, &metadata.before_bytes):
        return False
    if not _read_branch(&at, end, &is_there):
        return False
    if is_there and not _read_text(&at, end, &text, &size):  # comment
        return False
    if may_have_notes:
        if at >= end or at[0] != 0:
            return False
        at += 1
    metadata.op = <int>op
    return at == end and 0 <= op < TRUNCATE


# -- columns -------------------------------------------------------------------------------


cdef inline void _set_bit(uint8_t* bits, int64_t at, bint value) noexcept nogil:
    """Set one bit of a bitmap that is written in order; the bits after it become zero."""
    cdef uint8_t mask = <uint8_t>(1 << (at & 7))
    if at & 7 == 0:
        bits[at >> 3] = value
    else:
        bits[at >> 3] = (bits[at >> 3] & (mask - 1)) | (mask if value else 0)


cdef void _fill_bits(uint8_t* bits, int64_t begin, int64_t end, bint value) noexcept nogil:
    while begin < end and begin & 7:
        _set_bit(bits, begin, value)
        begin += 1
    if begin < end:
        # Bits of the last byte beyond `end` are overwritten with the next rows.
        memset(bits + (begin >> 3), 0xFF if value else 0, ((end + 7) >> 3) - (begin >> 3))
        if value and end & 7:
            bits[end >> 3] = <uint8_t>((1 << (end & 7)) - 1)


cdef bint _make_room(Column* columns, int count, int64_t rows) noexcept nogil:
    """Make room for `rows` rows in each column; False = no memory."""
    cdef int n
    cdef Column* column
    cdef void* moved
    for n in range(count):
        column = &columns[n]
        moved = realloc(column.valid, (rows + 7) // 8)
        if moved == NULL:
            return False
        column.valid = <uint8_t*>moved
        if column.width == 0:
            moved = realloc(column.offsets, (rows + 1) * sizeof(int32_t))
            if moved == NULL:
                return False
            column.offsets = <int32_t*>moved
            column.offsets[0] = 0
            if column.values == NULL and not _make_bytes(column, column.first_room):
                return False
        else:
            moved = realloc(
                column.values, (rows + 7) // 8 if column.width < 0 else rows * column.width
            )
            if moved == NULL:
                return False
            column.values = <uint8_t*>moved
    return True


cdef bint _make_bytes(Column* column, int64_t size) noexcept nogil:
    cdef void* moved = realloc(column.values, size)
    if moved == NULL:
        return False
    column.values = <uint8_t*>moved
    column.room = size
    return True


cdef inline Verdict _ensure(Column* column, int64_t row, int64_t size) noexcept nogil:
    """Make room for `size` bytes of one more value of variable length."""
    cdef int64_t needed = column.offsets[row] + size
    # Arrow's offsets have 32 bits.
    if needed > INT32_MAX:
        return OTHER
    # Half as much again, so that a growing column is seldom copied.
    if needed > column.room and not _make_bytes(column, needed + needed // 2):
        return NO_MEMORY
    return TAKEN


cdef inline Verdict _put_bytes(
    Column* column, int64_t row, const uint8_t* data, int64_t size
) noexcept nogil:
    cdef Verdict verdict = _ensure(column, row, size)
    if verdict == TAKEN:
        memcpy(column.values + column.offsets[row], data, size)
        column.offsets[row + 1] = <int32_t>(column.offsets[row] + size)
        _set_bit(column.valid, row, True)
    return verdict


cdef inline void _put_null(Column* column, int64_t row) noexcept nogil:
    column.has_nulls = True
    _set_bit(column.valid, row, False)
    if column.width == 0:
        column.offsets[row + 1] = column.offsets[row]
    elif column.width < 0:
        _set_bit(column.values, row, False)
    else:
        memset(column.values + row * column.width, 0, column.width)


cdef void _put_nulls(Column* column, int64_t begin, int64_t end) noexcept nogil:
    cdef int64_t row
    column.has_nulls = True
    _fill_bits(column.valid, begin, end, False)
    if column.width == 0:
        for row in range(begin, end):
            column.offsets[row + 1] = column.offsets[row]
    elif column.width < 0:
        _fill_bits(column.values, begin, end, False)
    else:
        memset(column.values + begin * column.width, 0, (end - begin) * column.width)


cdef inline void _put_i8(Column* column, int64_t row, int64_t value) noexcept nogil:
    (<int64_t*>column.values)[row] = value
    _set_bit(column.valid, row, True)


cdef inline void _put_i4(Column* column, int64_t row, int32_t value) noexcept nogil:
    (<int32_t*>column.values)[row] = value
    _set_bit(column.valid, row, True)


cdef Verdict _put_decimal(
    const Field* field, Column* column, int64_t row, const uint8_t* data, int64_t size
) noexcept nogil:
    """Put a big-endian two's complement number, unless it has more digits than its type."""
    cdef uint64_t high, low, sign_high, sign_low
    cdef uint64_t* place = <uint64_t*>column.values + 2 * row
    if size <= 0 or size > 16:
        return OTHER
    # The sign fills the bytes that Avro leaves out.
    high = low = <uint64_t>-1 if data[0] > 0x7F else 0
    while size > 0:
        high = high << 8 | low >> 56
        low = low << 8 | data[0]
        data += 1
        size -= 1
    place[0], place[1] = low, high
    # Only the absolute value is compared with the limit.
    if high >> 63:
        sign_low = ~low + 1
        sign_high = ~high + (1 if low == 0 else 0)
        high, low = sign_high, sign_low
    if high > field.limit_high or (high == field.limit_high and low >= field.limit_low):
        return OTHER
    _set_bit(column.valid, row, True)
    return TAKEN


cdef Verdict _put_number_text(Column* column, int64_t row, int64_t value) noexcept nogil:
    cdef uint8_t[20] digits
    cdef int at = 20
    cdef uint64_t rest = <uint64_t>value
    # Unsigned: the smallest number has no positive counterpart in 64 bits.
    if value < 0:
        rest = 0 - rest
    while True:
        at -= 1
        digits[at] = <uint8_t>(48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if value < 0:
        at -= 1
        digits[at] = 45  # -
    return _put_bytes(column, row, &digits[at], 20 - at)


cdef Verdict _put_double_text(Column* column, int64_t row, double value) noexcept nogil:
    """Put a double as Python prints it, with the shortest digits that read back the same."""
    cdef Verdict verdict
    cdef char* text = NULL
    with gil:
        try:
            text = PyOS_double_to_string(value, b"r", 0, Py_DTSF_ADD_DOT_0, NULL)
        except MemoryError:
            return NO_MEMORY
        verdict = _put_bytes(column, row, <const uint8_t*>text, strlen(text))
        PyMem_Free(text)
    return verdict


cdef Verdict _put_hex(
    Column* column, int64_t row, const uint8_t* data, int64_t size
) noexcept nogil:
    cdef const uint8_t* digits = b"0123456789abcdef"
    cdef uint8_t* to
    cdef int64_t n
    cdef Verdict verdict = _ensure(column, row, 2 * size + 3)
    if verdict != TAKEN:
        return verdict
    to = column.values + column.offsets[row]
    to[0], to[1] = 120, 39  # x'
    for n in range(size):
        to[2 + 2 * n] = digits[data[n] >> 4]
        to[3 + 2 * n] = digits[data[n] & 15]
    to[2 + 2 * size] = 39
    column.offsets[row + 1] = <int32_t>(column.offsets[row] + 2 * size + 3)
    _set_bit(column.valid, row, True)
    return TAKEN


cdef Verdict _take_any(
    int code, Column* column, int64_t row, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    """Take a value of SQLite, which may have any type, as text."""
    cdef int64_t number = 0
    cdef const uint8_t* data = NULL
    cdef double value = 0
    if code == LONG:
        if not _read_long(at, end, &number):
            return OTHER
        return _put_number_text(column, row, number)
    if code == DOUBLE:
        if end - at[0] < 8:
            return OTHER
        memcpy(&value, at[0], 8)
        at[0] += 8
        return _put_double_text(column, row, value)
    if code == TEXT:
        if not _read_text(at, end, &data, &number):
            return OTHER
        return _put_bytes(column, row, data, number)
    if not _read_bytes(at, end, &data, &number):
        return OTHER
    return _put_hex(column, row, data, number)


cdef inline Verdict _take_value(
    const Field* field, Column* column, int64_t row, const uint8_t** at, const uint8_t* end
) noexcept nogil:
    """Take a field's value. Floats are copied: the machine is little-endian, as Avro is."""
    cdef int code = field.code
    cdef int64_t number = 0
    cdef int32_t small = 0
    cdef const uint8_t* data = NULL
    if field.branches:
        if not _read_long(at, end, &number) or number < 0 or number >= field.branches:
            return OTHER
        if number == field.null_branch:
            _put_null(column, row)
            return TAKEN
    if code == LONG or code == MICROS:
        if not _read_long(at, end, &number):
            return OTHER
        if code == MICROS and not (
            _FIRST_DAY * _DAY_US <= number < (_LAST_DAY + 1) * _DAY_US
        ):
            return OTHER
        _put_i8(column, row, number)
    elif code == TEXT:
        if not _read_text(at, end, &data, &number):
            return OTHER
        return _put_bytes(column, row, data, number)
    elif code == INT or code == DATE:
        if not _read_int(at, end, &small):
            return OTHER
        if code == DATE and not (_FIRST_DAY <= small <= _LAST_DAY):
            return OTHER
        _put_i4(column, row, small)
    elif code == BYTES or code == DIGITS:
        if not _read_bytes(at, end, &data, &number):
            return OTHER
        if code == DIGITS:
            return _put_decimal(field, column, row, data, number)
        return _put_bytes(column, row, data, number)
    elif code == DOUBLE or code == FLOAT:
        if end - at[0] < column.width:
            return OTHER
        memcpy(column.values + row * column.width, at[0], column.width)
        at[0] += column.width
        _set_bit(column.valid, row, True)
    elif code == ANY:
        return _take_any(field.branch_codes[number], column, row, at, end)
    else:
        if at[0] >= end or at[0][0] > 1:
            return OTHER
        _set_bit(column.values, row, at[0][0])
        _set_bit(column.valid, row, True)
        at[0] += 1
    return TAKEN


cdef Verdict _take_fields(
    Plan* plan, Column* columns, int64_t row, const uint8_t* at, const uint8_t* end
) noexcept nogil:
    """Take a row, which ends exactly at `end`."""
    cdef int n
    cdef Verdict verdict
    for n in range(plan.columns):
        verdict = _take_value(&plan.fields[n], &columns[n], row, &at, end)
        if verdict != TAKEN:
            return verdict
    return TAKEN if at == end else OTHER


# -- rows of a plan ------------------------------------------------------------------------


cdef bint _grow(Plan* plan, int64_t batch_rows) noexcept nogil:
    cdef int64_t room = 2 * plan.room if plan.room else plan.first_room
    room = min(max(room, <int64_t>FIRST_ROWS), max(batch_rows, <int64_t>FIRST_ROWS))
    if not _make_room(plan.head, HEAD_COLUMNS, room):
        return False
    if not _make_room(plan.row, plan.columns, room):
        return False
    plan.room = room
    return True


cdef bint _grow_before(Plan* plan) noexcept nogil:
    cdef void* moved
    if plan.before_room == plan.room:
        return True
    moved = realloc(plan.before_valid, (plan.room + 7) // 8)
    if moved == NULL:
        return False
    plan.before_valid = <uint8_t*>moved
    if not _make_room(plan.before, plan.columns, plan.room):
        return False
    plan.before_room = plan.room
    return True


cdef bint _fill_before(Plan* plan, int64_t rows) noexcept nogil:
    """Mark the rows up to `rows` that are not written yet as rows without a before image."""
    cdef int n
    if not _grow_before(plan):
        return False
    if plan.before_rows < rows:
        _fill_bits(plan.before_valid, plan.before_rows, rows, False)
        for n in range(plan.columns):
            _put_nulls(&plan.before[n], plan.before_rows, rows)
        plan.before_rows = rows
    return True


cdef Verdict _take_row(
    Plan* plan,
    const Options* options,
    const Metadata* metadata,
    int64_t scn,
    int64_t timestamp_ns,
    const uint8_t* at,
    const uint8_t* end,
) noexcept nogil:
    cdef int64_t row = plan.rows
    cdef int op = metadata.op
    cdef bint has_before
    cdef const char* op_text
    cdef Verdict verdict
    if row == plan.room and not _grow(plan, options.batch_rows):
        return NO_MEMORY
    if options.keeps_events:
        verdict = _put_bytes(&plan.row[0], row, at, end - at)
    else:
        verdict = _take_fields(plan, plan.row, row, at, end)
    if verdict != TAKEN:
        return verdict
    has_before = metadata.before != NULL and op == UPDATE and options.has_before
    if has_before:
        if not _fill_before(plan, row):
            return NO_MEMORY
        verdict = _take_fields(
            plan, plan.before, row, metadata.before, metadata.before + metadata.before_bytes
        )
        if verdict != TAKEN:
            return verdict
    if options.as_snapshot and op != DELETE:
        op = SNAPSHOT
    op_text = (
        _INSERT_TEXT
        if op == INSERT
        else _UPDATE_TEXT
        if op == UPDATE
        else _DELETE_TEXT
        if op == DELETE
        else _SNAPSHOT_TEXT
    )
    verdict = _put_bytes(&plan.head[0], row, <const uint8_t*>op_text, strlen(op_text))
    if verdict != TAKEN:
        return verdict
    _put_i8(&plan.head[1], row, scn)
    _put_i4(&plan.head[2], row, metadata.row_index)
    _put_i8(&plan.head[3], row, timestamp_ns // 1000)
    if metadata.gtid == NULL:
        _put_null(&plan.head[4], row)
    else:
        verdict = _put_bytes(&plan.head[4], row, metadata.gtid, metadata.gtid_bytes)
        if verdict != TAKEN:
            return verdict
    if has_before:
        _set_bit(plan.before_valid, row, True)
        plan.before_rows = row + 1
        plan.befores += 1
    # Only now does the row count: a row given up before is overwritten by the next.
    plan.rows = row + 1
    return TAKEN


# -- events --------------------------------------------------------------------------------


cdef inline uint32_t _hash(int32_t src_id, const uint8_t* digest) noexcept nogil:
    # A digest is random already; Knuth's multiplier spreads the small source ids.
    return _u4(digest) ^ <uint32_t>src_id * 2654435761u


cdef inline int _find_plan(Plans* plans, int32_t src_id, const uint8_t* digest) noexcept nogil:
    """Return a plan's number, nearly always that of the event before; -1 = none."""
    cdef Plan* plan
    cdef int number = plans.last
    cdef uint32_t slot
    if number >= 0:
        plan = plans.plans[number]
        if plan.src_id == src_id and memcmp(plan.digest, digest, 16) == 0:
            return number
    if plans.count == 0:
        return -1
    slot = _hash(src_id, digest) & plans.slot_mask
    while plans.slots[slot] >= 0:
        number = plans.slots[slot]
        plan = plans.plans[number]
        if plan.src_id == src_id and memcmp(plan.digest, digest, 16) == 0:
            plans.last = number
            return number
        slot = (slot + 1) & plans.slot_mask
    return -1


cdef inline bint _begins_event(const uint8_t* at) noexcept nogil:
    return at[VERSION_AT] == VERSION and _u4(at + MAGIC_AT) == <uint32_t>MAGIC


cdef inline int64_t _header_length(const uint8_t* at, int64_t left) noexcept nogil:
    """Return the header's length if both CRCs are right; 0 = left to the Python decoder."""
    cdef int64_t header_length, length
    cdef uint32_t bits
    if left < LONG_KEY_HEADER_BYTES or not _begins_event(at):
        return 0
    header_length, length = _u4(at + HEADER_LENGTH_AT), _u4(at + LENGTH_AT)
    bits = _u2(at + ATTRIBUTES_AT)
    # Lengths come first: the CRCs are computed over as many bytes.
    if header_length < SMALLEST_BYTES or length < header_length or length > left:
        return 0
    if bits & (LONG_KEY | BYTE_KEY) == LONG_KEY:
        if header_length != LONG_KEY_HEADER_BYTES:
            return 0
    elif bits & (LONG_KEY | BYTE_KEY) != BYTE_KEY or (
        <int64_t>_u4(at + KEY_LENGTH_AT) != header_length - SMALLEST_BYTES
    ):
        return 0
    if event_crc32(at + COVERED_AT, header_length - COVERED_AT) != _u4(at + HEADER_CRC_AT):
        return 0
    if event_crc32(at + header_length, length - header_length) != _u4(at + BODY_CRC_AT):
        return 0
    return header_length


cdef inline Verdict _take_end(Cursor* cursor) noexcept nogil:
    """Take the end of a window, unless events of other windows came before it."""
    cdef int64_t scn = _i8(cursor.at + SCN_AT)
    if scn < 0 or (cursor.scn >= 0 and (cursor.is_mixed or cursor.scn != scn)):
        return OTHER
    cursor.window_scn = scn
    cursor.window_time_ns = _i8(cursor.at + TIMESTAMP_NS_AT)
    cursor.scn = -1
    cursor.is_mixed = False
    cursor.at += LONG_KEY_HEADER_BYTES
    return TAKEN


cdef Verdict _take_event(Cursor* cursor, Plans* plans, const Options* options) noexcept nogil:
    cdef const uint8_t* at = cursor.at
    cdef const uint8_t* body
    cdef const uint8_t* payload
    cdef const uint8_t* row
    cdef const uint8_t* end
    cdef int64_t header_length = _header_length(at, cursor.end - at)
    cdef int64_t scn, place
    cdef int32_t src_id
    cdef uint32_t bits
    cdef int number
    cdef bint may_have_notes
    cdef Metadata metadata
    cdef Plan* plan
    cdef Verdict verdict
    if header_length == 0:
        return OTHER
    end = at + _u4(at + LENGTH_AT)
    bits = _u2(at + ATTRIBUTES_AT)
    src_id = <int32_t>_u4(at + SRC_ID_AT)
    if src_id == EOP_SRC_ID and bits == LONG_KEY and end - at == LONG_KEY_HEADER_BYTES:
        return _take_end(cursor)
    scn = _i8(at + SCN_AT)
    bits &= ~<uint32_t>(LONG_KEY | BYTE_KEY | IGNORED_BITS)
    if src_id < 0 or scn < 0 or (bits != ROW_BITS | OPCODE_UPSERT and bits != ROW_BITS | OPCODE_DELETE):
        return OTHER
    # The body: metadata with the digest of its schema, then the payload with its own.
    body = at + header_length
    if end - body < CRC32_PART_BYTES + MD5_PART_BYTES:
        return OTHER
    if _u2(body + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK != CRC32_DIGEST:
        return OTHER
    place = <int64_t>_u4(body + PART_LENGTH_AT) + CRC32_PART_BYTES
    if place > end - body - MD5_PART_BYTES:
        return OTHER
    payload = body + place
    if <int64_t>_u4(payload + PART_LENGTH_AT) != end - payload - MD5_PART_BYTES:
        return OTHER
    if _u2(payload + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK != MD5_DIGEST:
        return OTHER
    may_have_notes = memcmp(body + PART_CRC32_AT, options.noted, 4) == 0
    if not may_have_notes and memcmp(body + PART_CRC32_AT, options.unnoted, 4) != 0:
        return OTHER
    number = _find_plan(plans, src_id, payload + PART_MD5_AT)
    if number < 0:
        return OTHER
    if not _read_metadata(body + CRC32_PART_BYTES, payload, may_have_notes, &metadata):
        return OTHER
    plan = plans.plans[number]
    row = at if options.keeps_events else payload + MD5_PART_BYTES
    # The row before the window: an event that is left to Python changes nothing.
    verdict = _take_row(plan, options, &metadata, scn, _i8(at + TIMESTAMP_NS_AT), row, end)
    if verdict != TAKEN:
        return verdict
    if scn != cursor.scn:
        cursor.is_mixed = cursor.scn >= 0
        cursor.scn = scn
    cursor.at = end
    plan.size_bytes += end - at
    if plan.rows >= options.batch_rows or plan.size_bytes >= options.batch_bytes:
        cursor.full = number
    return TAKEN


cdef Verdict _take_events(Cursor* cursor, Plans* plans, const Options* options) noexcept nogil:
    cdef Verdict verdict
    while cursor.at < cursor.end and cursor.full < 0:
        verdict = _take_event(cursor, plans, options)
        if verdict != TAKEN:
            return verdict
    return TAKEN


# -- for Python ----------------------------------------------------------------------


cdef class Held:
    """A buffer that Arrow got; freed with the last array that uses it."""

    cdef void* _at
    cdef Py_ssize_t _size

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self._at, self._size, 1, flags)

    def __dealloc__(self):
        free(self._at)


cdef Held _hold(void* at, Py_ssize_t size):
    cdef Held held = Held.__new__(Held)
    held._at = at
    held._size = size
    return held


cdef int _width(int code):
    if code == BOOLEAN:
        return -1
    if code == INT or code == DATE or code == FLOAT:
        return 4
    if code == LONG or code == DOUBLE or code == MICROS:
        return 8
    return 16 if code == DIGITS else 0


cdef void _begin_column(Column* column, int code):
    column.code = code
    column.width = _width(code)
    column.first_room = FIRST_BYTES


cdef tuple _hand_over_column(Column* column, int64_t rows):
    """Return the column's Arrow buffers: validity, offsets, values; start with none."""
    cdef object valid = None, offsets = None, values
    cdef int64_t size
    if column.width == 0:
        size = column.offsets[rows]
        offsets = _hold(column.offsets, (rows + 1) * sizeof(int32_t))
        column.offsets = NULL
        # The next batch probably needs about as much.
        column.first_room = min(max(size + size // 8, <int64_t>FIRST_BYTES), MOST_FIRST_BYTES)
    else:
        size = (rows + 7) // 8 if column.width < 0 else rows * column.width
    values = _hold(column.values, size)
    column.values = NULL
    column.room = 0
    if column.has_nulls:
        valid = _hold(column.valid, (rows + 7) // 8)
    else:
        free(column.valid)
    column.valid = NULL
    column.has_nulls = False
    return valid, offsets, values


cdef list _hand_over(Column* columns, int count, int64_t rows):
    cdef int n
    cdef list buffers = []
    for n in range(count):
        buffers.append(_hand_over_column(&columns[n], rows))
    return buffers


cdef void _free_columns(Column* columns, int count) noexcept:
    cdef int n
    if columns == NULL:
        return
    for n in range(count):
        free(columns[n].valid)
        free(columns[n].values)
        free(columns[n].offsets)
    free(columns)


cdef void _free_plan(Plan* plan) noexcept:
    _free_columns(plan.head, HEAD_COLUMNS)
    _free_columns(plan.row, plan.columns)
    _free_columns(plan.before, plan.columns)
    free(plan.before_valid)
    free(plan.fields)
    free(plan)


cdef class ColumnDecoder:
    """Decodes rows of responses, one plan per schema version; for one thread.

    A plan is full with `batch_rows` rows, or events of `batch_bytes`. With `keeps_events` a
    plan has one column of bytes, and rows are whole events that are checked, not decoded.
    """

    cdef Plans _plans
    cdef Options _options

    def __cinit__(self):
        self._plans.last = -1

    def __init__(
        self,
        *,
        bint has_before,
        bint as_snapshot,
        int64_t batch_rows,
        int64_t batch_bytes,
        bint keeps_events=False,
    ):
        cdef bytes noted = METADATA_DIGEST
        cdef bytes unnoted
        (unnoted,) = METADATA_DIGESTS - {METADATA_DIGEST}
        self._options.keeps_events = keeps_events
        self._options.has_before = has_before and not as_snapshot and not keeps_events
        self._options.as_snapshot = as_snapshot
        self._options.batch_rows = batch_rows
        self._options.batch_bytes = batch_bytes
        memcpy(self._options.noted, <const uint8_t*>noted, 4)
        memcpy(self._options.unnoted, <const uint8_t*>unnoted, 4)

    def __dealloc__(self):
        cdef int n
        for n in range(self._plans.count):
            _free_plan(self._plans.plans[n])
        free(self._plans.plans)
        free(self._plans.slots)

    def add(self, int32_t src_id, bytes digest not None, columns):
        """Add a plan for rows of this schema; return its number.

        `columns` are `AvroColumn`s. Raises ValueError for a schema that is already known.
        """
        cdef Plan* plan
        cdef int n
        if len(digest) != 16 or _find_plan(&self._plans, src_id, <const uint8_t*>digest) >= 0:
            raise ValueError(f"schema {digest.hex()} of source id {src_id} cannot be added")
        if any(len(column.branches) > MOST_BRANCHES for column in columns):
            raise ValueError("a column's union has too many branches")
        self._make_slots()
        plan = <Plan*>calloc(1, sizeof(Plan))
        if plan == NULL:
            raise MemoryError
        plan.src_id = src_id
        memcpy(plan.digest, <const uint8_t*>digest, 16)
        plan.columns = len(columns)
        plan.fields = <Field*>calloc(max(plan.columns, 1), sizeof(Field))
        plan.head = <Column*>calloc(HEAD_COLUMNS, sizeof(Column))
        plan.row = <Column*>calloc(max(plan.columns, 1), sizeof(Column))
        plan.before = <Column*>calloc(max(plan.columns, 1), sizeof(Column))
        if plan.fields == NULL or plan.head == NULL or plan.row == NULL or plan.before == NULL:
            free(plan.head)
            free(plan.row)
            free(plan.before)
            free(plan.fields)
            free(plan)
            raise MemoryError
        self._plans.plans[self._plans.count] = plan
        self._plans.count += 1
        for n, code in enumerate((TEXT, LONG, INT, LONG, TEXT)):
            _begin_column(&plan.head[n], code)
        for n, column in enumerate(columns):
            _begin_field(&plan.fields[n], column)
            _begin_column(&plan.row[n], plan.fields[n].code)
            _begin_column(&plan.before[n], plan.fields[n].code)
        self._place(self._plans.count - 1)
        return self._plans.count - 1

    cdef _make_slots(self):
        """Make room for one more plan; half of the slots stay free."""
        cdef int room = max(2 * self._plans.room, 8)
        cdef int n
        cdef void* moved
        if self._plans.count < self._plans.room:
            return
        moved = realloc(self._plans.plans, room * sizeof(Plan*))
        if moved == NULL:
            raise MemoryError
        self._plans.plans = <Plan**>moved
        moved = realloc(self._plans.slots, 2 * room * sizeof(int32_t))
        if moved == NULL:
            raise MemoryError
        self._plans.slots = <int32_t*>moved
        self._plans.room = room
        self._plans.slot_mask = 2 * room - 1
        memset(self._plans.slots, 0xFF, 2 * room * sizeof(int32_t))
        for n in range(self._plans.count):
            self._place(n)

    cdef _place(self, int number):
        cdef Plan* plan = self._plans.plans[number]
        cdef uint32_t slot = _hash(plan.src_id, plan.digest) & self._plans.slot_mask
        while self._plans.slots[slot] >= 0:
            slot = (slot + 1) & self._plans.slot_mask
        self._plans.slots[slot] = number

    def take(self, const uint8_t[::1] data not None, Py_ssize_t offset, int64_t scn, bint is_mixed):
        """Decode events from `offset` on.

        `scn` is that of the open window, -1 = none; `is_mixed`: it has events of
        other windows. Return the offset of the first event that was not decoded, the
        number of a full plan or -1, the new `scn` and `is_mixed`, and SCN and time
        (ns) of the last window that ended, or -1.
        """
        cdef Cursor cursor
        cdef Verdict verdict
        cdef Py_ssize_t size = data.shape[0]
        if offset < 0 or offset >= size:
            return offset, -1, scn, is_mixed, -1, -1
        cursor.at = &data[0] + offset
        cursor.end = &data[0] + size
        cursor.scn, cursor.is_mixed = scn, is_mixed
        cursor.window_scn = cursor.window_time_ns = cursor.full = -1
        if size - offset >= LARGE_BYTES:
            with nogil:
                verdict = _take_events(&cursor, &self._plans, &self._options)
        else:
            verdict = _take_events(&cursor, &self._plans, &self._options)
        if verdict == NO_MEMORY:
            raise MemoryError
        return (
            cursor.at - &data[0],
            cursor.full,
            cursor.scn,
            cursor.is_mixed,
            cursor.window_scn,
            cursor.window_time_ns,
        )

    def rows(self, int number):
        """Return the number of rows of a plan."""
        return self._plan(number).rows

    def finish(self, int number):
        """Return a plan's rows, of which there are some, and start an empty batch.

        They are the number of rows, the buffers of the head's columns, of the row's and
        of the before image's (None = no row has one), and the bitmap of the rows with a
        before image (None = all, or none).
        """
        cdef Plan* plan = self._plan(number)
        cdef int64_t rows = plan.rows
        cdef object before = None, before_valid = None
        if rows == 0:
            raise ValueError("a plan without rows")
        if plan.befores:
            if not _fill_before(plan, rows):
                raise MemoryError
            before = _hand_over(plan.before, plan.columns, rows)
            if plan.befores < rows:
                before_valid = _hold(plan.before_valid, (rows + 7) // 8)
            else:
                free(plan.before_valid)
            plan.before_valid = NULL
            plan.before_room = 0
        head = _hand_over(plan.head, HEAD_COLUMNS, rows)
        row = _hand_over(plan.row, plan.columns, rows)
        plan.first_room = rows
        plan.rows = plan.room = plan.before_rows = plan.befores = plan.size_bytes = 0
        return rows, head, row, before, before_valid

    cdef Plan* _plan(self, int number) except NULL:
        if not 0 <= number < self._plans.count:
            raise IndexError(f"no plan {number}")
        return self._plans.plans[number]


cdef _begin_field(Field* field, column):
    cdef int n
    field.code = _CODES[column.kind]
    field.branches = len(column.branches)
    field.null_branch = -1
    for n, branch in enumerate(column.branches):
        if branch == "null":
            field.null_branch = n
        field.branch_codes[n] = _BRANCHES.get(branch, NULL_BRANCH)
    if field.code == DIGITS:
        limit = 10**column.precision
        field.limit_high = limit >> 64
        field.limit_low = limit & 0xFFFFFFFFFFFFFFFF
