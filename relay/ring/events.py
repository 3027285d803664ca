"""Walk the events in a ring: by their headers alone, with every byte checked, or decoded.

`steps` reads only headers. That is enough for a reader to find its position, because the
bytes between head and tail were checked after the ring was opened, or written since.
`sound_windows` trusts nothing and checks every CRC; restarts use it. `decoded_events` reads as
clients do, also behind a relay log.

A window's events are stamped when its transaction commits. Until then an event has SCN 0,
timestamp 0 and header CRC 0; all its other bytes are final. So the rows of a transaction
are written as they arrive, and a commit changes only headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from databus.relay.ring.layout import UNKNOWN_SCN, EventBytes, RingFile
from databus.schemas.errors import ProtocolError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.crc import event_crc
from databus.schemas.event.event import EOP_SRC_ID, Event
from databus.schemas.event.layout import V2, V2_COVERED_AT, V2_MAGIC, struct_of
from databus.schemas.event.v2 import SMALLEST_BYTES, VERSION, decode, encode, peek
from databus.schemas.windows import MARK, EncodedWindow

_STEP = struct_of(V2.version, V2.magic, V2.length, V2.src_id, V2.scn)
_CHECK = struct_of(
    V2.version,
    V2.magic,
    V2.header_length,
    V2.header_crc,
    V2.body_crc,
    V2.length,
    V2.src_id,
    V2.scn,
)
_TIMESTAMP = struct_of(V2.timestamp_ns, begin=V2.timestamp_ns.offset)
_SCN = struct_of(V2.scn, begin=V2.scn.offset)

# Every window ends with an event of this length.
EOP_BYTES = len(encode(end_of_period(1, 0)))

CHUNK_BYTES = 1 << 20  # read at a time to decode

_new = tuple.__new__  # skips a named tuple's own constructor: these are made per event

_HEADERS_BYTES = 32 << 10  # copied at a time to walk by headers
_CHECKED_BYTES = 1 << 20  # copied at a time to check


class BytesReader(Protocol):
    """Reads the bytes of events."""

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on; b"" at the end."""
        ...


class Step(NamedTuple):
    """One event of a walk: its position, its length, its SCN, and whether it ends a window."""

    position: int
    length: int
    scn: int
    is_eop: bool


class SoundWindow(NamedTuple):
    """A whole window in which every CRC is correct."""

    scn: int
    start: int
    end: int
    timestamp_ns: int


def steps(ring_file: EventBytes, position: int, end: int) -> Iterator[Step]:
    """Yield the events of [position, end), which must begin and end at an event.

    Raises ProtocolError if the bytes are not events: they are damaged, or the writer has
    overwritten them. The caller reads head to learn which.
    """
    while position < end:
        chunk = ring_file.copy_out(position, min(_HEADERS_BYTES, end - position))
        at, last = 0, len(chunk) - SMALLEST_BYTES
        while at <= last:
            version, magic, length, src_id, scn = _STEP.unpack_from(chunk, at)
            if version != VERSION or magic != V2_MAGIC or length < SMALLEST_BYTES:
                raise ProtocolError("no event begins here", position + at)
            if length > end - position - at:
                raise ProtocolError("an event is cut", position + at)
            yield _new(Step, (position + at, length, scn, src_id == EOP_SRC_ID))
            at += length
        # Not even one header in the chunk: the bytes end inside an event.
        if at == 0:
            raise ProtocolError("an event is cut", position)
        position += at


def find_event(
    ring_file: EventBytes, position: int, end: int, scn: int, to_skip: int
) -> tuple[int, int]:
    """Return the position of the first event after a point, and the SCN of the last event read.

    The first event after the point is the one after `to_skip` events of window `scn` (after
    the whole window if negative), or else the first of a newer window. The position is
    `end` without such an event. The SCN is UNKNOWN_SCN if no event was read. Raises as
    `steps`.
    """
    if ring_file.core is not None:
        return ring_file.core.find_event(position, end, scn, to_skip)
    newest = UNKNOWN_SCN
    for event in steps(ring_file, position, end):
        newest = event.scn
        if newest < scn:
            continue
        if newest > scn or to_skip == 0:
            return event.position, newest
        to_skip -= 1
    return end, newest


def last_end(ring_file: EventBytes, position: int, end: int, limit: int) -> int:
    """Return the end of the last window that ends by `limit`; `position` without one.

    Raises as `steps`.
    """
    if ring_file.core is not None:
        return ring_file.core.last_end(position, end, limit)
    found = position
    for event in steps(ring_file, position, end):
        stop = event.position + event.length
        if stop > limit:
            break
        if event.is_eop:
            found = stop
    return found


def find_run(marks: bytes, number: int, newest: int, limit: int) -> int:
    """Return the number of the first window, from `number` on, that ends a run of plain copies.

    Such a window ends after `limit` in the batch's data, or its SCN does not rise. `newest`
    is the SCN before window `number`. Returns the number of windows if there is no such one.
    """
    for scn, end, _, _ in MARK.iter_unpack(memoryview(marks)[number * MARK.size :]):
        if scn <= newest or end > limit:
            break
        newest = scn
        number += 1
    return number


def scn_at(ring_file: RingFile, position: int) -> int:
    """Return the SCN in the header of the event at `position`; UNKNOWN_SCN without an event."""
    version, magic, _, _, scn = _STEP.unpack(ring_file.copy_out(position, _STEP.size))
    return scn if version == VERSION and magic == V2_MAGIC else UNKNOWN_SCN


def timestamp_at(ring_file: EventBytes, position: int) -> int:
    """Return the timestamp of the event that begins at `position`."""
    data = ring_file.copy_out(position + V2.timestamp_ns.offset, _TIMESTAMP.size)
    timestamp_ns: int = _TIMESTAMP.unpack(data)[0]
    return timestamp_ns


def sound_windows(
    ring_file: EventBytes, position: int, end: int, after_scn: int
) -> Iterator[SoundWindow]:
    """Yield the sound windows from `position` on, up to the first damage or `end`.

    In a sound window all CRCs are correct, all events have one SCN, the last one is an EOP,
    and the SCN is larger than that of the window before. The last rule also excludes a
    window of an earlier lap that happens to begin on an event boundary.
    """
    core = ring_file.core
    if core is None:
        yield from _sound_windows(ring_file, position, end, after_scn)
        return
    while found := core.check_windows(position, end, after_scn):
        yield from map(SoundWindow._make, found)
        after_scn, _, position, _ = found[-1]


def _sound_windows(
    ring_file: EventBytes, position: int, end: int, after_scn: int
) -> Iterator[SoundWindow]:
    start, scn = position, after_scn
    for event in _checked(ring_file, position, end):
        if event.position == start:
            if event.scn <= scn:
                return
            scn = event.scn
        elif event.scn != scn:
            return
        if event.is_eop:
            stop = event.position + event.length
            yield SoundWindow(scn, start, stop, timestamp_at(ring_file, event.position))
            start = stop


def _checked(ring_file: EventBytes, position: int, end: int) -> Iterator[Step]:
    """Yield events whose CRCs are correct, up to the first that fails."""
    chunk, base = b"", position
    while end - position >= SMALLEST_BYTES:
        at = position - base
        if len(chunk) - at < _CHECK.size:
            base, at = position, 0
            chunk = ring_file.copy_out(position, min(_CHECKED_BYTES, end - position))
        fields = _CHECK.unpack_from(chunk, at)
        version, magic, header_length, header_crc, body_crc, length, src_id, scn = fields
        # Before the CRCs, which are computed over these lengths.
        if not SMALLEST_BYTES <= header_length <= length <= end - position:
            return
        if len(chunk) - at < length:
            base, at = position, 0
            chunk = ring_file.copy_out(position, max(length, min(_CHECKED_BYTES, end - position)))
        header_end = at + header_length
        if (
            version != VERSION
            or magic != V2_MAGIC
            or event_crc(chunk[at + V2_COVERED_AT : header_end]) != header_crc
            or event_crc(chunk[header_end : at + length]) != body_crc
        ):
            return
        yield _new(Step, (position, length, scn, src_id == EOP_SRC_ID))
        position += length


def windows_between(ring_file: RingFile, position: int, end: int) -> Iterator[EncodedWindow]:
    """Yield the windows of [position, end) as they were appended."""
    start = position
    for event in steps(ring_file, position, end):
        if event.is_eop:
            stop = event.position + event.length
            data = ring_file.copy_out(start, stop - start)
            yield EncodedWindow(event.scn, data, timestamp_at(ring_file, event.position))
            start = stop


_STAMP_STEP = struct_of(V2.version, V2.magic, V2.header_length, V2.length, V2.src_id)
_HEADER_CRC = struct_of(V2.header_crc, begin=V2.header_crc.offset)


def stamp_events(ring_file: RingFile, position: int, end: int, scn: int, timestamp_ns: int) -> None:
    """Stamp the events of [position, end), which are one whole window with its EOP.

    Raises ProtocolError if the bytes are not that; the events before the error are stamped.
    """
    if ring_file.core is not None:
        ring_file.core.stamp(position, end, scn, timestamp_ns)
        return
    src_id = 0
    while position < end:
        if end - position < SMALLEST_BYTES:
            raise ProtocolError("an event is cut", position)
        step = ring_file.copy_out(position, _STAMP_STEP.size)
        version, magic, header_length, length, src_id = _STAMP_STEP.unpack(step)
        if version != VERSION or magic != V2_MAGIC or length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", position)
        if not SMALLEST_BYTES <= header_length <= length <= end - position:
            raise ProtocolError("an event is cut", position)
        header = bytearray(ring_file.copy_out(position, header_length))
        _TIMESTAMP.pack_into(header, V2.timestamp_ns.offset, timestamp_ns)
        _SCN.pack_into(header, V2.scn.offset, scn)
        checked = event_crc(header[V2_COVERED_AT:])
        _HEADER_CRC.pack_into(header, V2.header_crc.offset, checked)
        ring_file.copy_in(position, header)
        position += length
    if src_id != EOP_SRC_ID:
        raise ProtocolError("a window does not end with an EOP", position)


def decoded_events(reader: BytesReader, position: int) -> Iterator[Event]:
    """Yield the events from a position on, up to where the reader ends; raises as it does."""
    size_bytes = CHUNK_BYTES
    while data := reader.read(position, size_bytes):
        at = 0
        while len(data) - at >= SMALLEST_BYTES:
            end = at + peek(data, at).length
            if end > len(data):
                break
            yield decode(data, at)[0]
            at = end
        # An event that is larger is read whole the next time.
        size_bytes = CHUNK_BYTES if at else 2 * size_bytes
        position += at
