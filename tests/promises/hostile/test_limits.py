"""Transactions larger than the ring, clients slower than the ring: nothing missing in silence."""

from __future__ import annotations

import threading
from pathlib import Path

from databus.client.consumer import DataEvent
from databus.schemas.errors import ScnNotFoundError
from tests import PATIENCE_S
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)

SMALLEST_RING = "256KiB"


def test_a_transaction_larger_than_the_ring_waits_for_a_larger_ring(
    shop: Shop, tmp_path: Path
) -> None:
    relay = RunningRelay(tmp_path, shop.settings(ring_bytes=SMALLEST_RING))
    seen = Remembering()
    with (
        running(relay.start()),
        consuming([relay.url], ["shop.orders"], seen, fetch_bytes=20_000, buffer_bytes=65536),
    ):
        shop.insert(1, 2, 3, each=1)
        wait_until(lambda: len(seen.events) == 3, "the first rows")
        shop.insert(*range(10, 3010), note="x" * 200, each=3000)
        shop.insert(5000)
        problem = relay.wait_for_problem("ring_bytes")
        assert int(problem.partition(" at scn ")[2].split()[0]) > seen.scns[-1]
        assert "262144" in problem
        # It stays as it is, and goes on serving what it has.
        relay.post("/controlSources/unpause")
        relay.wait_for_problem("ring_bytes")
        assert list(relay.windows()) == seen.scns
        assert relay.max_scn() == seen.scns[-1]

        relay.child.stop()
        relay.change(ring_bytes="4MiB")
        relay.start()
        wait_until(lambda: len(seen.events) == 3004, "all rows")
        assert [e.row["id"] for e in seen.events] == [1, 2, 3, *range(10, 3010), 5000]
        assert len({e.scn for e in seen.events if 10 <= e.row["id"] < 3010}) == 1
        assert seen.rows("shop.orders") == shop.rows()
        assert not seen.errors


class Slow(Remembering):
    """Stops in its first window until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.has_begun = threading.Event()

    def on_data_event(self, event: DataEvent) -> None:
        self.has_begun.set()
        assert self.go_on.wait(PATIENCE_S)
        super().on_data_event(event)


def test_a_client_overtaken_by_the_ring_stops_with_both_scns_and_skips_nothing(
    shop: Shop, tmp_path: Path
) -> None:
    relay = RunningRelay(tmp_path, shop.settings(ring_bytes=SMALLEST_RING))
    slow = Slow()
    with (
        running(relay.start()),
        consuming(
            [relay.url], ["shop.orders"], slow, fetch_bytes=4096, buffer_bytes=8192
        ) as client,
    ):
        shop.insert(0, note="x" * 500)
        assert slow.has_begun.wait(PATIENCE_S)
        written = 1
        # It may have read one window of up to a hundred rows beside what it holds up, and what
        # follows that one would still be served: the ring has to be past two such windows.
        while first_held(relay) < 400:
            shop.insert(*range(written, written + 100), note="x" * 500, each=5)
            written += 100
            # One at a time: what is committed between two looks is one window, and must fit.
            relay.wait_for_scn(written)
        slow.go_on.set()
        wait_until(lambda: slow.errors, "the error", lambda: (client.status(), relay.tell()))
        (error,) = slow.errors
        assert isinstance(error, ScnNotFoundError)
        # The one named is the last that came, or the one that had come in part.
        assert error.scn >= slow.scns[-1]
        assert error.scn < error.oldest <= first_held(relay)
        for word in (str(error.scn), str(error.oldest), "bootstrap", "earliest"):
            assert word in str(error)
        wait_until(lambda: not client.is_healthy, "the client's end")
        # What it got is the beginning of what was committed, with no hole.
        assert [e.row["id"] for e in slow.events] == list(range(len(slow.events)))
    assert client.error is error


def first_held(relay: RunningRelay) -> int:
    found: int = relay.get("/bufferInfo/inbound/shop/0").json()["minScn"]
    return found
