"""The ring's interface to the capture loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from databus.relay.sources.source import Newest
from databus.schemas.log_mark import LogMark
from databus.schemas.windows import EncodedWindow, WindowBatch


class CaptureRing(Protocol):
    """A ring that capture appends to."""

    @property
    def max_scn(self) -> int:
        """SCN of the newest window; negative without one."""
        ...

    @property
    def newest_timestamp_ns(self) -> int:
        """Timestamp of the newest window; 0 without one."""
        ...

    def note_mark(self, mark: LogMark) -> None:
        """Store the identity of the source's log at an SCN."""

    def log_marks(self) -> Sequence[LogMark]:
        """Return the stored log marks."""
        ...

    def restart_after(self, scn: int) -> None:
        """Empty the ring, so that it begins after `scn`; raise RingError."""

    def append(self, windows: Sequence[EncodedWindow]) -> None:
        """Append whole windows; raise RingError."""

    def append_batch(self, batch: WindowBatch) -> None:
        """Append a batch of whole windows; raise RingError."""

    def reserve(self, size_bytes: int) -> tuple[int, memoryview] | None:
        """Make room behind the newest window; return its position and its bytes, or None."""
        ...

    def lift(self, batch: WindowBatch) -> WindowBatch:
        """Return a placed batch with its data."""
        ...

    def extend(self, at: int, data: bytes) -> None:
        """Write a piece of an unfinished window; raise RingError."""

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Finish the window; raise RingError."""


def newest_of(ring: CaptureRing) -> Newest | None:
    """Return the newest window of a ring; None without one or if its time is unknown."""
    scn, timestamp_ns = ring.max_scn, ring.newest_timestamp_ns
    return Newest(scn, timestamp_ns) if scn >= 0 and timestamp_ns > 0 else None


def stored_marks(ring: CaptureRing, saved: LogMark | None) -> list[LogMark]:
    """Return the log marks of a ring and of MaxSCN, the newest last."""
    kept = ring.log_marks()
    return sorted({*kept} if saved is None else {*kept, saved})
