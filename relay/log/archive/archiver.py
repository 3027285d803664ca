"""Copy the sealed segments of one log to its archive, on a thread of its own.

Nothing waits for it: neither capture nor the log's writer nor a request. What fails is tried again
for ever, and the log's retention keeps what is not in the archive yet. A segment counts once its
manifest is in a listing of the archive, or was written by this relay.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from databus.conf.settings import RelayLogSettings
from databus.daemon.faults import describe
from databus.daemon.log_setup import about
from databus.registry.version import SchemaVersion
from databus.relay.clock import Clock
from databus.relay.log.archive.cache import ArchivedCopy, ArchivedSegment, SegmentCache
from databus.relay.log.archive.manifest import (
    SCHEMAS,
    ArchiveError,
    Manifest,
    SegmentKey,
    chain_before,
    key_of,
    ring_folder,
)
from databus.relay.log.archive.status import ArchiveStatus
from databus.relay.log.archive.store import ArchiveStore
from databus.relay.log.directory import folders_aside
from databus.relay.log.segment import Segment, read_sealed, segment_paths
from databus.schemas.errors import DamagedWindowsError, DatabusError

log = logging.getLogger(__name__)

CACHE = "archive-cache"
LOOK_EVERY_S = 5.0
LIST_EVERY_S = 300.0
RETRY_S = 1.0
MOST_RETRY_S = 60.0
_CHUNK_BYTES = 1 << 20
_HOUR_NS = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Sources:
    """What reading a log needs beside its segments: called when a segment is archived.

    All schema versions of the physical source's sources; and for a ring's id the SCN after which
    each one is captured that is not stopped.
    """

    schemas: Callable[[], Iterable[SchemaVersion]]
    first_scns: Callable[[int], Mapping[str, int]]


class Archiver:
    """Archives one log until it is stopped. All public methods are thread-safe."""

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: RelayLogSettings,
        sources: Sources,
        on_problem: Callable[[Exception], None],
        clock: Clock,
    ) -> None:
        """Raise SettingsError for an archive that cannot be used at all."""
        assert settings.archive is not None
        self._folder, self._name, self._settings = folder, name, settings
        self._sources, self._on_problem, self._clock = sources, on_problem, clock
        self._store = ArchiveStore(settings.archive)
        self._cache = SegmentCache(
            folder / CACHE, settings.archive_cache_bytes, self._store.read_range, waits=False
        )
        self._local: tuple[Segment, ...] = ()
        self._known: dict[int, dict[str, Manifest]] = {}  # by ring and name
        self._keys: frozenset[SegmentKey] = frozenset()
        self._listed_s: dict[int, float] = {}
        self._schemas_written: set[str] = set()
        self._chained: tuple[Segment | None, int, tuple[Segment, ...]] = (None, -1, ())
        self._segments: dict[str, ArchivedSegment] = {}
        self._version = 0  # of what is known
        self._status = ArchiveStatus(str(self._store))
        self._retry_s = RETRY_S
        self._news, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        name = f"archive-{self._name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread; return whether it ended in time."""
        self._stopped.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def close(self) -> None:
        """Let go of what was fetched."""
        self._cache.close()
        self._store.close()

    def follow(self, local: tuple[Segment, ...]) -> None:
        """Take over the log's segments on disk; never blocks."""
        if local is not self._local:
            self._local = local
            self._news.set()

    @property
    def is_known(self) -> bool:
        """Whether the log's segments in the archive were listed."""
        local = self._local
        return not local or local[0].header.ring_id in self._known

    def status(self, local: tuple[Segment, ...]) -> ArchiveStatus:
        """Return the current status, given the log's segments on disk."""
        waiting = sum(one.is_sealed and not self.holds(one) for one in local)
        held = self.manifests(local)
        return replace(
            self._status,
            is_known=self.is_known,
            segments=len(held),
            size_bytes=sum(one.size_bytes for one in held),
            min_scn=held[0].header.first_scn if held else -1,
            max_scn=held[-1].end.scn if held else -1,
            oldest_ns=held[0].header.first_timestamp_ns if held else 0,
            waiting=waiting,
            fetched_bytes=self._cache.fetched_bytes,
        )

    def holds(self, segment: Segment) -> bool:
        """Return whether a sealed segment is in the archive."""
        return key_of(segment) in self._keys

    def copy_of(self, segment: Segment, at: int) -> ArchivedCopy | None:
        """Return the copy of a sealed segment that is damaged on disk at a byte; None without one.

        Where the copy is damaged, too, all windows of the segment are.
        """
        header = segment.header
        for manifest in self._known.get(header.ring_id, {}).values():
            if manifest.is_of(segment):
                facts = str(segment.path), header.source, (header.prev_scn, segment.end.scn), at
                return ArchivedCopy(manifest, self._cache, partial(DamagedWindowsError, *facts))
        return None

    def shown_place(self, manifest: Manifest) -> str:
        """Return where an archived segment is, without passwords."""
        return f"{self._store}/{manifest.segment_path}"

    def before(self, local: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """Return the archived segments that the oldest one on disk continues, oldest first."""
        if not local:
            return ()
        first, version = local[0], self._version
        chained = self._chained
        if chained[0] is not first or chained[1] != version:
            known = self._known.get(first.header.ring_id, {})
            chain = chain_before(tuple(known.values()), first.header)
            chained = first, version, tuple(map(self._segment_of, chain))
            self._chained = chained
        return chained[2]

    def manifests(self, local: tuple[Segment, ...]) -> list[Manifest]:
        """Return the manifests of the log's segments that are in the archive, oldest first."""
        known = self._known.get(local[0].header.ring_id, {}) if local else {}
        by_key = {one.key: one for one in tuple(known.values())}
        segments = [*self.before(local), *(one for one in local if one.is_sealed)]
        return [by_key[key_of(one)] for one in segments if key_of(one) in by_key]

    def _segment_of(self, manifest: Manifest) -> ArchivedSegment:
        """Return the one object of an archived segment: readers keep it open by its identity."""
        found = self._segments.get(manifest.stem)
        if found is None:
            found = self._segments[manifest.stem] = ArchivedSegment(manifest, self._cache)
        return found

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._news.clear()
            try:
                self._round()
            except Exception as error:  # whatever it is, it is tried again: nothing may be left out
                self._note_problem(error)
                wait_s, self._retry_s = self._retry_s, min(MOST_RETRY_S, 2 * self._retry_s)
                self._stopped.wait(wait_s)
            else:
                if self._status.problem:
                    log.info("the archive of %s is there again", self._name, extra=self._about())
                self._status, self._retry_s = replace(self._status, problem="", since=None), RETRY_S
                self._news.wait(LOOK_EVERY_S)

    def _round(self) -> None:
        """List the archive when it is time to, archive what is due, delete what is too old."""
        local = self._local
        if local:
            self._list(local[0].header.ring_id)
        for segment in self._sealed(local):
            if self._stopped.is_set():
                return
            self._list(segment.header.ring_id)
            if self._is_due(segment) and not self.holds(segment):
                self._archive(segment)
        if local:
            self._clean(local[0].header.ring_id)

    def _sealed(self, local: Sequence[Segment]) -> Iterator[Segment]:
        """Yield the sealed segments of logs that were moved aside, and then of the log."""
        for folder in folders_aside(self._folder):
            for path in segment_paths(folder):
                segment = read_sealed(path)
                if segment is not None and segment.header.source == self._name:
                    yield segment
        yield from (one for one in local if one.is_sealed)

    def _is_due(self, segment: Segment) -> bool:
        age_ns = self._clock.wall_ns() - segment.sealed_ns
        return age_ns >= self._settings.archive_after_s * 1e9

    def _list(self, ring_id: int) -> None:
        now_s, listed_s = self._clock.monotonic_s(), self._listed_s.get(ring_id)
        if listed_s is not None and now_s - listed_s < LIST_EVERY_S:
            return
        known = self._known.get(ring_id, {})
        self._learn(ring_id, self._store.manifests(ring_folder(self._name, ring_id), known))
        self._listed_s[ring_id] = now_s

    def _learn(self, ring_id: int, manifests: dict[str, Manifest]) -> None:
        self._known = self._known | {ring_id: manifests}
        self._keys = frozenset(one.key for found in self._known.values() for one in found.values())
        self._version += 1

    def _archive(self, segment: Segment) -> None:
        """Write a segment, the schemas of its rows, and the manifest last."""
        try:
            digest, size = sha256(), 0
            for chunk in _chunks(segment.path):
                digest.update(chunk)
                size += len(chunk)
            # Of a log that was moved aside nobody knows any more what it is complete for.
            is_aside = segment.path.parent != self._folder
            captured = {} if is_aside else self._sources.first_scns(segment.header.ring_id)
            manifest = Manifest(
                segment.header,
                segment.end,
                segment.sealed_ns,
                size,
                digest.hexdigest(),
                tuple(captured.items()),
                segment.gtids,
            )
            self._store.write(manifest.segment_path, _chunks(segment.path))
        except FileNotFoundError:
            return  # moved aside meanwhile: the next round finds it there
        self._write_schemas(manifest.folder)
        self._store.write(manifest.path, [manifest.to_json().encode()])
        ring_id = segment.header.ring_id
        known = self._known.get(ring_id, {})
        self._learn(ring_id, known | {manifest.path.rpartition("/")[2]: manifest})
        written = self._status.written_bytes + size
        self._status = replace(self._status, written_bytes=written)

    def _write_schemas(self, folder: str) -> None:
        """Write the schemas that are not in a log's folder; they never change."""
        for version in self._sources.schemas():
            path = f"{folder}/{SCHEMAS}/{version.source}.{version.version}.json"
            if path not in self._schemas_written:
                self._store.write(path, [schema_text(version).encode()])
                self._schemas_written.add(path)

    def _clean(self, ring_id: int) -> None:
        """Delete the oldest archived segments of this ring's logs beyond the archive's limits."""
        settings, now_ns = self._settings, self._clock.wall_ns()
        most_bytes, most_hours = settings.archive_retention_bytes, settings.archive_retention_hours
        if most_bytes is None and most_hours is None:
            return
        known = dict(self._known.get(ring_id, {}))
        size_bytes = sum(one.size_bytes for one in known.values())
        local = {key_of(one) for one in self._sealed(self._local)}
        for name, one in sorted(known.items(), key=lambda item: item[1].sealed_ns):
            is_old = most_hours is not None and now_ns - one.sealed_ns > most_hours * _HOUR_NS
            is_much = most_bytes is not None and size_bytes > most_bytes
            # What is still on disk would only be archived again.
            if not (is_old or is_much) or one.key in local:
                return
            self._store.delete(one.path)  # the proof first
            del known[name]
            self._learn(ring_id, dict(known))
            self._store.delete(one.segment_path)
            size_bytes -= one.size_bytes

    def _note_problem(self, error: Exception) -> None:
        is_known = isinstance(error, DatabusError | OSError)
        text = describe(error) if is_known else f"internal error: {error!r}; see the log"
        before = self._status
        since = self._clock.wall_ns() / 1e9 if before.since is None else before.since
        self._status = replace(before, problem=text, since=since, errors=before.errors + 1)
        if text != before.problem:
            words = "the log of %s cannot be archived, it is tried again: %s"
            trace = None if is_known else error
            log.warning(words, self._name, text, exc_info=trace, extra=self._about())
            self._on_problem(ArchiveError(text))

    def _about(self) -> dict[str, Any]:
        return about(physical_source=self._name)


def schema_text(version: SchemaVersion) -> str:
    """Return the archived form of a schema."""
    value = {
        "source": version.source,
        "srcId": version.src_id,
        "version": version.version,
        "startScn": version.start_scn,
        "schema": version.text,
    }
    return json.dumps(value, indent=1)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
