"""A client that has caught up: one request for many transactions, through a real relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.client.client import DatabusClient
from databus.schemas.filters import EventFilter, RangeFilter
from tests.client.shop import wait_until
from tests.relay.fakes import PERSON, ServedRelay, insert, transaction


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path)
    served.put(transaction(1, insert(1)))
    yield served
    served.close()


@pytest.mark.parametrize("filters", [{}, {PERSON.source: RangeFilter(0, 20)}])
def test_windows_that_come_one_by_one_come_with_one_request(
    relay: ServedRelay, filters: dict[str, EventFilter]
) -> None:
    keys: list[object] = []
    client = DatabusClient([relay.url], wait_ms=25_000)
    client.on(PERSON.source, filters=filters)(lambda event: keys.append(event.wire_key))
    wanted = list(range(1, 20 if filters else 41))
    with client:
        wait_until(lambda: relay.relay.monitor.clients.get(client.id) is not None)
        for key in range(2, 41):
            relay.put(transaction(key, insert(key)))
            wait_until(lambda done=key: keys == [k for k in wanted if k <= done])  # type: ignore[misc]
        served = relay.relay.monitor.clients.get(client.id)
        assert served is not None
        assert served.requests == 1
    assert keys == wanted


def test_an_answer_that_reaches_size_is_followed_by_the_next(relay: ServedRelay) -> None:
    keys: list[object] = []
    client = DatabusClient([relay.url], wait_ms=25_000, fetch_bytes=1024)
    client.on(PERSON.source)(lambda event: keys.append(event.wire_key))
    with client:
        for key in range(2, 41):
            relay.put(transaction(key, insert(key)))
            wait_until(lambda done=key: len(keys) == done)  # type: ignore[misc]
    assert keys == list(range(1, 41))
