# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Decodes the common events of a binlog, from the socket's bytes to finished windows.

`replication/assembler.py` has the rules, and reads everything itself where this module is
not built: this module is its fast path. It splits packets and events, and handles the
types that nearly every transaction consists of (GTID, BEGIN, the statement's text,
TABLE_MAP, rows, XID or COMMIT). Rows of tables that are not watched are skipped. It stops
before any other event, and before one that is damaged: Python handles that event or
raises the error. So this module raises no errors about the log.

Events of the current window are written without the fields that are known only at the
commit (SCN, timestamp, header CRC), which are filled in then. A window larger than
PIECE_BYTES is delivered in pieces, so memory does not grow with the transaction.

It works without the GIL and creates no Python object for a row or a window: `run` is
called once for each buffer.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, memset

include "_byte_buffer.pxi"
include "../../../../schemas/event/crc32.pxi"
include "../../../../schemas/event/layout.pxi"
include "_packets.pxi"
include "_row_plan.pxi"
include "_row_image.pxi"

# Further reasons for which `run` returns, and the method to call next.
FULL = 4  # complete windows: `take_batch`
LARGE = 5  # complete windows, and a piece of the current one: `take_batch`, `take_piece`
EMPTY = 6  # a transaction without a watched row: `empty`
FINISHED = 7  # the end of a window that was delivered in pieces: `take_end`

cdef enum:
    _FULL = 4
    _LARGE, _EMPTY, _FINISHED
    _DONE  # the event is handled
    _ODD  # the event is left to Python

PIECE_BYTES = 4 << 20

cdef enum:
    _BATCH_BYTES = 1 << 20
    _PIECE_BYTES = 4 << 20
    _MOST_MOVED = 256 << 10  # of an unfinished window, to where `run_into` writes
    QUERY = 2, XID = 16, TABLE_MAP = 19, ROWS_QUERY = 29, ANNOTATE = 160
    GTID_MARIADB = 162, GTID_MYSQL = 33, GTID_ANONYMOUS = 34
    STATEMENT_END = 1
    STANDALONE = 0x01, GROUP_COMMIT = 0x02, DDL = 0x20, XA = 0x40 | 0x80
    SLOTS = 4096  # for tables; at most half of them are used
    MARK_NUMBERS = 4
    GTID_BYTES = 96
    NOT_HERE = 0, ANONYMOUS = -1
    METADATA_HEAD_BYTES = CRC32_PART_BYTES - PART_ATTRIBUTES_AT  # attributes and digest

cdef enum Operation:
    INSERT = 0, UPDATE = 1, DELETE = 2

# Kinds of tables: not announced, not watched, decoded here by a plan, decoded in Python.
cdef enum Kind:
    UNKNOWN, UNWATCHED, PLANNED, FOR_PYTHON

cdef int64_t NS = 1000000000
cdef int64_t MOST_MICROS = 9223372036854775  # nanoseconds have 63 bits
cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF

cdef struct Binding:
    uint64_t table_id
    int kind
    uint32_t transaction  # the number of the transaction with its latest TABLE_MAP
    const uint8_t* content
    Py_ssize_t content_size
    const Plan* plan
    int place  # in `kept`, which keeps the content and the plan alive

# A transaction that ended: see `replication/log_identity.py`. `scn` is -1 for none.
cdef struct Ended:
    int64_t scn
    int64_t begin
    int64_t timestamp_ns
    uint64_t digest
    int gtid_size
    uint8_t gtid[GTID_BYTES]

# An event's header and the bounds of its body.
cdef struct Said:
    const uint8_t* body
    const uint8_t* end
    int type_code
    uint32_t timestamp_s
    uint32_t server_id
    int64_t start_offset
    int64_t end_offset


# Transactions of consecutive numbers, by whom (MySQL: the UUID; MariaDB: domain and server, 4 bytes
# each) and from which number to which; `ExecutedGtids.add_runs` reads them.
ctypedef struct Run:
    uint8_t key[16]
    int64_t first
    int64_t last


cdef class BinlogDecoder(EventReader):
    """Turns the bytes of one stream into windows. Used by one thread.

    The public attributes are the state shared with the Python assembler: the position in
    the stream, and the current transaction.
    """

    cdef public int64_t epoch
    cdef public int64_t file_number
    cdef public int64_t offset
    cdef public bint has_checksum
    cdef public bint cuts_only
    cdef public bint is_open
    cdef public bint is_begun
    cdef public int64_t start_offset
    cdef public int64_t commit_ns
    cdef public int64_t newest_ns
    cdef public int64_t yielded_second
    cdef public int64_t held_scn
    cdef public int64_t held_ns
    cdef public uint32_t server_id
    cdef public int64_t trail_begin
    cdef public uint64_t trail_digest
    cdef public int64_t expected_scn
    cdef Ended last_full
    cdef Ended last_empty
    cdef Ended passed
    cdef readonly int64_t rows
    cdef readonly uint32_t transactions
    cdef bint before_images
    cdef int64_t ended_scn
    cdef int64_t ended_ns
    cdef int64_t taken
    cdef Bytes output
    cdef Bytes own_output  # what `output` is, apart from a call of `run_into`
    cdef Py_ssize_t window_at
    cdef Py_ssize_t placed  # bytes of the windows that `run_into` placed
    cdef Py_ssize_t placed_marks
    cdef Bytes marks
    cdef Bytes file_name
    cdef Bytes origin
    cdef Bytes gtid
    cdef Run named  # the current transaction; NOT_HERE if Python knows its GTID, or ANONYMOUS
    cdef Run newest_run  # the last run; its `first` is NOT_HERE without one
    cdef Bytes runs  # those before it
    cdef Bytes comment
    cdef bint has_comment
    cdef Bytes key
    cdef Bytes end_event
    cdef Bytes head  # of an event that is written at once, up to the number of its row
    cdef Bytes tail  # and from there to its row
    cdef int64_t head_bytes  # the length of metadata that `head_crc` has seen
    cdef uint32_t head_crc
    cdef uint8_t metadata_head[METADATA_HEAD_BYTES]
    cdef Binding* bindings
    cdef int bound
    cdef int64_t announced  # the last transaction that announced a table
    cdef list kept
    cdef Span* spans
    cdef Row row
    cdef Row before
    cdef object comment_of

    def __cinit__(self, *, bytes end_event not None, bytes metadata_head not None,
                  bint before_images, int64_t epoch, comment_of):
        self.bindings = <Binding*>calloc(SLOTS, sizeof(Binding))
        self.spans = <Span*>calloc(2 * MOST_COLUMNS, sizeof(Span))
        self.row.keys = <Span*>calloc(MOST_COLUMNS, sizeof(Span))
        self.before.keys = <Span*>calloc(MOST_COLUMNS, sizeof(Span))
        if self.bindings == NULL or self.spans == NULL or self.row.keys == NULL:
            raise MemoryError
        if self.before.keys == NULL or _put_bytes(&self.end_event, end_event) < 0:
            raise MemoryError
        if len(metadata_head) != METADATA_HEAD_BYTES:
            raise ValueError("a part's attributes and digest are 6 bytes")
        memcpy(self.metadata_head, <const uint8_t*>metadata_head, METADATA_HEAD_BYTES)
        self.before_images = before_images
        self.epoch = epoch
        self.file_number = self.offset = 0
        self.yielded_second = self.held_scn = -1
        self.last_full.scn = self.last_empty.scn = self.passed.scn = -1
        self.expected_scn = NEVER
        self.transactions = 1
        self.kept = []
        self.comment_of = comment_of

    def __dealloc__(self):
        release(&self.output)
        release(&self.marks)
        release(&self.file_name)
        release(&self.origin)
        release(&self.gtid)
        release(&self.runs)
        release(&self.comment)
        release(&self.key)
        release(&self.end_event)
        release(&self.head)
        release(&self.tail)
        release(&self.row.own)
        release(&self.before.own)
        free(self.row.keys)
        free(self.before.keys)
        free(self.bindings)
        free(self.spans)

    # Input, and the output that Python takes.

    def run(self):
        """Decode until Python has to act; return the reason, MORE to FINISHED."""
        cdef int status
        with nogil:
            status = self._run()
        return status

    def run_into(self, uint8_t[::1] room not None):
        """As `run`; also return the size of the windows that were written into `room`, and marks.

        The marks are None without any. These windows are before those of `take_batch`. What is
        written there of a later window does not count.
        """
        cdef Py_ssize_t unfinished = self.output.size
        cdef int status
        if self.taken or self.window_at or unfinished > _MOST_MOVED or room.shape[0] < unfinished:
            return self.run(), 0, None
        self.own_output = self.output
        self.output.data, self.output.room = &room[0], room.shape[0]
        self.output.is_lent, self.output.is_short = True, False
        if unfinished:
            memcpy(self.output.data, self.own_output.data, unfinished)
        self.placed = self.placed_marks = 0
        with nogil:
            status = self._run()
            if self.output.is_lent and self._take_home() < 0:
                status = -1
        if status < 0:
            raise MemoryError
        if self.placed_marks == 0:
            return status, 0, None
        cdef bytes marks = PyBytes_FromStringAndSize(<const char*>self.marks.data, self.placed_marks)
        self.marks.size -= self.placed_marks
        memmove(self.marks.data, self.marks.data + self.placed_marks, self.marks.size)
        return status, self.placed, marks

    def take_ended(self):
        """Return the identities of transactions that `run` has ended, in their order.

        Each is (SCN, first SCN, digest, GTID, timestamp): of the last one with rows, of the
        last one without rows for which `run` stopped, and of the first one at or after
        `expected_scn`.
        """
        if self.last_full.scn < 0 and self.last_empty.scn < 0 and self.passed.scn < 0:
            return ()
        found = {
            *_ended(&self.last_full), *_ended(&self.last_empty), *_ended(&self.passed)
        }
        self.last_full.scn = self.last_empty.scn = self.passed.scn = -1
        return sorted(found)

    def take_runs(self):
        """Return the GTIDs of the transactions that `run` has ended, as an array of `Run`."""
        if self.newest_run.first == NOT_HERE:
            return b""
        if put(&self.runs, <uint8_t*>&self.newest_run, sizeof(Run)) < 0:
            raise MemoryError
        found = PyBytes_FromStringAndSize(<const char*>self.runs.data, self.runs.size)
        self.runs.size = 0
        self.newest_run.first = NOT_HERE
        return found

    def take_batch(self):
        """Return the windows that are complete, (data, marks), as in `WindowBatch`; None if none."""
        if self.window_at == 0:
            return None
        cdef bytes data = PyBytes_FromStringAndSize(<const char*>self.output.data, self.window_at)
        cdef bytes marks = PyBytes_FromStringAndSize(<const char*>self.marks.data, self.marks.size)
        self._forget_output(self.window_at)
        self.window_at = self.marks.size = 0
        return data, marks

    def take_piece(self):
        """Return the next piece of the current window: (offset in the window, bytes).

        Call `take_batch` first. None when there are no new bytes.
        """
        cdef Py_ssize_t size = self.output.size
        cdef int64_t at = self.taken
        if self.window_at or not size:
            return None
        cdef bytes data = PyBytes_FromStringAndSize(<const char*>self.output.data, size)
        self.taken += size
        self._forget_output(size)
        return at, data

    def take_end(self):
        """Return the length, SCN, timestamp and row count of the window just finished."""
        found = (self.taken, self.ended_scn, self.ended_ns, self.rows)
        self.taken = self.rows = 0
        return found

    @property
    def empty(self):
        """SCN and timestamp of the transaction without a watched row for which `run` stopped."""
        return self.ended_scn, self.ended_ns

    # The current window, for the assembler.

    @property
    def begin_scn(self):
        """The SCN at which the current transaction begins in the log."""
        return self.epoch << 55 | self.file_number << 32 | min(self.start_offset, MAX_OFFSET)

    @property
    def window_bytes(self):
        """The size of the current window, with the pieces already delivered."""
        return self.taken + self.output.size - self.window_at

    @property
    def held_bytes(self):
        """The bytes of the current window that are not delivered yet."""
        return self.output.size - self.window_at

    def append_events(self, bytes events not None, int rows):
        """Append events without SCN, timestamp and CRC; `rows` of them are row events."""
        if _put_bytes(&self.output, events) < 0:
            raise MemoryError
        self.rows += rows

    def cut(self, int64_t size, int64_t rows):
        """Truncate the current window to `size` bytes and `rows` rows."""
        if size < self.taken:
            self.taken = size
        self.output.size = self.window_at + (size - self.taken)
        self.rows = rows

    def put_rows(self, RowPlan plan not None, int type_code, bytes body not None):
        """Append the events of a rows event; False, with nothing appended, if Python has to."""
        cdef Said said
        cdef Py_ssize_t written = self.output.size
        cdef int64_t rows = self.rows
        cdef int status
        said.body = <const uint8_t*>PyBytes_AS_STRING(body)
        said.end = said.body + PyBytes_GET_SIZE(body)
        said.type_code = type_code
        if not (23 <= type_code <= 25 or 30 <= type_code <= 32) or said.end - said.body < 8:
            return False
        with nogil:
            status = self._put_rows(&plan.plan, &said)
        if status < 0:
            self.output.size, self.rows = written, rows
        return status == 0

    def commit(self, int64_t scn, int64_t timestamp_ns):
        """End the current window; return a status as `run` does (MORE: nothing to take)."""
        cdef int status = self._commit(scn, timestamp_ns)
        return MORE if status == _DONE else status

    def begin(self, bytes gtid, uint32_t server_id, int64_t start_offset):
        """Begin a transaction; `gtid` is its text, or None."""
        self.gtid.size = 0
        self.named.first = NOT_HERE
        if gtid is not None and _put_bytes(&self.gtid, gtid) < 0:
            raise MemoryError
        self.start_offset, self.server_id = start_offset, server_id
        if self.taken == 0 and self.output.size == self.window_at:
            self.rows = 0
        if self._write_origin() < 0:
            raise MemoryError

    @property
    def gtid_text(self):
        """The GTID of the current transaction; None when it has none."""
        if self.gtid.size == 0:
            return None
        return PyBytes_FromStringAndSize(<const char*>self.gtid.data, self.gtid.size).decode()

    @property
    def file(self):
        """Name of the binlog file."""
        return PyBytes_FromStringAndSize(<const char*>self.file_name.data, self.file_name.size).decode()

    @file.setter
    def file(self, str name):
        self.file_name.size = 0
        if _put_bytes(&self.file_name, name.encode()) < 0:
            raise MemoryError

    @property
    def statement_comment(self):
        """The comment of the current statement; None when it has none."""
        if not self.has_comment:
            return None
        return PyBytes_FromStringAndSize(<const char*>self.comment.data, self.comment.size).decode()

    @statement_comment.setter
    def statement_comment(self, str text):
        self.comment.size = 0
        if text is not None and _put_bytes(&self.comment, text.encode()) < 0:
            raise MemoryError
        self.has_comment = text is not None

    # Tables.

    def bind(self, uint64_t table_id, bytes content not None, layout, RowPlan plan):
        """Set how to read the rows that follow a TABLE_MAP of this content.

        `layout` None: the table is not watched. `plan` None: Python reads the rows.
        """
        if self.bound >= SLOTS // 2:
            self._rebuild()
        cdef Binding* binding = self._slot(table_id)
        if binding.kind == UNKNOWN:
            self.bound += 1
        binding.table_id = table_id
        binding.transaction = self.announced = self.transactions
        binding.content = <const uint8_t*>PyBytes_AS_STRING(content)
        binding.content_size = PyBytes_GET_SIZE(content)
        binding.plan = NULL if plan is None else &plan.plan
        if layout is None:
            binding.kind = UNWATCHED
        else:
            binding.kind = FOR_PYTHON if plan is None else PLANNED
        binding.place = len(self.kept)
        self.kept.append((content, layout, plan))
        if len(self.kept) > 2 * SLOTS:
            self._rebuild()

    def unbind(self):
        """Forget all tables."""
        memset(self.bindings, 0, SLOTS * sizeof(Binding))
        self.bound = 0
        self.kept = []

    def layouts(self):
        """Return the layouts that the current transaction's TABLE_MAPs announced, by table id."""
        cdef int place
        found = {}
        if self.announced != self.transactions:
            return found
        for place in range(SLOTS):
            if self.bindings[place].kind != UNKNOWN and (
                self.bindings[place].transaction == self.transactions
            ):
                found[self.bindings[place].table_id] = self.kept[self.bindings[place].place][1]
        return found

    def end_statements(self):
        """Require new TABLE_MAPs for all tables, as at the end of each transaction."""
        self.transactions += 1
        self.has_comment = False

    cdef int _rebuild(self) except -1:
        """Drop all tables that the current transaction has not announced."""
        cdef int place
        old = [
            (self.bindings[place].table_id, *self.kept[self.bindings[place].place])
            for place in range(SLOTS)
            if self.bindings[place].kind != UNKNOWN
            and self.bindings[place].transaction == self.transactions
        ]
        self.unbind()
        for table_id, content, layout, plan in old[: SLOTS // 4]:
            self.bind(table_id, content, layout, plan)
        return 0

    cdef Binding* _slot(self, uint64_t table_id) noexcept nogil:
        """Return a table's slot, or the free slot where it belongs."""
        cdef Py_ssize_t place = <Py_ssize_t>(table_id & (SLOTS - 1))
        while self.bindings[place].kind != UNKNOWN and self.bindings[place].table_id != table_id:
            place = (place + 1) & (SLOTS - 1)
        return &self.bindings[place]

    # Packets and events.

    cdef void _forget_output(self, Py_ssize_t size) noexcept:
        self.output.size -= size
        memmove(self.output.data, self.output.data + size, self.output.size)
        if self.output.size == 0 and self.output.room > _KEPT_BYTES:
            release(&self.output)

    cdef int _run(self) noexcept nogil:
        cdef int status
        while True:
            status = self._find_packet()
            if status != _EVENT:
                return status
            if self.cuts_only:
                return _EVENT
            status = self._take(self.event, self.event_size)
            if status == _ODD and self.output.is_short and self.output.is_lent:
                # Nothing is left of the event: it is written again where there is more room.
                status = self._take(self.event, self.event_size) if self._take_home() == 0 else -1
            if status < 0:
                return status
            if status == _ODD:
                return _EVENT
            self._consume()
            if status != _DONE:
                return status
            if self.window_at >= _BATCH_BYTES or self.passed.scn >= 0:
                return _FULL
            if self.output.size - self.window_at >= _PIECE_BYTES:
                return _LARGE

    cdef int _take_home(self) noexcept nogil:
        """End writing into lent memory: complete windows stay there, the current one does not."""
        cdef const uint8_t* begin = self.output.data + self.window_at
        cdef Py_ssize_t size = self.output.size - self.window_at
        self.output = self.own_output
        self.output.size = 0
        self.placed, self.placed_marks = self.window_at, self.marks.size
        self.window_at = 0
        return put(&self.output, begin, size)

    cdef int _take(self, const uint8_t* event, Py_ssize_t size) noexcept nogil:
        """Handle an event; _ODD, with nothing changed, when it is left to Python."""
        cdef Said said
        cdef int64_t expected, trail_begin = self.trail_begin
        cdef uint64_t trail_digest = self.trail_digest
        cdef uint32_t crc
        cdef int status
        if size < HEADER_BYTES or <Py_ssize_t>little(event + 9, 4) != size or self.offset <= 0:
            return _ODD
        if event[17] & ARTIFICIAL:
            return _ODD
        said.type_code = event[4]
        if not _is_common(said.type_code):
            return _ODD
        said.end = event + size
        if self.has_checksum:
            if size < HEADER_BYTES + CHECKSUM_BYTES:
                return _ODD
            said.end -= CHECKSUM_BYTES
            crc = zlib_crc32(event, size - CHECKSUM_BYTES)
            if crc != <uint32_t>little(said.end, 4):
                return _ODD
        else:
            crc = zlib_crc32(event, size)
        said.body = event + HEADER_BYTES
        said.timestamp_s = <uint32_t>little(event, 4)
        said.server_id = <uint32_t>little(event + 5, 4)
        expected = self.offset + size
        said.end_offset = <int64_t>little(event + 13, 4)
        # The header has only its low 32 bits, or 0. Outside a transaction Python decides
        # whether 0 is allowed.
        if said.end_offset != 0 and said.end_offset != (expected & MAX_OFFSET):
            return _ODD
        if said.end_offset == 0 and not self.is_open:
            return _ODD
        said.end_offset, said.start_offset = expected, expected - size
        if not self.is_open:
            self.trail_begin, self.trail_digest = said.start_offset, 0
        self.trail_digest = _digest(self.trail_digest, crc, size)
        status = self._act(&said)
        if status != _ODD:
            self.offset = said.end_offset
        else:
            self.trail_begin, self.trail_digest = trail_begin, trail_digest
        return status

    cdef int _act(self, Said* said) noexcept nogil:
        cdef int code = said.type_code
        if code == TABLE_MAP:
            return self._on_table_map(said)
        if 23 <= code <= 25 or 30 <= code <= 32:
            return self._on_rows(said)
        if code == XID:
            return self._on_commit(said)
        if code == GTID_MARIADB:
            return self._on_mariadb_gtid(said)
        if code == GTID_MYSQL or code == GTID_ANONYMOUS:
            return self._on_mysql_gtid(said)
        if code == QUERY:
            return self._on_query(said)
        return self._on_statement(said, 1 if code == ROWS_QUERY else 0)

    cdef int _on_mariadb_gtid(self, Said* said) noexcept nogil:
        cdef Py_ssize_t size = said.end - said.body, at
        cdef int flags
        if self.is_open or size < 13:
            return _ODD
        flags = said.body[12]
        if flags & (STANDALONE | DDL | XA):
            return _ODD
        at = 13 + (8 if flags & GROUP_COMMIT else 0)
        if size < at or (at < size and said.body[at] != 0):
            return _ODD
        self.gtid.size = 0
        if put_digits(&self.gtid, little(said.body + 8, 4), 1) < 0 or put(&self.gtid, b"-", 1) < 0:
            return _ODD
        if put_digits(&self.gtid, said.server_id, 1) < 0 or put(&self.gtid, b"-", 1) < 0:
            return _ODD
        if put_digits(&self.gtid, little(said.body, 8), 1) < 0:
            return _ODD
        memset(self.named.key, 0, sizeof(self.named.key))
        memcpy(self.named.key, said.body + 8, 4)
        memcpy(self.named.key + 4, &said.server_id, 4)
        self.named.first = <int64_t>little(said.body, 8)
        return self._begin(said, 0, True)

    cdef int _on_mysql_gtid(self, Said* said) noexcept nogil:
        cdef Py_ssize_t size = said.end - said.body
        cdef int64_t micros = 0
        cdef int place
        if self.is_open or size < 25:
            return _ODD
        if size >= 49 and said.body[25] == 2:
            micros = <int64_t>(little(said.body + 42, 7) & ((<uint64_t>1 << 55) - 1))
            if micros >= MOST_MICROS:
                return _ODD
        self.gtid.size = 0
        self.named.first = ANONYMOUS
        if said.type_code == GTID_MYSQL:
            memcpy(self.named.key, said.body + 1, 16)
            self.named.first = <int64_t>little(said.body + 17, 8)
            for place in range(16):
                if place in (4, 6, 8, 10) and put(&self.gtid, b"-", 1) < 0:
                    return _ODD
                if put_hex(&self.gtid, said.body + 1 + place, 1) < 0:
                    return _ODD
            if put(&self.gtid, b":", 1) < 0:
                return _ODD
            if put_digits(&self.gtid, little(said.body + 17, 8), 1) < 0:
                return _ODD
        return self._begin(said, micros * 1000, False)

    cdef int _begin(self, Said* said, int64_t commit_ns, bint is_begun) noexcept nogil:
        self.start_offset = said.start_offset
        if self.taken == 0 and self.output.size == self.window_at:
            self.rows = 0
        self.server_id = said.server_id
        if self._write_origin() < 0:
            return _ODD
        self.commit_ns = commit_ns
        self.is_open, self.is_begun = True, is_begun
        self.has_comment = False
        return _DONE

    cdef int _write_origin(self) noexcept nogil:
        """Write the fields with which the metadata of each of its events begins: GTID … epoch."""
        cdef Bytes* into = &self.origin
        into.size = 0
        if self.gtid.size == 0:
            if put(into, b"\x00", 1) < 0:
                return -1
        elif put(into, b"\x02", 1) < 0 or put_sized(into, self.gtid.data, self.gtid.size) < 0:
            return -1
        if put_long(into, self.server_id) < 0:
            return -1
        if put_sized(into, self.file_name.data, self.file_name.size) < 0:
            return -1
        if put_long(into, self.start_offset) < 0:
            return -1
        return put_long(into, self.epoch)

    cdef int _on_query(self, Said* said) noexcept nogil:
        """Handle BEGIN and COMMIT; leave every other statement to Python."""
        cdef Py_ssize_t size = said.end - said.body, text_at
        if size < 13 or not self.is_open:
            return _ODD
        text_at = 13 + <Py_ssize_t>little(said.body + 11, 2) + said.body[8] + 1
        if size - text_at == 5 and memcmp(said.body + text_at, b"BEGIN", 5) == 0:
            self.is_begun = True
            return _DONE
        if size - text_at == 6 and memcmp(said.body + text_at, b"COMMIT", 6) == 0:
            return self._on_commit(said)
        return _ODD

    cdef int _on_statement(self, Said* said, int skipped) noexcept nogil:
        """Store the comment of the statement whose rows follow."""
        cdef const uint8_t* text = said.body + skipped
        cdef const uint8_t* at
        if text > said.end:
            return _ODD
        self.has_comment = False
        at = text
        while at < said.end:
            at = <const uint8_t*>memchr(at, 47, said.end - at)
            if at == NULL or at + 1 >= said.end:
                return _DONE
            if at[1] == 42:
                return _DONE if self._read_comment(text, said.end - text) == 0 else _ODD
            at += 1
        return _DONE

    cdef int _read_comment(self, const uint8_t* text, Py_ssize_t size) noexcept with gil:
        try:
            found = self.comment_of(PyBytes_FromStringAndSize(<const char*>text, size))
            self.statement_comment = found
        except:  # any error: the event is left to Python, which raises it again
            return -1
        return 0

    cdef int _on_table_map(self, Said* said) noexcept nogil:
        cdef Py_ssize_t size = said.end - said.body - 8
        cdef Binding* binding
        if size < 0:
            return _ODD
        binding = self._slot(little(said.body, 6))
        if binding.kind == UNKNOWN or binding.content_size != size:
            return _ODD
        if memcmp(binding.content, said.body + 8, size) != 0:
            return _ODD
        binding.transaction = self.announced = self.transactions
        return _DONE

    cdef int _on_commit(self, Said* said) noexcept nogil:
        cdef int64_t timestamp_ns, scn
        cdef bint is_empty
        cdef int status
        if not self.is_open or said.end_offset > MAX_OFFSET:
            return _ODD
        if reserve(&self.runs, sizeof(Run)) < 0:
            return _ODD
        timestamp_ns = self.commit_ns if self.commit_ns else <int64_t>said.timestamp_s * NS
        scn = self.epoch << 55 | self.file_number << 32 | said.end_offset
        is_empty = self.taken == 0 and self.output.size == self.window_at
        status = self._commit(scn, timestamp_ns)
        if status == _ODD:
            return _ODD
        self._count()
        if scn >= self.expected_scn:
            self._remember(&self.passed, scn, timestamp_ns)
            self.expected_scn = NEVER
        if not is_empty:
            self._remember(&self.last_full, scn, timestamp_ns)
        elif status == _EMPTY:
            self._remember(&self.last_empty, scn, timestamp_ns)
        return status

    cdef void _count(self) noexcept nogil:
        """Add the current transaction to the runs, for which `_on_commit` has made room."""
        cdef int64_t number = self.named.first
        if number == NOT_HERE:
            return
        if number == self.newest_run.last + 1 and self.newest_run.first > 0:
            if memcmp(self.newest_run.key, self.named.key, sizeof(self.newest_run.key)) == 0:
                self.newest_run.last = number
                return
        if self.newest_run.first != NOT_HERE:
            put(&self.runs, <uint8_t*>&self.newest_run, sizeof(Run))
        self.newest_run = self.named
        self.newest_run.last = number

    cdef void _remember(self, Ended* ended, int64_t scn, int64_t timestamp_ns) noexcept nogil:
        ended.scn, ended.timestamp_ns = scn, timestamp_ns
        ended.begin, ended.digest = self.trail_begin, self.trail_digest
        ended.gtid_size = <int>self.gtid.size if self.gtid.size <= GTID_BYTES else 0
        if ended.gtid_size:
            memcpy(ended.gtid, self.gtid.data, ended.gtid_size)

    cdef int _commit(self, int64_t scn, int64_t timestamp_ns) noexcept nogil:
        """End the current window: stamp and mark it; an empty one may be held back."""
        cdef int64_t mark[MARK_NUMBERS]
        cdef int64_t second = timestamp_ns // NS
        if self.taken == 0 and self.output.size == self.window_at:
            self._end(timestamp_ns)
            self.rows = 0
            if second <= self.yielded_second:
                self.held_scn, self.held_ns = scn, timestamp_ns
                return _DONE
            self.held_scn, self.yielded_second = -1, second
            self.ended_scn, self.ended_ns = scn, timestamp_ns
            return _EMPTY
        if put(&self.output, self.end_event.data, self.end_event.size) < 0:
            return _ODD
        if reserve(&self.marks, sizeof(mark)) < 0:
            self.output.size -= self.end_event.size
            return _ODD
        self._end(timestamp_ns)
        self.held_scn, self.yielded_second = -1, second
        if self.taken:
            self.ended_scn, self.ended_ns = scn, timestamp_ns
            return _FINISHED
        _stamp(self.output.data + self.window_at, self.output.data + self.output.size, scn, timestamp_ns)
        mark[0], mark[1], mark[2], mark[3] = scn, self.output.size, timestamp_ns, self.rows
        put(&self.marks, <uint8_t*>mark, sizeof(mark))
        self.window_at = self.output.size
        self.rows = 0
        return _DONE

    cdef void _end(self, int64_t timestamp_ns) noexcept nogil:
        self.is_open = self.is_begun = False
        self.newest_ns = timestamp_ns
        self.transactions += 1  # each transaction announces its tables anew
        self.has_comment = False

    # Rows.

    cdef int _on_rows(self, Said* said) noexcept nogil:
        cdef Binding* binding
        cdef Py_ssize_t size = said.end - said.body
        cdef Py_ssize_t written = self.output.size
        cdef int64_t rows = self.rows
        if size < 8:
            return _ODD
        binding = self._slot(little(said.body, 6))
        if binding.kind == UNKNOWN or binding.transaction != self.transactions:
            return _ODD
        if binding.kind == FOR_PYTHON:
            return _ODD
        if binding.kind == PLANNED:
            if not self.is_open:
                return _ODD
            if self._put_rows(binding.plan, said) < 0:
                self.output.size, self.rows = written, rows
                return _ODD
        if said.body[6] & STATEMENT_END:
            self.has_comment = False
        return _DONE

    cdef int _put_rows(self, const Plan* plan, Said* said) noexcept nogil:
        """Write the row events of a rows event; -1 when it is damaged or not supported here."""
        cdef const uint8_t* at = said.body + 8
        cdef const uint8_t* end = said.end
        cdef const uint8_t* present
        cdef const uint8_t* present_after
        cdef int code = said.type_code, is_full, is_full_after, count
        cdef int operation = (code - 23) if code <= 25 else (code - 30)
        cdef Py_ssize_t bitmap = (plan.count + 7) // 8
        if code >= 30:
            if end - at < 2:
                return -1
            at += <Py_ssize_t>little(at, 2)
            if at > end or at < said.body + 10:
                return -1
        if end - at < 3:
            return -1
        count = at[0]
        at += 1
        if count == 252:
            count = <int>little(at, 2)
            at += 2
        elif count > 250:
            return -1
        if count != plan.count or end - at < 2 * bitmap:
            # Only an update has two bitmaps; another event without a row may be shorter.
            if count != plan.count or end - at < bitmap or operation == UPDATE:
                return -1
        present = present_after = at
        at += bitmap
        if operation == UPDATE:
            present_after = at
            at += bitmap
        is_full = _is_full(present, plan.count)
        is_full_after = _is_full(present_after, plan.count)
        if not (is_full and is_full_after) and not plan.delivers_partial:
            return -1
        if not is_full and not has_any(present, plan.count):
            return -1
        if is_full and is_full_after:
            return self._put_full_rows(plan, operation, at, end)
        while at < end:
            at = take_image(plan, at, end, present, is_full, self.spans, said.body)
            if at == NULL:
                return -1
            if operation == UPDATE:
                if at == end:
                    return -1
                at = take_image(
                    plan, at, end, present_after, is_full_after, self.spans + plan.count, said.body
                )
                if at == NULL or self._put_update(plan, said.body) < 0:
                    return -1
            else:
                if put_row(plan, _emptied(&self.row), self.spans, NULL, said.body) < 0:
                    return -1
                if self._put_event(plan, &self.row, NULL, operation, self.spans, NULL) < 0:
                    return -1
        return 0

    cdef int _put_full_rows(
        self, const Plan* plan, int operation, const uint8_t* at, const uint8_t* end
    ) noexcept nogil:
        """Write the row events of images that have all columns."""
        cdef int is_written_at_once = operation != UPDATE and plan.key_kind == KEY_LONG
        cdef const uint8_t* behind
        if is_written_at_once and self._write_head(plan, operation) < 0:
            return -1
        while at < end:
            if is_written_at_once:
                behind = self._put_at_once(plan, at, end)
                if behind != NULL:
                    at = behind
                    continue
                is_written_at_once = False
            if operation == UPDATE:
                at = put_image(plan, _emptied(&self.before), at, end)
                if at == NULL or at == end:
                    return -1
            at = put_image(plan, _emptied(&self.row), at, end)
            if at == NULL:
                return -1
            if operation == UPDATE:
                if self._put_changed(plan, NULL, NULL) < 0:
                    return -1
            elif self._put_event(plan, &self.row, NULL, operation, NULL, NULL) < 0:
                return -1
        return 0

    cdef int _put_update(self, const Plan* plan, const uint8_t* base) noexcept nogil:
        """Write an update of which not all columns are there."""
        cdef Span* old = self.spans
        cdef Span* new = self.spans + plan.count
        cdef int index
        if put_row(plan, _emptied(&self.before), old, NULL, base) < 0:
            return -1
        if put_row(plan, _emptied(&self.row), new, old, base) < 0:
            return -1
        for index in range(plan.count):
            # Columns absent from the row after are unchanged.
            if new[index].start == ABSENT:
                new[index] = old[index]
        return self._put_changed(plan, new, old)

    cdef int _put_changed(self, const Plan* plan, const Span* new, const Span* old) noexcept nogil:
        """Write an update, or a delete and an insert where the key changed."""
        cdef int is_other = has_other_key(plan, &self.before, &self.row)
        if is_other < 0:
            return -1
        if not is_other and self.before_images:
            return self._put_event(plan, &self.row, &self.before, UPDATE, new, old)
        if not is_other:
            return self._put_event(plan, &self.row, NULL, UPDATE, new, NULL)
        if self._put_event(plan, &self.before, NULL, DELETE, old, NULL) < 0:
            return -1
        return self._put_event(plan, &self.row, NULL, INSERT, new, NULL)

    cdef int _write_head(self, const Plan* plan, int operation) noexcept nogil:
        """Write what the events of a rows event have in common, for `_put_at_once`."""
        cdef Bytes* into = &self.head
        cdef uint8_t code = <uint8_t>(2 * operation)
        cdef uint8_t* at
        into.size = self.tail.size = 0
        self.head_bytes = -1
        if reserve(into, LONG_KEY_HEADER_BYTES + CRC32_PART_BYTES) < 0:
            return -1
        at = into.data
        memset(at, 0, LONG_KEY_HEADER_BYTES)
        at[VERSION_AT] = VERSION
        write_big(at + MAGIC_AT, <uint32_t>MAGIC, 4)
        write_big(at + HEADER_LENGTH_AT, LONG_KEY_HEADER_BYTES, 4)
        write_big(at + ATTRIBUTES_AT, PLAIN_DELETE if operation == DELETE else PLAIN_UPSERT, 2)
        write_big(at + SRC_ID_AT, <uint32_t>plan.src_id, 4)
        at += LONG_KEY_HEADER_BYTES + PART_ATTRIBUTES_AT
        memcpy(at, self.metadata_head, METADATA_HEAD_BYTES)
        into.size = LONG_KEY_HEADER_BYTES + CRC32_PART_BYTES
        if put(into, self.origin.data, self.origin.size) < 0 or put(into, &code, 1) < 0:
            return -1
        into = &self.tail
        # No row before the change, perhaps a comment, nothing to note.
        if put(into, b"\x00", 1) < 0 or self._put_comment(into) < 0 or put(into, b"\x00", 1) < 0:
            return -1
        if reserve(into, MD5_PART_BYTES) < 0:
            return -1
        at = into.data + into.size
        write_big(at + PART_ATTRIBUTES_AT, MD5_DIGEST, 2)
        memcpy(at + PART_MD5_AT, plan.digest, MD5_PART_BYTES - PART_MD5_AT)
        into.size += MD5_PART_BYTES
        return 0

    cdef const uint8_t* _put_at_once(
        self, const Plan* plan, const uint8_t* at, const uint8_t* end
    ) noexcept nogil:
        """Write a row image's event in one pass; return the image's end.

        NULL, with nothing written, for a row that takes more: then `_put_event` writes it.
        """
        cdef Bytes* into = &self.output
        cdef Py_ssize_t begin = into.size, row_at, metadata_bytes
        cdef int64_t key = 0
        cdef uint8_t* event
        if reserve(into, self.head.size + self.tail.size + 16) < 0:
            return NULL
        event = into.data + begin
        copy_bytes(event, self.head.data, self.head.size)
        row_at = long_at(event + self.head.size, self.rows) - event
        copy_bytes(event + row_at, self.tail.data, self.tail.size)
        row_at += self.tail.size
        into.size = begin + row_at
        self.row.into = into
        at = put_image(plan, &self.row, at, end)
        if at == NULL or self.row.raw_count or put_key(plan, &self.row, &self.key, &key) != 1:
            into.size = begin
            return NULL
        event = into.data + begin
        metadata_bytes = row_at - LONG_KEY_HEADER_BYTES - CRC32_PART_BYTES - MD5_PART_BYTES
        write_big(event + LONG_KEY_HEADER_BYTES + PART_LENGTH_AT, metadata_bytes, 4)
        write_big(event + row_at - MD5_PART_BYTES + PART_LENGTH_AT, self.row.size, 4)
        write_big(event + LONG_KEY_AT, <uint64_t>key, 8)
        if metadata_bytes != self.head_bytes:
            self.head_bytes = metadata_bytes
            self.head_crc = event_crc32(
                event + LONG_KEY_HEADER_BYTES, self.head.size - LONG_KEY_HEADER_BYTES
            )
        write_big(event + LENGTH_AT, into.size - begin, 4)
        write_big(event + BODY_CRC_AT, event_crc32(
            event + self.head.size, into.size - begin - self.head.size, self.head_crc
        ), 4)
        self.rows += 1
        return at

    cdef int _put_event(
        self, const Plan* plan, const Row* row, const Row* before, int operation,
        const Span* spans, const Span* before_spans
    ) noexcept nogil:
        """Write an unstamped version 2 event; see `schemas/event/layout.py` and `metadata.py`."""
        cdef Bytes* into = &self.output
        cdef int64_t long_key = 0
        cdef int is_long = put_key(plan, row, &self.key, &long_key)
        cdef Py_ssize_t begin = into.size, header, body, part
        cdef uint32_t bits
        cdef uint8_t* at
        if is_long < 0:
            return -1
        header = LONG_KEY_HEADER_BYTES if is_long else SMALLEST_BYTES + self.key.size
        if reserve(into, header + self.origin.size + row.size + 128) < 0:
            return -1
        at = into.data + begin
        memset(at, 0, header)
        at[VERSION_AT] = VERSION
        write_big(at + MAGIC_AT, <uint32_t>MAGIC, 4)
        write_big(at + HEADER_LENGTH_AT, header, 4)
        bits = (
            (OPCODE_DELETE if operation == DELETE else OPCODE_UPSERT)
            | (LONG_KEY if is_long else BYTE_KEY)
            | HAS_METADATA
            | HAS_PAYLOAD
        )
        write_big(at + ATTRIBUTES_AT, bits, 2)
        write_big(at + SRC_ID_AT, <uint32_t>plan.src_id, 4)
        if is_long:
            write_big(at + LONG_KEY_AT, <uint64_t>long_key, 8)
        else:
            write_big(at + KEY_LENGTH_AT, self.key.size, 4)
            copy_bytes(at + SMALLEST_BYTES, self.key.data, self.key.size)
        body = begin + header
        # The metadata's attributes and digest; its length is filled in once it is known.
        memcpy(into.data + body + PART_ATTRIBUTES_AT, self.metadata_head, METADATA_HEAD_BYTES)
        into.size = body + CRC32_PART_BYTES
        if self._put_metadata(plan, row, before, operation, spans, before_spans) < 0:
            return -1
        write_big(into.data + body + PART_LENGTH_AT, into.size - body - CRC32_PART_BYTES, 4)
        part = into.size
        if reserve(into, MD5_PART_BYTES + row.size) < 0:
            return -1
        at = into.data + part
        write_big(at + PART_LENGTH_AT, row.size, 4)
        write_big(at + PART_ATTRIBUTES_AT, MD5_DIGEST, 2)
        memcpy(at + PART_MD5_AT, plan.digest, MD5_PART_BYTES - PART_MD5_AT)
        copy_bytes(at + MD5_PART_BYTES, avro_of(row), row.size)
        into.size = part + MD5_PART_BYTES + row.size
        at = into.data + begin
        write_big(at + BODY_CRC_AT, event_crc32(into.data + body, into.size - body), 4)
        write_big(at + LENGTH_AT, into.size - begin, 4)
        self.rows += 1
        return 0

    cdef int _put_metadata(
        self, const Plan* plan, const Row* row, const Row* before, int operation,
        const Span* spans, const Span* before_spans
    ) noexcept nogil:
        cdef Bytes* into = &self.output
        cdef uint8_t code = <uint8_t>(2 * operation)
        if put(into, self.origin.data, self.origin.size) < 0 or put(into, &code, 1) < 0:
            return -1
        if put_long(into, self.rows) < 0:
            return -1
        if before == NULL:
            if put(into, b"\x00", 1) < 0:
                return -1
        elif put(into, b"\x02", 1) < 0 or put_sized(into, avro_of(before), before.size) < 0:
            return -1
        if self._put_comment(into) < 0:
            return -1
        return _put_notes(into, plan, row, before, spans, before_spans)

    cdef inline int _put_comment(self, Bytes* into) noexcept nogil:
        if not self.has_comment:
            return put(into, b"\x00", 1)
        if put(into, b"\x02", 1) < 0:
            return -1
        return put_sized(into, self.comment.data, self.comment.size)


cdef int _put_bytes(Bytes* into, bytes data) except -2:
    return put(into, <const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef inline Row* _emptied(Row* row) noexcept nogil:
    """Return a row, to be written into its own buffer."""
    row.into = &row.own
    row.own.size = 0
    return row


cdef tuple _ended(const Ended* ended):
    if ended.scn < 0:
        return ()
    gtid = PyBytes_FromStringAndSize(<const char*>ended.gtid, ended.gtid_size).decode()
    return ((ended.scn, ended.begin, ended.digest, gtid, ended.timestamp_ns),)


cdef inline uint64_t _digest(uint64_t digest, uint32_t crc, Py_ssize_t size) noexcept nogil:
    """Return the digest of the events so far and one more, as `log_identity.digest_of` does."""
    cdef uint64_t mixed = (digest ^ (crc | <uint64_t>size << 32)) * <uint64_t>0x9E3779B97F4A7C15
    return mixed ^ (mixed >> 29)


cdef inline int _is_common(int code) noexcept nogil:
    return (
        23 <= code <= 25 or 30 <= code <= 34 or code == TABLE_MAP or code == XID or code == QUERY
        or code == ANNOTATE or code == GTID_MARIADB or code == ROWS_QUERY
    )


cdef inline int _is_full(const uint8_t* present, int count) noexcept nogil:
    """Return whether each column's bit is set."""
    cdef int place
    for place in range(count // 8):
        if present[place] != 0xFF:
            return False
    cdef int rest = (1 << (count & 7)) - 1
    return (present[count // 8] & rest) == rest if rest else True


cdef int _put_absent(Bytes* into, const Span* spans, int count) noexcept nogil:
    """Write the positions of absent columns, an Avro array of ints."""
    cdef int index, absent = 0
    if spans != NULL:
        for index in range(count):
            absent += spans[index].start == ABSENT
    if absent:
        if put_long(into, absent) < 0:
            return -1
        for index in range(count):
            if spans[index].start == ABSENT and put_long(into, index) < 0:
                return -1
    return put(into, b"\x00", 1)


cdef int _put_raw(Bytes* into, const Plan* plan, const Row* row) noexcept nogil:
    """Write the texts of invalid dates, as an Avro map by column."""
    cdef int place
    cdef const Raw* raw
    if row != NULL and row.raw_count:
        if put_long(into, row.raw_count) < 0:
            return -1
        for place in range(row.raw_count):
            raw = &row.raw[place]
            if put_sized(into, plan.columns[raw.column].name, plan.columns[raw.column].name_size) < 0:
                return -1
            if put_sized(into, raw.text, raw.size) < 0:
                return -1
    return put(into, b"\x00", 1)


cdef int _put_notes(
    Bytes* into, const Plan* plan, const Row* row, const Row* before,
    const Span* spans, const Span* before_spans
) noexcept nogil:
    cdef Py_ssize_t begin = into.size
    if put(into, b"\x02", 1) < 0:
        return -1
    if _put_absent(into, spans, plan.count) < 0:
        return -1
    if _put_absent(into, before_spans, plan.count) < 0:
        return -1
    if _put_raw(into, plan, row) < 0 or _put_raw(into, plan, before) < 0:
        return -1
    if into.size == begin + 5:  # nothing to note: null
        into.size = begin
        return put(into, b"\x00", 1)
    return 0


cdef void _stamp(uint8_t* at, const uint8_t* end, int64_t scn, int64_t timestamp_ns) noexcept nogil:
    """Write SCN, timestamp and header CRC into each event at the end of its window."""
    cdef Py_ssize_t covered
    while at < end:
        write_big(at + TIMESTAMP_NS_AT, <uint64_t>timestamp_ns, 8)
        write_big(at + SCN_AT, <uint64_t>scn, 8)
        covered = <Py_ssize_t>big(at + HEADER_LENGTH_AT, 4) - COVERED_AT
        write_big(at + HEADER_CRC_AT, event_crc32(at + COVERED_AT, covered), 4)
        at += <Py_ssize_t>big(at + LENGTH_AT, 4)
