"""What a pair knows of its relays."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from databus.bootstrap.producer.relay_monitor import NOT_ASKED_YET, RelayMonitor, read_trouble
from databus.client.puller.transport import Transport
from databus.schemas.errors import ServerError, SourceUnavailableError
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until
from tests.relay.test_out_of_reach import SHOP


async def looked(watch: RelayMonitor, is_so: Callable[[], bool]) -> None:
    """Look until something is known of the relays."""
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.sleep(0.005)
    task.cancel()


def test_a_relay_that_cannot_reach_its_source_is_a_trouble_of_the_pair(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, physical_sources=[SHOP])
    try:
        relay.put(transaction(1, insert(1)))
        wait_until(lambda: relay.relay.physical_sources["shop"].capture.status.is_connected)
        watch = RelayMonitor([relay.url], ["shop"], lambda: Transport(2.0), every_s=0.01)
        assert watch.troubles == {"shop": NOT_ASKED_YET}
        asyncio.run(looked(watch, lambda: bool(watch.newest) and not watch.troubles))
        relay.source().fail(SourceUnavailableError("connection refused"))
        wait_until(lambda: not relay.relay.is_healthy)
        asyncio.run(looked(watch, lambda: bool(watch.troubles)))
        text = watch.troubles["shop"]
        assert text.startswith(f"at the relay {relay.url} its source is unreachable since ")
        assert text.endswith(": connection refused")
    finally:
        relay.close()


def test_a_source_that_its_relay_has_not_opened_yet_is_a_trouble_though_the_ring_is_empty(
    tmp_path: Path,
) -> None:
    relay = ServedRelay(tmp_path, is_frozen=True, physical_sources=[SHOP])
    try:
        watch = RelayMonitor([relay.url], ["shop"], lambda: Transport(2.0), every_s=0.01)
        asyncio.run(looked(watch, lambda: watch.troubles["shop"] != NOT_ASKED_YET))
        assert " its source is starting since " in watch.troubles["shop"]
        relay.source().answers.set()
        asyncio.run(looked(watch, lambda: not watch.troubles))
    finally:
        relay.source().answers.set()
        relay.close()


def test_a_relay_that_takes_requests_and_says_nothing_is_a_trouble_within_seconds() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        watch = RelayMonitor([url], ["shop"], lambda: Transport(0.2), every_s=0.01)
        asyncio.run(looked(watch, lambda: watch.troubles["shop"] != NOT_ASKED_YET))
    assert watch.troubles["shop"].startswith("no relay reports the status of its source: ")
    assert url in watch.troubles["shop"]
    assert watch.newest == {}


@pytest.mark.parametrize("state", ["running", "paused", "stopped"])
def test_a_source_that_is_well_or_was_paused_by_somebody_is_no_trouble(state: str) -> None:
    body = json.dumps({"shop": {"state": state, "problem": ""}}).encode()
    assert read_trouble("http://relay", "shop", body) == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"shop": 3}',
        b'{"shop": {"state": []}}',
        b'{"shop": {"state": "error", "since": "x"}}',
        b'{"shop": {"state": "error", "since": 1e30}}',
    ],
)
def test_an_answer_that_makes_no_sense_says_whose_it_is(body: bytes) -> None:
    with pytest.raises(ServerError, match="http://relay"):
        read_trouble("http://relay", "shop", body)
