# Row events as they are stored, and the rows of a run. For the compiled modules here, which include
# this text after `_byte_buffer.pxi`.

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.string cimport memcmp

from databus.relay.serving.columns._column_writer import WRITE_ROW
from databus.schemas.event.metadata import METADATA_DIGEST

include "../../../schemas/event/big_endian.pxi"
include "../../../schemas/event/layout.pxi"
include "../../../schemas/rows/avro_numbers.pxi"

ctypedef int (*WriteRow)(
    object writer,
    Bytes* into,
    int op,
    const uint8_t* row,
    const uint8_t* row_end,
    const uint8_t* before,
    const uint8_t* before_end,
) except -2

cdef WriteRow _write_row = <WriteRow>PyCapsule_GetPointer(WRITE_ROW, NULL)
cdef bytes _DIGEST = METADATA_DIGEST
cdef const char* _digest = PyBytes_AS_STRING(_DIGEST)

cdef enum:
    ROW_DATAS_TAG = 0x62
    SCHEMA_ID_BYTES = 16

cdef struct RowEvent:
    const uint8_t* end
    const uint8_t* schema  # its id
    const uint8_t* row
    int64_t row_size
    const uint8_t* before  # NULL = there is none
    int64_t before_size
    int64_t op
    const uint8_t* gtid  # NULL = there is none
    int64_t gtid_size
    int64_t server_id
    const uint8_t* file
    int64_t file_size
    int64_t offset
    int64_t row_index


cdef Py_ssize_t put_rows(
    Bytes* into,
    Bytes* row,
    RowEvent* event,
    const uint8_t** at,
    const uint8_t* end,
    const uint8_t* full_at,
    writer,
    const uint8_t* schema,
) except -1:
    """Add the rows of a run to `into`, as fields of a RowChange; return how many they are.

    `at` moves to the end of the run. `row` and `event` are room to work in.
    """
    cdef Py_ssize_t count = 0
    cdef int64_t op = 0
    while at[0] < end and at[0] < full_at:
        if not _read_event(event, at[0], end, schema) or (count and event.op != op):
            break
        row.size = 0
        if _write_row(
            writer, row, <int>event.op, event.row, event.row + event.row_size,
            event.before, event.before + event.before_size,
        ) < 0:
            break
        if reserve(into, row.size + 11) < 0:
            raise MemoryError
        into.data[into.size] = ROW_DATAS_TAG
        into.size += 1 + write_varint(into.data + into.size + 1, row.size)
        copy_bytes(into.data + into.size, row.data, row.size)
        into.size += row.size
        op, at[0] = event.op, event.end
        count += 1
    return count


cdef bint _read_event(
    RowEvent* event, const uint8_t* at, const uint8_t* end, const uint8_t* schema
) noexcept nogil:
    """Read a row event of a schema, NULL = any, whose metadata has no notes; False for another."""
    cdef int64_t header, length, size
    cdef uint32_t attributes
    cdef const uint8_t* part
    if end - at < SMALLEST_BYTES or at[0] != VERSION or _u4(at + MAGIC_AT) != MAGIC:
        return False
    header, length = _u4(at + HEADER_LENGTH_AT), _u4(at + LENGTH_AT)
    attributes = _u2(at + ATTRIBUTES_AT)
    if not SMALLEST_BYTES <= header <= length <= end - at or at[SRC_ID_AT] & 0x80:
        return False
    if not attributes & HAS_METADATA or not attributes & HAS_PAYLOAD:
        return False
    event.end = at + length
    part = at + header
    if event.end - part < CRC32_PART_BYTES:
        return False
    size = _u4(part + PART_LENGTH_AT)
    if (
        _u2(part + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK != CRC32_DIGEST
        or memcmp(part + PART_CRC32_AT, _digest, 4) != 0
        or size > event.end - part - CRC32_PART_BYTES
    ):
        return False
    part += CRC32_PART_BYTES
    if not _read_metadata(event, part, part + size):
        return False
    part += size
    if event.end - part < MD5_PART_BYTES:
        return False
    event.schema = part + PART_MD5_AT
    event.row, event.row_size = part + MD5_PART_BYTES, _u4(part + PART_LENGTH_AT)
    return (
        _u2(part + PART_ATTRIBUTES_AT) & DIGEST_KIND_MASK == MD5_DIGEST
        and (schema == NULL or memcmp(event.schema, schema, SCHEMA_ID_BYTES) == 0)
        and event.row_size == event.end - event.row
    )


cdef bint _read_metadata(RowEvent* event, const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* text
    cdef int64_t epoch, size, branch
    if not _skip_branch(&at, end, &event.gtid, &event.gtid_size):
        return False
    if not _read_long(&at, end, &event.server_id):
        return False
    if not _read_bytes(&at, end, &event.file, &event.file_size):
        return False
    if not _read_long(&at, end, &event.offset) or not _read_long(&at, end, &epoch):
        return False
    if not _read_long(&at, end, &event.op) or not 0 <= event.op <= 3:
        return False
    if not _read_long(&at, end, &event.row_index):
        return False
    if not _skip_branch(&at, end, &event.before, &event.before_size):
        return False
    if not _skip_branch(&at, end, &text, &size):  # comment
        return False
    return _read_long(&at, end, &branch) and branch == 0 and at == end  # notes


cdef inline bint _skip_branch(
    const uint8_t** at, const uint8_t* end, const uint8_t** text, int64_t* size
) noexcept nogil:
    """Read bytes or null, which makes `text` NULL."""
    cdef int64_t branch
    text[0], size[0] = NULL, 0
    if not _read_long(at, end, &branch):
        return False
    return branch == 0 or (branch == 1 and _read_bytes(at, end, text, size))
