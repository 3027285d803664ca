"""What strangers may send: each thing its own error, and the relay stays up."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.schemas.checkpoint import Checkpoint, CheckpointMult
from databus.schemas.errors import SourceStoppedError, TransactionTooLargeError
from tests import PATIENCE_S
from tests.relay.fakes import (
    Answer,
    ServedRelay,
    connect,
    get,
    insert,
    transaction,
    wait_until,
)

INVALID = "com.linkedin.databus2.core.container.request.InvalidRequestParamValueException"


@pytest.fixture(autouse=True)
def _stays_up(relay: ServedRelay) -> Iterator[None]:
    relay.put(*(transaction(scn, insert(scn, "x" * 200)) for scn in range(1, 6)))
    yield
    assert relay.stream().headers["x-databus-resume"] == "5,-1"
    assert relay.get("/health").status == 200


def error_of(answer: Answer) -> tuple[int, str]:
    body = json.loads(answer.body)
    assert answer.headers["x-dbus-error"] == body["error"]
    assert answer.headers["x-dbus-error-message"]
    assert body["message"]
    return answer.status, body["error"]


@pytest.mark.parametrize(
    ("changes", "status", "error", "says"),
    [
        ({"sources": "99"}, 404, "UnknownSourceException", "99"),
        ({"sources": "shop.nothing"}, 404, "UnknownSourceException", "shop.person"),
        ({"sources": "-1"}, 404, "UnknownSourceException", "-1"),
        ({"sources": "1" * 500}, 404, "UnknownSourceException", "1111"),
        ({"checkPoint": "{nonsense"}, 400, INVALID, "JSON"),
        ({"checkPoint": "[1]"}, 400, INVALID, "object"),
        ({"checkPoint": '{"windowScn":"five"}'}, 400, INVALID, "checkpoint"),
        ({"checkPoint": '{"consumption_mode":"NAP"}'}, 400, INVALID, "NAP"),
        (
            {"checkPoint": Checkpoint.at(1).start_bootstrap().to_json()},
            400,
            INVALID,
            "bootstrap",
        ),
        ({"size": ""}, 400, INVALID, "required"),
        ({"size": "-5"}, 400, INVALID, "size"),
        ({"size": "0"}, 400, INVALID, "at least 1"),
        ({"size": "9" * 40}, 400, INVALID, "size"),
        ({"output": "xml"}, 400, INVALID, "json_plain_value"),
        ({"filters": "{"}, 400, INVALID, "JSON"),
        ({"filters": '{"1":{"partitionType":"ROUND"}}'}, 400, INVALID, "ROUND"),
        ({"filters": "x" * 70_000}, 400, INVALID, "max_filter_bytes"),
        ({"filters": "[" * 50_000}, 400, INVALID, "filters"),
        ({"wait": "soon"}, 400, INVALID, "wait"),
        ({"maxev": "two"}, 400, INVALID, "maxev"),
        ({"streamFromLatestScn": "perhaps"}, 400, INVALID, "true or false"),
        ({"untilScn": "-1"}, 400, INVALID, "untilScn"),
        ({"untilScn": "9" * 19}, 400, INVALID, "at most"),
        ({"untilScn": "3", "checkPoint": Checkpoint.at(4).to_json()}, 400, INVALID, "windowScn 4"),
        (
            {
                "untilScn": "3",
                "checkPointMult": CheckpointMult({"shop": Checkpoint.at(1)}).to_json(),
            },
            400,
            INVALID,
            "cannot be compared",
        ),
        ({"checkPointMult": "{"}, 400, INVALID, "checkPointMult"),
        ({"checkPointMult": "{}"}, 400, INVALID, "no checkpoint"),
        ({"checkPointMult": '{"{\\"id\\":1}":"{}"}'}, 400, INVALID, ""),
    ],
)
def test_a_bad_parameter_is_named(
    relay: ServedRelay, changes: dict[str, str], status: int, error: str, says: str
) -> None:
    answer = relay.stream(**changes)
    assert error_of(answer) == (status, error)
    assert says in json.loads(answer.body)["message"]


@pytest.mark.parametrize(
    ("parameters", "status", "error", "says"),
    [
        ({}, 400, INVALID, "required"),
        ({"sources": "99"}, 404, "UnknownSourceException", "99"),
        ({"sources": "1", "rows": "0"}, 400, INVALID, "at least 1"),
        ({"sources": "1", "rows": "many"}, 400, INVALID, "rows"),
        ({"sources": "1", "bytes": "-1"}, 400, INVALID, "bytes"),
        ({"sources": "1", "untilScn": "9" * 19}, 400, INVALID, "at most"),
        ({"sources": "1", "since": "yesterday"}, 400, INVALID, "since"),
        ({"sources": "1", "since": "1", "streamFromLatestScn": "true"}, 400, INVALID, "not with"),
        (
            {"sources": "1", "since": "1", "checkPoint": Checkpoint.at(1).to_json()},
            400,
            INVALID,
            "",
        ),
        ({"sources": "1", "checkPointMult": "{}"}, 400, INVALID, "one at a time"),
        ({"sources": "1", "filters": "{"}, 400, INVALID, "JSON"),
        ({"sources": "1", "checkPoint": "{nonsense"}, 400, INVALID, "JSON"),
    ],
)
def test_a_bad_parameter_of_measure_is_named(
    relay: ServedRelay, parameters: dict[str, Any], status: int, error: str, says: str
) -> None:
    answer = relay.get("/measure", **parameters)
    assert error_of(answer) == (status, error)
    assert says in json.loads(answer.body)["message"]


def test_limits_larger_than_any_number_are_none(relay: ServedRelay) -> None:
    huge = "9" * 19
    answer = relay.get("/measure", sources="1", rows=huge, bytes=huge, since=huge)
    assert answer.status == 200


@pytest.mark.parametrize(
    "subs", ["{", "[]", "[1]", '[{"logicalPartition":{"source":{"id":"x"}}}]', "[" * 5000]
)
def test_bad_subscriptions_are_refused(relay: ServedRelay, subs: str) -> None:
    answer = relay.get("/stream", subs=subs, size=1000)
    assert error_of(answer) == (400, INVALID)


def test_a_stream_of_nothing_is_refused(relay: ServedRelay) -> None:
    assert error_of(relay.get("/stream", size=1000)) == (400, INVALID)


def test_an_unknown_path_is_an_unknown_command(relay: ServedRelay) -> None:
    assert error_of(relay.get("/strem")) == (
        404,
        "com.linkedin.databus2.core.container.request.UnknownCommandException",
    )
    assert error_of(relay.get("/controlSources/explode")) == (
        404,
        "com.linkedin.databus2.core.container.request.UnknownCommandException",
    )
    assert error_of(relay.get("/containerStats/no/such")) == (
        404,
        "com.linkedin.databus2.core.container.request.UnknownCommandException",
    )


def test_an_unknown_protocol_version_is_refused(relay: ServedRelay) -> None:
    assert error_of(relay.get("/register", protocolVersion=9)) == (400, INVALID)


def test_an_unknown_physical_source_is_refused(relay: ServedRelay) -> None:
    expected = (404, "UnknownSourceException")
    assert error_of(relay.get("/bufferInfo/inbound/nowhere/0")) == expected
    assert error_of(relay.post("/controlSources/pause", source="nowhere")) == expected
    assert error_of(relay.get("/bufferInfo/inbound/shop/7")) == (400, INVALID)


def test_an_unknown_method_is_refused(relay: ServedRelay) -> None:
    with connect(relay.url) as sock:
        sock.sendall(b"DELETE /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 405")


def test_an_evicted_scn_is_the_cause_of_a_processing_error(relay: ServedRelay) -> None:
    # A first start does not know what came before its first window.
    answer = relay.stream(checkPoint=Checkpoint.at(0).to_json())
    assert error_of(answer) == (
        404,
        "com.linkedin.databus2.core.container.request.RequestProcessingException",
    )
    assert answer.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
    assert "scn 0 is gone" in answer.headers["x-dbus-error-cause-message"]
    assert relay.relay.traffic.scn_not_found == 1
    measured = relay.get("/measure", sources="1", checkPoint=Checkpoint.at(0).to_json())
    assert error_of(measured) == error_of(answer)
    assert (
        measured.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
    )
    assert relay.relay.traffic.scn_not_found == 2


def test_an_scn_in_the_future_is_answered_empty(relay: ServedRelay) -> None:
    answer = relay.stream(checkPoint=Checkpoint.at(10**15).to_json())
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-databus-ahead"] == "true"


def test_a_size_smaller_than_an_event_tells_the_events_size(relay: ServedRelay) -> None:
    answer = relay.stream(size=100)
    assert (answer.status, answer.body) == (200, b"")
    needed = int(answer.headers["x-dbus-pending-event-size"])
    assert needed > 200
    assert len(relay.stream(size=needed).body) == needed


def test_a_message_with_line_breaks_cannot_forge_a_header(relay: ServedRelay) -> None:
    answer = get(relay.url, "/stream?size=1&sources=a%0d%0ax-forged:%20yes%00%ff%e4")
    assert answer.status == 400
    assert "x-forged" not in answer.headers
    answer = relay.get("/stream", size=1, sources="a\r\nx-forged: yesä")
    assert "x-forged" not in answer.headers
    assert "UnknownSourceException" in error_of(answer)


def test_garbage_on_the_port_disturbs_nobody(relay: ServedRelay) -> None:
    chosen = random.Random(7)
    pieces = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /stream?size=1 HTTP/1.1\r\nHost: a\r\nContent-Length: nonsense\r\n\r\n",
        b"POST /stream HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\n",
        b"\x00" * 5000,
        *(chosen.randbytes(chosen.randrange(1, 4000)) for _ in range(30)),
    ]
    for piece in pieces:
        with connect(relay.url) as sock:
            sock.sendall(piece)
            sock.shutdown(socket.SHUT_WR)
            read_to_end(sock)


def test_a_request_larger_than_the_limit_is_dropped(relay: ServedRelay) -> None:
    with connect(relay.url) as sock, pytest.raises((ConnectionResetError, BrokenPipeError)):
        sock.sendall(b"GET /stream?filters=" + b"x" * 100_000_000)


class TestSlowClients:
    """A client that stops reading costs a bounded amount of memory, and is dropped."""

    @pytest.fixture
    def relay(self, tmp_path: Path) -> Iterator[ServedRelay]:
        served = ServedRelay(tmp_path, http={"port": 0, "idle_connection_s": 1.5})
        yield served
        served.close()

    def test_a_client_that_stops_reading_is_dropped(self, relay: ServedRelay) -> None:
        rows = [insert(n, "x" * 1000) for n in range(1000)]
        relay.source().put(*(transaction(scn, *rows) for scn in range(6, 20)))
        relay.wait_for_scn(19)
        target = f"/stream?sources=1&size=16000000&maxev=2&checkPoint={Checkpoint.at(5).to_json()}"
        with small_connection(relay.url) as sock:
            sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            open_connections = relay.server.open_connections
            wait_until(lambda: open_connections() == 1)
            wait_until(lambda: open_connections() == 0)
        relay.source().put(transaction(20, insert(1)))

    def test_a_client_that_never_sends_its_request_is_dropped(self, relay: ServedRelay) -> None:
        with connect(relay.url) as sock:
            sock.sendall(b"GET /stream HTTP/1.1\r\nHos")
            assert sock.recv(100) == b""

    @pytest.fixture(autouse=True)
    def _stays_up(self, relay: ServedRelay) -> Iterator[None]:
        relay.put(transaction(5, insert(5)))
        yield
        assert relay.get("/admin").status == 200


class TestTooManyConnections:
    @pytest.fixture
    def relay(self, tmp_path: Path) -> Iterator[ServedRelay]:
        served = ServedRelay(tmp_path, http={"port": 0, "max_connections": 3})
        yield served
        served.close()

    @pytest.fixture(autouse=True)
    def _stays_up(self, relay: ServedRelay) -> Iterator[None]:
        yield
        wait_until(lambda: relay.get("/admin").status == 200)

    def test_one_more_than_the_limit_is_turned_away(self, relay: ServedRelay) -> None:
        held = [connect(relay.url) for _ in range(3)]
        try:
            for sock in held:  # those that have asked nothing would make room
                sock.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(1000).startswith(b"HTTP/1.1 200")
            wait_until(lambda: relay.server.open_connections() == 3)
            answer = relay.get("/admin")
            assert answer.status == 503
            assert "max_connections" in answer.headers["x-dbus-error-message"]
        finally:
            for sock in held:
                sock.close()
        wait_until(lambda: relay.server.open_connections() == 0)


class TestSourceInError:
    @pytest.fixture(autouse=True)
    def _stays_up(self, relay: ServedRelay) -> Iterator[None]:
        yield
        assert relay.get("/admin").body == b"GOOD"

    @pytest.mark.parametrize(
        "error",
        [
            SourceStoppedError("shop", 5, "set binlog_format = ROW"),
            TransactionTooLargeError("shop", 6, 100, 10),
        ],
    )
    def test_health_tells_and_other_requests_are_served(
        self, relay: ServedRelay, error: Exception
    ) -> None:
        relay.put(transaction(1, insert(1)))
        relay.source().fail_for_good(error)
        wait_until(lambda: json.loads(relay.get("/health").body)["status"] == "error")
        assert relay.get("/health").status == 503
        health: dict[str, Any] = json.loads(relay.get("/health").body)
        assert [(one["state"], one["problem"]) for one in health["troubles"]] == [
            ("error", str(error))
        ]
        relay.get("/stream", {"x-databus-client": "ann"}, sources="1,2", size=1 << 20)
        told = f"{error}; these consumers wait: ann"
        health = json.loads(relay.get("/health").body)
        assert health["troubles"][0]["problem"] == told
        shop = json.loads(relay.get("/controlSources/status").body)["shop"]
        (view,) = json.loads(relay.get("/api/v1/physicalSources").body)["physicalSources"]
        (trouble,) = json.loads(relay.get("/api/v1/relay").body)["troubles"]
        assert [shop["problem"], view["problem"], trouble["text"]] == [told] * 3
        assert relay.stream().headers["x-databus-resume"] == "1,-1"
        relay.post("/controlSources/unpause")
        wait_until(lambda: relay.get("/health").status == 200)


def small_connection(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(PATIENCE_S)
    sock.connect((host, int(port)))
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    received = b""
    try:
        while chunk := sock.recv(1 << 16):
            received += chunk
    except ConnectionResetError:
        return received
    return received
