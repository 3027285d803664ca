# The packets of a binlog stream, for the compiled modules that read events.
#
# `binlog/packets.py` has the rules. Include `_byte_buffer.pxi` first.

from cpython.bytes cimport PyBytes_FromStringAndSize

# The reason for which a reader stopped, and the method to call next. A module's own reasons
# go on from 4.
MORE = 0  # more bytes are needed: `feed`
EVENT = 1  # an event for Python: `next_event`
PACKET = 2  # a packet that is not an event: `next_event`
BROKEN = 3  # a packet with a wrong number or length: `rest`

cdef enum:
    _MORE, _EVENT, _PACKET, _BROKEN

cdef enum:
    _KEPT_BYTES = 32 << 20  # a larger buffer is freed once it is empty
    _CONTINUED = 0xFFFFFF
    _LENGTH_END = 14  # end of the event's length field in a payload
    HEADER_BYTES = 19
    CHECKSUM_BYTES = 4
    ARTIFICIAL = 0x20

cdef int64_t MAX_OFFSET = 0xFFFFFFFF


cdef class EventReader:
    """Splits the bytes of one stream into packets, and finds their events."""

    cdef readonly int sequence
    cdef int event_sequence
    cdef Bytes input
    cdef Py_ssize_t input_at
    cdef const uint8_t* event
    cdef Py_ssize_t event_size
    cdef Py_ssize_t event_end

    def __cinit__(self):
        self.sequence = 1  # the request has 0

    def __dealloc__(self):
        release(&self.input)

    def feed(self, const uint8_t[::1] chunk not None, Py_ssize_t size):
        """Add the first `size` bytes of a chunk from the socket."""
        if size > chunk.shape[0]:
            raise ValueError("a chunk has no more bytes than it has")
        if self.input_at:
            self.input.size -= self.input_at
            memmove(self.input.data, self.input.data + self.input_at, self.input.size)
            self.input_at = 0
        if self.input.size == 0 and self.input.room > _KEPT_BYTES:
            release(&self.input)
        if size and put(&self.input, &chunk[0], size) < 0:
            raise MemoryError

    def next_event(self):
        """Consume and return the event, or other packet, before which `run` stopped."""
        cdef bytes data = PyBytes_FromStringAndSize(<const char*>self.event, self.event_size)
        self._consume()
        return data

    def rest(self):
        """Return the bytes that are not consumed."""
        return PyBytes_FromStringAndSize(
            <const char*>self.input.data + self.input_at, self.input.size - self.input_at
        )

    cdef inline void _consume(self) noexcept nogil:
        """Move past the packet that was found."""
        self.input_at, self.sequence = self.event_end, self.event_sequence

    cdef int _find_packet(self) noexcept nogil:
        """Find the next packet, and join its parts if it has several; return _MORE to _BROKEN."""
        cdef Py_ssize_t at = self.input_at, size, whole = 0
        cdef uint8_t* data = self.input.data
        cdef int sequence = self.sequence
        while True:
            if self.input.size - at < 4:
                return _MORE
            if data[at + 3] != sequence:
                return _BROKEN
            sequence = (sequence + 1) & 0xFF
            size = <Py_ssize_t>little(data + at, 3)
            if self.input.size - at - 4 < size:
                return _BROKEN if whole == 0 and self._is_misframed(at, size) else _MORE
            at += 4 + size
            whole += size
            if size != _CONTINUED:
                break
        self.event_end, self.event_sequence = at, sequence
        if whole >= _CONTINUED:
            self._join(whole)
        data += self.input_at + 4
        if whole == 0 or data[0] != 0:
            self.event, self.event_size = data, whole
            return _PACKET
        self.event, self.event_size = data + 1, whole - 1
        return _EVENT

    cdef bint _is_misframed(self, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
        """Return whether a packet's length contradicts its event's: it would never be complete."""
        cdef uint8_t* payload = self.input.data + at + 4
        cdef Py_ssize_t whole
        if self.input.size - at - 4 < _LENGTH_END or payload[0] != 0:
            return False
        whole = 1 + <Py_ssize_t>little(payload + _LENGTH_END - 4, 4)
        return size != (whole if whole < _CONTINUED else _CONTINUED)

    cdef void _join(self, Py_ssize_t whole) noexcept nogil:
        """Remove the headers of a packet's further parts, so that its payload is contiguous."""
        cdef uint8_t* into = self.input.data + self.input_at + 4 + _CONTINUED
        cdef uint8_t* part = into
        cdef Py_ssize_t left = whole - _CONTINUED, size
        while left > 0:
            size = <Py_ssize_t>little(part, 3)
            memmove(into, part + 4, size)
            into += size
            part += 4 + size
            left -= size
