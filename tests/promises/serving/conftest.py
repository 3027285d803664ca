"""A relay with two serving processes, and how to find them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.promises.serving.processes import serving_pids


@pytest.fixture
def served(shop: Shop, tmp_path: Path) -> Iterator[RunningRelay]:
    """A relay of the shop with two serving processes, all of them up."""
    relay = RunningRelay(tmp_path, shop.settings(ring_bytes="4MiB"), serving_processes=2)
    with running(relay):
        relay.start()
        wait_until(lambda: len(serving_pids(relay)) == 2, "both processes", relay.tell)
        yield relay


@pytest.fixture
def flooded(tmp_path: Path) -> Iterator[RunningRelay]:
    """A relay whose small ring is overwritten at full speed."""
    source = {
        "name": "gen",
        "uri": "generator:?rate=0&rows=20",
        "sources": ["shop.orders"],
        "ring_bytes": "1MiB",
    }
    with running(RunningRelay(tmp_path, source, serving_processes=2)) as relay:
        relay.serve()
        wait_until(lambda: len(serving_pids(relay)) == 2, "both processes", relay.child.log_tail)
        yield relay
