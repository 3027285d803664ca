"""Any sequence of append, evict, restart and read gives the end of the list, or ScnNotFound."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.schemas.errors import TransactionTooLargeError
from tests.relay.ring.compiled import ring_work
from tests.relay.ring.model import (
    RingModel,
    append_in_pieces,
    append_placed,
    batch_of,
    extend,
    make_window,
    unstamped,
)

SIZES = st.lists(st.integers(0, 300), max_size=6)
STEPS = st.integers(1, 3)


class RingMachine(RuleBasedStateMachine):
    """A ring of 3000 bytes beside the model; a reader that stays open, and fresh ones."""

    way = "compiled"

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(ring_work(self.way))
        self.folder = Path(tempfile.mkdtemp(prefix="ring-"))
        self.path = self.folder / "shop.ring"
        self.capacity = 3000

    @initialize(start_scn=st.integers(0, 2), block=st.sampled_from([64, 200, 1000, 3000]))
    def create(self, start_scn: int, block: int) -> None:
        self.model = RingModel(start_scn)
        self.ring = Ring.open(self.path, "shop", self.capacity, block, start_scn=start_scn)
        self.reader = RingReader.open(self.path)

    @rule(
        steps=st.lists(STEPS, min_size=1, max_size=5),
        sizes=st.lists(SIZES, min_size=5),
        way=st.sampled_from(["placed", "in one piece", "one by one"]),
    )
    def append(self, steps: list[int], sizes: list[list[int]], way: str) -> None:
        windows, scn = [], self.model.newest_scn
        for step, event_sizes in zip(steps, sizes, strict=False):
            scn += step
            windows.append(make_window(scn, event_sizes))
        if way == "one by one":
            self.ring.append(windows)
        elif way == "in one piece" or not append_placed(self.ring, windows):
            self.ring.append_batch(batch_of(windows))
        self.model.append(windows)

    @rule(count=st.integers(10, 30), sizes=SIZES)
    def append_until_something_is_evicted(self, count: int, sizes: list[int]) -> None:
        for _ in range(count):
            window = make_window(self.model.newest_scn + 1, sizes)
            self.ring.append([window])
            self.model.append([window])

    @rule(step=STEPS, sizes=st.lists(st.integers(0, 900), max_size=5), piece=st.integers(1, 900))
    def append_a_window_in_pieces(self, step: int, sizes: list[int], piece: int) -> None:
        window = make_window(self.model.newest_scn + step, sizes)
        if len(window.data) > self.capacity:
            with pytest.raises(TransactionTooLargeError):
                append_in_pieces(self.ring, window, piece)
        else:
            append_in_pieces(self.ring, window, piece)
            self.model.append([window])

    @rule(sizes=st.lists(st.integers(0, 600), max_size=4), piece=st.integers(1, 900))
    def write_a_window_and_do_not_finish_it(self, sizes: list[int], piece: int) -> None:
        extend(self.ring, unstamped(make_window(1, sizes)), piece)

    @rule(step=STEPS, before=st.booleans())
    def append_a_window_as_large_as_the_ring_or_larger(self, step: int, before: bool) -> None:
        scn = self.model.newest_scn + step
        room = self.capacity - len(make_window(scn, (0,)).data)
        fits, too_large = make_window(scn, (room,)), make_window(scn + 1, (room + 1,))
        windows = [fits, too_large] if before else [too_large]
        with pytest.raises(TransactionTooLargeError) as caught:
            self.ring.append(windows)
        assert caught.value.scn == scn + 1
        self.model.append(windows[:-1])

    @rule()
    def restart(self) -> None:
        self.ring.close()
        self.ring = Ring.open(self.path, "shop", self.capacity)

    @rule()
    def open_another_reader(self) -> None:
        self.reader.close()
        self.reader = RingReader.open(self.path)

    @precondition(lambda self: self.model.windows)
    @rule(back=st.integers(-3, 40), offset=st.integers(-1, 8), chunk=st.integers(100, 4000))
    def read_at(self, back: int, offset: int, chunk: int) -> None:
        scn = max(0, self.model.newest_scn - back)
        self.model.check_point(self.reader, scn, offset, chunk)

    @invariant()
    def the_ring_holds_the_end_of_the_list(self) -> None:
        if hasattr(self, "ring"):
            self.model.check_extent(self.reader)
            assert self.ring.max_scn == self.model.newest_scn
            assert self.ring.prev_scn == self.reader.prev_scn
            assert self.ring.min_scn == self.reader.min_scn

    def teardown(self) -> None:
        if hasattr(self, "ring"):
            self.reader.close()
            self.ring.close()
        shutil.rmtree(self.folder)
        self.patches.close()


class PlainRingMachine(RingMachine):
    """The same where the compiled module was not built."""

    way = "python"


TestRingMachine = RingMachine.TestCase
TestPlainRingMachine = PlainRingMachine.TestCase
for case in (TestRingMachine, TestPlainRingMachine):
    case.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
