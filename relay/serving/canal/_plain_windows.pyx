# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, freethreading_compatible=True
"""Build the entries of plain windows, as `entries` defines them.

A plain window is whole, and has nothing but rows: each with metadata of the version that is written,
without notes, of a table whose rows compiled code writes. Any other window is left to Python, whole,
and so is one with a name that is not ASCII: the errors are Python's. CRCs are checked where Python
checks them, of the first row of each run and of the window's end.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memset

include "../../sources/mysql/binlog/_byte_buffer.pxi"
include "row_events.pxi"
include "../../../schemas/event/crc32.pxi"

cdef object _new_tuple = tuple.__new__

cdef enum:
    BEGIN_ENTRY = 1
    ROWS_ENTRY = 2
    END_ENTRY = 3
    WINDOW_DONE = -1
    NS_PER_MS = 1_000_000
    MOST_BITS = 48  # of an offset and of a row's number
    FILE_DIGITS = 6
    PROPERTY_TAG = 0x62

cdef const uint8_t* _FILE_TAGS = b"\x08\x01\x12"  # version 1, logfileName
cdef const uint8_t* _ENCODING = b"\x2a\x05UTF-8"
cdef const uint8_t* _GTID_KEY = b"\x0a\x08curtGtid\x12"
cdef const uint8_t* _COUNT_KEY = b"\x0a\x09rowsCount\x12"

# By op: insert, update, delete, snapshot.
cdef uint8_t* _EVENT_TYPES = [1, 2, 3, 1]

cdef struct Room:
    # What is written into, again and again.
    Bytes log  # fields of a header that its window's entries share
    Bytes gtid
    Bytes header
    Bytes rows
    Bytes row


cdef class WindowWriter:
    """Builds the entries of one physical source's plain windows. Used by one thread."""

    cdef object _know, _entry, _begin, _rows, _end
    cdef dict _known
    cdef bytes _no_table
    cdef Py_ssize_t _most_bytes, _begin_bytes, _end_bytes
    cdef Room _room
    cdef readonly str files
    """As `EntryWriter` has it, of the last window."""
    cdef int64_t _server_id

    def __cinit__(self):
        memset(&self._room, 0, sizeof(self._room))

    def __dealloc__(self):
        release(&self._room.log)
        release(&self._room.gtid)
        release(&self._room.header)
        release(&self._room.rows)
        release(&self._room.row)

    def __init__(self, know, entry, kinds, bytes no_table, sizes):
        """`know` returns of a schema's id: CompiledWriter or None, fields of its table, tables.

        `entry` and `kinds` are the types of an entry; `sizes` the bytes of a run, a begin, an end.
        """
        self._know, self._known = know, {}
        self._entry, self._no_table = entry, no_table
        self._begin, self._rows, self._end = kinds
        self._most_bytes, self._begin_bytes, self._end_bytes = sizes
        self.files, self._server_id = "", 0

    @property
    def server_id(self):
        """As `files`."""
        return self._server_id

    def take(self, bytes body not None, Py_ssize_t begin, list found not None):
        """Add the entries of the plain windows from `begin` on; return where the last one ends."""
        cdef const uint8_t* data = <const uint8_t*>PyBytes_AS_STRING(body)
        cdef const uint8_t* end = data + PyBytes_GET_SIZE(body)
        cdef const uint8_t* at
        cdef const uint8_t* eop
        cdef Py_ssize_t before
        if not 0 <= begin <= PyBytes_GET_SIZE(body):
            raise ValueError("no window begins there")
        at = data + begin
        while at < end:
            eop = _end_of_rows(at, end)
            if eop == NULL:
                break
            before = len(found)
            if not self._take_window(at, eop, found):
                del found[before:]
                break
            at = eop + _u4(eop + LENGTH_AT)
        return at - data

    cdef bint _take_window(self, const uint8_t* at, const uint8_t* eop, list found) except -1:
        cdef Room* room = &self._room
        cdef RowEvent event
        cdef const uint8_t* begin
        cdef int64_t scn = _i8(at + SCN_AT), end = scn & 0xFFFFFFFF, offset = 0
        cdef int64_t time_ms, kind
        cdef Py_ssize_t count, taken = 0
        cdef tuple known
        cdef bytes table, schema_id
        cdef bint is_begun = False
        if not _is_sound(eop) or _i8(eop + TIMESTAMP_NS_AT) < 0:
            return False
        while at < eop:
            begin = at
            if not _is_sound(at) or not _read_event(&event, at, eop, NULL):
                return False
            schema_id = PyBytes_FromStringAndSize(<const char*>event.schema, SCHEMA_ID_BYTES)
            known = self._known.get(schema_id)
            if known is None:
                known = self._known[schema_id] = self._know(schema_id)
            if known[0] is None:
                return False
            time_ms = _i8(at + TIMESTAMP_NS_AT)
            if time_ms < 0 or event.offset >> MOST_BITS or event.row_index >> MOST_BITS:
                return False
            time_ms //= NS_PER_MS
            if not is_begun:
                if not self._open(&event, scn):
                    return False
                is_begun, offset = True, event.offset
                self._put_header(offset, time_ms, self._no_table, self._begin_bytes, 0, 0)
                found.append(self._entry_of(
                    BEGIN_ENTRY, NULL, 0, self._begin_bytes, self._begin, (), scn, 0))
            if event.offset + 1 + event.row_index > offset:
                offset = event.offset + 1 + event.row_index
            kind = _EVENT_TYPES[event.op]
            room.rows.size = 0
            if put(&room.rows, b"\x08\x00\x10\x00\x50\x00", 6) < 0:
                raise MemoryError
            room.rows.data[3] = <uint8_t>kind
            count = put_rows(
                &room.rows, &room.row, &event, &at, eop, at + self._most_bytes, known[0],
                <const uint8_t*>PyBytes_AS_STRING(schema_id),
            )
            if not count:
                return False
            taken += count
            table = known[1]
            self._put_header(offset, time_ms, table, at - begin, kind, count)
            found.append(self._entry_of(
                ROWS_ENTRY, room.rows.data, room.rows.size, at - begin, self._rows, known[2],
                scn, taken))
        if end - self._end_bytes > offset:
            offset = end - self._end_bytes
        time_ms = _i8(eop + TIMESTAMP_NS_AT) // NS_PER_MS
        self._put_header(offset, time_ms, self._no_table, self._end_bytes, 0, 0)
        room.rows.size = 0
        if put(&room.rows, b"\x12\x00", 2) < 0 or put_digits(&room.rows, scn, 1) < 0:
            raise MemoryError
        room.rows.data[1] = <uint8_t>(room.rows.size - 2)
        found.append(self._entry_of(
            END_ENTRY, room.rows.data, room.rows.size, self._end_bytes, self._end, (),
            scn, WINDOW_DONE))
        return True

    cdef bint _open(self, RowEvent* first, int64_t scn) except -1:
        """Write what the headers of a window share; False if it is left to Python."""
        cdef Bytes* log = &self._room.log
        cdef Bytes* gtid = &self._room.gtid
        cdef Py_ssize_t prefix = first.file_size, digits
        cdef bytes name
        if not is_ascii(first.file, first.file_size) or memchr(first.file, 10, first.file_size):
            return False
        while prefix and 48 <= first.file[prefix - 1] <= 57:
            prefix -= 1
        if not first.file_size:
            self.files = "mysql-bin."
        elif prefix < first.file_size and prefix and first.file[prefix - 1] == 46:
            self._set_files(first.file, prefix)
        else:
            self._set_files(first.file, first.file_size)
            self.files += "."
        self._server_id = first.server_id
        log.size = gtid.size = 0
        name = self.files.encode()
        digits = FILE_DIGITS if ((scn >> 32) & 0x7FFFFF) < 1_000_000 else FILE_DIGITS + 1
        if (
            put(log, _FILE_TAGS, 3) < 0
            or _put_number(log, len(name) + digits) < 0
            or put(log, <const uint8_t*>PyBytes_AS_STRING(name), len(name)) < 0
            or put_digits(log, (scn >> 32) & 0x7FFFFF, FILE_DIGITS) < 0
        ):
            raise MemoryError
        if first.gtid_size:
            if not is_ascii(first.gtid, first.gtid_size):
                return False
            if _put_pair(gtid, _GTID_KEY, 11, first.gtid, first.gtid_size) < 0:
                raise MemoryError
        return True

    cdef int _set_files(self, const uint8_t* text, Py_ssize_t size) except -1:
        self.files = PyBytes_FromStringAndSize(<const char*>text, size).decode("ascii")
        return 0

    cdef int _put_header(
        self,
        int64_t offset,
        int64_t time_ms,
        bytes table,
        int64_t size_bytes,
        int64_t kind,
        Py_ssize_t count,
    ) except -1:
        """Write a header into its room, as `messages` does; without a kind and a count where 0."""
        cdef Bytes* into = &self._room.header
        cdef Bytes* log = &self._room.log
        cdef uint8_t digits[24]
        cdef Bytes text
        into.size = 0
        if (
            put(into, log.data, log.size) < 0
            or _put_field(into, 0x18, <uint64_t>offset) < 0
            or _put_field(into, 0x20, <uint64_t>self._server_id) < 0
            or put(into, _ENCODING, 7) < 0
            or _put_field(into, 0x30, <uint64_t>time_ms) < 0
            or put(into, <const uint8_t*>PyBytes_AS_STRING(table), PyBytes_GET_SIZE(table)) < 0
            or _put_field(into, 0x50, <uint64_t>size_bytes) < 0
            or (kind and _put_field(into, 0x58, <uint64_t>kind) < 0)
            or put(into, self._room.gtid.data, self._room.gtid.size) < 0
        ):
            raise MemoryError
        if count:
            text.data, text.size, text.room, text.is_lent = digits, 0, sizeof(digits), True
            if put_digits(&text, count, 1) < 0 or _put_pair(
                into, _COUNT_KEY, 12, text.data, text.size
            ) < 0:
                raise MemoryError
        return 0

    cdef object _entry_of(
        self,
        int kind,
        const uint8_t* value,
        Py_ssize_t size,
        Py_ssize_t size_bytes,
        shown_kind,
        tuple tables,
        int64_t scn,
        Py_ssize_t offset,
    ):
        """Return an entry of the header in its room and of a value."""
        cdef Bytes* header = &self._room.header
        cdef uint8_t numbers[24]
        cdef Py_ssize_t first, second
        cdef bytes data
        cdef uint8_t* at
        numbers[0] = 0x0A
        first = 1 + write_varint(numbers + 1, header.size)
        numbers[first], numbers[first + 1], numbers[first + 2] = 0x10, <uint8_t>kind, 0x1A
        second = 3 + write_varint(numbers + first + 3, size)
        data = PyBytes_FromStringAndSize(NULL, first + header.size + second + size)
        at = <uint8_t*>PyBytes_AS_STRING(data)
        memcpy(at, numbers, first)
        copy_bytes(at + first, header.data, header.size)
        at += first + header.size
        memcpy(at, numbers + first, second)
        copy_bytes(at + second, value, size)
        return _new_tuple(self._entry, (data, size_bytes, shown_kind, tables, scn, offset))


cdef const uint8_t* _end_of_rows(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return the end-of-period event behind rows of one window; NULL if they are anything else."""
    cdef const uint8_t* begin = at
    cdef int64_t header, length, scn = 0
    while end - at >= SMALLEST_BYTES:
        if at[0] != VERSION or _u4(at + MAGIC_AT) != MAGIC:
            return NULL
        header, length = _u4(at + HEADER_LENGTH_AT), _u4(at + LENGTH_AT)
        if not SMALLEST_BYTES <= header <= length <= end - at:
            return NULL
        if at == begin:
            scn = _i8(at + SCN_AT)
            if scn < 0:
                return NULL
        elif _i8(at + SCN_AT) != scn:
            return NULL
        if <int32_t>_u4(at + SRC_ID_AT) == EOP_SRC_ID:
            if at == begin:
                return NULL
            return at
        if at[SRC_ID_AT] & 0x80 or not _u2(at + ATTRIBUTES_AT) & HAS_PAYLOAD:
            return NULL
        at += length
    return NULL


cdef inline bint _is_sound(const uint8_t* at) noexcept nogil:
    """Return whether the CRCs of an event are right, whose lengths were checked."""
    cdef Py_ssize_t header = _u4(at + HEADER_LENGTH_AT), length = _u4(at + LENGTH_AT)
    return (
        event_crc32(at + COVERED_AT, header - COVERED_AT) == _u4(at + HEADER_CRC_AT)
        and event_crc32(at + header, length - header) == _u4(at + BODY_CRC_AT)
    )


cdef inline int _put_number(Bytes* into, uint64_t number) noexcept nogil:
    if reserve(into, 10) < 0:
        return -1
    into.size += write_varint(into.data + into.size, number)
    return 0


cdef inline int _put_field(Bytes* into, uint8_t tag, uint64_t number) noexcept nogil:
    if reserve(into, 11) < 0:
        return -1
    into.data[into.size] = tag
    into.size += 1 + write_varint(into.data + into.size + 1, number)
    return 0


cdef int _put_pair(
    Bytes* into, const uint8_t* key, Py_ssize_t key_size, const uint8_t* text, Py_ssize_t size
) noexcept nogil:
    """Write a property of a header; `key` is that field, and the tag of its value."""
    cdef uint8_t number[10]
    cdef Py_ssize_t number_size = write_varint(number, size)
    if reserve(into, 1) < 0:
        return -1
    into.data[into.size] = PROPERTY_TAG
    into.size += 1
    if (
        _put_number(into, key_size + number_size + size) < 0
        or put(into, key, key_size) < 0
        or _put_number(into, size) < 0
        or put(into, text, size) < 0
    ):
        return -1
    return 0
