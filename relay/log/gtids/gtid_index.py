"""The index of a segment's GTIDs: in which frames one may be. Pure.

    ranges   for each prefix, the frames that have it: the number of the frame, and the lowest and
             highest number there
    list     the number of all frames; of each prefix the lowest and highest number of the segment,
             how many ranges it has, their CRC32, and the prefix with its length before it

All numbers are little-endian. The prefixes are sorted, and so are the frames of each. The footer
has size and CRC32 of the list. So what one GTID needs is read and checked without the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple
from zlib import crc32

from databus.relay.log.gtids.frame_gtids import GtidKey, GtidRanges

_RANGE = struct.Struct("<IQQ")
_LIST = struct.Struct("<I")
_PREFIX = struct.Struct("<QQIIH")


class StoredGtids(NamedTuple):
    """The bytes of an index: ranges and list. `list_bytes` and `list_crc` are for the footer."""

    data: bytes
    list_bytes: int
    list_crc: int


class GtidRun(NamedTuple):
    """The ranges of one prefix: its numbers in the segment, and where its ranges are."""

    lowest: int
    highest: int
    at: int
    size_bytes: int
    crc: int


class GtidList:
    """The list of prefixes in an index that was stored."""

    def __init__(self, data: bytes) -> None:
        """Raise ValueError if these are not the bytes of a list."""
        self.runs: dict[bytes, GtidRun] = {}
        try:
            (self.frames,) = _LIST.unpack_from(data)
            at, run_at = _LIST.size, 0
            while at < len(data):
                lowest, highest, count, crc, length = _PREFIX.unpack_from(data, at)
                prefix = data[at + _PREFIX.size : at + _PREFIX.size + length]
                size_bytes = count * _RANGE.size
                self.runs[prefix] = GtidRun(lowest, highest, run_at, size_bytes, crc)
                at, run_at = at + _PREFIX.size + length, run_at + size_bytes
        except struct.error as error:
            raise ValueError(f"the list of GTIDs is cut: {error}") from error
        if at != len(data):
            raise ValueError("the list of GTIDs is cut")

    @property
    def ranges(self) -> GtidRanges:
        """The numbers of each prefix in the whole segment."""
        return {prefix: (run.lowest, run.highest) for prefix, run in self.runs.items()}

    def frames_with(self, gtid: GtidKey, read: Callable[[int, int], bytes]) -> list[int]:
        """Return the numbers of the frames that may have a GTID, in their order.

        `read` returns bytes of the ranges from an offset on. Raises ValueError if their CRC is
        wrong.
        """
        found: set[int] = set()
        for prefix in {gtid.prefix, b""} & self.runs.keys():
            run = self.runs[prefix]
            if run.lowest <= gtid.number <= run.highest:
                ranges = read(run.at, run.size_bytes)
                if len(ranges) != run.size_bytes or crc32(ranges) != run.crc:
                    raise ValueError("the CRC of its ranges is wrong")
                found.update(_frames_in(ranges, gtid.number))
        return sorted(found)


class GtidIndex:
    """The index of the segment being written. One thread writes it; any may search it."""

    def __init__(self) -> None:
        self._ranges: dict[bytes, bytearray] = {}
        self._frames = 0

    def add(self, gtids: GtidRanges) -> None:
        """Add the GTIDs of the next frame."""
        for prefix, numbers in gtids.items():
            ranges = self._ranges.get(prefix)
            if ranges is None:
                ranges = self._ranges[prefix] = bytearray()
            ranges += _RANGE.pack(self._frames, *numbers)
        self._frames += 1

    def cut(self, count: int) -> None:
        """Forget all frames but the first `count`."""
        for prefix, ranges in list(self._ranges.items()):
            kept = sum(frame < count for frame, _, _ in _RANGE.iter_unpack(bytes(ranges)))
            del ranges[kept * _RANGE.size :]
            if not ranges:
                del self._ranges[prefix]
        self._frames = count

    @property
    def ranges(self) -> GtidRanges:
        """The numbers of each prefix in all frames."""
        return {prefix: _ends(bytes(ranges)) for prefix, ranges in list(self._ranges.items())}

    def frames_with(self, gtid: GtidKey) -> list[int]:
        """Return the numbers of the frames that may have a GTID, in their order."""
        found: set[int] = set()
        for prefix in {gtid.prefix, b""}:
            # A copy: the other thread could add nothing while this one goes through the bytes.
            found.update(_frames_in(bytes(self._ranges.get(prefix, b"")), gtid.number))
        return sorted(found)

    def encode(self) -> StoredGtids:
        """Return its bytes."""
        runs, listed = [], [_LIST.pack(self._frames)]
        for prefix, ranges in sorted(self._ranges.items()):
            run = bytes(ranges)
            count = len(run) // _RANGE.size
            listed += [_PREFIX.pack(*_ends(run), count, crc32(run), len(prefix)), prefix]
            runs.append(run)
        last = b"".join(listed)
        return StoredGtids(b"".join(runs) + last, len(last), crc32(last))


def _frames_in(ranges: bytes, number: int) -> Iterator[int]:
    return (frame for frame, low, high in _RANGE.iter_unpack(ranges) if low <= number <= high)


def _ends(ranges: bytes) -> tuple[int, int]:
    numbers = list(_RANGE.iter_unpack(ranges))
    return min(low for _, low, _ in numbers), max(high for _, _, high in numbers)
