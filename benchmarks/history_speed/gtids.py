"""What the index of GTIDs costs a log's thread, and how fast it leads to one in 100 GB."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from zlib import crc32

from zstandard import ZstdCompressor

from benchmarks.history_speed.history import (
    PHYSICAL,
    RING_BYTES,
    Place,
    drop_from_memory,
    gtid_of,
    windows_from,
)
from benchmarks.shared.report import Figure, at_most
from databus.conf.named_places import GtidPlace
from databus.relay.log.directory import find_segments
from databus.relay.log.follower import FRAME_BYTES
from databus.relay.log.gtids.frame_gtids import gtids_of
from databus.relay.log.history import HistoryReader, Join
from databus.relay.log.segment import Segment
from databus.relay.log.windows import whole_windows
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.serving.reading.position_search import PositionSearch
from databus.relay.span import FirstScn
from databus.schemas.errors import DatabusError, PlaceNotFoundError


class _Joined:
    """A log, and the ring that continues it."""

    problem, is_complete, openings = "", True, 0

    def __init__(self, segments: Sequence[Segment], ring: RingReader) -> None:
        self.segments = segments
        end = segments[-1].end.position
        self.join: Join | None = Join(ring.ring_id, self.openings, ring.head - end)

    def note_damage(self, error: DatabusError) -> bool:
        """Fail: nothing is damaged."""
        raise error


def seeking(folder: Path, log: Sequence[Segment], places: Sequence[Place]) -> Iterator[Figure]:
    """The time from a GTID to its SCN, as the relay searches it, out of memory and off the disk."""
    path = folder / "beside.ring"
    with (
        closing(Ring.open(path, PHYSICAL, RING_BYTES)) as ring,
        closing(RingReader.open(path, follows=True)) as reader,
    ):
        ring.append([next(windows_from(log[-1].end.scn + 1))])
        joined = _Joined(log, reader)
        for is_cold in (False, True):
            took = []
            for place in places:
                if is_cold:
                    drop_from_memory(place.path)
                with closing(HistoryReader(reader, joined)) as history:
                    began = time.perf_counter()
                    assert _search(history, gtid_of(place.scn)) == place.scn
                    took.append((time.perf_counter() - began) * 1e3)
            where = "off the disk" if is_cold else "in memory"
            name = f"100 GB of history: seek of a GTID, {where}"
            yield Figure(f"{name}, median", statistics.median(took), "ms")
            yield Figure(f"{name}, p99", statistics.quantiles(took, n=100)[98], "ms", at_most(10))


def without_index(log_folder: Path, ring_path: Path) -> Iterator[Figure]:
    """How fast a GTID that nothing has is searched in segments without an index of GTIDs."""
    segments = find_segments(log_folder).log
    for segment in segments:
        segment.gtids = None
    with (
        closing(RingReader.open(ring_path, follows=True)) as ring,
        closing(HistoryReader(ring, _Joined(segments, ring))) as history,
    ):
        began = time.perf_counter()
        assert _search(history, "7-7-7") is None
        seconds = time.perf_counter() - began
        size_bytes = history.tail - history.head
    yield Figure("seek of a GTID without an index of them", size_bytes / seconds / 1e6, "MB/s")


def _search(history: HistoryReader, gtid: str) -> int | None:
    search = PositionSearch(history, GtidPlace(gtid), PHYSICAL, 0, FirstScn())
    try:
        while (found := search.step()) is None:
            pass
    except PlaceNotFoundError:
        return None
    return found.scn


def collecting(repeats: int) -> Iterator[Figure]:
    """The time to find the GTIDs of a frame of single-row transactions, beside what else it takes.

    That is to check all its CRCs, to compress it, and a CRC of the outcome.
    """
    made, data = windows_from(1, rows=1), b""
    while len(data) < FRAME_BYTES:
        data += next(made).data
    compressor = ZstdCompressor(level=1, write_checksum=True)

    def write() -> None:
        crc32(compressor.compress(whole_windows(data, 0).data))

    pairs = [(_seconds(lambda: gtids_of(data)), _seconds(write)) for _ in range(repeats)]
    share = statistics.median(mine / (mine + other) for mine, other in pairs)
    yield Figure("finding a frame's GTIDs / making the frame", 100 * share, "%", at_most(3))


def _seconds(work: Callable[[], object]) -> float:
    """Return the time of one of a few calls."""
    began = time.perf_counter()
    for _ in range(10):
        work()
    return (time.perf_counter() - began) / 10
