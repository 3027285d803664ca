"""Windows that a client wants compressed decode to what the others get."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from databus.daemon.http.client import HttpClient
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until

ASKED = {"sources": "1,2", "maxev": "2", "size": "100000", "compress": "true"}


@pytest.fixture
def client(relay: ServedRelay) -> Iterator[HttpClient]:
    options: dict[str, Any] = {"connect_timeout_s": PATIENCE_S, "response_timeout_s": PATIENCE_S}
    with closing(HttpClient(relay.url, max_bytes=1 << 20, takes_zstd=True, **options)) as client:
        yield client


def put(relay: ServedRelay, *scns: int) -> None:
    for scn in scns:
        relay.put(transaction(scn, insert(scn, "Ann" * 20)))


def test_an_answer_is_compressed(relay: ServedRelay, client: HttpClient) -> None:
    put(relay, *range(1, 50))
    plain = client.get("/stream", ASKED | {"compress": "false"})
    opened = client.open("/stream", ASKED)
    assert opened.headers["content-encoding"] == "zstd"
    read = opened.read()
    assert read.body == plain.body
    assert read.headers["x-databus-resume"] == plain.headers["x-databus-resume"] == "49,-1"
    assert "content-encoding" not in plain.headers


def test_each_window_of_an_answer_that_goes_on_can_be_decoded_when_it_has_come(
    relay: ServedRelay, client: HttpClient
) -> None:
    put(relay, 1)
    notifier = relay.relay.physical_sources["shop"].notifier
    opened = client.open("/stream", ASKED | {"wait": "6000", "follow": "true"})
    assert opened.headers["content-encoding"] == "zstd"
    body = opened.next_part()
    for scn in range(2, 9):
        wait_until(lambda: notifier.waiting > 0)
        put(relay, scn)
        body += (part := opened.next_part())
        assert [event.scn for event in walk(bytes(part)) if event.is_eop] == [scn]
    assert opened.next_part() == b""
    assert body == client.get("/stream", ASKED | {"compress": "false"}).body
    (one,) = relay.relay.monitor.clients
    assert one.served_bytes == 2 * len(body)


@pytest.mark.parametrize("encodings", ["", "zstd;q=0", "gzip", "gzip, zstd"])
def test_a_client_that_cannot_or_wants_gzip_gets_what_it_takes(
    relay: ServedRelay, encodings: str
) -> None:
    put(relay, *range(1, 50))
    answer = relay.get("/stream", headers={"Accept-Encoding": encodings}, **ASKED)
    assert answer.status == 200
    assert answer.headers.get("Content-Encoding") == ("gzip" if "gzip" in encodings else None)


def test_a_large_answer_and_what_goes_on_behind_it_are_compressed(
    relay: ServedRelay, client: HttpClient
) -> None:
    put(relay, *range(1, 700))
    plain = client.get("/stream", ASKED | {"compress": "false", "size": "1000000"})
    assert len(plain.body) > 64 << 10
    for more in ({}, {"wait": "200", "follow": "true"}):
        opened = client.open("/stream", ASKED | {"size": "1000000"} | more)
        body = bytearray()
        while part := opened.next_part():
            body += part
        assert body == plain.body


def test_an_empty_answer_is_as_it_is(relay: ServedRelay, client: HttpClient) -> None:
    answer = client.get("/stream", ASKED)
    assert answer.status == 200
    assert not answer.body
    assert "content-encoding" not in answer.headers
