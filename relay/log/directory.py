"""The folder of a relay log: which of its segments are one unbroken log.

The log is the newest segments that continue each other: same ring, SCN and position where the
one before ended. Anything older lies before a hole. It is never read as part of the log: the
writer moves it into the folder `aside`, one folder for each log that ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.log.segment import Segment, read_segment, segment_paths
from databus.schemas.errors import RelayLogDamagedError, RelayLogError

ASIDE = "aside"
DELETED = ".deleted"  # added to the name of a segment that is deleted at the next round


def log_folder(data_dir: Path, settings: PhysicalSourceSettings) -> Path:
    """Return the folder of a physical source's log, if it has one."""
    given = None if settings.log is None else settings.log.dir
    return data_dir / f"{settings.name}.relay-log" if given is None else given


class Found(NamedTuple):
    """The segments of a folder: the log, those before a hole, and files that cannot be read.

    `copies` of segments, under other names, are none of the log.
    """

    log: tuple[Segment, ...]
    before: tuple[Segment, ...]
    unreadable: tuple[RelayLogDamagedError, ...]
    copies: tuple[Segment, ...]


def find_segments(folder: Path) -> Found:
    """Read the segments of a folder, oldest first; raise RelayLogError."""
    segments: list[Segment] = []
    copies: list[Segment] = []
    unreadable: list[RelayLogDamagedError] = []
    for path in segment_paths(folder):
        try:
            segment = read_segment(path)
            (segments if path.name == segment.header.name else copies).append(segment)
        except RelayLogDamagedError as error:
            unreadable.append(error)
        except OSError as error:
            raise RelayLogError(f"relay log {path}: {error}") from error
    first = len(segments) - 1
    # The newest may have been created and not have a whole window: it tells nothing.
    if first >= 0 and is_empty(segments[first]) and not segments[first].is_sealed:
        first -= 1
    newest = first
    while first > 0 and continues(segments[first - 1], segments[first]):
        first -= 1
    first = max(first, 0)
    log, before = segments[first:], segments[:first]
    if 0 <= newest < len(segments) - 1 and not continues(segments[newest], segments[-1]):
        log, before = segments[first : newest + 1], [*before, segments[-1]]
    return Found(tuple(log), tuple(before), tuple(unreadable), tuple(copies))


def is_empty(segment: Segment) -> bool:
    """Return whether a segment has no whole window."""
    return segment.end.position == segment.header.position


def continues(before: Segment, segment: Segment) -> bool:
    """Return whether a segment begins where another one ends, in the same log."""
    end, begin = before.end, segment.header
    is_same = (before.header.source, before.header.ring_id) == (begin.source, begin.ring_id)
    return is_same and (end.scn, end.position) == (begin.prev_scn, begin.position)


def folders_aside(folder: Path) -> list[Path]:
    """Return the folders of logs that ended, oldest first."""
    aside = folder / ASIDE
    return sorted(path for path in aside.iterdir() if path.is_dir()) if aside.is_dir() else []
