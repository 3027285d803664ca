# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The compiled work per event of a ring: walk, check, stamp, select, count.

The rules are those of `events`, `event_selector` and `row_count`. Those modules do the same
work in Python if this one was not built, and raise the same errors. Two things differ: no
bytes are copied only to read them, and a call on a large range releases the GIL. On a small
range releasing it costs more than the work: another thread may hold it for milliseconds.

The bytes may change while they are read, because the writer may be another process. So each
number is read once, checked against the bounds, and used. The caller reads head afterwards
to learn whether the result is valid.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from databus.schemas.errors import ProtocolError

include "../../schemas/event/big_endian.pxi"
include "../../schemas/event/crc32.pxi"
include "../../schemas/event/layout.pxi"
include "../../schemas/partitions/key_text.pxi"

cdef extern from *:
    """
    /* Compiler barrier: values read above stay in registers and are not read again. */
    #if defined(__GNUC__)
    #define READ_ONCE_ABOVE() __asm__ volatile("" ::: "memory")
    #else
    #define READ_ONCE_ABOVE()
    #endif
    """
    void read_once_above "READ_ONCE_ABOVE"() noexcept nogil

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #include <unistd.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif

    /* In steps: each holds a lock that another thread needs to get memory from the system. */
    static int populate_pages(uint8_t* begin, int64_t size) {
        const int64_t step = 1 << 18;
        int64_t before = (int64_t)((uintptr_t)begin % (uintptr_t)sysconf(_SC_PAGESIZE));
        begin -= before;
        size += before;
        for (; size > 0; begin += step, size -= step)
            if (madvise(begin, (size_t)(size < step ? size : step), MADV_POPULATE_WRITE))
                return 0;
        return 1;
    }
    #else
    static int populate_pages(uint8_t* begin, int64_t size) {
        return 0;
    }
    #endif
    """
    bint populate_pages(uint8_t* begin, int64_t size) noexcept nogil

cdef enum:
    WINDOW_DONE = -1
    # Ranges of at least this size are processed without the GIL.
    LARGE_BYTES = 1 << 21
    WINDOWS_AT_A_TIME = 4096
    INDEX_AT = 4096  # see `scn_index`
    MARK_BYTES = 32

# The result of examining one event.
cdef enum Verdict:
    FINE = 0
    NO_EVENT = 1
    CUT = 2
    UNENDED = 3
    TURNED_AWAY = 4
    UNDECIDED = 5
    OVER = 6
    DAMAGED = 7

cdef dict _TEXTS = {
    NO_EVENT: "no event begins here",
    CUT: "an event is cut",
    UNENDED: "a window does not end with an EOP",
    DAMAGED: "an event is damaged",
}

cdef struct Lap:
    uint8_t* data
    int64_t capacity

cdef struct Header:
    int64_t header_length
    int64_t length
    uint32_t header_crc
    uint32_t body_crc
    uint32_t bits
    int32_t src_id
    int64_t scn
    int64_t key  # when it is a long

cdef struct Sound:
    int64_t scn
    int64_t start
    int64_t end
    int64_t timestamp_ns

cdef enum:
    # In place of a number of buckets.
    OF_A_RANGE = 0
    END_OF_RULES = -1
    OF_PARTITIONS = -2

cdef struct Rule:
    int64_t buckets
    int64_t start
    int64_t end
    const Partitioned* partitioned

cdef struct Cursor:
    int64_t position
    int64_t scn
    int64_t offset
    uint8_t* out
    int64_t used
    int64_t room
    int64_t whole_bytes
    int64_t whole_scn
    int64_t overflow_bytes

cdef struct Tally:
    int64_t position
    int64_t scn
    int64_t timestamp_ns
    int64_t rows
    int64_t size_bytes
    int64_t window_rows
    int64_t window_bytes

cdef struct Limits:
    int64_t rows
    int64_t size_bytes
    int64_t until_scn
    int64_t before_ns


cdef inline void _put_u4(uint8_t* at, uint32_t value) noexcept nogil:
    at[0] = value >> 24
    at[1] = value >> 16 & 0xFF
    at[2] = value >> 8 & 0xFF
    at[3] = value & 0xFF


cdef inline void _put_i8(uint8_t* at, int64_t value) noexcept nogil:
    _put_u4(at, <uint32_t>(<uint64_t>value >> 32))
    _put_u4(at + 4, <uint32_t>value)


# -- bytes of the lap: `at` is below its capacity, `size` not above it ---------------------


cdef inline int64_t _onward(const Lap* lap, int64_t at, int64_t length) noexcept nogil:
    at += length
    return at if at < lap.capacity else at % lap.capacity


cdef void _copy_out(const Lap* lap, int64_t at, int64_t size, uint8_t* out) noexcept nogil:
    cdef int64_t room = lap.capacity - at
    if size <= room:
        memcpy(out, lap.data + at, size)
    else:
        memcpy(out, lap.data + at, room)
        memcpy(out + room, lap.data, size - room)


cdef void _copy_in(const Lap* lap, int64_t at, int64_t size, const uint8_t* data) noexcept nogil:
    cdef int64_t room = lap.capacity - at
    if size <= room:
        memcpy(lap.data + at, data, size)
    else:
        memcpy(lap.data + at, data, room)
        memcpy(lap.data, data + room, size - room)


cdef inline uint32_t _crc(const Lap* lap, int64_t at, int64_t size, uint32_t begin) noexcept nogil:
    cdef int64_t room = lap.capacity - at
    if size <= room:
        return event_crc32(lap.data + at, size, begin)
    return event_crc32(lap.data, size - room, event_crc32(lap.data + at, room, begin))


cdef inline Verdict _read_header(
    const Lap* lap, int64_t at, int64_t left, Header* header
) noexcept nogil:
    """Read the header at `at`; the event may be at most `left` bytes long."""
    cdef uint8_t copied[LONG_KEY_HEADER_BYTES]
    cdef const uint8_t* begin
    if left < SMALLEST_BYTES:
        return CUT
    if lap.capacity - at >= LONG_KEY_HEADER_BYTES:
        begin = lap.data + at
    elif lap.capacity >= LONG_KEY_HEADER_BYTES:
        _copy_out(lap, at, LONG_KEY_HEADER_BYTES, copied)
        begin = copied
    else:
        return CUT
    if begin[VERSION_AT] != VERSION or _u4(begin + MAGIC_AT) != <uint32_t>MAGIC:
        return NO_EVENT
    header.header_length = _u4(begin + HEADER_LENGTH_AT)
    header.header_crc = _u4(begin + HEADER_CRC_AT)
    header.body_crc = _u4(begin + BODY_CRC_AT)
    header.length = _u4(begin + LENGTH_AT)
    header.bits = _u2(begin + ATTRIBUTES_AT)
    header.src_id = <int32_t>_u4(begin + SRC_ID_AT)
    header.scn = _i8(begin + SCN_AT)
    header.key = _i8(begin + LONG_KEY_AT)
    read_once_above()
    if header.length < SMALLEST_BYTES:
        return NO_EVENT
    if header.length > left or header.length > lap.capacity:
        return CUT
    return FINE


# -- walking and checking -----------------------------------------------------------------


cdef Verdict _find_event(
    const Lap* lap, int64_t* position, int64_t end, int64_t scn, int64_t to_skip, int64_t* newest
) noexcept nogil:
    cdef Header header
    cdef Verdict verdict
    cdef int64_t at = position[0] % lap.capacity
    while position[0] < end:
        verdict = _read_header(lap, at, end - position[0], &header)
        if verdict != FINE:
            return verdict
        newest[0] = header.scn
        if header.scn > scn:
            return FINE
        if header.scn == scn:
            if to_skip == 0:
                return FINE
            to_skip -= 1
        position[0] += header.length
        at = _onward(lap, at, header.length)
    return FINE


cdef Verdict _last_end(
    const Lap* lap, int64_t* position, int64_t end, int64_t limit, int64_t* found
) noexcept nogil:
    cdef Header header
    cdef Verdict verdict
    cdef int64_t at = position[0] % lap.capacity
    while position[0] < end:
        verdict = _read_header(lap, at, end - position[0], &header)
        if verdict != FINE:
            return verdict
        if position[0] + header.length > limit:
            return FINE
        position[0] += header.length
        at = _onward(lap, at, header.length)
        if header.src_id == EOP_SRC_ID:
            found[0] = position[0]
    return FINE


cdef int _check_windows(
    const Lap* lap, int64_t position, int64_t end, int64_t scn, Sound* found
) noexcept nogil:
    """Store the sound windows from `position` on; return how many, at most WINDOWS_AT_A_TIME."""
    cdef Header header
    cdef int64_t at = position % lap.capacity, start = position, body_at
    cdef int count = 0
    cdef uint8_t timestamp[8]
    while count < WINDOWS_AT_A_TIME:
        if _read_header(lap, at, end - position, &header) != FINE:
            break
        if not SMALLEST_BYTES <= header.header_length <= header.length:
            break
        body_at = _onward(lap, at, header.header_length)
        if (
            _crc(lap, _onward(lap, at, COVERED_AT), header.header_length - COVERED_AT, 0)
            != header.header_crc
            or _crc(lap, body_at, header.length - header.header_length, 0) != header.body_crc
        ):
            break
        if position == start:
            if header.scn <= scn:
                break
            scn = header.scn
        elif header.scn != scn:
            break
        position += header.length
        if header.src_id == EOP_SRC_ID:
            _copy_out(lap, _onward(lap, at, TIMESTAMP_NS_AT), 8, timestamp)
            found[count] = Sound(scn, start, position, _i8(timestamp))
            count += 1
            start = position
        at = _onward(lap, at, header.length)
    return count


# -- stamping -----------------------------------------------------------------------------


cdef Verdict _stamp(
    const Lap* lap, int64_t* position, int64_t end, int64_t scn, int64_t timestamp_ns, bint with_body
) noexcept nogil:
    cdef Header header
    cdef Verdict verdict
    cdef int64_t at = position[0] % lap.capacity, body_bytes
    cdef uint8_t number[8]
    header.src_id = 0
    while position[0] < end:
        verdict = _read_header(lap, at, end - position[0], &header)
        if verdict != FINE:
            return verdict
        if not SMALLEST_BYTES <= header.header_length <= header.length:
            return CUT
        if with_body:
            body_bytes = header.length - header.header_length
            _put_u4(number, _crc(lap, _onward(lap, at, header.header_length), body_bytes, 0))
            _copy_in(lap, _onward(lap, at, BODY_CRC_AT), 4, number)
        _put_i8(number, timestamp_ns)
        _copy_in(lap, _onward(lap, at, TIMESTAMP_NS_AT), 8, number)
        _put_i8(number, scn)
        _copy_in(lap, _onward(lap, at, SCN_AT), 8, number)
        _put_u4(
            number,
            _crc(lap, _onward(lap, at, COVERED_AT), header.header_length - COVERED_AT, 0),
        )
        _copy_in(lap, _onward(lap, at, HEADER_CRC_AT), 4, number)
        position[0] += header.length
        at = _onward(lap, at, header.length)
    return FINE if header.src_id == EOP_SRC_ID else UNENDED


# -- selecting ----------------------------------------------------------------------------


cdef class Plan:
    """A selection compiled to numbers, made by `EventSelector` for `select` and `count`.

    `rules` maps each filtered src_id to a list of (buckets, start, end), or to a PartitionRule.
    An event passes if one of them matches its key; 0 buckets means a range of keys. `src_ids` is
    None for all sources.
    """

    cdef uint16_t* _by_src_id  # 0: rejected, 1: passes, else 2 + index of its first rule
    cdef Rule* _rules  # those of each src_id up to END_OF_RULES
    cdef dict _given  # keeps what the rules point to
    cdef int32_t _most_src_id
    cdef bint _others_pass
    cdef bint _wants_ddl
    cdef bint _wants_truncates

    def __cinit__(self, src_ids, dict rules, bint wants_ddl, bint wants_truncates=True):
        cdef Py_ssize_t count = sum(
            [1 if isinstance(those, PartitionRule) else len(those) + 1 for those in rules.values()]
        )
        cdef Py_ssize_t number = 0
        self._given = dict(rules)
        self._others_pass = src_ids is None
        self._wants_ddl = wants_ddl
        self._wants_truncates = wants_truncates
        self._most_src_id = max([0] + list(src_ids or ()) + list(rules))
        if self._most_src_id > 32767 or count > 32767:
            raise ValueError("too many src_ids or rules")
        self._by_src_id = <uint16_t*>PyMem_Malloc((self._most_src_id + 1) * sizeof(uint16_t))
        self._rules = <Rule*>PyMem_Malloc((count + 1) * sizeof(Rule))
        if self._by_src_id == NULL or self._rules == NULL:
            raise MemoryError
        for src_id in range(self._most_src_id + 1):
            self._by_src_id[src_id] = self._others_pass
        for src_id in src_ids or ():
            if src_id >= 0:
                self._by_src_id[src_id] = 1
        for src_id, those in rules.items():
            if src_id < 0 or self._by_src_id[src_id] == 0:
                continue
            self._by_src_id[src_id] = 2 + number
            if isinstance(those, PartitionRule):
                self._rules[number] = Rule(
                    OF_PARTITIONS, 0, 0, &(<PartitionRule>those)._wanted
                )
            else:
                for buckets, start, end in those:
                    self._rules[number] = Rule(buckets, start, end, NULL)
                    number += 1
                self._rules[number] = Rule(END_OF_RULES, 0, 0, NULL)
            number += 1

    def __dealloc__(self):
        PyMem_Free(self._by_src_id)
        PyMem_Free(self._rules)


cdef inline bint _matches(const Rule* rule, int64_t number) noexcept nogil:
    cdef int64_t bucket
    while rule.buckets >= 0:
        if rule.buckets == OF_A_RANGE:
            bucket = number
        elif number == INT64_MIN:
            # Java's abs leaves this one negative, and its % keeps the sign.
            bucket = -<int64_t>((<uint64_t>1 << 63) % <uint64_t>rule.buckets)
        else:
            bucket = <int64_t>(
                <uint64_t>(-number if number < 0 else number) % <uint64_t>rule.buckets
            )
        if rule.start <= bucket < rule.end:
            return True
        rule += 1
    return False


cdef bint _read_number(const uint8_t* key, int64_t size, int64_t* number) noexcept nogil:
    """Parse a key as Java's `Long.parseLong` does; return whether it is a number."""
    cdef bint is_negative = key[0] == 45
    cdef int64_t at = 1 if is_negative or key[0] == 43 else 0
    cdef uint64_t value = 0, most = (<uint64_t>1 << 63) - (0 if is_negative else 1)
    cdef uint32_t digit
    if at == size or size - at > 40:
        return False
    while at < size:
        digit = <uint32_t>key[at] - 48
        if digit > 9 or value > (most - digit) // 10:
            return False
        value = value * 10 + digit
        at += 1
    number[0] = <int64_t>(0 - value) if is_negative else <int64_t>value
    return True


cdef Verdict _judge_byte_key(
    const Lap* lap, int64_t at, const Header* header, const Rule* rule
) noexcept nogil:
    cdef int64_t size = header.header_length - SMALLEST_BYTES, number
    cdef uint32_t code = 0
    cdef const uint8_t* key
    if not 0 <= size <= header.length - SMALLEST_BYTES:
        return UNDECIDED
    if lap.capacity - at < header.header_length:
        return UNDECIDED  # the key wraps around the end of the file
    key = lap.data + at + SMALLEST_BYTES
    if _u4(lap.data + at + KEY_LENGTH_AT) != size:
        return UNDECIDED
    if size == 0:
        # The table was emptied, which concerns every key.
        if header.bits & (OPCODE_MASK | HAS_PAYLOAD) == OPCODE_DELETE:
            return FINE
        number = 0
        if rule.buckets == OF_A_RANGE:
            return UNDECIDED
        return FINE if _matches(rule, number) else TURNED_AWAY
    for place in range(size):
        if key[place] >= 0x80:
            return UNDECIDED
        code = 31 * code + key[place]
    if not _read_number(key, size, &number):
        if rule.buckets == OF_A_RANGE:
            return UNDECIDED  # a range filter rejects keys that are not numbers with an error
        number = <int32_t>code
    return FINE if _matches(rule, number) else TURNED_AWAY


cdef Verdict _judge_partition(
    const Lap* lap, int64_t at, const Header* header, const Partitioned* rule
) noexcept nogil:
    cdef int64_t size = header.header_length - SMALLEST_BYTES
    if not 0 <= size <= header.length - SMALLEST_BYTES:
        return UNDECIDED
    if not header.bits & LONG_KEY and size == 0:
        # The table was emptied, which concerns every key.
        if header.bits & (OPCODE_MASK | HAS_PAYLOAD) == OPCODE_DELETE:
            return FINE
    if lap.capacity - at < header.length:
        return UNDECIDED  # the event wraps around the end of the file
    if rule.columns:
        return _judge_row(lap.data + at, header, rule)
    if header.bits & LONG_KEY:
        return FINE if _is_wanted(rule, _number_hash(header.key)) else TURNED_AWAY
    if _u4(lap.data + at + KEY_LENGTH_AT) != size:
        return UNDECIDED
    if _is_wanted(rule, _text_hash(lap.data + at + SMALLEST_BYTES, size)):
        return FINE
    return TURNED_AWAY


cdef bint _find_parts(
    const uint8_t* at,
    const uint8_t* end,
    uint32_t bits,
    const Partitioned* rule,
    const uint8_t** schema_id,
    const uint8_t** row,
    const uint8_t** before,
    int64_t* before_bytes,
) noexcept nogil:
    """Find the row and the row before it in an event's body.

    The row ends with the body. `before` is NULL without that row. False if Python must look: at
    metadata of another version, at values that were not logged, and at what ends too early.
    """
    cdef int64_t length
    before[0] = NULL
    if bits & HAS_METADATA:
        if end - at < CRC32_PART_BYTES:
            return False
        length = _u4(at)
        if (
            _u2(at + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK != CRC32_DIGEST
            or memcmp(at + PART_CRC32_AT, rule.metadata_digest, 4) != 0
            or length > end - at - CRC32_PART_BYTES
        ):
            return False
        at += CRC32_PART_BYTES
        if not _find_before(at, at + length, before, before_bytes):
            return False
        at += length
    if not bits & HAS_PAYLOAD or end - at < MD5_PART_BYTES:
        return False
    if (
        _u2(at + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK != MD5_DIGEST
        or _u4(at) != end - at - MD5_PART_BYTES
    ):
        return False
    schema_id[0] = at + PART_MD5_AT
    row[0] = at + MD5_PART_BYTES
    return True


cdef bint _find_before(
    const uint8_t* at, const uint8_t* end, const uint8_t** before, int64_t* before_bytes
) noexcept nogil:
    """Read metadata up to `before`; False if there are notes, or if it ends too early."""
    cdef int64_t number, size
    cdef const uint8_t* text
    cdef int field
    # gtid, server_id, file, offset, epoch, op, row_index, before, comment, notes
    if not _read_long(&at, end, &number) or (number and not _read_bytes(&at, end, &text, &size)):
        return False
    if not _read_long(&at, end, &number) or not _read_bytes(&at, end, &text, &size):
        return False
    for field in range(4):
        if not _read_long(&at, end, &number):
            return False
    if not _read_long(&at, end, &number):
        return False
    if number and not _read_bytes(&at, end, before, before_bytes):
        return False
    if not _read_long(&at, end, &number) or (number and not _read_bytes(&at, end, &text, &size)):
        return False
    return _read_long(&at, end, &number) and number == 0 and at == end


cdef Verdict _judge_row(
    const uint8_t* event, const Header* header, const Partitioned* rule
) noexcept nogil:
    cdef const uint8_t* end = event + header.length
    cdef const uint8_t* schema_id
    cdef const uint8_t* row
    cdef const uint8_t* before
    cdef const KeyLayout* layout
    cdef int64_t before_bytes = 0
    cdef uint32_t row_hash = 0
    if not _find_parts(
        event + header.header_length, end, header.bits, rule, &schema_id, &row, &before, &before_bytes
    ):
        return UNDECIDED
    layout = _find_layout(rule, schema_id)
    if layout == NULL or not _row_hash(rule, layout, row, end, &row_hash):
        return UNDECIDED
    if _is_wanted(rule, row_hash):
        return FINE
    if before == NULL:
        return TURNED_AWAY
    if not _row_hash(rule, layout, before, before + before_bytes, &row_hash):
        return UNDECIDED
    return FINE if _is_wanted(rule, row_hash) else TURNED_AWAY


cdef inline bint _is_statement(int32_t src_id) noexcept nogil:
    return src_id == DDL_SRC_ID or src_id == DML_SRC_ID


cdef inline Verdict _judge(
    const Lap* lap, int64_t at, const Header* header, Plan plan
) noexcept nogil:
    cdef uint16_t entry
    if header.src_id < 0:
        return FINE if not _is_statement(header.src_id) or plan._wants_ddl else TURNED_AWAY
    if not header.bits & HAS_PAYLOAD and not plan._wants_truncates:
        return TURNED_AWAY
    if header.src_id > plan._most_src_id:
        return FINE if plan._others_pass else TURNED_AWAY
    entry = plan._by_src_id[header.src_id]
    if entry < 2:
        return FINE if entry else TURNED_AWAY
    if plan._rules[entry - 2].buckets == OF_PARTITIONS:
        return _judge_partition(lap, at, header, plan._rules[entry - 2].partitioned)
    if not header.bits & LONG_KEY:
        return _judge_byte_key(lap, at, header, plan._rules + entry - 2)
    return FINE if _matches(plan._rules + entry - 2, header.key) else TURNED_AWAY


cdef Verdict _select(
    const Lap* lap, Cursor* cursor, int64_t end, int64_t tail, Plan plan
) noexcept nogil:
    """Copy the events that pass; return FINE at `end` or when the output is full."""
    cdef Header header
    cdef Verdict verdict
    cdef int64_t at = cursor.position % lap.capacity
    while cursor.position < end:
        verdict = _read_header(lap, at, tail - cursor.position, &header)
        if verdict != FINE:
            return verdict
        if cursor.position + header.length > end:
            return FINE
        verdict = _judge(lap, at, &header, plan)
        if verdict == UNDECIDED:
            return UNDECIDED
        if header.scn != cursor.scn:
            cursor.scn = header.scn
            cursor.offset = 0
        if verdict == FINE:
            if header.length > cursor.room - cursor.used:
                cursor.overflow_bytes = header.length
                return FINE
            _copy_out(lap, at, header.length, cursor.out + cursor.used)
            cursor.used += header.length
        if header.src_id == EOP_SRC_ID:
            cursor.offset = WINDOW_DONE
            cursor.whole_bytes = cursor.used
            cursor.whole_scn = header.scn
        else:
            cursor.offset += 1
        cursor.position += header.length
        at = _onward(lap, at, header.length)
    return FINE


# -- counting -----------------------------------------------------------------------------


cdef Verdict _count(
    const Lap* lap, Tally* tally, int64_t end, int64_t tail, const Limits* limits, Plan plan
) noexcept nogil:
    """Count the events that pass; return FINE at `end`, OVER at a limit."""
    cdef Header header
    cdef Verdict verdict
    cdef uint8_t timestamp[8]
    cdef int64_t at = tally.position % lap.capacity
    while tally.position < end:
        verdict = _read_header(lap, at, tail - tally.position, &header)
        if verdict != FINE:
            return verdict
        if header.scn > limits.until_scn:
            return OVER
        if header.src_id >= 0:
            verdict = _judge(lap, at, &header, plan)
            if verdict == UNDECIDED:
                return UNDECIDED
            if verdict == FINE:
                tally.window_rows += 1
                tally.window_bytes += header.length
                if tally.rows > 0 and (
                    tally.rows + tally.window_rows > limits.rows
                    or tally.size_bytes + tally.window_bytes > limits.size_bytes
                ):
                    return OVER
        elif header.src_id == EOP_SRC_ID:
            _copy_out(lap, _onward(lap, at, TIMESTAMP_NS_AT), 8, timestamp)
            if _i8(timestamp) >= limits.before_ns:
                return OVER
            tally.scn = header.scn
            tally.timestamp_ns = _i8(timestamp)
            tally.rows += tally.window_rows
            tally.size_bytes += tally.window_bytes
            tally.window_rows = tally.window_bytes = 0
        tally.position += header.length
        at = _onward(lap, at, header.length)
    return FINE


# -- the Python interface -------------------------------------------------------------------


cdef class RingData:
    """The data of a mapped ring: position `p` is at byte `data_at + p % capacity`.

    Keeps the mapping until `release`; no other method may be called after it.
    """

    cdef Py_buffer _view
    cdef Lap _lap
    cdef bint _is_writable
    cdef int _busy  # number of calls running without the GIL
    cdef int64_t _index_slots  # number that fit between the header page and the data

    def __cinit__(self, mapping, int64_t data_at, int64_t capacity_bytes, bint is_writable):
        PyObject_GetBuffer(mapping, &self._view, PyBUF_WRITABLE if is_writable else PyBUF_SIMPLE)
        if data_at < 0 or capacity_bytes <= 0 or data_at + capacity_bytes > self._view.len:
            PyBuffer_Release(&self._view)
            raise ValueError("the data is not all in the mapping")
        self._lap.data = <uint8_t*>self._view.buf + data_at
        self._lap.capacity = capacity_bytes
        self._is_writable = is_writable
        self._index_slots = max(0, data_at - INDEX_AT) // 32

    def __dealloc__(self):
        PyBuffer_Release(&self._view)

    def release(self):
        """Release the mapping; may be called twice. No other thread may be in a call."""
        if self._busy:
            raise BufferError("another thread is at work in the ring")
        self._lap.data = NULL
        PyBuffer_Release(&self._view)

    cdef int _check(self, int64_t position, bint is_written=False) except -1:
        if self._lap.data == NULL or position < 0 or (is_written and not self._is_writable):
            raise ValueError("the ring is closed, or not to be written, or has no such position")
        return 0

    cdef const uint64_t* _entry(self, uint64_t number, uint64_t slots) except NULL:
        if self._lap.data == NULL or slots == 0 or self._index_slots < <int64_t>slots:
            raise ValueError("the ring is closed, or its index has not so many slots")
        return <const uint64_t*>(<uint8_t*>self._view.buf + INDEX_AT) + number % slots * 4

    def index_entry(self, uint64_t number, uint64_t slots):
        """Return the words of index entry `number`; None if its slot holds another entry."""
        cdef const uint64_t* entry = self._entry(number, slots)
        cdef uint64_t scn = entry[0], position = entry[1], prev_scn = entry[2]
        cdef uint64_t sum = (
            number * <uint64_t>0x9E3779B97F4A7C15U
            + scn * <uint64_t>0xC2B2AE3D27D4EB4FU
            + position * <uint64_t>0x165667B19E3779F9U
            + prev_scn * <uint64_t>0xD6E8FEB86659FD93U
            + <uint64_t>0x27D4EB2F165667C5U
        )
        if entry[3] != sum:
            return None
        return scn, position, -1 if prev_scn >> 63 else <int64_t>prev_scn

    def index_bisect(self, int word, uint64_t wanted, int64_t low, int64_t end, uint64_t slots):
        """Return the last entry in [low, end) whose word is at most `wanted`; `low` without one."""
        cdef int64_t high = end - 1, middle
        while low < high:
            middle = low + (high - low + 1) // 2
            if self._entry(middle, slots)[word & 3] <= wanted:
                low = middle
            else:
                high = middle - 1
        return low

    def copy_out(self, int64_t position, int64_t length):
        """Return `length` bytes starting at `position`."""
        cdef uint8_t* out
        self._check(position)
        if not 0 <= length <= self._lap.capacity:
            raise ValueError("no lap has so many bytes")
        copied = PyBytes_FromStringAndSize(NULL, length)
        out = <uint8_t*>PyBytes_AS_STRING(copied)
        self._busy += 1
        with nogil:
            _copy_out(&self._lap, position % self._lap.capacity, length, out)
        self._busy -= 1
        return copied

    def copy_in(self, int64_t position, const uint8_t[::1] data not None):
        """Write bytes at `position`."""
        cdef int64_t length = data.shape[0]
        self._check(position, True)
        if not 0 < length <= self._lap.capacity:
            raise ValueError("no lap has so many bytes")
        self._busy += 1
        with nogil:
            _copy_in(&self._lap, position % self._lap.capacity, length, &data[0])
        self._busy -= 1

    def populate(self, int64_t position, int64_t size):
        """Map the pages of a range, to be written; return False if the system cannot.

        No byte changes. Runs without the GIL, also while another thread writes there.
        """
        cdef int64_t at, room
        cdef bint is_done
        self._check(position, True)
        if not 0 < size <= self._lap.capacity:
            raise ValueError("no lap has so many bytes")
        at = position % self._lap.capacity
        room = min(size, self._lap.capacity - at)
        self._busy += 1
        with nogil:
            is_done = populate_pages(self._lap.data + at, room)
            if is_done and room < size:
                is_done = populate_pages(self._lap.data, size - room)
        self._busy -= 1
        return is_done

    def find_event(self, int64_t position, int64_t end, int64_t scn, int64_t to_skip):
        """See `events.find_event`."""
        cdef int64_t newest = -1, begin = position
        cdef Verdict verdict
        self._check(position)
        if end - position < LARGE_BYTES:
            verdict = _find_event(&self._lap, &position, end, scn, to_skip, &newest)
        else:
            self._busy += 1
            with nogil:
                verdict = _find_event(&self._lap, &position, end, scn, to_skip, &newest)
            self._busy -= 1
        if verdict != FINE:
            raise ProtocolError(_TEXTS[verdict], position)
        return position, newest

    def last_end(self, int64_t position, int64_t end, int64_t limit):
        """See `events.last_end`."""
        cdef int64_t found = position
        cdef Verdict verdict
        self._check(position)
        if limit - position < LARGE_BYTES:
            verdict = _last_end(&self._lap, &position, end, limit, &found)
        else:
            self._busy += 1
            with nogil:
                verdict = _last_end(&self._lap, &position, end, limit, &found)
            self._busy -= 1
        if verdict != FINE:
            raise ProtocolError(_TEXTS[verdict], position)
        return found

    def check_windows(self, int64_t position, int64_t end, int64_t after_scn):
        """Return up to WINDOWS_AT_A_TIME sound windows from `position` on, as tuples.

        The list is empty where no sound window begins.
        """
        cdef Sound* found
        cdef int count
        self._check(position)
        found = <Sound*>PyMem_Malloc(WINDOWS_AT_A_TIME * sizeof(Sound))
        if found == NULL:
            raise MemoryError
        try:
            self._busy += 1
            with nogil:
                count = _check_windows(&self._lap, position, end, after_scn, found)
            self._busy -= 1
            return [
                (found[at].scn, found[at].start, found[at].end, found[at].timestamp_ns)
                for at in range(count)
            ]
        finally:
            PyMem_Free(found)

    def stamp(self, int64_t position, int64_t end, int64_t scn, int64_t timestamp_ns):
        """See `events.stamp_events`."""
        cdef Verdict verdict
        self._check(position, True)
        if end - position < LARGE_BYTES:
            verdict = _stamp(&self._lap, &position, end, scn, timestamp_ns, False)
        else:
            self._busy += 1
            with nogil:
                verdict = _stamp(&self._lap, &position, end, scn, timestamp_ns, False)
            self._busy -= 1
        if verdict != FINE:
            raise ProtocolError(_TEXTS[verdict], position)

    def select(
        self,
        int64_t position,
        int64_t end,
        int64_t tail,
        Plan plan not None,
        int64_t scn,
        int64_t offset,
        int64_t room_bytes,
    ):
        """See `event_selector.select_events`; stops before an event that the plan cannot decide."""
        cdef Cursor cursor
        cdef Header header
        cdef Verdict verdict = FINE
        self._check(position)
        if position < tail:
            verdict = _read_header(&self._lap, position % self._lap.capacity, tail - position, &header)
            if verdict != FINE:
                raise ProtocolError(_TEXTS[verdict], position)
            end = min(max(end, position + header.length), tail)
        room_bytes = max(0, min(room_bytes, max(0, end - position)))
        body = PyBytes_FromStringAndSize(NULL, room_bytes)
        cursor = Cursor(
            position, scn, offset, <uint8_t*>PyBytes_AS_STRING(body), 0, room_bytes, -1, -1, -1
        )
        if end - position < LARGE_BYTES:
            verdict = _select(&self._lap, &cursor, end, tail, plan)
        else:
            self._busy += 1
            with nogil:
                verdict = _select(&self._lap, &cursor, end, tail, plan)
            self._busy -= 1
        if verdict != FINE and verdict != UNDECIDED:
            raise ProtocolError(_TEXTS[verdict], cursor.position)
        return (
            cursor.position,
            cursor.scn,
            cursor.offset,
            body[: cursor.used],
            cursor.whole_bytes,
            cursor.whole_scn,
            cursor.overflow_bytes,
        )

    def count(self, int64_t end, int64_t tail, Plan plan not None, limits, so_far):
        """See `row_count.count_rows`; stops before an event that the plan cannot decide."""
        cdef Tally tally
        cdef Limits most
        cdef Verdict verdict
        (
            tally.position,
            tally.scn,
            tally.timestamp_ns,
            tally.rows,
            tally.size_bytes,
            tally.window_rows,
            tally.window_bytes,
            _,
        ) = so_far
        most.rows, most.size_bytes, most.until_scn, most.before_ns = limits
        self._check(tally.position)
        if end - tally.position < LARGE_BYTES:
            verdict = _count(&self._lap, &tally, end, tail, &most, plan)
        else:
            self._busy += 1
            with nogil:
                verdict = _count(&self._lap, &tally, end, tail, &most, plan)
            self._busy -= 1
        if verdict != FINE and verdict != UNDECIDED and verdict != OVER:
            raise ProtocolError(_TEXTS[verdict], tally.position)
        return (
            tally.position,
            tally.scn,
            tally.timestamp_ns,
            tally.rows,
            tally.size_bytes,
            tally.window_rows,
            tally.window_bytes,
            verdict == OVER,
        )


def stamp(buffer, int64_t begin, int64_t end, int64_t scn, int64_t timestamp_ns):
    """Stamp the events of a window in a plain buffer, and set the CRCs of their bodies.

    Raises ProtocolError as `events.stamp_events` does.
    """
    cdef Py_buffer view
    cdef Lap lap
    cdef Verdict verdict
    cdef int64_t position = begin
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        if not 0 <= begin < end <= view.len:
            raise ValueError("no such bytes")
        lap = Lap(<uint8_t*>view.buf, view.len)
        with nogil:
            verdict = _stamp(&lap, &position, end, scn, timestamp_ns, True)
    finally:
        PyBuffer_Release(&view)
    if verdict != FINE:
        raise ProtocolError(_TEXTS[verdict], position)


def stamp_part(buffer, int64_t scn, int64_t timestamp_ns):
    """See `log.windows.stamped_events`; stamps in place."""
    cdef Py_buffer view
    cdef Lap lap
    cdef Header header
    cdef Verdict verdict = FINE
    cdef int64_t position = 0, at, count = 0
    cdef bint is_over = False
    PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE)
    try:
        lap = Lap(<uint8_t*>view.buf, view.len)
        with nogil:
            while position < lap.capacity and not is_over:
                verdict = _read_header(&lap, position, lap.capacity - position, &header)
                if verdict != FINE:
                    break
                if (
                    not SMALLEST_BYTES <= header.header_length <= header.length
                    or _crc(
                        &lap,
                        position + header.header_length,
                        header.length - header.header_length,
                        0,
                    )
                    != header.body_crc
                ):
                    verdict = DAMAGED
                    break
                at = position
                _stamp(&lap, &at, at + header.length, scn, timestamp_ns, False)
                position = at
                count += 1
                is_over = header.src_id == EOP_SRC_ID
    finally:
        PyBuffer_Release(&view)
    # The last event may go on behind the bytes.
    if not count or verdict not in (FINE, CUT):
        raise ProtocolError(_TEXTS[verdict or CUT], position)
    return position, count, is_over


def find_run(bytes marks not None, Py_ssize_t number, int64_t newest, int64_t limit):
    """See `events.find_run`."""
    cdef Py_ssize_t count = PyBytes_GET_SIZE(marks) // MARK_BYTES
    cdef const char* at = PyBytes_AS_STRING(marks)
    cdef int64_t mark[2]
    while number < count:
        memcpy(mark, at + number * MARK_BYTES, sizeof(mark))
        if mark[0] <= newest or mark[1] > limit:
            break
        newest = mark[0]
        number += 1
    return number


def find_optional(bytes windows not None):
    """Return the offset of the first statement or truncate in whole windows; -1 without one."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(windows)
    cdef int64_t left = PyBytes_GET_SIZE(windows), length
    cdef int32_t src_id
    while left >= SMALLEST_BYTES:
        src_id = <int32_t>_u4(at + SRC_ID_AT)
        if _is_statement(src_id) or (src_id >= 0 and not _u2(at + ATTRIBUTES_AT) & HAS_PAYLOAD):
            return PyBytes_GET_SIZE(windows) - left
        length = _u4(at + LENGTH_AT)
        if length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", PyBytes_GET_SIZE(windows) - left)
        at += length
        left -= length
    return -1


def tally_rows(bytes data not None, dict found not None):
    """See `admin.page_parts.table_counts.tally_in_python`."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef int64_t left = PyBytes_GET_SIZE(data), length, rows = 0, size = 0, newest_ns = 0
    cdef int32_t src_id, before = -1
    while left >= SMALLEST_BYTES:
        length = _u4(at + LENGTH_AT)
        if length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", PyBytes_GET_SIZE(data) - left)
        if length > left:
            break
        src_id = <int32_t>_u4(at + SRC_ID_AT)
        if src_id != before:  # a run of one source's events has ended
            if before >= 0:
                _add_run(found, before, rows, size, newest_ns)
            before, rows, size = src_id, 0, 0
        rows += 1
        size += length
        newest_ns = _i8(at + TIMESTAMP_NS_AT)
        at += length
        left -= length
    if before >= 0:
        _add_run(found, before, rows, size, newest_ns)
    return PyBytes_GET_SIZE(data) - left


cdef void _add_run(dict found, int32_t src_id, int64_t rows, int64_t size, int64_t newest_ns):
    known = found.get(src_id)
    if known is not None:
        rows, size = rows + known[0], size + known[1]
    found[src_id] = (rows, size, newest_ns)
