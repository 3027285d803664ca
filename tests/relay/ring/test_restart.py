"""A ring that is emptied to begin at another SCN: whole or not at all, and every reader notices."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.relay.ring.layout import REPLACED, RING_ID
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.stream import StreamJob
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import RingError, ScnNotFoundError
from databus.schemas.stream.stream_reader import walk
from tests.relay.instructions import looks_at_each_instruction
from tests.relay.ring.model import make_window, window_of
from tools.repository import ROOT

CAPACITY = 4000
KILLS = 15
WRITER_MODULES = tuple(
    f"databus.relay.ring.{name}" for name in ("ring", "layout", "lock", "recovery")
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.ring"


@pytest.fixture
def ring(path: Path) -> Iterator[Ring]:
    opened = Ring.open(path, "shop", CAPACITY, 256, start_scn=10)
    opened.append([make_window(scn) for scn in range(11, 21)])
    yield opened
    opened.close()


@pytest.fixture
def reader(ring: Ring, path: Path) -> Iterator[RingReader]:
    opened = RingReader.open(path, follows=True)
    yield opened
    opened.close()


def scns(job: StreamJob) -> list[int]:
    """Step a job to its answer; return the SCNs of its windows."""
    while (answer := job.step()) is None:
        pass
    return [event.scn for event in walk(answer.body) if event.is_eop]


def job_at(reader: RingReader, scn: int) -> StreamJob:
    job = StreamJob(reader, Selection("shop", Checkpoint.at(scn)), 1 << 20, None)
    job.start()
    return job


@pytest.mark.parametrize("scn", [5, 15, 20, 40])
def test_an_emptied_ring_begins_after_the_scn(ring: Ring, path: Path, scn: int) -> None:
    tail = ring.tail
    ring.restart_after(scn)
    assert (ring.head, ring.tail, ring.min_scn) == (tail, tail, -1)
    assert (ring.max_scn, ring.prev_scn) == (scn, scn)
    ring.append([make_window(scn + 1)])
    ring.close()
    again = Ring.open(path, "shop", CAPACITY, 256)
    assert (again.min_scn, again.max_scn, again.prev_scn) == (scn + 1, scn + 1, scn)
    assert sorted(file.name for file in path.parent.iterdir()) == ["shop.ring"]
    again.close()


def test_an_emptied_ring_has_another_id(ring: Ring, reader: RingReader, path: Path) -> None:
    before = reader.ring_id
    ring.restart_after(20)
    reader.follow()
    assert 0 != reader.ring_id != before
    emptied = reader.ring_id
    ring.close()
    Ring.open(path, "shop", 2 * CAPACITY, 256).close()  # a copy of another size
    reader.follow()
    assert reader.ring_id == emptied


@pytest.mark.parametrize("damage", [bytes(16), b"12345678" * 2])
def test_a_ring_without_an_id_is_given_one(ring: Ring, path: Path, damage: bytes) -> None:
    """One of an earlier version has none."""
    ring.close()
    with path.open("r+b") as file:
        file.seek(RING_ID * 8)
        file.write(damage)
    reader = RingReader.open(path)
    assert reader.ring_id == 0
    Ring.open(path, "shop", CAPACITY, 256).close()
    assert reader.ring_id != 0
    reader.close()


def test_it_may_be_emptied_again_and_again(ring: Ring) -> None:
    for scn in (30, 7, 7, 90):
        ring.restart_after(scn)
        ring.append([make_window(scn + 1, [30] * 9), make_window(scn + 2)])
        assert (ring.prev_scn, ring.max_scn) == (scn, scn + 2)


def test_what_lies_between_a_client_and_the_new_begin_is_not_found(
    ring: Ring, reader: RingReader
) -> None:
    ring.restart_after(30)
    for gone in (11, 15, 20, 29):
        with pytest.raises(ScnNotFoundError):
            reader.find(gone, -1)
    assert reader.find(30, -1) == reader.tail
    assert reader.find(31, -1) is None, "it is yet to come"


def test_whoever_has_read_more_waits_until_the_ring_is_there_again(
    ring: Ring, reader: RingReader
) -> None:
    ring.restart_after(12)
    assert reader.find(20, -1) is None
    ring.append([make_window(scn) for scn in range(13, 23)])
    job = StreamJob(reader, Selection("shop", Checkpoint.at(20)), 1 << 20, None)
    job.start()
    assert scns(job) == [21, 22]


def test_a_request_that_is_held_gets_nothing_twice(ring: Ring, reader: RingReader) -> None:
    held = job_at(reader, 20)
    assert scns(held) == []
    ring.restart_after(12)
    reader.follow()
    ring.append([make_window(scn) for scn in range(13, 20)])
    held.start()
    assert scns(held) == []
    ring.append([make_window(20), make_window(21)])
    held.start()
    assert scns(held) == [21]


def test_a_request_in_the_middle_of_its_work_is_begun_again(ring: Ring, reader: RingReader) -> None:
    behind, ahead = job_at(reader, 12), job_at(reader, 19)
    ring.restart_after(15)
    ring.append([make_window(scn) for scn in range(16, 30)])
    reader.follow()
    assert scns(ahead) == list(range(20, 30))
    with pytest.raises(ScnNotFoundError):
        scns(behind)


def test_a_reader_that_does_not_follow_is_told_to_open_again(ring: Ring, path: Path) -> None:
    other = RingReader.open(path)
    ring.restart_after(12)
    with pytest.raises(RingError, match="open it again"):
        other.find(12, -1)
    other.close()
    other = RingReader.open(path)
    assert other.find(12, -1) == other.tail
    other.close()


def test_a_writer_killed_before_the_new_file_had_the_name_leaves_readers_waiting_not_lost(
    ring: Ring, reader: RingReader, path: Path
) -> None:
    ring._cells[REPLACED] = 1
    with pytest.raises(RingError, match="ask again"):
        reader.find(12, -1)
    ring.close()
    again = Ring.open(path, "shop", CAPACITY, 256)
    assert reader.find(12, -1) is not None
    again.close()


def test_without_room_on_the_disk_nothing_changes(
    ring: Ring, reader: RingReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RingError, match="make room"):
        ring.restart_after(12)
    monkeypatch.undo()
    assert (ring.min_scn, ring.max_scn) == (11, 20)
    ring.append([make_window(21)])
    assert reader.max_scn == 21
    assert [file.name for file in reader._file.path.parent.iterdir()] == ["shop.ring"]


def test_when_the_name_cannot_be_taken_the_old_ring_stays(
    ring: Ring, reader: RingReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="Input"):
        ring.restart_after(12)
    monkeypatch.undo()
    ring.append([make_window(21)])
    assert reader.find(20, -1) is not None
    assert reader.max_scn == 21


def folders(path: Path, work: Callable[[], None]) -> list[dict[str, bytes]]:
    """Run `work`; return the files as they were after each instruction that changed one."""

    def look() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in path.parent.iterdir()}

    return looks_at_each_instruction(work, look, WRITER_MODULES)


@pytest.mark.parametrize("scn", [14, 33])
def test_a_writer_killed_at_any_instruction_leaves_the_old_ring_or_the_new_one(
    ring: Ring, path: Path, tmp_path: Path, scn: int
) -> None:
    before = (ring.min_scn, ring.max_scn, ring.prev_scn)
    taken = folders(path, lambda: ring.restart_after(scn))
    assert len(taken) > 10
    found = []
    for number, files in enumerate(taken):
        folder = tmp_path / f"killed-{number}"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        opened = Ring.open(folder / path.name, "shop", CAPACITY, 256)
        found.append((opened.min_scn, opened.max_scn, opened.prev_scn))
        opened.append([make_window(opened.max_scn + 1)])
        opened.close()
        shutil.rmtree(folder)
    assert set(found) == {before, (-1, scn, scn)}
    assert found == sorted(found, key=lambda state: state != before), "first old, then new"


def test_kill_9_at_random_moments_leaves_a_ring_of_whole_windows(tmp_path: Path) -> None:
    seed = int(os.environ.get("RING_KILL_SEED", random.randrange(1 << 32)))
    print(f"RING_KILL_SEED={seed}")
    chosen, path, capacity = random.Random(seed), tmp_path / "shop.ring", 16 << 10
    for _ in range(KILLS):
        arguments = ["tests.relay.ring.child", "restart", str(path), str(capacity)]
        with subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=subprocess.PIPE, cwd=ROOT
        ) as child:
            assert child.stdout is not None
            child.stdout.read(chosen.randrange(1, 400))
            child.send_signal(signal.SIGKILL)
        ring = Ring.open(path, "shop", capacity)
        reader = RingReader.open(path)
        held = reader.read(ring.head, capacity)
        expected = range(ring.prev_scn + 1, ring.max_scn + 1)
        assert held == b"".join(window_of(scn).data for scn in expected)
        reader.close()
        ring.close()
