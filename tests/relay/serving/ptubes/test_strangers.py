"""What strangers send: noise, mangled requests, and connections that do not read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from databus.relay.serving.ptubes import routes
from tests.relay.fakes import ServedRelay, insert, transaction, wait_until
from tests.relay.serving.ptubes.fuzz import Attack
from tests.relay.serving.ptubes.stock import (
    StockClient,
    door_of,
    read_envelope,
    serve_ptubes,
    subscription,
)

SEED = 20261128


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedRelay]:
    monkeypatch.setattr(routes, "ERROR_PAUSE_S", 0.0)
    relay = serve_ptubes(tmp_path, ptubes={"max_connections": 20, "max_request_bytes": 4096})
    yield relay
    relay.close()


@pytest.fixture
def filled(served: ServedRelay) -> ServedRelay:
    served.put(*(transaction(scn, insert(scn)) for scn in (1, 2, 3)))
    return served


def test_mangled_requests_harm_nobody_else(
    served: ServedRelay, caplog: pytest.LogCaptureFixture
) -> None:
    with StockClient(served) as other:
        served.put(transaction(1, insert(1)))
        assert other.subscribe() == "success"
        attack = Attack(door_of(served).ports[0], random.Random(SEED))
        attack.send(300)
        assert attack.subscribed > 0
        assert [event.after["id"] for event in other.fetch_rows(1)] == ["1"]
    assert not [record for record in caplog.records if record.exc_info], "a defect was met"
    wait_until(lambda: not door_of(served).connections.open)
    assert len(door_of(served).sessions) == 0


def test_connections_above_the_most_are_refused_with_a_reason(served: ServedRelay) -> None:
    clients = [StockClient(served) for _ in range(20)]
    try:
        for client in clients:
            assert client.ask("/monitor/alive") == b"OK"
        with StockClient(served) as late:
            assert b"max_connections" in late.answer()
            assert late.status.startswith("503")
    finally:
        for client in clients:
            client.close()


def test_a_body_too_long_is_refused_before_it_is_read(served: ServedRelay) -> None:
    with StockClient(served) as client:
        client.socket.sendall(b"POST /v1/subscribe HTTP/1.1\r\ncontent-length: 99999999\r\n\r\n")
        assert b"max_request_bytes" in client.answer()
        assert client.is_closed()


def test_numbers_out_of_range_are_refused_by_name(served: ServedRelay) -> None:
    with StockClient(served) as client:
        assert client.subscribe() == "success"
        for name, value in (("batchSize", 0), ("timeoutMs", -1), ("maxByteSize", "x")):
            body = json.dumps({name: value}).encode()
            client.send("/v1/fetchMessages", body)
            assert name.encode() in client.answer()


_EXTREMES = st.one_of(
    st.sampled_from((1 << 31, 1 << 32, 1 << 53, 1 << 63, 1 << 64, 9_999_999_999_999, 10**400)),
    st.integers(0, 1 << 65),
).flatmap(lambda number: st.integers(number - 1, number + 1).flatmap(_either_sign))
_NUMBERS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        (
            *("versionTs", "transactionId", "eventIndex", "serverId"),
            *("binlogFile", "binlogOffset", "timestamp"),
        ),
        _EXTREMES,
    ),
)


def _either_sign(number: int) -> st.SearchStrategy[int]:
    return st.sampled_from((number, -number))


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_numbers_a_subscription_has_it_is_served_or_refused_with_a_reason(
    filled: ServedRelay, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    server = data.draw(st.sampled_from((0, 4711, 0x7FFFFFFF)))
    place = {"checkpointMode": data.draw(st.sampled_from(("NORMAL", "LATEST", "EARLIEST")))}
    known = {"serverId": server, "binlogFile": 1 << 23, "binlogOffset": 1, "timestamp": 1000}
    body = subscription(checkpoint=place | known | data.draw(_NUMBERS))
    cluster = body["partitionClusterInfo"]
    if data.draw(st.booleans()):
        cluster["partitionTotal"] = data.draw(_EXTREMES)
    if data.draw(st.booleans()):
        cluster["partitionSet"] = [data.draw(_EXTREMES)]
    with StockClient(filled) as client:
        answer = json.loads(client.ask("/v1/getServerInfo", body))
        is_available = answer["serverStatus"] == "AVAILABLE"
        assert is_available or answer["errorMessage"]
    with StockClient(filled) as client:
        is_served = client.ask("/v1/subscribe", body) == b"success"
        assert is_served or client.headers["x-databus-error-message"]
        assert is_served == is_available
        if is_served:
            limits = ("batchSize", "timeoutMs", "maxByteSize")
            fetch = {"timeoutMs": 0} | {
                name: data.draw(_EXTREMES) for name in limits if data.draw(st.booleans())
            }
            if not 0 < fetch["timeoutMs"] < 1 << 63:
                found = read_envelope(client.ask("/v1/fetchMessages", fetch))
                assert found.error_code in (0, -100)
                assert (found.error_code == 0) is (not found.error)
    assert not [record for record in caplog.records if record.exc_info], "a defect was met"


def test_a_time_that_has_no_nanoseconds_is_refused_by_name(served: ServedRelay) -> None:
    place = {"checkpointMode": "NORMAL", "serverId": 0, "timestamp": 9_999_999_999_999}
    with StockClient(served) as client:
        assert "timestamp" in client.server_info(checkpoint=place)["errorMessage"]
    with StockClient(served) as client:
        assert client.subscribe(checkpoint=place) == "fail"
        assert "timestamp" in client.headers["x-databus-error-message"]


def test_a_name_with_half_a_character_gets_no_session_that_cannot_be_shown(
    served: ServedRelay,
) -> None:
    with StockClient(served) as client:
        assert client.subscribe(task="half \ud800 a character") == "fail"
        assert "Unicode" in client.headers["x-databus-error-message"]
    with StockClient(served) as client:
        assert client.subscribe(task="\U0001f600") == "success"
        (session,) = json.loads(served.get("/api/v1/ptubes").body)["sessions"]
        assert session["task"] == "\U0001f600"


def test_silent_connections_are_closed_and_others_stay(tmp_path: Path) -> None:
    served = serve_ptubes(tmp_path, ptubes={"idle_connection_s": 4.0, "request_s": 2.0})
    try:
        with StockClient(served) as silent, StockClient(served) as slow:
            slow.socket.sendall(b"POST /v1/sub")
            with StockClient(served) as busy:
                busy.subscribe()
                wait_until(lambda: len(door_of(served).connections.open) == 1 or not busy.fetch())
            assert silent.is_closed()
            assert slow.is_closed()
    finally:
        served.close()
