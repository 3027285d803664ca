"""Where in a log a GTID may be: by what its segments say first, and then by their indexes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from databus.relay.log.frames.open_segment import OpenSegment, position_of
from databus.relay.log.gtids.frame_gtids import GtidKey
from databus.relay.log.segment import Segment, read_frames_with
from databus.schemas.errors import RelayLogDamagedError, RelayLogError


class GtidSpan(NamedTuple):
    """Positions between which a GTID may be.

    They are those of one frame, or of a segment without an index of GTIDs.
    """

    begin: int
    end: int
    is_frame: bool = False


def find_span(
    segments: Sequence[Segment],
    position: int,
    gtid: GtidKey,
    use: Callable[[Segment], OpenSegment],
    note_damage: Callable[[RelayLogDamagedError], object],
) -> GtidSpan | None:
    """Return the first span with an end behind a position in which a GTID may be; None without one.

    Only the segment that has it is opened. One whose index of GTIDs is damaged is named to
    `note_damage`, and is searched as one without. Raises what `use` raises, and RelayLogError.
    """
    number = bisect_right(segments, position, key=_position_of) - 1
    for segment in segments[max(0, number) :]:
        begin, end = max(position, segment.header.position), segment.end.position
        if begin >= end:
            continue
        if segment.index is None:  # sealed
            if segment.gtids is not None and not gtid.is_in(segment.gtids):
                continue
            if segment.gtids is None and not segment.damage:
                return GtidSpan(begin, end)
        opened = use(segment)
        count = opened.count
        first = opened.index.last(position_of, begin, count)
        try:
            frames = _frames_with(opened, gtid)
        except RelayLogDamagedError as error:
            note_damage(error)
            return GtidSpan(begin, end)
        for frame in frames:
            if first <= frame < count:
                is_last = frame + 1 == count
                until = end if is_last else opened.index[frame + 1].position
                return GtidSpan(opened.index[frame].position, until, is_frame=True)
    return None


def _frames_with(opened: OpenSegment, gtid: GtidKey) -> list[int]:
    segment = opened.segment
    if segment.index is not None:
        return segment.index.gtids.frames_with(gtid)
    if segment.gtids is None:
        raise RelayLogDamagedError(str(segment.path), segment.damage)
    try:
        return read_frames_with(opened.file.fd, segment.path, gtid)
    except OSError as error:  # the disk may be there again later
        raise RelayLogError(f"relay log {segment.path}: {error}") from error


def _position_of(segment: Segment) -> int:
    return segment.header.position
