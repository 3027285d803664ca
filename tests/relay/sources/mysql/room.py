"""Room for windows that is no ring's, so that what was written there can be looked at."""

from __future__ import annotations

from databus.schemas.windows import NO_PLACE, WindowBatch


class Room:
    """Gives out room of at most `most_bytes` at a time, and keeps all of it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._given: dict[int, bytearray] = {}
        self._end = 0

    def reserve(self, size_bytes: int) -> tuple[int, memoryview]:
        """Return the position of new room, and its bytes."""
        position, given = self._end, bytearray(min(size_bytes, self._most_bytes))
        self._given[position] = given
        self._end += len(given)
        return position, memoryview(given)

    def lift(self, batch: WindowBatch) -> WindowBatch:
        """Return a batch with its data."""
        if not batch.is_placed:
            return batch
        begin = max(position for position in self._given if position <= batch.place)
        at = batch.place - begin
        data = bytes(self._given[begin][at : at + batch.size_bytes])
        return batch._replace(data=data, place=NO_PLACE)
