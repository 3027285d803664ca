"""What a pair knows of its relays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from databus.bootstrap.relay_watch import RelayWatch, read_trouble
from databus.client.transport import Transport
from databus.schemas.errors import ServerError, SourceUnavailableError
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until
from tests.relay.test_out_of_reach import SHOP


async def looked(watch: RelayWatch) -> None:
    """Look until the relays have answered once."""
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(10):
        while not watch.newest:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)  # and were asked how their sources are
    task.cancel()


def test_a_relay_that_cannot_reach_its_source_is_a_trouble_of_the_pair(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, physical_sources=[SHOP])
    try:
        relay.put(transaction(1, insert(1)))
        wait_until(lambda: relay.relay.physical_sources["shop"].capture.status.is_connected)
        watch = RelayWatch([relay.url], ["shop"], lambda: Transport(2.0), every_s=0.01)
        asyncio.run(looked(watch))
        assert watch.troubles == {}
        relay.source().fail(SourceUnavailableError("connection refused"))
        wait_until(lambda: not relay.relay.is_healthy)
        asyncio.run(looked(watch))
        text = watch.troubles["shop"]
        assert text.startswith(f"at the relay {relay.url} its source is unreachable since ")
        assert text.endswith(": connection refused")
    finally:
        relay.close()


@pytest.mark.parametrize("state", ["running", "paused", "stopped"])
def test_a_source_that_is_well_or_was_paused_by_somebody_is_no_trouble(state: str) -> None:
    body = json.dumps({"shop": {"state": state, "problem": ""}}).encode()
    assert read_trouble("http://relay", "shop", body) == ""


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"shop": 3}'])
def test_an_answer_that_makes_no_sense_says_whose_it_is(body: bytes) -> None:
    with pytest.raises(ServerError, match="http://relay"):
        read_trouble("http://relay", "shop", body)
