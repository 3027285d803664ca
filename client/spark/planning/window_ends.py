"""Find the ends of windows in the bytes of a stream, and how far a batch reaches. Pure.

Rows are counted, not decoded: of a row's event only length and source are read. The end of a
window, whose SCN becomes an offset, has both its CRCs checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from databus.schemas.errors import ProtocolError
from databus.schemas.event.layout import (
    V1,
    V1_SMALLEST_BYTES,
    V1_VERSION,
    V2,
    V2_SMALLEST_BYTES,
    V2_VERSION,
    struct_of,
)
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.stream_reader import decode_event

_V1_BEGIN, _V2_BEGIN = V1.length.offset, V2.length.offset
_V1_FIELDS = struct_of(V1.length, V1.scn, V1.src_id, begin=_V1_BEGIN)
_V2_FIELDS = struct_of(V2.length, V2.src_id, V2.scn, begin=_V2_BEGIN)


class WindowEnd(NamedTuple):
    """The end of a window. `size_bytes`: of all its events; `end`: offset of the byte after it."""

    scn: int
    time_ns: int
    rows: int
    size_bytes: int
    end: int


class WindowEnds(NamedTuple):
    """The whole windows of a response, and the SCN of the incomplete one after them, if any."""

    whole: Sequence[WindowEnd]
    pending_scn: int | None = None


def window_ends(data: bytes | bytearray, after_scn: int) -> WindowEnds:
    """Return the windows of a response to a request for those after `after_scn`.

    Raises ProtocolError for bytes that are not whole events, for control events other than
    the end of a window, and for windows that are not in order.
    """
    found: list[WindowEnd] = []
    at = begin = rows = 0
    pending_scn: int | None = None
    while at < len(data):
        length, src_id, scn = _fields(data, at)
        if src_id >= 0:
            rows += 1
            pending_scn = scn
        elif _is_end(data, at):
            if scn <= after_scn:
                raise ProtocolError(
                    f"window {scn} after window {after_scn}: has the relay gone back, or do the "
                    "sources belong to several databases?",
                    at,
                )
            time_ns = decode_event(data, at)[0].timestamp_ns
            end = at + length
            found.append(WindowEnd(scn, time_ns, rows, end - begin, end))
            after_scn, begin, rows, pending_scn = scn, end, 0, None
        at += length
    return WindowEnds(found, pending_scn)


def _fields(data: bytes | bytearray, at: int) -> tuple[int, int, int]:
    """Return length, source id and SCN of an event; raises ProtocolError."""
    left, version = len(data) - at, data[at]
    if version == V2_VERSION and left >= V2_SMALLEST_BYTES:
        length, src_id, scn = _V2_FIELDS.unpack_from(data, at + _V2_BEGIN)
    elif version == V1_VERSION and left >= V1_SMALLEST_BYTES:
        length, scn, src_id = _V1_FIELDS.unpack_from(data, at + _V1_BEGIN)
    elif version in (V1_VERSION, V2_VERSION):
        raise ProtocolError(f"the response ends {left} bytes into an event", at)
    else:
        raise ProtocolError(f"event version byte is {version}, not 0 or 2", at)
    if not V2_SMALLEST_BYTES <= length <= left:
        raise ProtocolError(f"event length {length} is impossible, {left} bytes are left", at)
    return length, src_id, scn


def _is_end(data: bytes | bytearray, at: int) -> bool:
    """Return whether a control event ends its window; raises ProtocolError for other ones."""
    event, _ = decode_event(data, at)
    if event.is_eop or event.is_statement:
        return event.is_eop
    text = event.value.decode("utf-8", "replace")
    raise ProtocolError(f"the server sent control event {event.src_id}: {text}", at)


class Limits(NamedTuple):
    """What a batch may have. Its first window, and its first one with rows, may have more."""

    rows: int = MAX_SCN
    size_bytes: int = MAX_SCN
    until_scn: int = MAX_SCN


class Reach:
    """How far a batch reaches; windows are added one after another."""

    def __init__(self, after_scn: int, limits: Limits) -> None:
        self.scn = after_scn
        self.time_ns = 0
        self.rows = 0
        self.size_bytes = 0
        self.is_over = False
        self._limits = limits

    def add(self, window: WindowEnd) -> None:
        """Add the next window, if it is within the limits; otherwise the batch is over."""
        limits = self._limits
        rows, size_bytes = self.rows + window.rows, self.size_bytes + window.size_bytes
        is_too_much = (self.rows and window.rows and rows > limits.rows) or (
            self.size_bytes and size_bytes > limits.size_bytes
        )
        if is_too_much or window.scn > limits.until_scn:
            self.is_over = True
            return
        self.scn, self.time_ns = window.scn, window.time_ns
        self.rows, self.size_bytes = rows, size_bytes
        self.is_over = rows >= limits.rows or window.scn == limits.until_scn
