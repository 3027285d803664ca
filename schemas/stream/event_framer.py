"""Cut a response's bytes where whole events end, whichever reader takes them apart.

Events follow one another with no other framing; a chunk may end anywhere. The
framer keeps what is left of a chunk until the event it begins is whole, and
counts the bytes of the window under way. What the events say is the reader's
part: `StreamReader`, `RowReader` and `PageReader` each have a framer.
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
        """Return how long the header is of an event whose fixed part is here."""
        ...

    def checked_length(self, buffer: Buffer, offset: int, /) -> int:
        """Return how long the event is, as its CRC confirms it."""
        ...


_VERSIONS: Mapping[int, _Version] = {event_v1.VERSION: event_v1, event_v2.VERSION: event_v2}


class EventFramer:
    """Join chunks until the event they begin is whole, and bound the window's size.

    Bytes are looked at once: what is left of a chunk waits in pieces until the
    event they begin is whole, however many chunks that takes. A reader sets
    `window_bytes` back to 0 when a window ends.
    """

    def __init__(self, max_window_bytes: int) -> None:
        self.max_window_bytes = max_window_bytes
        self.reset()

    def reset(self) -> None:
        """Forget the half event, and the size of the window under way."""
        self._pieces: list[bytes] = []
        self._piece_bytes = 0
        self._needed_bytes = 0  # how many it takes to get on
        self.window_bytes = 0

    def join(self, chunk: bytes) -> bytes | None:
        """Return the chunk behind what was left over; None while no event is whole yet."""
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
        """Keep what is left of `data` from `offset` on, where an event begins that is cut."""
        self._piece_bytes = len(data) - offset
        if self._piece_bytes:
            self._pieces.append(data[offset:])

    def close(self) -> None:
        """Note that the response is over; raises ProtocolError inside an event."""
        if self._pieces:
            raise ProtocolError(f"response ends {self._piece_bytes} bytes into an event")

    def count(self, size_bytes: int, offset: int) -> None:
        """Count bytes of the window; raises WindowTooLargeError when they are too many."""
        self.window_bytes += size_bytes
        if self.window_bytes > self.max_window_bytes:
            raise self._too_large(self.window_bytes, offset)

    def is_cut(self, data: bytes, offset: int) -> bool:
        """Return whether the event at `offset`, which cannot be decoded, only wants more bytes.

        Raises ProtocolError or WindowTooLargeError where its header says that it is damaged or
        too large.
        """
        self._needed_bytes = self._needed(data, offset)
        return self._needed_bytes > len(data) - offset

    def _needed(self, data: bytes, offset: int) -> int:
        """Return how many bytes it takes to go on from `offset`; 0 = what is there is damage.

        No length is believed before the header's CRC has confirmed it: one flipped
        bit would otherwise ask for gigabytes.
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
