"""Readers at the same place share copies, and never get bytes that are not in the ring."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from databus.relay.ring import shared_copies
from databus.relay.ring.layout import RingFile
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.relay.ring.shared_copies import LEAST_BYTES, MOST_BYTES, SharedCopies
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.control import end_of_period
from databus.schemas.event.v2 import encode
from tests.relay.ring.model import make_event

CAPACITY = 2000
COUNTS = st.integers(1, 12)


class SharedReads(RuleBasedStateMachine):
    """Readers of a small ring with shared copies, and one that never shares any."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        folder = self.opened.enter_context(tempfile.TemporaryDirectory(prefix="ring-"))
        self.opened.enter_context(patch.object(shared_copies, "LEAST_BYTES", 1))
        self.path = Path(folder) / "shop.ring"
        self.made = 0
        self.ends = [0]

    @initialize(most=st.sampled_from([300, 1000, 8000]), count=COUNTS)
    def create(self, most: int, count: int) -> None:
        self.opened.enter_context(patch.object(shared_copies, "MOST_BYTES", most))
        self.ring = Ring.open(self.path, "shop", CAPACITY, 400, start_scn=0)
        self.append(count)
        copies = SharedCopies()
        self.readers = [RingReader.open(self.path, copies=copies) for _ in range(2)]
        self.alone = RingReader.open(self.path)
        for reader in (self.alone, *self.readers):
            self.opened.callback(reader.close)
        self.places = [(0, 200)]

    @rule(count=COUNTS)
    def append(self, count: int) -> None:
        for _ in range(count):
            scn = max(self.ring.max_scn, 0) + 1
            self.made += 1  # so that windows of the same SCN, after a loss, have other bytes
            data = make_event(scn, self.made, 20) + encode(end_of_period(scn, scn))
            self.ring.append([EncodedWindow(scn, data, scn)])
            self.ends.append(self.ring.tail)

    @rule(lost=st.integers(0, 3), count=COUNTS)
    def another_writer_opens_it(self, lost: int, count: int) -> None:
        """The newest windows were damaged and are dropped; others take their place."""
        head, tail = self.ring.head, self.ring.tail
        held = [end for end in self.ends if head <= end <= tail]
        self.ring.close()
        if lost and len(held) > lost + 1:
            self.damage(held[-lost - 1])
            self.ends = [end for end in self.ends if end <= held[-lost - 1]]
        self.ring = Ring.open(self.path, "shop", CAPACITY)
        self.append(count)

    def damage(self, position: int) -> None:
        at = self.path.stat().st_size - CAPACITY + (position + 40) % CAPACITY
        with self.path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 0xFF]))

    @rule(number=st.integers(0, 30), size=st.integers(100, CAPACITY))
    def choose_a_place(self, number: int, size: int) -> None:
        held = [end for end in self.ends if end < self.ring.tail]
        self.places.append((held[-1 - number % len(held)], size))

    @precondition(lambda self: hasattr(self, "places"))
    @rule(number=st.integers(0, 3), repeats=st.integers(1, 3))
    def read(self, number: int, repeats: int) -> None:
        """Every reader gets the same: the bytes of the ring, or that it was overtaken."""
        place = self.places[-1 - number % len(self.places)]
        expected = self.answer(self.alone, *place)
        for reader in self.readers * repeats:
            assert self.answer(reader, *place) == expected

    @precondition(lambda self: hasattr(self, "places"))
    @rule(number=st.integers(0, 3), part=st.integers(0, 100), count=COUNTS, reopens=st.booleans())
    def read_while_it_is_written(self, number: int, part: int, count: int, reopens: bool) -> None:
        """What is overwritten while it is copied is refused, and nobody gets it later."""
        position, size = self.places[-1 - number % len(self.places)]
        copy_out = RingFile.copy_out

        def copied(ring_file: RingFile, at: int, length: int) -> bytes:
            first = copy_out(ring_file, at, length * part // 100)
            if len(written) == 0:
                written.append(count)
                work()
            return first + copy_out(ring_file, at + len(first), length - len(first))

        def reopen() -> None:
            self.another_writer_opens_it(3, count)

        def append() -> None:
            self.append(count)

        work = reopen if reopens else append
        expected = self.answer(self.alone, position, size)
        for reader in self.readers:
            written: list[int] = []
            with patch.object(RingFile, "copy_out", copied):
                found = self.answer(reader, position, size)
            if not (reopens or found is None):  # nothing else detects another writer's bytes
                assert expected is not None
                assert found[: len(expected)] == expected
            for again in (*self.readers, *self.readers):
                assert self.answer(again, position, size) == self.answer(self.alone, position, size)
            expected = self.answer(self.alone, position, size)

    @precondition(lambda self: hasattr(self, "places"))
    @rule()
    def doubt_everything(self) -> None:
        for reader in self.readers:
            reader.check.distrust(0, self.ring.tail)

    def answer(self, reader: RingReader, position: int, size: int) -> bytes | None:
        with contextlib.suppress(ScnNotFoundError):
            reader.find(0, -1)  # as each request does: it notices another writer
        try:
            return reader.read(position, size)
        except ScnNotFoundError:
            return None

    def teardown(self) -> None:
        if hasattr(self, "ring"):
            self.ring.close()
        self.opened.close()


TestSharedReads = SharedReads.TestCase
TestSharedReads.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    with closing(Ring.open(tmp_path / "shop.ring", "shop", 16 << 20, start_scn=0)) as ring:
        for scn in range(1, 1000):
            data = make_event(scn, scn, 10_000) + encode(end_of_period(scn, scn))
            ring.append([EncodedWindow(scn, data, scn)])
        yield ring


@pytest.fixture
def copies() -> SharedCopies:
    return SharedCopies()


@pytest.fixture
def reader(ring: Ring, copies: SharedCopies) -> Iterator[RingReader]:
    with closing(RingReader.open(ring._file.path, copies=copies)) as reader:
        yield reader


def copies_made(work: Callable[[], object]) -> int:
    """Return how often bytes are copied out of a ring."""
    copy_out = RingFile.copy_out
    with patch.object(RingFile, "copy_out", autospec=True, side_effect=copy_out) as copying:
        work()
    return copying.call_count


def test_readers_in_step_share_a_copy(reader: RingReader) -> None:
    def read() -> None:
        for position in range(20):
            found = [reader.read(position, LEAST_BYTES) for _ in range(50)]
            assert len(set(map(id, found))) == 2

    assert copies_made(read) == 40


def test_a_single_reader_has_nothing_kept(reader: RingReader, copies: SharedCopies) -> None:
    for position in range(200):
        reader.read(position, LEAST_BYTES)
    assert not copies.kept_bytes


def test_small_and_very_large_copies_are_not_kept(reader: RingReader, copies: SharedCopies) -> None:
    for length in (LEAST_BYTES - 1, MOST_BYTES + 1):
        for _ in range(3):
            assert len(reader.read(0, length)) == length
    assert not copies.kept_bytes


def test_what_is_kept_has_a_limit(reader: RingReader, copies: SharedCopies) -> None:
    length = MOST_BYTES // 3
    for position in range(10):
        for _ in range(3):
            reader.read(position, length)
        assert copies.kept_bytes == min(position + 1, 3) * length
    assert copies_made(lambda: reader.read(9, length)) == 0
    assert copies_made(lambda: reader.read(0, length)) == 1


def test_readers_of_two_rings_do_not_share(
    reader: RingReader, copies: SharedCopies, tmp_path: Path
) -> None:
    other_path = tmp_path / "other.ring"
    with closing(Ring.open(other_path, "other", 16 << 20, start_scn=0)) as other:
        data = make_event(1, 2, 2 * LEAST_BYTES) + encode(end_of_period(1, 1))
        other.append([EncodedWindow(1, data, 1)])
        with closing(RingReader.open(other_path, copies=copies)) as of_other:
            for _ in range(3):
                assert of_other.read(0, LEAST_BYTES) == data[:LEAST_BYTES]
                assert reader.read(0, LEAST_BYTES) != data[:LEAST_BYTES]


def test_what_is_doubted_is_copied_anew(ring: Ring, reader: RingReader) -> None:
    """The copy itself may be what is damaged."""
    for _ in range(3):
        kept = reader.read(0, LEAST_BYTES)
    assert reader.read(0, LEAST_BYTES) is kept
    reader.check.distrust(0, ring.tail)
    assert reader.read(0, LEAST_BYTES) is not kept


def test_a_copy_of_windows_that_another_writer_dropped_is_not_served(tmp_path: Path) -> None:
    machine = SharedReads()
    with patch.object(machine, "path", tmp_path / "shop.ring"):
        machine.create(8000, 5)
        machine.places = [(machine.ends[-3], 150)]
        machine.read(0, 2)
        before = machine.answer(machine.readers[0], *machine.places[0])
        machine.another_writer_opens_it(2, 5)
        machine.read(0, 2)
        assert machine.answer(machine.readers[0], *machine.places[0]) != before
        machine.teardown()
