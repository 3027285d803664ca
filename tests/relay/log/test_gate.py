"""A ring evicts nothing that its gate does not let go, whatever way a window comes."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.relay.ring.room import WaitEndedError
from tests.relay.ring.model import (
    append_in_pieces,
    append_placed,
    batch_of,
    make_window,
    read_on,
    window_of,
)

RING_BYTES = 8 << 10
SEED = 20261124


class FakeGate:
    """A gate that nobody waits at: it ends each wait, as a relay that stops does."""

    def __init__(self) -> None:
        self.durable = 0
        self.refused = 0

    def is_open(self, position: int) -> bool:
        """Return whether everything before a position may be evicted."""
        return position <= self.durable

    def wait_for(self, position: int) -> None:
        """Raise WaitEndedError unless it is open."""
        if position > self.durable:
            self.refused += 1
            raise WaitEndedError


def append(ring: Ring, window: EncodedWindow, how: int) -> None:
    """Append a window in one of the ways that there are."""
    if how == 0:
        ring.append([window])
    elif how == 1:
        ring.append_batch(batch_of([window]))
    elif how == 2:
        append_in_pieces(ring, window, 100)
    elif not append_placed(ring, [window]):
        ring.append_batch(batch_of([window]))


@pytest.mark.usefixtures("way")
def test_what_is_not_durable_is_never_evicted_and_no_window_is_half_there(tmp_path: Path) -> None:
    print("seed", SEED)
    rand = random.Random(SEED)
    ring = Ring.open(tmp_path / "shop.ring", "shop", RING_BYTES, start_scn=0)
    reader = RingReader.open(tmp_path / "shop.ring")
    gate = ring.gate = FakeGate()
    try:
        log, written, scn = b"", b"", 1
        while scn < 1500:
            window = window_of(scn) if scn % 50 else make_window(scn, [rand.randrange(5000)])
            try:
                append(ring, window, rand.randrange(4))
            except WaitEndedError:
                # As the log does it: it reads what it has not, and the gate opens.
                log += read_on(reader, gate.durable)
                gate.durable = ring.tail
            else:
                scn += 1
                written += window.data
            assert ring.head <= gate.durable
            assert ring.max_scn == scn - 1
        log += read_on(reader, gate.durable)
        assert log == written
        assert gate.refused > 20
    finally:
        reader.close()
        ring.close()


def test_room_is_not_made_by_evicting_what_may_not_go_yet(tmp_path: Path) -> None:
    ring = Ring.open(tmp_path / "shop.ring", "shop", 64 << 10, start_scn=0)
    gate = ring.gate = FakeGate()
    scn = 1
    try:
        with suppress(WaitEndedError):
            while append_placed(ring, [make_window(scn, [100])]):
                scn += 1
        assert ring.tail > 50_000
        assert ring.min_scn == 1
        gate.durable = ring.tail
        assert append_placed(ring, [make_window(scn, [100])])
        assert ring.min_scn > 1
    finally:
        ring.close()
