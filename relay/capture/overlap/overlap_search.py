"""Looks in another server's log for the last window that was delivered, without GTIDs.

The log is read from a minute before the windows that are compared, to its present end, as capture
would read it; nothing of that is kept but digests. The rules are in `overlap.py`.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from databus.conf.named_places import parse_place
from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.files import make_folder
from databus.daemon.log_setup import about
from databus.relay.capture.overlap.overlap import COMPARED_WINDOWS, overlap_end
from databus.relay.capture.overlap.window_digests import WindowDigest, window_digests
from databus.relay.capture.table_stops import TableStops
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.ring.reader import RingReader
from databus.relay.sources.epochs import NoOverlapError
from databus.relay.sources.source import Captured, Source
from databus.schemas.errors import ScnNotFoundError, SourceStoppedError
from databus.schemas.event.event import Event
from databus.schemas.windows import EmptyWindow, WindowBatch, WindowEnd, WindowPiece

log = logging.getLogger(__name__)

OVERLAP_SUFFIX = ".overlap"  # of the folder's name, after that of the physical source
MARGIN_S = 60
_NEVER_DELIVERED = b"large"  # digest of a window that arrives in pieces


class _Delivered(NamedTuple):
    """Digests of the newest windows with rows, and the time of the first that is compared."""

    digests: list[bytes]
    since_ns: int


class OverlapSearch:
    """Searches for one physical source, on its capture thread.

    `open_source` opens a source that keeps what it must remember in a folder; `folder` is removed
    at the end. Rows of tables that are stopped alone do not count.
    """

    def __init__(
        self,
        ring_path: Path,
        open_source: Callable[[PhysicalSourceSettings, Path], Source],
        make_encoder: Callable[[], WindowEncoder],
        stops: TableStops,
        src_ids: Callable[[], Mapping[str, int]],
        folder: Path,
    ) -> None:
        self._ring_path, self._open_source = ring_path, open_source
        self._make_encoder, self._stops, self._src_ids = make_encoder, stops, src_ids
        self._folder = folder

    def find(self, settings: PhysicalSourceSettings, epoch: int) -> int:
        """Return the SCN, as of an epoch, of the last delivered window in a server's log.

        Raises NoOverlapError, and what sources raise.
        """
        src_ids = self._src_ids()
        left_out = {src_ids[name] for name in self._stops.stops}

        def counts(event: Event) -> bool:
            return event.src_id not in left_out

        delivered = self._delivered(counts)
        since = datetime.fromtimestamp(delivered.since_ns // 1_000_000_000 - MARGIN_S, UTC)
        text = "%s: looking for %d delivered windows in the log of another server, from %s on"
        known = about(physical_source=settings.name)
        log.info(text, settings.name, len(delivered.digests), since, extra=known)
        searched = settings.model_copy(
            update={
                "name": f"{settings.name}.overlap",
                "epoch": epoch,
                "start": f"time:{since:%Y-%m-%dT%H:%M:%SZ}",
                "server_id": 0,
                "epoch_peers": (),
            }
        )
        try:
            make_folder(self._folder)
            return overlap_end(delivered.digests, list(self._read(searched, counts)))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _delivered(self, counts: Callable[[Event], bool]) -> _Delivered:
        with closing(RingReader.open(self._ring_path)) as ring:
            try:
                run = _newest_windows(ring, counts)
                if not run:
                    raise NoOverlapError("the relay holds no windows with rows")
                first = ring.window_at(run[0].scn)
                since_ns = 0 if first is None else first[1]
                block = ring.block_before(since_ns - MARGIN_S * 1_000_000_000)
                position = ring.head if block is None else block.position
                found = [one.digest for one in window_digests(ring, position, counts)]
            except ScnNotFoundError as error:
                raise NoOverlapError(f"the ring cannot be read: {error}") from error
        return _Delivered([digest for digest in found if digest], since_ns)

    def _read(
        self, settings: PhysicalSourceSettings, counts: Callable[[Event], bool]
    ) -> Iterator[WindowDigest]:
        """Yield the digests of a log's windows with rows, up to its present end."""
        with closing(self._opened(settings)) as source:
            end_scn = source.scn_at(parse_place("latest"))
            try:
                source.open(None)
            except SourceStoppedError:
                # The log is younger than that time, or has nothing since.
                source.close()
                source = self._opened(settings.model_copy(update={"start": "earliest"}))
                source.open(None)
            with closing(source):
                while True:
                    captured = source.read()
                    for item in captured:
                        yield from _digests_of(item, counts)
                    is_over = bool(captured) and _scn_of(captured[-1]) >= end_scn
                    if is_over or (not captured and source.is_at_end):
                        return

    def _opened(self, settings: PhysicalSourceSettings) -> Source:
        source, encoder = self._open_source(settings, self._folder), self._make_encoder()
        tables = [settings.names.table_of(name) for name in self._stops.stops]
        source.leave_out(tables)
        encoder.leave_out(tables)
        encoder.registers_versions = False  # the other server may not be read at all
        source.write_with(encoder)
        return source


class _Bytes:
    """The bytes of a batch, read as those of a ring."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on; b"" at the end."""
        return self._data[position : position + max_bytes]


def _newest_windows(ring: RingReader, counts: Callable[[Event], bool]) -> list[WindowDigest]:
    """Return as many of the newest windows with rows as are compared, or all there are."""
    position = ring.tail
    while True:
        block = ring.block_before_position(position)
        position = ring.head if block is None else block
        found = [one for one in window_digests(ring, position, counts) if one.digest]
        if len(found) >= COMPARED_WINDOWS or position <= ring.head:
            return found[-COMPARED_WINDOWS:]


def _digests_of(item: Captured, counts: Callable[[Event], bool]) -> Iterator[WindowDigest]:
    if isinstance(item, WindowBatch):
        yield from (one for one in window_digests(_Bytes(item.data), 0, counts) if one.digest)
    elif isinstance(item, WindowEnd):
        yield WindowDigest(item.scn, _NEVER_DELIVERED)


def _scn_of(item: Captured) -> int:
    match item:
        case WindowBatch():
            return item.last_scn
        case WindowPiece():
            return -1
        case WindowEnd() | EmptyWindow():
            return item.scn
