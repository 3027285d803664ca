"""Windows on their way from a ring into a frame. Pure.

Whole windows are checked here, every CRC of them: what is written to a log is sound.
"""

from __future__ import annotations

from typing import NamedTuple

from databus.relay.log.frame_events import FrameEvents
from databus.relay.ring.events import sound_windows
from databus.schemas.errors import ProtocolError
from databus.schemas.event.event import EOP_SRC_ID
from databus.schemas.event.layout import V2_BEGIN
from databus.schemas.event.v2 import SMALLEST_BYTES, peek


class Windows(NamedTuple):
    """The events of a frame: whole windows, or a part of one that `goes_on` in the next frame.

    `first_offset` counts the events of the first window before them.
    """

    data: bytes
    first_scn: int
    last_scn: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    newest_timestamp_ns: int
    first_offset: int = 0
    goes_on: bool = False


def whole_windows(data: bytes, after_scn: int) -> Windows:
    """Return whole windows that come after an SCN; raise ProtocolError if they are not sound."""
    events = FrameEvents(data)
    first = last = None
    newest_ns = 0
    try:
        for window in sound_windows(events, 0, len(data), after_scn):
            first, last = first or window, window
            newest_ns = max(newest_ns, window.timestamp_ns)
    finally:
        events.release()
    if first is None or last is None or last.end != len(data):
        at = 0 if last is None else last.end
        raise ProtocolError(f"no sound window begins here, after scn {after_scn}", at)
    return Windows(data, first.scn, last.scn, first.timestamp_ns, last.timestamp_ns, newest_ns)


def part_of_window(data: bytes, first_offset: int) -> tuple[Windows, int]:
    """Return the whole events that bytes of one window begin with, and how many they are.

    `first_offset` counts its events before them. The part ends at the window's end, or at the
    last event that is whole. Raises ProtocolError if not even one is.
    """
    at = count = 0
    is_over = False
    while not is_over and len(data) - at >= SMALLEST_BYTES:
        event = peek(data, at)
        if not data.startswith(V2_BEGIN, at) or event.length < SMALLEST_BYTES:
            raise ProtocolError("no event begins here", at)
        if at + event.length > len(data):
            break
        at, count, is_over = at + event.length, count + 1, event.src_id == EOP_SRC_ID
    if not count:
        raise ProtocolError("an event is cut", at)
    scn, timestamp_ns = peek(data).scn, peek(data).timestamp_ns
    times = timestamp_ns, timestamp_ns, timestamp_ns
    return Windows(data[:at], scn, scn, *times, first_offset, not is_over), count
