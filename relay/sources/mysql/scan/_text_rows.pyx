# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""The rows of a SELECT, from the server's packets to snapshot events.

The server sends a row as a packet of texts, one a column. PyMySQL makes an object of each
text, and Python a value of each: both are what a scan of a large table spends its time on.
Here a row stays in the packet it came in. `TextRows.events` writes the events of all rows,
without the GIL; its texts can still be had one by one, for whoever wants the rows.

`scan/columns.py` defines each value. A value that cannot be written here (an invalid date,
text that is not in its character set) leaves all rows to Python, which reads them or raises
the error.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AsDouble
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

include "../binlog/_byte_buffer.pxi"
include "../../../../schemas/event/crc32.pxi"
include "../../../../schemas/event/layout.pxi"
include "../binlog/_row_plan.pxi"
include "_text_values.pxi"

# packet    length (3, little-endian), sequence number (1), that many bytes;
#           one of 0xFFFFFF bytes is continued by the next
# row       a text for each column: its length, then its bytes; FB is NULL
# length    one byte up to FA; FC, FD and FE are followed by 2, 3 and 8 bytes of length
# end       FE, in a packet shorter than 9
# error     FF

# What `feed` returns.
MORE = 0  # more bytes are needed
END = 1  # the rows are complete
ERROR = 2  # the server has ended the rows by an error: `error`
BROKEN = 3  # a packet with a wrong sequence number, or bytes after the end

cdef enum:
    _MORE, _END, _ERROR, _BROKEN
    HEAD_BYTES = 4
    CONTINUED = 0xFFFFFF
    IS_NULL = 0xFB
    END_MARK = 0xFE
    ERROR_MARK = 0xFF
    END_BYTES = 9

# What the events of one scan have in common.
cdef struct Common:
    int64_t scn
    int64_t timestamp_ns
    const uint8_t* metadata  # attributes, digest and the fields up to the row's index
    Py_ssize_t metadata_size
    const uint8_t* metadata_end  # the fields after the row's index
    Py_ssize_t metadata_end_size


cdef class TextRows:
    """The rows of one result: feed it the bytes that follow the columns' definitions."""

    cdef readonly int columns
    cdef readonly int sequence  # of the next packet
    cdef Bytes data
    cdef Bytes spans  # begin and end of each row in `data`
    cdef Py_ssize_t at  # where the next packet begins
    cdef Py_ssize_t row_at  # where the row of a continued packet begins; -1 for none
    cdef Py_ssize_t end_at

    def __init__(self, int columns, int sequence):
        if columns < 1:
            raise ValueError("a result without columns")
        self.columns, self.sequence = columns, sequence & 0xFF
        self.row_at = -1

    def __dealloc__(self):
        release(&self.data)
        release(&self.spans)

    def __len__(self):
        return self.spans.size // (2 * sizeof(Py_ssize_t))

    def __getitem__(self, Py_ssize_t index):
        """Return a row's texts; None is NULL. Raises ValueError when the packet is damaged."""
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef Py_ssize_t size
        cdef int column
        if not 0 <= index < len(self):
            raise IndexError(index)
        at, end = self._begin(index), self._end(index)
        texts = []
        for column in range(self.columns):
            at = take_text(at, end, &size)
            if at == NULL:
                raise ValueError("a damaged row")
            if size < 0:
                texts.append(None)
            else:
                texts.append(PyBytes_FromStringAndSize(<const char*>at, size))
                at += size
        if at != end:
            raise ValueError("a damaged row")
        return tuple(texts)

    @property
    def error(self):
        """The server's error, as its packet has it."""
        return PyBytes_FromStringAndSize(
            <const char*>self.data.data + self.at + HEAD_BYTES, self.end_at - self.at - HEAD_BYTES
        )

    cdef const uint8_t* _begin(self, Py_ssize_t index) noexcept nogil:
        return self.data.data + (<Py_ssize_t*>self.spans.data)[2 * index]

    cdef const uint8_t* _end(self, Py_ssize_t index) noexcept nogil:
        return self.data.data + (<Py_ssize_t*>self.spans.data)[2 * index + 1]

    def feed(self, const uint8_t[::1] chunk not None):
        """Take the next bytes; return MORE, END, ERROR or BROKEN."""
        cdef int status
        if chunk.shape[0] == 0:
            return MORE
        with nogil:
            if put(&self.data, &chunk[0], chunk.shape[0]) < 0:
                with gil:
                    raise MemoryError
            status = self._find_rows()
            if status < 0:
                with gil:
                    raise MemoryError
        return status

    cdef int _find_rows(self) noexcept nogil:
        cdef uint8_t* packet
        cdef Py_ssize_t size
        cdef Py_ssize_t span[2]
        while self.data.size - self.at >= HEAD_BYTES:
            packet = self.data.data + self.at
            size = <Py_ssize_t>little(packet, 3)
            if packet[3] != self.sequence:
                return _BROKEN
            if self.data.size - self.at < HEAD_BYTES + size:
                return _MORE
            self.sequence = self.sequence + 1 & 0xFF
            if self.row_at < 0 and size and packet[HEAD_BYTES] == ERROR_MARK:
                self.end_at = self.at + HEAD_BYTES + size
                return _ERROR
            if self.row_at < 0 and 0 < size < END_BYTES and packet[HEAD_BYTES] == END_MARK:
                return _END if self.data.size == self.at + HEAD_BYTES + size else _BROKEN
            if self.row_at < 0:
                self.row_at = self.at + HEAD_BYTES
            else:
                # The row goes on: without the head it is in one piece.
                memmove(packet, packet + HEAD_BYTES, self.data.size - self.at - HEAD_BYTES)
                self.data.size -= HEAD_BYTES
                self.at -= HEAD_BYTES
            self.at += HEAD_BYTES + size
            if size == CONTINUED:
                continue
            span[0], span[1] = self.row_at, self.at
            self.row_at = -1
            if put(&self.spans, <uint8_t*>span, sizeof(span)) < 0:
                return -1
        return _MORE

    def events(self, RowPlan plan not None, Py_ssize_t rows, *, int64_t scn, int64_t timestamp_ns,
               bytes metadata not None, bytes metadata_end not None):
        """Return the key and the event of each of the first rows; None when only Python can.

        `metadata` has the part's attributes, its digest and the fields before the row's index,
        which is the row's number; `metadata_end` has the fields after it.
        """
        cdef Common common
        cdef EventList written
        if plan.plan.count != self.columns or not 0 <= rows <= len(self):
            raise ValueError("not the plan of these rows")
        common.scn, common.timestamp_ns = scn, timestamp_ns
        common.metadata = <const uint8_t*>PyBytes_AS_STRING(metadata)
        common.metadata_size = PyBytes_GET_SIZE(metadata)
        common.metadata_end = <const uint8_t*>PyBytes_AS_STRING(metadata_end)
        common.metadata_end_size = PyBytes_GET_SIZE(metadata_end)
        written = EventList(plan.plan.key_count)
        cdef bint is_written = True
        cdef Py_ssize_t index
        with nogil:
            for index in range(rows):
                if put_text_row(&plan.plan, &written.row, self._begin(index), self._end(index)) < 0:
                    is_written = False
                    break
                if written.add(&plan.plan, &common, index) < 0:
                    is_written = False
                    break
        return written.take() if is_written else None


# Where an event and its key are.
cdef struct Placed:
    Py_ssize_t end
    Py_ssize_t key_end
    int64_t long_key
    int is_long


cdef class EventList:
    """Events and their keys, while they are written."""

    cdef Row row
    cdef Bytes key
    cdef Bytes keys
    cdef Bytes events
    cdef Bytes places

    def __cinit__(self, int key_count):
        self.row.keys = <Span*>calloc(key_count + 1, sizeof(Span))
        if self.row.keys == NULL:
            raise MemoryError
        self.row.into = &self.row.own

    def __dealloc__(self):
        free(self.row.keys)
        release(&self.row.own)
        release(&self.key)
        release(&self.keys)
        release(&self.events)
        release(&self.places)

    cdef int add(self, const Plan* plan, const Common* common, Py_ssize_t index) noexcept nogil:
        """Write the event of `row`; see `schemas/event/layout.py` and `metadata.py`."""
        cdef Bytes* into = &self.events
        cdef Placed placed
        cdef Py_ssize_t begin = into.size, header, body, part
        cdef uint8_t* at
        placed.long_key = 0
        placed.is_long = put_key(plan, &self.row, &self.key, &placed.long_key)
        if placed.is_long < 0:
            return -1
        header = LONG_KEY_HEADER_BYTES if placed.is_long else SMALLEST_BYTES + self.key.size
        body = begin + header
        if reserve(
            into,
            header + common.metadata_size + common.metadata_end_size + self.row.size + 128,
        ) < 0:
            return -1
        into.size = body + PART_ATTRIBUTES_AT
        put(into, common.metadata, common.metadata_size)
        put_long(into, index)
        put(into, common.metadata_end, common.metadata_end_size)
        write_big(into.data + body + PART_LENGTH_AT, into.size - body - CRC32_PART_BYTES, 4)
        part = into.size
        at = into.data + part
        write_big(at + PART_LENGTH_AT, self.row.size, 4)
        write_big(at + PART_ATTRIBUTES_AT, MD5_DIGEST, 2)
        memcpy(at + PART_MD5_AT, plan.digest, MD5_PART_BYTES - PART_MD5_AT)
        copy_bytes(at + MD5_PART_BYTES, self.row.own.data, self.row.size)
        into.size = part + MD5_PART_BYTES + self.row.size
        self._put_header(plan, common, &placed, begin, header)
        if not placed.is_long and put(&self.keys, self.key.data, self.key.size) < 0:
            return -1
        placed.end, placed.key_end = into.size, self.keys.size
        return put(&self.places, <uint8_t*>&placed, sizeof(Placed))

    cdef void _put_header(
        self, const Plan* plan, const Common* common, const Placed* placed, Py_ssize_t begin,
        Py_ssize_t header
    ) noexcept nogil:
        cdef uint8_t* at = self.events.data + begin
        cdef Py_ssize_t size = self.events.size - begin
        memset(at, 0, SMALLEST_BYTES)
        at[VERSION_AT] = VERSION
        write_big(at + MAGIC_AT, <uint32_t>MAGIC, 4)
        write_big(at + HEADER_LENGTH_AT, header, 4)
        write_big(at + BODY_CRC_AT, event_crc32(at + header, size - header), 4)
        write_big(at + LENGTH_AT, size, 4)
        write_big(
            at + ATTRIBUTES_AT,
            OPCODE_UPSERT | (LONG_KEY if placed.is_long else BYTE_KEY) | HAS_METADATA | HAS_PAYLOAD,
            2,
        )
        write_big(at + TIMESTAMP_NS_AT, <uint64_t>common.timestamp_ns, 8)
        write_big(at + SRC_ID_AT, <uint32_t>plan.src_id, 4)
        write_big(at + SCN_AT, <uint64_t>common.scn, 8)
        if placed.is_long:
            write_big(at + LONG_KEY_AT, <uint64_t>placed.long_key, 8)
        else:
            write_big(at + KEY_LENGTH_AT, self.key.size, 4)
            copy_bytes(at + SMALLEST_BYTES, self.key.data, self.key.size)
        write_big(at + HEADER_CRC_AT, event_crc32(at + COVERED_AT, header - COVERED_AT), 4)

    cdef list take(self):
        cdef Placed* placed = <Placed*>self.places.data
        cdef Py_ssize_t count = self.places.size // sizeof(Placed), place, begin = 0, key_begin = 0
        taken = []
        for place in range(count):
            event = PyBytes_FromStringAndSize(
                <const char*>self.events.data + begin, placed[place].end - begin
            )
            if placed[place].is_long:
                taken.append((placed[place].long_key, event))
            else:
                taken.append((PyBytes_FromStringAndSize(
                    <const char*>self.keys.data + key_begin, placed[place].key_end - key_begin
                ), event))
            begin, key_begin = placed[place].end, placed[place].key_end
        return taken


cdef const uint8_t* take_text(const uint8_t* at, const uint8_t* end, Py_ssize_t* size) noexcept nogil:
    """Return where a text begins; its size is -1 for NULL. NULL when the row is damaged."""
    cdef int width
    if at >= end:
        return NULL
    if at[0] < IS_NULL:
        size[0] = at[0]
        at += 1
    elif at[0] == IS_NULL:
        size[0] = -1
        return at + 1
    else:
        if at[0] == ERROR_MARK:
            return NULL
        width = 8 if at[0] == 0xFE else at[0] - 0xFA
        if end - at < 1 + width:
            return NULL
        size[0] = <Py_ssize_t>little(at + 1, width)
        at += 1 + width
        if size[0] < 0:
            return NULL
    return at if size[0] <= end - at else NULL


cdef int put_text_row(
    const Plan* plan, Row* row, const uint8_t* at, const uint8_t* end
) noexcept nogil:
    """Write a row as Avro."""
    cdef int index, place
    cdef Py_ssize_t begin, size
    row.own.size = 0
    row.raw_count = 0
    for index in range(plan.count):
        at = take_text(at, end, &size)
        if at == NULL:
            return -1
        begin = row.own.size
        if size < 0:
            if not plan.columns[index].nullable or put(&row.own, b"\x00", 1) < 0:
                return -1
        else:
            if put_text_value(plan, &row.own, index, at, size) < 0:
                return -1
            at += size
        place = plan.columns[index].key_place
        if place >= 0:
            row.keys[place].start, row.keys[place].size = begin, row.own.size - begin
    row.size = row.own.size
    return 0 if at == end else -1
