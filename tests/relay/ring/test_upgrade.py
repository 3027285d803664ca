"""Rings that earlier versions wrote: their events had zlib's CRCs and other schema ids."""

from __future__ import annotations

import errno
import gc
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from databus.relay.ring.layout import PAGE_BYTES, open_file
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import UNKNOWN_SCN, EncodedWindow, Ring
from databus.schemas.errors import RingCorruptError, RingError
from databus.schemas.event.v2 import decode
from databus.schemas.log_mark import LogMark
from tests.relay.ring.model import SCHEMA_ID, make_window, window_of
from tests.schemas.event.former import former_run

CAPACITY = 8192
NOW = b"n" * 16
HEADER_BYTES = 296


def make_former(path: Path, windows: Sequence[EncodedWindow]) -> tuple[int, bytes]:
    """Write a ring as an earlier version did; return its `prev_scn` and today's bytes of it."""
    with closing(Ring.open(path, "shop", CAPACITY, 512, start_scn=3)) as ring:
        ring.append(windows)
        if windows:
            ring.note_mark(LogMark(windows[-1].scn, '{"log":1}'))
        head, tail, prev_scn = ring.head, ring.tail, ring.prev_scn
    return prev_scn, as_former(path, head, tail)


def as_former(
    path: Path, head: int, tail: int, former_ids: Mapping[bytes, bytes] | None = None
) -> bytes:
    """Give a ring's events and header the form of an earlier version; return what they were."""
    fd = os.open(path, os.O_RDWR)
    ring_file = open_file(path, fd, writable=True)
    now = ring_file.copy_out(head, tail - head)
    former = now
    for schema_id, former_id in (former_ids or {}).items():
        former = former.replace(schema_id, former_id)
    ring_file.copy_in(head, former_run(former))
    ring_file.close()
    page = bytearray(os.pread(fd, PAGE_BYTES, 0))
    struct.pack_into("<I", page, 8, 1)
    struct.pack_into("<I", page, HEADER_BYTES, crc32(page[:HEADER_BYTES]))
    os.pwrite(fd, page, 0)
    os.close(fd)
    return now


def content(ring: Ring) -> bytes:
    return ring._file.copy_out(ring.head, ring.tail - ring.head)


def windows(count: int) -> list[EncodedWindow]:
    return [window_of(scn) for scn in range(10, 10 * count + 1, 10)]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "shop.ring"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "shop.ring"]


@pytest.mark.parametrize("count", [1, 20, 200])  # the last has wrapped
def test_every_window_is_taken_over(path: Path, count: int) -> None:
    prev_scn, now = make_former(path, windows(count))
    with closing(Ring.open(path, "shop", CAPACITY, 512, start_scn=7)) as ring:
        assert content(ring) == now
        assert (ring.max_scn, ring.prev_scn) == (10 * count, prev_scn)
        assert ring.log_marks() == [LogMark(10 * count, '{"log":1}')]
        assert ring.dropped == ""
        ring.append([window_of(5000)])
    with closing(Ring.open(path, "shop", CAPACITY, 512)) as ring:
        assert ring.max_scn == 5000


def test_an_empty_ring_keeps_where_it_begins(path: Path) -> None:
    make_former(path, [])
    with closing(Ring.open(path, "shop", CAPACITY, 512)) as ring:
        assert (content(ring), ring.max_scn, ring.prev_scn) == (b"", 3, 3)


def test_schema_ids_become_those_of_now(path: Path) -> None:
    make_former(path, [make_window(10)])
    ids = {SCHEMA_ID: NOW}
    with closing(Ring.open(path, "shop", CAPACITY, 512, former_ids=lambda: ids)) as ring:
        event, _ = decode(content(ring))
        assert event.schema_id == NOW


def test_another_capacity_keeps_the_newest_windows(path: Path) -> None:
    _, now = make_former(path, windows(100))
    with closing(Ring.open(path, "shop", 2048, 128)) as ring:
        assert content(ring)
        assert now.endswith(content(ring))


def test_a_kill_before_the_end_leaves_the_old_ring(path: Path) -> None:
    _, now = make_former(path, windows(20))
    for step in ("take_name", "Ring.append"):
        pid = os.fork()
        if pid == 0:
            gc.disable()  # what is collected here would talk to the JVM of the parent
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(f"databus.relay.ring.ring.{step}", lambda *_: os._exit(9))
                Ring.open(path, "shop", CAPACITY, 512)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    with closing(Ring.open(path, "shop", CAPACITY, 512)) as ring:
        assert content(ring) == now


@pytest.mark.parametrize(("max_scn", "begin"), [(UNKNOWN_SCN, 100), (90, 90), (120, 100)])
def test_a_damaged_ring_begins_anew_after_the_older_of_its_end_and_maxscn(
    path: Path, max_scn: int, begin: int
) -> None:
    make_former(path, windows(10))
    data = bytearray(path.read_bytes())
    data[-CAPACITY + 100] ^= 1
    path.write_bytes(data)
    with closing(Ring.open(path, "shop", CAPACITY, 512, start_scn=max_scn)) as ring:
        assert (content(ring), ring.max_scn, ring.prev_scn) == (b"", begin, begin)
        assert f"begins anew after scn {begin}, and consumers that are not past" in ring.dropped


def test_without_room_for_both_it_begins_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_former(path, windows(10))
    allocate, asked = os.posix_fallocate, []

    def full_at_first(fd: int, begin: int, size: int) -> None:
        asked.append(size)
        if len(asked) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(fd, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", full_at_first)
    with closing(Ring.open(path, "shop", CAPACITY, 512)) as ring:
        assert (content(ring), ring.max_scn) == (b"", 100)
        assert "bytes of disk" in ring.dropped


def test_the_ring_of_another_source_is_refused_and_stays(path: Path) -> None:
    make_former(path, windows(10))
    with pytest.raises(RingError, match="is of physical source 'shop', not 'other'"):
        Ring.open(path, "other", CAPACITY, 512)
    with closing(Ring.open(path, "shop", CAPACITY, 512)) as ring:
        assert ring.max_scn == 100


def test_a_reader_says_to_start_the_relay(path: Path) -> None:
    make_former(path, windows(10))
    with pytest.raises(RingCorruptError, match="an earlier version wrote it: start the relay once"):
        RingReader.open(path)


def test_a_header_that_is_damaged_is_refused(path: Path) -> None:
    make_former(path, windows(10))
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(b"\0\0\0\0")
    with pytest.raises(RingCorruptError, match="the header's checksum is wrong"):
        Ring.open(path, "shop", CAPACITY, 512)
