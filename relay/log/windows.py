"""Windows on their way into a frame. Pure.

Whole windows are checked here, every CRC of them: what is written to a log is sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from databus.relay.log.frames.frame_events import FrameEvents
from databus.relay.ring.events import sound_windows
from databus.schemas.errors import ProtocolError
from databus.schemas.event.crc import event_crc
from databus.schemas.event.event import EOP_SRC_ID
from databus.schemas.event.layout import V2, V2_BEGIN, struct_of
from databus.schemas.event.v2 import SMALLEST_BYTES, peek, stamp

try:
    from databus.relay.ring._core import stamp_part as compiled
except ImportError:  # not built
    compiled = None  # type: ignore[assignment]

# Stamps in place; returns the end of the whole events, their number, and whether they end a window.
stamp_part: Callable[[bytearray, int, int], tuple[int, int, bool]] | None = compiled

_BODY = struct_of(V2.header_length, V2.body_crc, V2.length)


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
    end, count, is_over = _whole_events(data)
    scn, timestamp_ns = peek(data).scn, peek(data).timestamp_ns
    times = timestamp_ns, timestamp_ns, timestamp_ns
    return Windows(data[:end], scn, scn, *times, first_offset, not is_over), count


def parts_of_window(
    read: Callable[[int, int], bytes],
    frame_bytes: int,
    cut: Callable[[bytes, int], tuple[Windows, int]] = part_of_window,
) -> Iterator[Windows]:
    """Yield a window in parts for frames; `read` returns bytes of it from an offset on.

    `cut` makes the part that bytes begin with. Raises ProtocolError as `part_of_window`.
    """
    at, offset, goes_on = 0, 0, True
    while goes_on:
        data = read(at, frame_bytes)
        event_bytes = peek(data).length
        if event_bytes > len(data):
            data = read(at, event_bytes)
        part, count = cut(data, offset)
        yield part
        at, offset, goes_on = at + len(part.data), offset + count, part.goes_on


def stamped_events(data: bytes, scn: int, timestamp_ns: int) -> tuple[bytes, int, bool]:
    """Return the whole events that bytes of one window begin with, stamped.

    Also returns how many they are, and whether the window ends with them. Raises ProtocolError if
    not even one is whole, or a body is not what its CRC says.
    """
    if stamp_part is not None:
        stamped = bytearray(data)
        end, count, is_over = stamp_part(stamped, scn, timestamp_ns)
        return bytes(stamped[:end]), count, is_over
    end, count, is_over = _whole_events(data)
    at = 0
    while at < end:
        header_length, body_crc, length = _BODY.unpack_from(data, at)
        if event_crc(data[at + header_length : at + length]) != body_crc:
            raise ProtocolError("an event is damaged", at)
        at += length
    return stamp(data[:end], scn, timestamp_ns), count, is_over


def _whole_events(data: bytes) -> tuple[int, int, bool]:
    """Return where the whole events end, how many they are, and whether a window ends there."""
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
    return at, count, is_over
