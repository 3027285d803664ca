"""A ring as the capture loop sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from databus.relay.sources.source import Newest
from databus.schemas.log_mark import LogMark
from databus.schemas.windows import EncodedWindow, WindowBatch


class CaptureRing(Protocol):
    """What the capture loop asks of a ring."""

    @property
    def max_scn(self) -> int:
        """The newest window; negative when there is none."""
        ...

    @property
    def newest_timestamp_ns(self) -> int:
        """Its timestamp; 0 when there is none."""
        ...

    def note_mark(self, mark: LogMark) -> None:
        """Keep what the source's log is at an SCN."""

    def log_marks(self) -> Sequence[LogMark]:
        """Return what is kept of it."""
        ...

    def append(self, windows: Sequence[EncodedWindow]) -> None:
        """Append whole windows; raises RingError."""

    def append_batch(self, batch: WindowBatch) -> None:
        """Append whole windows that are in one piece; raises RingError."""

    def extend(self, at: int, data: bytes) -> None:
        """Write a piece of a window that is not finished; raises RingError."""

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Finish it; raises RingError."""


def newest_of(ring: CaptureRing) -> Newest | None:
    """Return the newest window that a ring holds, when its time is known."""
    scn, timestamp_ns = ring.max_scn, ring.newest_timestamp_ns
    return Newest(scn, timestamp_ns) if scn >= 0 and timestamp_ns > 0 else None
