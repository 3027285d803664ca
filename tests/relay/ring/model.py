"""What a ring must do, as a list: the yardstick of the ring's and the stream's tests.

`RingModel` keeps every window ever appended. Which of them a ring still holds
is the ring's affair (`prev_scn` says it); that what it answers is exactly the
rest of this list after the point asked for, or ScnNotFound, is checked here.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring, WindowBatch
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import decode, encode
from databus.schemas.windows import MARK

SCHEMA_ID = bytes(range(16))


def make_event(scn: int, key: int | bytes = 1, size_bytes: int = 20, src_id: int = 40) -> bytes:
    """Return the bytes of a row's event; what its payload says depends on scn and key only."""
    data = random.Random(f"{scn}/{key!r}").randbytes(size_bytes)
    payload = Part(data, SCHEMA_ID, 1)
    return encode(Event(scn, scn * 1000, src_id, 0, key, Opcode.UPSERT, payload, None))


def make_window(scn: int, sizes_bytes: Sequence[int] = (20, 30)) -> EncodedWindow:
    """Return a window of one event for each size, and its EOP."""
    events = [make_event(scn, key, size) for key, size in enumerate(sizes_bytes)]
    eop = encode(end_of_period(scn, scn * 1000))
    return EncodedWindow(scn, b"".join(events) + eop, scn * 1000)


def window_of(scn: int) -> EncodedWindow:
    """Return *the* window of an SCN: the same in every process."""
    chosen = random.Random(scn)
    return make_window(scn, [chosen.randrange(120) for _ in range(chosen.randrange(5))])


def batch_of(windows: Iterable[EncodedWindow]) -> WindowBatch:
    """Return the windows in one piece."""
    data, marks = b"", b""
    for scn, window, timestamp_ns in windows:
        data += window
        marks += MARK.pack(scn, len(data), timestamp_ns, len(split_events(window)) - 1)
    return WindowBatch(data, marks)


def append_placed(ring: Ring, windows: Iterable[EncodedWindow]) -> bool:
    """Append windows as a batch written where the ring says; return False if it has no room."""
    batch = batch_of(windows)
    reserved = ring.reserve(len(batch.data))
    if reserved is None:
        return False
    position, room = reserved
    with room:
        if len(room) < len(batch.data):
            return False
        for begin in range(0, len(batch.data), 50):
            part = batch.data[begin : begin + 50]
            room[begin : begin + len(part)] = part
    ring.append_batch(batch._replace(data=b"", place=position))
    return True


def unstamped(window: EncodedWindow) -> bytes:
    """Return a window's bytes as they are before it has an SCN, a time and header CRCs."""
    events = []
    for event in split_events(window.data):
        bare = bytearray(event)
        bare[9:13], bare[23:31], bare[37:45] = bytes(4), bytes(8), bytes(8)
        events.append(bytes(bare))
    return b"".join(events)


def extend(ring: Ring, data: bytes, piece_bytes: int) -> None:
    """Write the unfinished window in pieces, the last one twice: its end is written again."""
    begin = 0
    for begin in range(0, len(data), piece_bytes):
        ring.extend(begin, data[begin : begin + piece_bytes])
    ring.extend(begin, data[begin:])


def append_in_pieces(ring: Ring, window: EncodedWindow, piece_bytes: int) -> None:
    """Append a window as one that is too large to be held in memory."""
    extend(ring, unstamped(window), piece_bytes)
    ring.finish(len(window.data), window.scn, window.timestamp_ns)


def split_events(data: bytes) -> list[bytes]:
    """Cut bytes into events, every CRC checked; raises ProtocolError."""
    events, at = [], 0
    while at < len(data):
        _, end = decode(data, at)
        events.append(data[at:end])
        at = end
    return events


def read_on(reader: RingReader, position: int, chunk_bytes: int = 1 << 20) -> bytes:
    """Read everything from a position to the tail in chunks."""
    chunks = []
    while chunk := reader.read(position, chunk_bytes):
        chunks.append(chunk)
        position += len(chunk)
    return b"".join(chunks)


class RingModel:
    """Every window that a ring was ever given."""

    def __init__(self, start_scn: int = 0) -> None:
        self.start_scn = start_scn
        self.windows: list[tuple[int, list[bytes]]] = []

    @property
    def newest_scn(self) -> int:
        """SCN of the newest window, or where capture started."""
        return self.windows[-1][0] if self.windows else self.start_scn

    @property
    def scns(self) -> list[int]:
        """All SCNs, and first the one that capture started after."""
        return [self.start_scn, *(scn for scn, _ in self.windows)]

    def append(self, windows: Iterable[EncodedWindow]) -> None:
        """Note windows that the ring has taken."""
        self.windows += [(window.scn, split_events(window.data)) for window in windows]

    def after(self, scn: int, window_offset: int) -> list[bytes]:
        """Return all events after a point."""
        rest: list[bytes] = []
        for window_scn, events in self.windows:
            if window_scn == scn and window_offset >= 0:
                rest += events[window_offset:]
            elif window_scn > scn:
                rest += events
        return rest

    def is_held(self, prev_scn: int, scn: int, window_offset: int) -> bool:
        """Say whether a ring with this `prev_scn` has all events after a point."""
        has_rest = window_offset >= 0 and scn in self.scns and scn > 0
        return scn > prev_scn or (scn == prev_scn and not has_rest)

    def check_extent(self, reader: RingReader) -> None:
        """Check that what the ring says it holds is the end of the list."""
        extent = reader.extent()
        scns = self.scns
        assert reader.newest() == (self.newest_scn, extent.tail)
        oldest = scns.index(extent.prev_scn) + 1
        if oldest == len(scns):
            assert (extent.head, extent.min_scn) == (extent.tail, -1)
        else:
            assert extent.min_scn == scns[oldest]
        assert extent.tail - extent.head <= reader.capacity_bytes
        held = read_on(reader, extent.head)
        assert split_events(held) == self.after(extent.prev_scn, -1)

    def check_point(self, reader: RingReader, scn: int, window_offset: int, chunk: int) -> str:
        """Ask the ring for a point and compare; returns how it answered."""
        try:
            position = reader.find(scn, window_offset)
        except ScnNotFoundError:
            assert not self.is_held(reader.prev_scn, scn, window_offset)
            return "not found"
        if position is None:
            assert scn > self.newest_scn
            return "ahead"
        assert self.is_held(reader.prev_scn, scn, window_offset)
        assert split_events(read_on(reader, position, chunk)) == self.after(scn, window_offset)
        return "found"
