# The hash of a row by columns, from its Avro bytes, as `row_hashes.py` defines it.
#
# For compiled modules, which include this text after schemas/event/crc32.pxi. `key_layout.py` says
# which columns are read. A row is not checked beyond its last hashed column, and no byte is read
# beyond the given ones, which may change while they are read.

from cpython.mem cimport PyMem_Calloc
from libc.string cimport memcmp

include "../rows/avro_numbers.pxi"
include "../rows/civil_days.pxi"

cdef enum:
    MOST_KEY_COLUMNS = 16  # as in `filters`
    MD5_BYTES = 16
    KEY_TEXT_BYTES = 48  # more than a number, a date or a time has

cdef enum KeyCode:
    KEY_NOTHING
    KEY_BOOLEAN
    KEY_LONG
    KEY_TEXT
    KEY_BYTES
    KEY_FIXED
    KEY_DATE
    KEY_DATETIME
    KEY_TIMESTAMP
    KEY_DECIMAL
    SKIP
    SKIP_NUMBER
    SKIP_BYTES

cdef dict _KEY_CODES = {
    "null": KEY_NOTHING,
    "boolean": KEY_BOOLEAN,
    "int": KEY_LONG,
    "long": KEY_LONG,
    "string": KEY_TEXT,
    "bytes": KEY_BYTES,
    "fixed": KEY_FIXED,
    "date": KEY_DATE,
    "datetime": KEY_DATETIME,
    "timestamp": KEY_TIMESTAMP,
    "decimal": KEY_DECIMAL,
    "skip": SKIP,
    "skip_number": SKIP_NUMBER,
    "skip_bytes": SKIP_BYTES,
}

cdef struct KeyBranch:
    int code
    int argument  # bytes of a fixed; scale of a decimal
    uint64_t limit  # of a decimal: above every absolute value that it may have; 0 = none

cdef struct KeyField:
    int first  # its first branch
    int branches
    int place  # in the key; -1 if it is not hashed
    bint is_union

cdef struct KeyLayout:
    KeyLayout* next
    KeyField* field
    KeyBranch* branch
    int fields
    uint8_t schema_id[MD5_BYTES]

cdef struct KeyValue:
    const KeyBranch* branch
    const uint8_t* data
    int64_t size
    int64_t number

cdef struct Partitioned:
    uint32_t partitions
    int columns  # 0: by key
    uint8_t* mask  # a bit for each partition
    KeyLayout* newest  # the others behind it
    uint8_t metadata_digest[4]


cdef class PartitionRule:
    """A partition filter compiled to numbers. `learn` teaches it the schemas of rows.

    May be read without the GIL while another thread teaches it: a layout is complete before it
    is in the list, and stays there.
    """

    cdef Partitioned _wanted

    def __cinit__(self, uint32_t partitions, wanted, int columns, bytes metadata_digest not None):
        if not 0 < partitions <= 32768 or len(metadata_digest) != 4:
            raise ValueError("not so many partitions, or another digest")
        if not 0 <= columns <= MOST_KEY_COLUMNS:
            raise ValueError("not so many columns")
        self._wanted.partitions = partitions
        self._wanted.columns = columns
        memcpy(self._wanted.metadata_digest, <const char*>metadata_digest, 4)
        self._wanted.mask = <uint8_t*>PyMem_Calloc(partitions // 8 + 1, 1)
        if self._wanted.mask == NULL:
            raise MemoryError
        for partition in wanted:
            if not 0 <= partition < partitions:
                raise ValueError("no such partition")
            self._wanted.mask[partition // 8] |= 1 << (partition % 8)

    def __dealloc__(self):
        cdef KeyLayout* one = self._wanted.newest
        cdef KeyLayout* next
        while one != NULL:
            next = one.next
            _free_layout(one)
            one = next
        PyMem_Free(self._wanted.mask)

    def knows(self, bytes schema_id not None):
        """Return whether the rows of a schema can be hashed."""
        return len(schema_id) == MD5_BYTES and _find_layout(&self._wanted, schema_id) != NULL

    def learn(self, bytes schema_id not None, tuple fields not None):
        """Hash rows of this schema, whose columns are those of `key_layout`."""
        cdef KeyLayout* made
        cdef int number = 0, first = 0
        places = [place for place, _, _ in fields if place >= 0]
        if len(schema_id) != MD5_BYTES or sorted(places) != list(range(self._wanted.columns)):
            raise ValueError("not the columns of this rule")
        made = <KeyLayout*>PyMem_Calloc(1, sizeof(KeyLayout))
        if made == NULL:
            raise MemoryError
        made.field = <KeyField*>PyMem_Calloc(len(fields) + 1, sizeof(KeyField))
        made.branch = <KeyBranch*>PyMem_Calloc(
            sum(len(branches) for _, _, branches in fields) + 1, sizeof(KeyBranch)
        )
        try:
            if made.field == NULL or made.branch == NULL:
                raise MemoryError
            for number, (place, is_union, branches) in enumerate(fields):
                made.field[number] = KeyField(first, <int>len(branches), place, is_union)
                for code, argument, limit in branches:
                    made.branch[first] = KeyBranch(_KEY_CODES[code], argument, limit)
                    first += 1
        except BaseException:
            _free_layout(made)
            raise
        made.fields = <int>len(fields)
        memcpy(made.schema_id, <const char*>schema_id, MD5_BYTES)
        made.next = self._wanted.newest
        self._wanted.newest = made


cdef void _free_layout(KeyLayout* one) noexcept:
    PyMem_Free(one.field)
    PyMem_Free(one.branch)
    PyMem_Free(one)


cdef inline bint _is_wanted(const Partitioned* rule, uint32_t row_hash) noexcept nogil:
    cdef uint32_t partition = row_hash % rule.partitions
    return rule.mask[partition // 8] >> (partition % 8) & 1


cdef inline const KeyLayout* _find_layout(
    const Partitioned* rule, const uint8_t* schema_id
) noexcept nogil:
    cdef const KeyLayout* one = rule.newest
    while one != NULL and memcmp(one.schema_id, schema_id, MD5_BYTES) != 0:
        one = one.next
    return one


cdef inline uint32_t _text_hash(const uint8_t* text, int64_t size_bytes) noexcept nogil:
    """Return the hash of a byte key."""
    return zlib_crc32(text, size_bytes)


cdef inline uint32_t _number_hash(int64_t number) noexcept nogil:
    """Return the hash of a long key."""
    cdef uint8_t text[KEY_TEXT_BYTES]
    cdef uint8_t* begin = _digits(number, text + KEY_TEXT_BYTES)
    return _text_hash(begin, text + KEY_TEXT_BYTES - begin)


cdef inline uint8_t* _digits(int64_t number, uint8_t* end) noexcept nogil:
    """Write a number that ends before `end`; return where it begins."""
    # Not negated as it is: the smallest number has no positive one.
    cdef uint64_t rest = 0 - <uint64_t>number if number < 0 else <uint64_t>number
    while True:
        end -= 1
        end[0] = <uint8_t>(48 + rest % 10)
        rest //= 10
        if rest == 0:
            break
    if number < 0:
        end -= 1
        end[0] = c"-"
    return end


cdef bint _row_hash(
    const Partitioned* rule,
    const KeyLayout* layout,
    const uint8_t* at,
    const uint8_t* end,
    uint32_t* row_hash,
) noexcept nogil:
    """Hash a row; False if this module does not."""
    cdef KeyValue values[MOST_KEY_COLUMNS]
    cdef KeyValue value
    cdef const KeyField* field
    cdef int64_t chosen
    cdef int number
    for number in range(layout.fields):
        field = layout.field + number
        chosen = 0
        if field.is_union:
            if not _read_long(&at, end, &chosen) or not 0 <= chosen < field.branches:
                return False
        value.branch = layout.branch + field.first + chosen
        if not _read_key_value(&value, &at, end):
            return False
        if field.place >= 0:
            values[field.place] = value
    row_hash[0] = 0
    for number in range(rule.columns):
        if number:
            row_hash[0] = zlib_crc32(b",", 1, row_hash[0])
        if not _add_text(&values[number], row_hash):
            return False
    return True


cdef bint _read_key_value(KeyValue* value, const uint8_t** at, const uint8_t* end) noexcept nogil:
    cdef int code = value.branch.code
    value.size = 0
    if code == KEY_NOTHING:
        return True
    if code in (KEY_LONG, KEY_DATE, KEY_DATETIME, KEY_TIMESTAMP, SKIP_NUMBER):
        return _read_long(at, end, &value.number)
    if code in (KEY_TEXT, KEY_BYTES, KEY_DECIMAL, SKIP_BYTES):
        return _read_bytes(at, end, &value.data, &value.size)
    value.size = 1 if code == KEY_BOOLEAN else value.branch.argument
    if value.size > end - at[0]:
        return False
    value.data = at[0]
    at[0] += value.size
    return True


cdef bint _add_text(const KeyValue* value, uint32_t* row_hash) noexcept nogil:
    """Continue a hash with the text form of a value; False if that is left to Python."""
    cdef uint8_t text[KEY_TEXT_BYTES]
    cdef uint8_t* begin = text
    cdef uint8_t* end = text + KEY_TEXT_BYTES
    cdef int code = value.branch.code
    if code == KEY_TEXT:
        _add_escaped(value.data, value.size, row_hash)
        return True
    if code == KEY_BYTES or code == KEY_FIXED:
        _add_hexadecimal(value.data, value.size, row_hash)
        return True
    if code == KEY_NOTHING:
        row_hash[0] = zlib_crc32(b"\\N", 2, row_hash[0])
        return True
    if code == KEY_LONG:
        begin = _digits(value.number, end)
    elif code == KEY_BOOLEAN:
        if value.data[0] > 1:
            return False
        begin = end - 1
        begin[0] = c"1" if value.data[0] else c"0"
    elif code == KEY_DECIMAL:
        begin = _decimal_text(value, text, end)
    elif code == KEY_DATE:
        if not FIRST_DAY <= value.number <= LAST_DAY:
            return False
        end = _put_day(text, _civil(value.number))
    elif code == KEY_DATETIME or code == KEY_TIMESTAMP:
        end = _put_moment(text, value.number, code == KEY_TIMESTAMP)
    else:
        return False
    if begin == NULL or end == NULL:
        return False
    row_hash[0] = zlib_crc32(begin, end - begin, row_hash[0])
    return True


cdef void _add_escaped(const uint8_t* data, int64_t size, uint32_t* row_hash) noexcept nogil:
    cdef int64_t begin = 0, at
    cdef uint8_t one
    for at in range(size):
        one = data[at]
        if one == c"," or one == c"\\":
            row_hash[0] = zlib_crc32(data + begin, at - begin, row_hash[0])
            row_hash[0] = zlib_crc32(b"\\", 1, row_hash[0])
            begin = at
    row_hash[0] = zlib_crc32(data + begin, size - begin, row_hash[0])


cdef void _add_hexadecimal(const uint8_t* data, int64_t size, uint32_t* row_hash) noexcept nogil:
    cdef const char* digits = b"0123456789abcdef"
    cdef uint8_t text[KEY_TEXT_BYTES]
    cdef int64_t at
    cdef int used = 0
    row_hash[0] = zlib_crc32(b"\\x", 2, row_hash[0])
    for at in range(size):
        text[used] = digits[data[at] >> 4]
        text[used + 1] = digits[data[at] & 15]
        used += 2
        if used == KEY_TEXT_BYTES:
            row_hash[0] = zlib_crc32(text, used, row_hash[0])
            used = 0
    row_hash[0] = zlib_crc32(text, used, row_hash[0])


cdef uint8_t* _decimal_text(const KeyValue* value, uint8_t* text, uint8_t* end) noexcept nogil:
    """Write a decimal that ends before `end`; return where it begins, NULL if left to Python."""
    cdef uint64_t rest = 0
    cdef int scale = value.branch.argument, written = 0
    cdef int64_t at
    if not 0 < value.size <= 8 or scale > 20:
        return NULL
    cdef bint is_negative = value.data[0] & 0x80
    if is_negative:
        rest = ~<uint64_t>0
    for at in range(value.size):
        rest = rest << 8 | value.data[at]
    if is_negative:
        rest = 0 - rest
    if value.branch.limit and rest >= value.branch.limit:
        return NULL
    while rest or written <= scale:
        if written == scale and scale:
            end -= 1
            end[0] = c"."
        end -= 1
        end[0] = <uint8_t>(48 + rest % 10)
        rest //= 10
        written += 1
    if is_negative:
        end -= 1
        end[0] = c"-"
    return end


cdef uint8_t* _put_number(uint8_t* at, int number, int digits) noexcept nogil:
    """Write a number with leading zeros; return where it ends."""
    cdef int place
    for place in range(digits - 1, -1, -1):
        at[place] = <uint8_t>(48 + number % 10)
        number //= 10
    return at + digits


cdef uint8_t* _put_day(uint8_t* at, Day day) noexcept nogil:
    at = _put_number(at, day.year, 4)
    at[0] = c"-"
    at = _put_number(at + 1, day.month, 2)
    at[0] = c"-"
    return _put_number(at + 1, day.day, 2)


cdef uint8_t* _put_moment(uint8_t* at, int64_t micros, bint has_zone) noexcept nogil:
    """Write a date and a time as `isoformat` does; return where they end, NULL if Python has none."""
    cdef Moment found
    if not _moment(micros, &found):
        return NULL
    at = _put_day(at, found.day)
    at[0] = c"T"
    at = _put_number(at + 1, found.of_day // 3600, 2)
    at[0] = c":"
    at = _put_number(at + 1, found.of_day // 60 % 60, 2)
    at[0] = c":"
    at = _put_number(at + 1, found.of_day % 60, 2)
    if found.fraction:
        at[0] = c"."
        at = _put_number(at + 1, found.fraction, 6)
    if has_zone:
        memcpy(at, b"+00:00", 6)
        at += 6
    return at
