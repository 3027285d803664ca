"""Of an archived segment no more is fetched than what is read, and nothing that is damaged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from databus.relay.log.archive import cache as cache_module
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.log.archive.cache import ArchivedSegment, SegmentCache
from databus.relay.log.archive.manifest import ArchiveError, Manifest
from databus.relay.log.archive.reading import ArchiveReader, read_selected
from databus.relay.log.archive.store import ArchiveStore
from databus.relay.log.directory import find_segments
from databus.relay.log.gtids.frame_gtids import split_gtid
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.log.segment import Segment, frames_of
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.schemas.event.v2 import peek
from tests import PATIENCE_S
from tests.relay.log.gtids.windows import window
from tests.relay.log.logs import append, open_writer, reading

pytest_plugins = ["tests.relay.log.archive.archives"]

FRAMES = 40  # of a segment
SEGMENTS = 3
LAST = FRAMES * SEGMENTS * 2
FRAME_BYTES = 4600  # at most


def gtid_of(scn: int) -> str:
    return f"0-1-{10_000 - scn}"


def write_log(folder: Path) -> None:
    """Write a log of three sealed segments whose frames have two windows each."""
    writer = open_writer(folder, is_compressed=False)
    draw = random.Random(3)
    for scn in range(1, LAST, 2):
        windows = [window(one, gtid_of(one), 2, draw.randbytes(900)) for one in (scn, scn + 1)]
        append(writer, windows)
        if (scn + 1) % (2 * FRAMES) == 0:
            writer.seal()
    writer.close()


def manifest_of(segment: Segment) -> Manifest:
    data = segment.path.read_bytes()
    digest, facts = sha256(data).hexdigest(), (segment.header, segment.end, segment.sealed_ns)
    return Manifest(*facts, len(data), digest, (), segment.gtids)


class Archive:
    """An archive of a log, and what was read of it."""

    def __init__(self, folder: Path, uri: str) -> None:
        write_log(folder)
        self.folder, self.store, self.read = folder, ArchiveStore(uri), list[tuple[int, int]]()
        self.local = find_segments(folder).log
        self.manifests = [manifest_of(one) for one in self.local]
        for segment, manifest in zip(self.local, self.manifests, strict=True):
            self.store.write(manifest.segment_path, [segment.path.read_bytes()])

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Read of the store, and take note of it."""
        self.read.append((begin, end))
        return self.store.read_range(path, begin, end)

    def change(self, number: int, data: bytes) -> None:
        """Put other bytes in the place of a segment."""
        self.store.write(self.manifests[number].segment_path, [data])

    def take_read(self) -> list[int]:
        """Return the sizes of what was read since the last call."""
        read, self.read = self.read, []
        return [end - begin for begin, end in read]

    def end_bytes(self, number: int) -> int:
        """Return the size of a segment's footer and indexes."""
        return self.manifests[number].size_bytes - self.manifests[number].end.offset

    def open_cache(self, folder: Path, most_bytes: int = 1 << 30, *, waits: bool) -> SegmentCache:
        """Open a cache of it."""
        return SegmentCache(folder, most_bytes, self.read_range, waits=waits)

    def reader(self, cache: SegmentCache) -> LogReader:
        """Read all segments."""
        segments = tuple(ArchivedSegment(one, cache) for one in self.manifests)
        return LogReader(SegmentTuple(segments))


@pytest.fixture
def archive(tmp_path: Path, uri: str) -> Iterator[Archive]:
    made = Archive(tmp_path / "log", uri)
    yield made
    made.store.close()


def read_through(reader: LogReader, size_bytes: int = 10_000) -> bytes:
    position, pieces = reader.head, []
    while data := reader.read(position, size_bytes):
        pieces.append(data)
        position += len(data)
    return b"".join(pieces)


def test_one_window_needs_the_end_of_a_segment_and_one_frame(
    archive: Archive, tmp_path: Path
) -> None:
    with (
        closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
        closing(archive.reader(cache)) as reader,
    ):
        position = reader.find(FRAMES * 3, 0)
        assert position is not None
        assert peek(reader.read(position, 100)).scn == FRAMES * 3
        end_bytes, frame_bytes = archive.take_read()
        assert end_bytes == archive.end_bytes(1)
        assert frame_bytes <= FRAME_BYTES
        assert cache.fetched_bytes == end_bytes + frame_bytes


def test_a_gtid_needs_one_frame_and_no_other_segment(archive: Archive, tmp_path: Path) -> None:
    def refuse(error: Exception) -> None:
        raise error

    with (
        closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
        closing(archive.reader(cache)) as reader,
    ):
        for scn in (5, LAST):
            key = split_gtid(gtid_of(scn).encode())
            span = reader.gtid_span(reader.head, key, refuse)
            assert span is not None
            assert gtid_of(scn).encode() in reader.read(span.begin, span.end - span.begin)
            end_bytes, frame_bytes = archive.take_read()
            assert frame_bytes <= FRAME_BYTES
            assert end_bytes in {archive.end_bytes(number) for number in range(SEGMENTS)}
            assert reader.gtid_span(span.end, key, refuse) is None
        assert reader.gtid_span(reader.head, split_gtid(b"0-1-3"), refuse) is None
        assert archive.take_read() == []


def test_who_reads_on_gets_ever_more_at_a_time(archive: Archive, tmp_path: Path) -> None:
    with reading(archive.folder) as local:
        expected = read_through(local)
    with (
        closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
        closing(archive.reader(cache)) as reader,
    ):
        assert read_through(reader) == expected
        sizes = archive.take_read()
        headers = sum(one.size_bytes for one in archive.manifests) - sum(sizes)
        assert headers == SEGMENTS * 2048  # all else once
        assert len(sizes) < SEGMENTS * 10
        assert read_through(reader, 50_000) == expected
        assert archive.take_read() == []


def test_no_more_is_fetched_ahead_than_is_allowed(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MOST_AHEAD_BYTES", 3 * FRAME_BYTES)
    with (
        closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
        closing(archive.reader(cache)) as reader,
    ):
        read_through(reader)
        ends = {archive.end_bytes(number) for number in range(SEGMENTS)}
        assert max(size for size in archive.take_read() if size not in ends) <= 3 * FRAME_BYTES


def test_windows_as_they_are_stored_are_fetched_before_they_are_sent(
    tmp_path: Path, uri: str
) -> None:
    writer = open_writer(tmp_path / "log")
    for scn in range(1, 41):
        append(writer, [window(scn, gtid_of(scn), 5)])
    writer.seal()
    writer.close()
    store = ArchiveStore(uri)
    (segment,) = find_segments(tmp_path / "log").log
    manifest, data = manifest_of(segment), segment.path.read_bytes()
    store.write(manifest.segment_path, [data])
    with (
        closing(SegmentCache(tmp_path / "cache", 1 << 30, store.read_range, waits=True)) as cache,
        closing(LogReader(SegmentTuple((ArchivedSegment(manifest, cache),)))) as reader,
    ):
        begin = reader.find(9, WINDOW_DONE)
        assert begin is not None
        stored = reader.stored_windows(begin, 5000)
        assert stored is not None
        assert stored.scn > 12
        part = stored.file
        assert bytes(part.read()) == data[part.offset : part.offset + part.size_bytes]
        assert cache.fetched_bytes == part.size_bytes + len(data) - segment.end.offset
    store.close()


def test_who_must_not_wait_is_told_and_goes_on_once_it_is_here(
    archive: Archive, tmp_path: Path
) -> None:
    with (
        closing(archive.open_cache(tmp_path / "cache", waits=False)) as cache,
        closing(archive.reader(cache)) as reader,
        reading(archive.folder) as local,
    ):
        position, away = reader.head, 0
        while position < reader.tail:
            try:
                data = reader.read(position, 10_000)
            except SegmentAwayError as error:
                away += 1
                error.wait(PATIENCE_S)
                continue
            assert data == local.read(position, 10_000)
            position += len(data)
        assert 2 * SEGMENTS < away == len(archive.take_read())


def test_readers_at_once_share_what_they_fetch(archive: Archive, tmp_path: Path) -> None:
    with reading(archive.folder) as local:
        expected = read_through(local)
    with (
        closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
        ThreadPoolExecutor(4) as pool,
    ):

        def read(size_bytes: int) -> bytes:
            with closing(archive.reader(cache)) as reader:
                return read_through(reader, size_bytes)

        assert set(pool.map(read, (3000, 7000, 20_000, 50_000))) == {expected}


def test_the_cache_is_bounded_and_what_was_opened_last_stays(
    archive: Archive, tmp_path: Path
) -> None:
    folder, most_bytes = tmp_path / "cache", archive.manifests[0].size_bytes
    with (
        closing(archive.open_cache(folder, most_bytes, waits=True)) as cache,
        closing(archive.reader(cache)) as reader,
    ):
        expected = read_through(reader)
        assert [path.name for path in folder.iterdir()] == [f"{archive.manifests[-1].stem}.segment"]
        held = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
        assert held <= most_bytes + 8192
        archive.take_read()
        assert read_through(reader) == expected  # what was deleted is fetched again
        assert archive.take_read()
    assert list(folder.iterdir()) == []


def test_a_damaged_frame_is_refused_by_name_and_those_before_it_are_read(
    archive: Archive, tmp_path: Path
) -> None:
    data = archive.local[0].path.read_bytes()
    with archive.local[0].path.open("rb") as file:
        offsets = [
            at for at, _ in frames_of(file.fileno(), archive.local[0].path, archive.local[0].header)
        ]
    for number in (3, FRAMES - 1):
        for at in (offsets[number] + 50, offsets[number] + 500):
            archive.change(0, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            with (
                closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
                closing(archive.reader(cache)) as reader,
            ):
                for scn in range(1, 2 * number + 1):
                    position = reader.find(scn, 0)
                    assert position is not None
                    assert peek(reader.read(position, 100)).scn == scn
                with pytest.raises(ArchiveError) as raised:
                    reader.find(2 * number + 1, 0)
                assert archive.manifests[0].segment_path in str(raised.value)
                assert f"is damaged at byte {offsets[number]}" in str(raised.value)


def test_a_damaged_end_and_a_short_object_are_refused_by_name(
    archive: Archive, tmp_path: Path
) -> None:
    data, end = archive.local[0].path.read_bytes(), archive.local[0].end.offset
    entries = FRAMES * 56
    harmed = [
        data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        for at in (*range(end, end + entries, 97), *range(len(data) - 96, len(data)))
    ]
    for changed in (*harmed, data[:-1], data[: end + 10], data[:3000], b""):
        archive.change(0, changed)
        with (
            closing(archive.open_cache(tmp_path / "cache", waits=True)) as cache,
            closing(archive.reader(cache)) as reader,
            pytest.raises(ArchiveError, match="is damaged") as raised,
        ):
            reader.find(1, 0)
        assert archive.manifests[0].segment_path in str(raised.value)


def test_a_task_that_reads_a_few_windows_fetches_little(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setattr(ArchiveStore, "read_range", _counted(archive, ArchiveStore.read_range))
    with closing(ArchiveReader(uri, tmp_path / "cache", 0)) as reader:
        segments = reader.segments([archive.manifests[1]])
        first = 2 * FRAMES
        found = b"".join(read_selected(segments, (first + 10, first + 12), [40], {}))
        scns = {peek(found, at).scn for at in _begins(found)}
        assert scns == {first + 11, first + 12}
        assert sum(archive.take_read()) < archive.end_bytes(1) + 4 * FRAME_BYTES
        with reader.copy(segments[0]) as path:
            assert path.read_bytes() == archive.local[1].path.read_bytes()
        assert not path.exists()


def _counted(archive: Archive, read_range: object) -> object:
    def read(store: ArchiveStore, path: str, begin: int, end: int) -> bytes:
        archive.read.append((begin, end))
        return read_range(store, path, begin, end)  # type: ignore[operator, no-any-return]

    return read


def _begins(events: bytes) -> Iterator[int]:
    at = 0
    while at < len(events):
        yield at
        at += peek(events, at).length
