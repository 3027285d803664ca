"""A segment that is open for reading: its file and its index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from databus.daemon.files import OpenFile
from databus.relay.log.layout import IndexEntry
from databus.relay.log.segment import FrameIndex, Segment


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment, its file, and its index."""

    segment: Segment
    file: OpenFile
    index: FrameIndex

    @property
    def count(self) -> int:
        """Number of frames of windows that are whole and synced."""
        return self.index.last(position_of, self.segment.end.position - 1) + 1

    def frame_at(self, position: int) -> IndexEntry:
        """Return the frame that holds a position, which can be read; raise SegmentAwayError."""
        number = self.index.last(position_of, position)
        self.require(number, number + 1)
        return self.index[number]

    def require(self, first: int, end: int) -> None:
        """Raise SegmentAwayError if frames, by their numbers, are not here."""
        if not self.segment.is_sealed:
            return
        is_last = end == len(self.index)
        until = self.segment.end.offset if is_last else self.index[end].offset
        self.segment.require(self.file, self.index[first].offset, until)

    def frames_from(self, position: int) -> Iterator[tuple[IndexEntry, int]]:
        """Yield the frames from the one that holds a position on, and their ends."""
        count = self.count
        for number in range(self.index.last(position_of, position, count), count):
            is_last = number + 1 == count
            end = self.segment.end.position if is_last else self.index[number + 1].position
            yield self.index[number], end


def position_of(entry: IndexEntry) -> int:
    """Return the position of a frame, by which an index is searched."""
    return entry.position
