"""Read the logs of an archive without their relay: which there are, their schemas, their events.

Everything blocks. The bytes of events are those that the relay would send: the same code selects
them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from databus.relay.log.archive.cache import ArchivedSegment, SegmentCache
from databus.relay.log.archive.manifest import (
    SCHEMAS,
    ArchiveError,
    Manifest,
    between,
    newest_chain,
    ring_folder,
)
from databus.relay.log.archive.store import ArchiveStore
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.log.segment import Segment
from databus.relay.ring.event_selector import WINDOW_DONE, EventSelector
from databus.relay.ring.selection import Selection
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.filters import EventFilter

_STEP_BYTES = 4 << 20
_ROOM_BYTES = 16 << 20


class ArchivedSchema(NamedTuple):
    """One version of a source's schema, as the relay of the log had it."""

    source: str
    src_id: int
    version: int
    text: str


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """The logs of one ring: `log` is the one that was written last, oldest segment first."""

    source: str
    ring_id: int
    log: tuple[Manifest, ...]
    others: tuple[Manifest, ...]

    @property
    def folder(self) -> str:
        """Its folder, below the archive's base."""
        return ring_folder(self.source, self.ring_id)

    @property
    def sealed_ns(self) -> int:
        """When its newest segment was sealed."""
        return self.log[-1].sealed_ns

    def covers(self, after_scn: int, until_scn: int) -> bool:
        """Return whether it has every window after an SCN, up to another one."""
        return self.log[0].complete_after <= after_scn and until_scn <= self.log[-1].end.scn

    def between(self, after_scn: int, until_scn: int) -> tuple[Manifest, ...]:
        """Return the segments with windows after an SCN, up to another one."""
        return between(self.log, after_scn, until_scn)

    def __str__(self) -> str:
        first, last = self.log[0], self.log[-1]
        return f"{self.folder} from scn {first.header.first_scn} to {last.end.scn}"


class ArchiveReader:
    """The logs of an archive; what is read of a segment lies in a folder meanwhile."""

    def __init__(self, uri: str, folder: Path, most_bytes: int) -> None:
        """`most_bytes` of segments are kept. Raises SettingsError."""
        self.store = ArchiveStore(uri)
        self._folder = folder
        self._cache = SegmentCache(folder, most_bytes, self.store.read_range, waits=True)

    def close(self) -> None:
        """Delete the files, and close the connections."""
        self._cache.close()
        self.store.close()

    def physical_sources(self) -> list[str]:
        """Return the names of the physical sources."""
        return [name for name in self.store.folders() if not name.startswith(".")]

    def logs(self, source: str) -> list[ArchivedLog]:
        """Return the logs of a physical source, the one that was written last at the end."""
        found = []
        for ring in self.store.folders(source):
            manifests = tuple(self.store.manifests(f"{source}/{ring}", {}).values())
            if manifests:
                log = newest_chain(manifests)
                others = sorted(
                    set(manifests) - set(log), key=lambda one: (one.sealed_ns, one.header.position)
                )
                found.append(ArchivedLog(source, int(ring, 16), log, tuple(others)))
        return sorted(found, key=lambda one: one.sealed_ns)

    def find_copy(self, segment: Segment) -> ArchivedSegment | None:
        """Return the copy of a sealed segment on disk; None without one. Raises ArchiveError."""
        header = segment.header
        manifests = self.store.manifests(ring_folder(header.source, header.ring_id), {})
        found = [one for one in manifests.values() if one.is_of(segment)]
        return ArchivedSegment(found[0], self._cache) if found else None

    def segments(self, manifests: Iterable[Manifest]) -> tuple[ArchivedSegment, ...]:
        """Return segments of which is fetched what is read."""
        return tuple(ArchivedSegment(one, self._cache) for one in manifests)

    @contextmanager
    def copy(self, segment: ArchivedSegment) -> Iterator[Path]:
        """Yield a copy of a whole segment, whose digest was checked; raise ArchiveError."""
        path = self._folder / segment.header.name
        self.store.fetch(segment.manifest, path)
        try:
            yield path
        finally:
            path.unlink()

    def schemas(self, log_folder: str) -> list[ArchivedSchema]:
        """Return the schemas of a log's rows, in the order of their versions."""
        folder = f"{log_folder}/{SCHEMAS}"
        paths = [f"{folder}/{name}" for name in self.store.names(folder) if name.endswith(".json")]
        return sorted(_schema(path, self.store.read(path)) for path in paths)


def read_selected(
    segments: tuple[ArchivedSegment, ...],
    scns: tuple[int, int],
    src_ids: Collection[int],
    filters: Mapping[int, EventFilter],
) -> Iterator[bytes]:
    """Yield the events of some sources in the windows after one SCN, up to another one.

    Each piece has whole events, as `/stream` sends them. The segments are a part of one log.
    Raises ScnNotFoundError if they do not have all those windows.
    """
    selection = Selection(
        segments[0].header.source,
        Checkpoint.at(scns[0]),
        frozenset(src_ids),
        filters,
        until_scn=scns[1],
    )
    with closing(LogReader(SegmentTuple(segments))) as reader:
        position = reader.find(selection.checkpoint.window_scn, WINDOW_DONE)
        end = reader.find(selection.until_scn, WINDOW_DONE)
        if position is None or end is None:
            raise ScnNotFoundError(selection.until_scn, reader.min_scn)
        selector = EventSelector(selection, render=None)
        place, room_bytes = (selection.checkpoint.window_scn, WINDOW_DONE), _ROOM_BYTES
        while position < end:
            step_bytes = min(_STEP_BYTES, end - position)
            found = reader.select(position, step_bytes, selector, place, room_bytes)
            assert found is not None, "the end is in the log"
            if found.data:
                yield found.data
            position, place = found.position, (found.scn, found.offset)
            room_bytes = max(_ROOM_BYTES, found.overflow_bytes)  # an event may be larger


def _schema(path: str, text: bytes) -> ArchivedSchema:
    try:
        value = json.loads(text)
        return ArchivedSchema(
            str(value["source"]), int(value["srcId"]), int(value["version"]), str(value["schema"])
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ArchiveError(f"archive: {path} is no schema: {error!r}") from error
