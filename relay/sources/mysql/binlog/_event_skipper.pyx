# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=True
"""Skips the events of a binlog in which a search for statements has no interest.

`search/definition_scan.py` has the rules, and reads everything itself where this module
is not built: this module is its fast path. It splits packets and events, checks each event's
checksum and position, and passes over rows, commits and the like. It stops before any other
event, and before one that is damaged: Python handles that event or raises the error. So this
module raises no errors about the log.

It works without the GIL and creates no Python object for an event that is skipped: `run` is
called once for each buffer.
"""

from libc.string cimport memcmp, memset

include "_byte_buffer.pxi"
include "_packets.pxi"
include "../../../../schemas/event/crc32.pxi"

cdef enum:
    QUERY = 2, TABLE_MAP = 19, GTID_MYSQL = 33, GTID_ANONYMOUS = 34, PREVIOUS_GTIDS = 35
    CHECKPOINT_MARIADB = 161, GTID_MARIADB = 162, GTID_LIST_MARIADB = 163
    GROUP_COMMIT = 0x02, XA = 0x40 | 0x80
    # In the body of a GTID of MySQL.
    CLOCK_AT = 25, COMMIT_TIME_AT = 42, WITH_COMMIT_TIME_BYTES = 49

cdef int64_t MOST_MICROSECONDS = 9223372036854775  # nanoseconds have 63 bits

# Events without statements: XID, rows, GTIDs of MySQL, texts of statements whose rows
# follow, and what a file begins with.
_PLAIN = (16, 19, 23, 24, 25, 29, 30, 31, 32, 33, 34, 35, 39, 160, 161, 163, *range(166, 172))

cdef uint8_t is_plain[256]
memset(is_plain, 0, 256)
for code in _PLAIN:
    is_plain[<int>code] = 1


cdef class EventSkipper(EventReader):
    """Skips events in the bytes of one stream. Used by one thread.

    The public attributes are the state shared with the search in Python: the position in the
    stream, where to stop in the current file, and whether the current DDL statement is
    unfinished.
    """

    cdef public int64_t offset
    cdef public int64_t end_offset
    cdef public bint has_checksum
    cdef public bint is_unfinished

    def run(self):
        """Skip events until Python has to act; return the reason, MORE to BROKEN."""
        cdef int status
        with nogil:
            status = self._run()
        return status

    cdef int _run(self) noexcept nogil:
        cdef int status
        while True:
            status = self._find_packet()
            if status != _EVENT or not self._skip(self.event, self.event_size):
                return status
            self._consume()

    cdef bint _skip(self, const uint8_t* event, Py_ssize_t size) noexcept nogil:
        """Move past an event; False, with nothing changed, when it is left to Python."""
        cdef const uint8_t* end = event + size
        cdef int code
        cdef int64_t expected = self.offset + size, said
        if size < HEADER_BYTES + CHECKSUM_BYTES or <Py_ssize_t>little(event + 9, 4) != size:
            return False
        code = event[4]
        if self.offset <= 0 or expected > self.end_offset or event[17] & ARTIFICIAL:
            return False
        if not is_plain[code] and code != QUERY and code != GTID_MARIADB:
            return False
        if self.has_checksum:
            end -= CHECKSUM_BYTES
            if zlib_crc32(event, size - CHECKSUM_BYTES) != <uint32_t>little(end, 4):
                return False
        # The header has only the low 32 bits of its end, or 0.
        said = <int64_t>little(event + 13, 4)
        if said != 0 and said != (expected & MAX_OFFSET):
            return False
        if not is_plain[code] and not self._has_no_statement(code, event + HEADER_BYTES, end):
            return False
        self.offset = expected
        return True

    cdef bint _has_no_statement(
        self, int code, const uint8_t* body, const uint8_t* end
    ) noexcept nogil:
        """Return whether a QUERY or a GTID of MariaDB says nothing about definitions."""
        cdef Py_ssize_t size = end - body, at
        if code == QUERY:
            if self.is_unfinished:
                return True
            if size < 13:
                return False
            at = 13 + <Py_ssize_t>little(body + 11, 2) + body[8] + 1
            return (size - at == 5 and memcmp(body + at, b"BEGIN", 5) == 0) or (
                size - at == 6 and memcmp(body + at, b"COMMIT", 6) == 0
            )
        if size < 13 or body[12] & XA:
            return False
        at = 13 + (8 if body[12] & GROUP_COMMIT else 0)
        # Flags behind it may say that the statement is a half of a DDL statement.
        if size < at or (size > at and body[at] != 0):
            return False
        self.is_unfinished = False
        return True


cdef class TransactionSkipper(EventSkipper):
    """Skips transactions of a time before `until_ns`; `search/start_search.py` has the rules.

    The other attributes are those of the newest transaction, shared with the walk in Python.
    It stops at the begin of the next one if this one is of that time or later.
    """

    cdef public int64_t until_ns
    cdef public int64_t begin  # -1 = none has begun in this file
    cdef public int64_t end
    cdef public int64_t commit_ns  # 0 = not logged: that of its last event counts
    cdef public int64_t time_s

    cdef bint _skip(self, const uint8_t* event, Py_ssize_t size) noexcept nogil:
        cdef int code = event[4] if size >= HEADER_BYTES else 0
        cdef bint begins = code == GTID_MYSQL or code == GTID_ANONYMOUS or code == GTID_MARIADB
        cdef int64_t at = self.offset, microseconds = 0
        if begins:
            if self.begin >= 0 and self._newest_ns() >= self.until_ns:
                return False
            if code != GTID_MARIADB:
                microseconds = self._commit_microseconds(event, size)
                if microseconds >= MOST_MICROSECONDS:
                    return False
        if not EventSkipper._skip(self, event, size):
            return False
        if begins:
            self.begin, self.end, self.commit_ns = at, self.offset, microseconds * 1000
        elif self.begin >= 0 and code not in (PREVIOUS_GTIDS, CHECKPOINT_MARIADB, GTID_LIST_MARIADB):
            self.end, self.time_s = self.offset, <int64_t>little(event, 4)
        return True

    cdef int64_t _newest_ns(self) noexcept nogil:
        return self.commit_ns if self.commit_ns else self.time_s * 1000000000

    cdef int64_t _commit_microseconds(self, const uint8_t* event, Py_ssize_t size) noexcept nogil:
        cdef const uint8_t* body = event + HEADER_BYTES
        cdef Py_ssize_t body_bytes = size - HEADER_BYTES - (CHECKSUM_BYTES if self.has_checksum else 0)
        if body_bytes < CLOCK_AT:
            return MOST_MICROSECONDS  # no whole GTID: left to Python
        if body_bytes < WITH_COMMIT_TIME_BYTES or body[CLOCK_AT] != 2:
            return 0
        # The highest bit says that the original's time follows.
        return <int64_t>(little(body + COMMIT_TIME_AT, 7) & ((<uint64_t>1 << 55) - 1))
