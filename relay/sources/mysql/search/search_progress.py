"""Tells the progress of a search of the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from databus.relay.sources.mysql.server.start_position import LogFile
from databus.relay.sources.source import LogSearch, TellSearch
from databus.schemas.scn import BinlogPosition

log = logging.getLogger(__name__)

_TELL_S = 0.5
_LOG_S = 10.0


class SearchProgress:
    """The progress of one search, told twice a second, and logged less often."""

    def __init__(
        self,
        tell: TellSearch,
        purpose: str,
        total_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._search = LogSearch(purpose, 0, total_bytes)
        self._clock = clock
        self._began_at = self._told_at = clock()
        self._logged_at = self._told_at + _TELL_S - _LOG_S  # with what is told first
        self._is_told = False

    def of_chunks(
        self, chunks: Iterable[tuple[memoryview, int]]
    ) -> Iterator[tuple[memoryview, int]]:
        """Yield chunks, and tell how many bytes they had."""
        for chunk, size in chunks:
            self.add(size)
            yield chunk, size

    def of_events(self, events: Iterable[bytes]) -> Iterator[bytes]:
        """Yield events, and tell how many bytes they had."""
        for event in events:
            self.add(len(event))
            yield event

    def add(self, size: int) -> None:
        """Count bytes, and tell the progress if it is time; raises what the listener raises."""
        done, total = self._search.done_bytes + size, self._search.total_bytes
        self._search = self._search._replace(done_bytes=done, total_bytes=max(done, total))
        now = self._clock()
        if now - self._told_at < _TELL_S:
            return
        self._told_at, self._is_told = now, True
        if now - self._logged_at >= _LOG_S:
            self._logged_at = now
            log.info("%s", self._search)
        self._tell(self._search)

    def end(self) -> None:
        """Tell that the search is over."""
        if self._is_told:
            log.info("the search took %.1f s", self._clock() - self._began_at)
            self._is_told = False
            self._tell(None)


def bytes_between(files: Sequence[LogFile], begin: BinlogPosition, end: BinlogPosition) -> int:
    """Return how many bytes the log has between two positions, 0 if it does not have them."""
    found = 0
    for file in files:
        if begin.file_number <= file.number <= end.file_number:
            first = begin.offset if file.number == begin.file_number else 0
            last = end.offset if file.number == end.file_number else file.size_bytes
            found += last - first
    return max(0, found)
