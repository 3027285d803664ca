"""Finds the ends of events in a response's bytes, for all readers.

Events follow one another without other framing; a chunk may end anywhere. The framer keeps the
rest of a chunk until its event is whole, and counts the bytes of the current window. The content
of events is read by `StreamReader`, `RowReader` and `PageReader`, which have a framer each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from databus.schemas.errors import ProtocolError, WindowTooLargeError
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.layout import V2_BEGIN

Buffer = event_v2.Buffer


class _Version(Protocol):
    """The functions of a version's module that find where an event ends."""

    SMALLEST_BYTES: int

    def header_length(self, buffer: Buffer, offset: int, /) -> int:
        """Return the length of the header of an event whose fixed part is in the buffer."""
        ...

    def checked_length(self, buffer: Buffer, offset: int, /) -> int:
        """Return the length of the event, which the header's CRC confirms."""
        ...


_VERSIONS: Mapping[int, _Version] = {event_v1.VERSION: event_v1, event_v2.VERSION: event_v2}


class EventFramer:
    """Joins chunks until their first event is whole, and limits the window's size.

    Each byte is examined once: the chunks of an incomplete event wait unjoined until it is whole.
    A reader resets `window_bytes` to 0 at the end of a window.
    """

    def __init__(self, max_window_bytes: int) -> None:
        self.max_window_bytes = max_window_bytes
        self.reset()

    def reset(self) -> None:
        """Drop the incomplete event, and the size of the current window."""
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._needed_bytes = 0  # the size that the pieces must reach
        self.window_bytes = 0

    def join(self, chunk: bytes) -> bytes | None:
        """Return the kept bytes and the chunk; None while they are less than an event."""
        if not self._pieces:
            return chunk
        self._pieces.append(chunk)
        self._piece_bytes += len(chunk)
        if self._piece_bytes < self._needed_bytes:
            return None
        joined = b"".join(self._pieces)
        self._pieces = []
        return joined

    def keep(self, data: bytes, offset: int) -> None:
        """Keep the rest of `data` from `offset` on, where an incomplete event begins."""
        self._piece_bytes = len(data) - offset
        if self._piece_bytes:
            self._pieces.append(data[offset:])

    def close(self) -> None:
        """End the response; raises ProtocolError inside an event."""
        if self._pieces:
            raise ProtocolError(f"response ends {self._piece_bytes} bytes into an event")

    def count(self, size_bytes: int, offset: int) -> None:
        """Count bytes of the window; raises WindowTooLargeError beyond the limit."""
        self.window_bytes += size_bytes
        if self.window_bytes > self.max_window_bytes:
            raise self._too_large(self.window_bytes, offset)

    def is_cut(self, data: bytes, offset: int) -> bool:
        """Return whether an event that cannot be decoded is only incomplete, not damaged.

        Raises ProtocolError or WindowTooLargeError if its header is impossible or its size is too
        large.
        """
        self._needed_bytes = self._needed(data, offset)
        return self._needed_bytes > len(data) - offset

    def _needed(self, data: bytes, offset: int) -> int:
        """Return how many bytes are needed from `offset` on; 0 = the event is damaged.

        No length is used before the header's CRC has confirmed it. Otherwise one flipped bit would
        make the reader wait for gigabytes.
        """
        version = _VERSIONS.get(data[offset])
        here = len(data) - offset
        if version is None or (version is event_v2 and not _begins_v2(data, offset)):
            return 0
        if here < version.SMALLEST_BYTES:
            return version.SMALLEST_BYTES
        header_bytes = version.header_length(data, offset)
        if header_bytes > self.max_window_bytes:
            raise ProtocolError(f"header length {header_bytes} is impossible", offset)
        if here < header_bytes:
            return header_bytes
        length = version.checked_length(data, offset)
        if self.window_bytes + length > self.max_window_bytes:
            raise self._too_large(self.window_bytes + length, offset)
        return length

    def _too_large(self, size_bytes: int, offset: int) -> ProtocolError:
        return WindowTooLargeError(size_bytes, self.max_window_bytes, offset)


def _begins_v2(data: bytes, offset: int) -> bool:
    return V2_BEGIN.startswith(data[offset : offset + len(V2_BEGIN)])
