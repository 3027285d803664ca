"""Reads windows from a response's bytes. Pure: bytes in, windows out.

Events follow one another without other framing; a chunk may end anywhere. A response may end
inside a window that is larger than the request's `size`; the next response continues it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from databus.schemas.errors import ProtocolError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.event import STATEMENT_SRC_IDS, Event
from databus.schemas.event.layout import V2_VERSION
from databus.schemas.stream.event_framer import EventFramer

Buffer = event_v2.Buffer
decode_v2 = event_v2.decode


class Window(NamedTuple):
    """The sent events of one transaction, without the end-of-period event.

    They include statements if those were requested.
    """

    scn: int
    timestamp_ns: int
    events: tuple[Event, ...]
    size_bytes: int  # on the wire, the end-of-period event included


class ControlEvent(NamedTuple):
    """A control event that is not the end of a window.

    `events` are the data events before it that belong to no ended window. In a bootstrap
    response, a checkpoint event ends a page of them.
    """

    event: Event
    events: Sequence[tuple[Any, ...]]  # `Event`s or `RowEvent`s, depending on the reader
    size_bytes: int


def decode_event(buffer: Buffer, offset: int = 0) -> tuple[Event, int]:
    """Return the event of either version at `offset`, and its end.

    Raises ProtocolError if the event is incomplete or damaged.
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
    """Yield the events of a buffer of whole events; raises ProtocolError for anything else."""
    offset, end = 0, len(buffer)
    while offset < end:
        event, offset = decode_event(buffer, offset)
        yield event


class StreamReader:
    """Reads a byte stream and returns windows.

    A window is returned only when its end-of-period event has arrived, so an incomplete
    transaction never reaches a consumer. An incomplete window survives the end of the response
    (`close`). `reset` drops it, and must be called after a ProtocolError and before reading from
    another position.
    """

    def __init__(self, max_window_bytes: int) -> None:
        self._framer = EventFramer(max_window_bytes)
        self._scn: int
        self._begin_window()

    def reset(self) -> None:
        """Drop the incomplete event and the incomplete window."""
        self._framer.reset()
        self._begin_window()

    @property
    def pending_events(self) -> int:
        """Number of events of the incomplete window."""
        return len(self._events)

    @property
    def pending_scn(self) -> int | None:
        """SCN of the incomplete window, or None."""
        return self._events[0][0] if self._events else None

    def receive(self, chunk: bytes) -> list[Window | ControlEvent]:
        """Take the next bytes; return the windows and control events that they complete.

        Raises ProtocolError for damage and for events of different SCNs in one window;
        WindowTooLargeError for a window larger than `max_window_bytes`.
        """
        data = self._framer.join(chunk)
        if data is None:
            return []
        ready, rest = self._cut(data)
        self._framer.keep(data, rest)
        return ready

    def close(self) -> None:
        """End the response; raises ProtocolError inside an event."""
        self._framer.close()

    def _cut(self, data: bytes) -> tuple[list[Window | ControlEvent], int]:
        """Return the windows that `data` completes, and the begin of its incomplete event."""
        ready: list[Window | ControlEvent] = []
        events, scn = self._events, self._scn
        begin, offset, end = 0, 0, len(data)
        while offset < end:
            decode = decode_v2 if data[offset] == V2_VERSION else decode_event
            try:
                event, next_offset = decode(data, offset)
            except ProtocolError:
                # Checked only after a failure, which is usually the incomplete end of a chunk.
                self._framer.count(offset - begin, offset)
                if not self._framer.is_cut(data, offset):
                    raise
                break
            offset = next_offset
            if event[2] >= 0 or event[2] in STATEMENT_SRC_IDS:
                if event[0] != scn:
                    self._is_mixed = bool(events)
                    self._scn = scn = event[0]
                events.append(event)
            else:
                self._framer.count(offset - begin, offset)
                ready.append(self._end(event, offset))
                events, scn, begin = self._events, self._scn, offset
        else:
            self._framer.count(offset - begin, offset)
        return ready, offset

    def _end(self, event: Event, offset: int) -> Window | ControlEvent:
        """Return what a control event ends: a window, or itself with the events before it."""
        if event.is_eop:
            return self._end_window(event.scn, event.timestamp_ns, offset)
        ended = ControlEvent(event, tuple(self._events), self._framer.window_bytes)
        self._begin_window()
        return ended

    def _end_window(self, scn: int, timestamp_ns: int, offset: int) -> Window:
        """Return the window; raises ProtocolError if it has events of another one."""
        if self._events and (self._is_mixed or scn != self._scn):
            raise ProtocolError(f"events of other windows in window {scn}", offset)
        ended = Window(scn, timestamp_ns, tuple(self._events), self._framer.window_bytes)
        self._begin_window()
        return ended

    def _begin_window(self) -> None:
        self._framer.window_bytes = 0
        self._events: list[Event] = []
        self._scn = -1
        self._is_mixed = False  # with events of several SCNs, as pages of a snapshot are
