"""The events of a frame in memory, for the code that reads those of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from databus.schemas.event.v2 import Buffer

try:
    from databus.relay.ring._core import RingData
except ImportError:  # not built
    RingData = None  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from databus.relay.ring._core import RingData as Core


class FrameEvents:
    """Whole events; positions count from the first byte."""

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self.capacity_bytes = len(self._data)
        self.core: Core | None = None
        if RingData is not None:
            self.core = RingData(self._data, 0, self.capacity_bytes, False)

    def release(self) -> None:
        """Let go of the bytes."""
        if self.core is not None:
            self.core.release()

    def copy_out(self, position: int, length: int) -> bytes:
        """Copy bytes out of the data."""
        return self._data[position : position + length]
