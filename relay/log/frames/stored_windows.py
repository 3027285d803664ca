"""Windows of a log as they lie on disk, for a client that decodes zstd.

Frames of zstd one after the other are one stream of zstd, and a frame's header is a skippable
frame of it. So a part of a file that begins with a header and ends with a frame is a whole body,
which is sent without a look at it. What damage there is, the client finds: by zstd, and by the
CRCs of the events. It asks again for the plain events then, and is told which windows are damaged.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from databus.daemon.http.sending import FilePart
from databus.relay.log.frames.open_segment import OpenSegment, position_of
from databus.relay.log.layout import COMPRESSED, GOES_ON


class StoredWindows(NamedTuple):
    """Whole windows in a file: where they end, the last one's SCN, and their bytes of events."""

    file: FilePart
    end: int
    scn: int
    plain_bytes: int


class StoredReader(Protocol):
    """A reader of windows that may lie in files, compressed; positions are as it has them."""

    def stored_windows(self, position: int, max_bytes: int) -> StoredWindows | None:
        """Return windows of at most `max_bytes` of events that begin with a frame; else None."""
        ...

    def rest_of_frame(self, position: int) -> int:
        """Return how many bytes of a compressed frame follow a position in it; 0 if none does."""
        ...


def find_stored(opened: OpenSegment, position: int, max_bytes: int) -> StoredWindows | None:
    """Return the windows that begin with the frame at a position; None if none does, or fits.

    Raises SegmentAwayError.
    """
    segment, index, count = opened.segment, opened.index, opened.count
    first = index.last(position_of, position, count)
    if first < 0 or index[first].position != position:
        return None
    found, last = None, first
    for number in range(first, count):
        entry = index[number]
        following = index[number + 1] if number + 1 < count else None
        end = segment.end.position if following is None else following.position
        if end - position > max_bytes or not entry.flags & COMPRESSED:
            break
        if entry.flags & GOES_ON:
            continue
        begin, scn, until = index[first].offset, segment.end.scn, segment.end.offset
        if following is not None:
            scn, until = following.prev_scn, following.offset
        part = FilePart(opened.file, begin, until - begin)
        found, last = StoredWindows(part, end, scn, end - position), number
    if found is not None:
        opened.require(first, last + 1)
    return found


def rest_of_frame(opened: OpenSegment, position: int) -> int:
    """Return how many bytes of a compressed frame follow a position in its middle; else 0."""
    entry, end = next(opened.frames_from(position))
    is_inside = entry.position < position and entry.flags & COMPRESSED
    return end - position if is_inside else 0
