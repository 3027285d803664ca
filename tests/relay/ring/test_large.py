"""A window larger than the ring is kept elsewhere, and the ring passes over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.relay.ring.room import WaitEndedError
from databus.schemas.errors import ScnNotFoundError, TransactionTooLargeError
from databus.schemas.event.v2 import Buffer, stamp
from tests.relay.instructions import looks_at_each_instruction
from tests.relay.ring.model import (
    append_in_pieces,
    batch_of,
    extend,
    make_window,
    read_on,
    unstamped,
)

CAPACITY = 4000
LARGE = make_window(21, [900] * 9)
MODULES = tuple(f"databus.relay.ring.{name}" for name in ("ring", "room", "scn_index", "layout"))


class Kept:
    """Keeps large windows in memory, as the relay log does on disk."""

    def __init__(self) -> None:
        self.windows: list[bytes] = []
        self.bytes = bytearray()
        self.discarded = 0
        self.is_ended = False

    def write(self, at: int, data: Buffer) -> None:
        """Write bytes at an offset of the window."""
        assert at <= len(self.bytes) or at == 0
        self.bytes[at:] = data

    def finish(self, length: int, scn: int, timestamp_ns: int) -> None:
        """Keep the window."""
        if self.is_ended:
            raise WaitEndedError
        self.windows.append(stamp(bytes(self.bytes[:length]), scn, timestamp_ns))
        self.bytes.clear()

    def discard(self) -> None:
        """Forget the window."""
        self.bytes.clear()
        self.discarded += 1


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
def kept(ring: Ring) -> Kept:
    made = Kept()
    ring.large = made
    return made


@pytest.fixture
def reader(ring: Ring, path: Path) -> Iterator[RingReader]:
    opened = RingReader.open(path)
    yield opened
    opened.close()


def append(ring: Ring, window: EncodedWindow, how: str) -> None:
    """Append a window in one of the ways."""
    if how == "alone":
        ring.append([window])
    elif how == "batch":
        ring.append_batch(batch_of([window]))
    elif how == "one piece":
        append_in_pieces(ring, window, 1 << 20)
    else:
        append_in_pieces(ring, window, 700)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("how", ["alone", "batch", "one piece", "pieces"])
def test_a_ring_passes_over_a_window_that_is_kept_elsewhere(
    ring: Ring, reader: RingReader, kept: Kept, path: Path, how: str
) -> None:
    tail = ring.tail
    append(ring, LARGE, how)
    assert kept.windows == [LARGE.data]
    behind = tail + len(LARGE.data)
    for one in (ring, reader):
        assert (one.head, one.tail, one.min_scn, one.max_scn) == (behind, behind, -1, 21)
        assert one.prev_scn == 21
    assert reader.find(21, -1) == behind
    assert reader.find(22, -1) is None
    for scn, offset in ((20, -1), (21, 0), (11, -1)):
        with pytest.raises(ScnNotFoundError):
            reader.find(scn, offset)
    following = [make_window(scn, [300]) for scn in range(22, 26)]
    ring.append(following)
    assert read_on(reader, behind) == b"".join(window.data for window in following)
    assert reader.find(21, -1) == behind
    assert (reader.min_scn, reader.prev_scn, reader.max_scn) == (22, 21, 25)
    ring.close()
    again = Ring.open(path, "shop", CAPACITY)
    assert (again.prev_scn, again.max_scn, again.dropped) == (21, 25, "")
    again.close()


@pytest.mark.usefixtures("way")
def test_windows_of_one_batch_before_and_after_a_large_one_are_in_the_ring(
    ring: Ring, reader: RingReader, kept: Kept
) -> None:
    before, after = make_window(21, [10]), make_window(23, [20])
    large = make_window(22, [700] * 9)
    ring.append_batch(batch_of([before, large, after]))
    assert kept.windows == [large.data]
    assert read_on(reader, reader.head) == after.data
    assert ring.max_scn == 23
    ring.append([make_window(24, [5]), make_window(25, [900] * 6), make_window(26, [6])])
    assert read_on(reader, reader.head) == make_window(26, [6]).data


@pytest.mark.usefixtures("way")
def test_a_large_window_that_is_rolled_back_to_its_begin_is_in_the_ring(
    ring: Ring, reader: RingReader, kept: Kept
) -> None:
    extend(ring, unstamped(LARGE), 1000)
    assert ring.reserve(100) is None
    small = make_window(21, [40])
    append_in_pieces(ring, small, 30)
    assert (kept.windows, kept.discarded) == ([], 1)
    assert read_on(reader, reader.head).endswith(small.data)
    extend(ring, unstamped(make_window(22, [900] * 9)), 1000)
    ring.append([make_window(22, [4])])  # instead of it
    assert (kept.windows, kept.discarded, ring.max_scn) == ([], 2, 22)


def test_a_large_window_that_is_not_kept_is_written_again(
    ring: Ring, reader: RingReader, kept: Kept
) -> None:
    kept.is_ended = True
    for how in ("alone", "pieces"):
        with pytest.raises(WaitEndedError):
            append(ring, LARGE, how)
        assert (ring.max_scn, reader.max_scn, reader.tail) == (20, 20, ring.tail)
    kept.is_ended = False
    append(ring, LARGE, "pieces")
    assert (kept.windows, ring.max_scn) == ([LARGE.data], 21)


def test_without_a_relay_log_the_error_names_one(ring: Ring) -> None:
    with pytest.raises(TransactionTooLargeError, match=r"physical_sources\.log"):
        ring.append([LARGE])
    with pytest.raises(TransactionTooLargeError, match="ring_bytes"):
        extend(ring, unstamped(LARGE), 1000)


@pytest.mark.parametrize("how", ["alone", "pieces"])
@pytest.mark.usefixtures("kept")
def test_a_reader_sees_a_ring_before_or_behind_a_large_window_at_any_instruction(
    ring: Ring, reader: RingReader, how: str
) -> None:
    tail, behind = ring.tail, ring.tail + len(LARGE.data)

    def look() -> tuple[int | None, ...]:
        extent = reader.extent()
        newest = reader.newest()
        places = []
        for scn in (20, 21):
            try:
                places.append(reader.find(scn, -1))
            except ScnNotFoundError:
                places.append(-1)
        assert newest in {(20, tail), (21, behind)}
        # Never where the bytes are not, and never behind what was not said to be there.
        assert (extent.prev_scn == 21) == (extent.tail == behind) == (newest[0] == 21)
        assert tuple(places) == ((-1, behind) if newest[0] == 21 else (tail, None))
        return (*newest, *places)

    found = looks_at_each_instruction(lambda: append(ring, LARGE, how), look, MODULES)
    assert set(found) == {(20, tail, tail, None), (21, behind, -1, behind)}


@pytest.mark.parametrize("how", ["alone", "pieces"])
@pytest.mark.usefixtures("kept")
def test_a_writer_killed_at_any_instruction_is_before_or_behind_a_large_window(
    ring: Ring, path: Path, how: str
) -> None:
    images = looks_at_each_instruction(lambda: append(ring, LARGE, how), path.read_bytes, MODULES)
    assert len(images) > 15
    ring.close()
    seen = []
    for image in [*images, path.read_bytes()]:
        path.write_bytes(image)
        opened = Ring.open(path, "shop", CAPACITY)
        seen.append(opened.max_scn)
        # Never another time: the source compares it with that of its transaction.
        assert opened.newest_timestamp_ns in (0, opened.max_scn * 1000)
        following = make_window(22)
        opened.append([following])
        looking = RingReader.open(path)
        assert read_on(looking, looking.head).endswith(following.data)
        looking.close()
        opened.close()
    assert seen == sorted(seen)
    assert {seen[0], seen[-1]} == {20, 21}
