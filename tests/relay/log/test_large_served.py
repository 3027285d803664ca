"""A relay with a log takes a transaction larger than its ring, and serves it as any other."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from databus.relay.sources.source import Transaction
from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.relay.admin.test_api import post
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until
from tests.relay.log.test_served import relay_log, settings, wait_for_log
from tests.relay.ring.model import split_events

RING_BYTES = 64 << 10
LARGE = {50: 1200, 51: 700, 120: 5000}  # rows, by SCN
LAST = 200


def transactions(scns: range) -> Iterator[Transaction]:
    """Yield transactions, some of which are larger than the ring."""
    for scn in scns:
        rows = [insert(scn * 10_000 + n, "x" * (n % 200)) for n in range(LARGE.get(scn, 2))]
        yield transaction(scn, *rows)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The events of the same transactions, out of a ring that has all of them."""
    shop = {"name": "shop", "uri": "fake:", "sources": ["shop.person", "shop.orders"]}
    folder = tmp_path_factory.mktemp("large")
    served = ServedRelay(folder, physical_sources=[shop | {"ring_bytes": 64 << 20}])
    served.source().put(*transactions(range(1, LAST + 1)))
    served.wait_for_scn(LAST)
    events = read_all(served, size=1 << 20)
    served.close()
    return events


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path, **settings(ring_bytes=RING_BYTES))
    yield served
    served.close()


def read_all(relay: ServedRelay, size: int) -> list[bytes]:
    """Read everything, each answer continued where it says."""
    events: list[bytes] = []
    checkpoint = Checkpoint.flexible()
    while True:
        answer = relay.stream(checkPoint=checkpoint.to_json(), size=size)
        assert answer.status == 200, answer.headers["x-dbus-error-cause-message"]
        if not answer.body:
            return events
        events += split_events(answer.body)
        scn, offset = map(int, answer.headers["x-databus-resume"].split(","))
        checkpoint = replace(Checkpoint.at(scn), window_offset=offset)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [20_000, 16 << 20])
def test_transactions_larger_than_the_ring_are_served_whole_and_in_order(
    relay: ServedRelay, expected: list[bytes], size: int
) -> None:
    relay.source().put(*transactions(range(1, LAST + 1)))
    relay.wait_for_scn(LAST)
    wait_for_log(relay, LAST)
    assert read_all(relay, size) == expected
    assert relay.get("/health").status == 200
    assert relay_log(relay).large_bytes == 0
    assert relay.relay.physical_sources["shop"].ring.min_scn > max(LARGE)


def test_a_pause_ends_the_wait_for_a_large_transaction_and_it_comes_once(
    relay: ServedRelay, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    relay.source().put(*transactions(range(1, 50)))
    relay.wait_for_scn(49)
    wait_for_log(relay, 49)
    answers, sync = threading.Event(), os.fdatasync

    def hangs(descriptor: int) -> None:
        answers.wait(PATIENCE_S)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", hangs)
    relay.source().put(*transactions(range(50, LAST + 1)))
    wait_until(lambda: relay_log(relay).large_bytes > RING_BYTES)
    wait_until(lambda: relay_log(relay).waiting_s is not None)
    status = json.loads(relay.get("/controlSources/status").body)["shop"]
    assert status["relayLog"]["largeTransactionBytes"] > RING_BYTES
    assert post(relay, "/physicalSources/shop/pause").status == 200
    assert relay.relay.physical_sources["shop"].ring.max_scn == 49
    answers.set()
    assert post(relay, "/physicalSources/shop/resume").status == 200
    relay.wait_for_scn(LAST)
    wait_for_log(relay, LAST)
    assert read_all(relay, 50_000) == expected
    assert relay_log(relay).gap == ""


def test_a_full_disk_delays_a_large_transaction_and_loses_nothing(
    relay: ServedRelay, expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, write = True, os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        if is_full and offset > RING_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        relay.source().put(*transactions(range(1, LAST + 1)))
        wait_until(lambda: "make room" in relay.relay.status_of("shop").problem)
        is_full = False
        relay.wait_for_scn(LAST)
    wait_for_log(relay, LAST)
    assert read_all(relay, 1 << 20) == expected
    wait_until(lambda: relay.get("/health").status == 200)
