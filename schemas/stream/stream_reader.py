"""A response's bytes to windows.

Events follow one another with no other framing; a chunk may end anywhere, and
a response may end inside a window that is larger than the request's `size`:
then the next response goes on with it. No sockets here: bytes in, windows out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.event import DDL_SRC_ID, Event
from databus.schemas.event.layout import V2_BEGIN, V2_VERSION

Buffer = event_v2.Buffer
decode_v2 = event_v2.decode


class _Layout(Protocol):
    """What is asked of the module of an event's version."""

    SMALLEST_BYTES: int

    def header_length(self, buffer: Buffer, offset: int, /) -> int:
        """Return how long the header is of an event whose fixed part is here."""
        ...

    def checked_length(self, buffer: Buffer, offset: int, /) -> int:
        """Return how long the event is, as its CRC confirms it."""
        ...


_LAYOUTS: Mapping[int, _Layout] = {event_v1.VERSION: event_v1, event_v2.VERSION: event_v2}


class Window(NamedTuple):
    """All events of one transaction that were sent; the end-of-period event is left out.

    DDL events, where they were asked for, are among them.
    """

    scn: int
    timestamp_ns: int
    events: tuple[Event, ...]
    size_bytes: int  # on the wire, the end-of-period event included


class ControlEvent(NamedTuple):
    """A control event that is not the end of a window.

    `events` are the data events before it that belong to no ended window: the
    page that a checkpoint event ends in a bootstrap response.
    """

    event: Event
    events: tuple[Event, ...]
    size_bytes: int


def decode_event(buffer: Buffer, offset: int = 0) -> tuple[Event, int]:
    """Return the event of either version at `offset`, and where it ends.

    Raises ProtocolError when there is no whole event, or a damaged one.
    """
    try:
        version = buffer[offset]
    except IndexError:
        raise ProtocolError("event is cut short", offset) from None
    if version == event_v2.VERSION:
        return event_v2.decode(buffer, offset)
    if version == event_v1.VERSION:
        return event_v1.decode(buffer, offset)
    raise ProtocolError(f"event version byte is {version}, not 0 or 2", offset)


def walk(buffer: Buffer) -> Iterator[Event]:
    """Yield each event of a buffer that holds nothing but whole events.

    Raises ProtocolError at the first byte that does not fit.
    """
    offset, end = 0, len(buffer)
    while offset < end:
        event, offset = decode_event(buffer, offset)
        yield event


class StreamReader:
    """Cut a byte stream into windows.

    A window is handed over only once its end-of-period event has arrived: half
    a transaction never reaches a consumer. The half window outlives the
    response (`close`) and is dropped by `reset`, which must be called after a
    ProtocolError and before reading from anywhere else.

    Bytes are looked at once: what is left of a chunk waits in pieces until the
    event they begin is whole, however many chunks that takes.
    """

    def __init__(self, max_window_bytes: int) -> None:
        self.max_window_bytes = max_window_bytes
        self._events: list[Event]
        self._scn: int
        self.reset()

    def reset(self) -> None:
        """Forget the half event and the half window held."""
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._needed_bytes = 0  # how many it takes to get on
        self._begin_window()

    @property
    def pending_events(self) -> int:
        """How many events of a half window are held."""
        return len(self._events)

    @property
    def pending_scn(self) -> int | None:
        """The SCN of the half window held, or None."""
        return self._events[0][0] if self._events else None

    def receive(self, chunk: bytes) -> list[Window | ControlEvent]:
        """Take the next bytes; return what they complete.

        Raises ProtocolError for damage, for events of different SCNs in one
        window; WindowTooLargeError for one larger than `max_window_bytes`.
        """
        if self._pieces:
            self._pieces.append(chunk)
            self._piece_bytes += len(chunk)
            if self._piece_bytes < self._needed_bytes:
                return []
            chunk = b"".join(self._pieces)
            self._pieces = []
        ready, rest = self._cut(chunk)
        self._piece_bytes = len(chunk) - rest
        if self._piece_bytes:
            self._pieces.append(chunk[rest:])
        return ready

    def close(self) -> None:
        """Say that the response is over; raises ProtocolError inside an event."""
        if self._pieces:
            raise ProtocolError(f"response ends {self._piece_bytes} bytes into an event")

    def _cut(self, data: bytes) -> tuple[list[Window | ControlEvent], int]:
        """Return what is complete in `data`, and where the first event that is not begins."""
        ready: list[Window | ControlEvent] = []
        events, scn = self._events, self._scn
        begin, offset, end = 0, 0, len(data)
        while offset < end:
            decode = decode_v2 if data[offset] == V2_VERSION else decode_event
            try:
                event, next_offset = decode(data, offset)
            except ProtocolError:
                # Asked only now: nearly all events are whole, and once a chunk is not often.
                self._take(offset - begin, offset)
                self._needed_bytes = self._needed(data, offset)
                if self._needed_bytes <= end - offset:
                    raise
                break
            offset = next_offset
            if event[2] >= 0 or event[2] == DDL_SRC_ID:
                if event[0] != scn:
                    self._is_mixed = bool(events)
                    self._scn = scn = event[0]
                events.append(event)
            else:
                self._take(offset - begin, offset)
                ready.append(self._end(event, offset))
                events, scn, begin = self._events, self._scn, offset
        else:
            self._take(offset - begin, offset)
        return ready, offset

    def _take(self, size_bytes: int, offset: int) -> None:
        """Count bytes of the window; raises ProtocolError when they are too many."""
        self._window_bytes += size_bytes
        if self._window_bytes > self.max_window_bytes:
            raise self._too_large(self._window_bytes, offset)

    def _end(self, event: Event, offset: int) -> Window | ControlEvent:
        """Hand over what the control event ends."""
        if event.is_eop:
            return self._end_window(event.scn, event.timestamp_ns, offset)
        ended = ControlEvent(event, tuple(self._events), self._window_bytes)
        self._begin_window()
        return ended

    def _end_window(self, scn: int, timestamp_ns: int, offset: int) -> Window:
        """Hand over the window; raises ProtocolError when it has events of another."""
        if self._events and (self._is_mixed or scn != self._scn):
            raise ProtocolError(f"events of other windows in window {scn}", offset)
        ended = Window(scn, timestamp_ns, tuple(self._events), self._window_bytes)
        self._begin_window()
        return ended

    def _begin_window(self) -> None:
        self._events = []
        self._window_bytes = 0
        self._scn = -1
        self._is_mixed = False  # with events of several SCNs, as pages of a snapshot are

    def _needed(self, data: bytes, offset: int) -> int:
        """Return how many bytes it takes to go on from `offset`; 0 = what is there is damage.

        No length is believed before the header's CRC has confirmed it: one flipped
        bit would otherwise ask for gigabytes. Raises ProtocolError.
        """
        layout = _LAYOUTS.get(data[offset])
        here = len(data) - offset
        if layout is None or (layout is event_v2 and not _begins_v2(data, offset)):
            return 0
        if here < layout.SMALLEST_BYTES:
            return layout.SMALLEST_BYTES
        header_bytes = layout.header_length(data, offset)
        if header_bytes > self.max_window_bytes:
            raise ProtocolError(f"header length {header_bytes} is impossible", offset)
        if here < header_bytes:
            return header_bytes
        length = layout.checked_length(data, offset)
        if self._window_bytes + length > self.max_window_bytes:
            raise self._too_large(self._window_bytes + length, offset)
        return length

    def _too_large(self, size_bytes: int, offset: int) -> ProtocolError:
        return WindowTooLargeError(size_bytes, self.max_window_bytes, offset)


def _begins_v2(data: bytes, offset: int) -> bool:
    return V2_BEGIN.startswith(data[offset : offset + len(V2_BEGIN)])
