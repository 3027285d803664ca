"""Our client on a stock relay: every row once, and a quiet log however the relay stops."""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.filters import ModFilter, RangeFilter
from tests.promises.running import wait_until
from tests.promises.stock_databus.recordings import (
    CODE,
    PERSON,
    expected_rows,
    recorded,
    recording,
)
from tests.promises.stock_databus.stock_relay import Act, Connection, StockRelay

SOURCES = (PERSON, CODE)
EVENT_VERSIONS = pytest.mark.parametrize("stream", ["v1.stream.bin", "v2.stream.bin"])
QUICK: dict[str, Any] = {
    "wait_ms": 0,
    "back_off": {"first_s": 0.001, "max_s": 0.01},
    "checkpoint_every_s": 0,
}


class Rows(Consumer):
    """Keeps rows in the form of the recordings' expected ones."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._window: list[dict[str, Any]] = []

    def on_data_event(self, event: DataEvent) -> None:
        values = event.row
        self._window.append(
            {
                "scn": event.scn,
                "src": event.source,
                "op": "DELETE" if event.is_delete else "UPSERT",
                "key": values["key" if event.source == PERSON else "code"],
                "first": values["firstName"],
                "amount": values["amount"],
                "blob": None if values["blob"] is None else values["blob"].hex(),
            }
        )

    def on_end_data_event_sequence(self, scn: int) -> None:
        self.rows += self._window
        self._window = []

    def on_rollback(self, scn: int) -> None:
        self._window = []


@pytest.fixture
def relay() -> Iterator[StockRelay]:
    with StockRelay(recording()) as relay:
        yield relay


def serves(relay: StockRelay, stream: str) -> None:
    """Make the relay one that holds events of one version, whatever is asked for."""
    held = recorded(stream)
    relay.recording = replace(relay.recording, streams={0: held, 2: held})


def read_all(
    relay: StockRelay, rows: int, sources: tuple[str, ...] = SOURCES, **options: Any
) -> list[dict[str, Any]]:
    """Return what a client gets until it has this many rows."""
    found, filters = Rows(), options.pop("filters", None)
    with DatabusClient([relay.url], **(QUICK | options)) as client:
        client.register(found, sources, filters=filters)
        client.start()
        wait_until(
            lambda: len(found.rows) >= rows or client.error is not None,
            f"{rows} rows",
            lambda: (len(found.rows), client.error),
        )
        assert client.error is None
    return found.rows


@EVENT_VERSIONS
def test_every_row_of_a_stock_relay_arrives_once(relay: StockRelay, stream: str) -> None:
    serves(relay, stream)
    assert read_all(relay, 172) == expected_rows()


@EVENT_VERSIONS
@pytest.mark.parametrize("wanted", [ModFilter(3, 0, 2), RangeFilter(20, 60)], ids=["mod", "range"])
def test_a_stock_relay_filters_for_our_client(
    relay: StockRelay, stream: str, wanted: ModFilter | RangeFilter
) -> None:
    serves(relay, stream)
    expected = [
        row for row in expected_rows() if row["src"] == PERSON and wanted.matches(row["key"])
    ]
    assert 0 < len(expected) < 172
    assert read_all(relay, len(expected), (PERSON,), filters={PERSON: wanted}) == expected


@EVENT_VERSIONS
def test_windows_that_do_not_fit_into_an_answer_are_read_on(relay: StockRelay, stream: str) -> None:
    serves(relay, stream)
    assert read_all(relay, 172, fetch_bytes=1024) == expected_rows()


def test_a_point_that_a_stock_relay_no_longer_holds_is_scn_not_found(relay: StockRelay) -> None:
    relay.gone_scn = expected_rows()[40]["scn"]
    with DatabusClient([relay.url], **QUICK, start=str(expected_rows()[0]["scn"])) as client:
        client.register(Rows(), SOURCES)
        client.start()
        wait_until(lambda: client.error is not None, "an error", lambda: client.error)
        assert isinstance(client.error, ScnNotFoundError)


# Ends that a Netty 3 relay makes when it is stopped, or fails, in the middle of a body


def begin(to: Connection, body: bytes) -> None:
    """Send the first half of a body."""
    to.send_head(Transfer_Encoding="chunked")
    to.send_chunk(body[: len(body) // 2])


def end_after_a_chunk(to: Connection, body: bytes) -> bool:
    begin(to, body)
    return False


def end_inside_a_chunk(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send(b"%x\r\n%s" % (1000, body[len(body) // 2 :][:10]))
    return False


def end_inside_a_size(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send(b"3")
    return False


def reset(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.request.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    return False


def answer_again(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send_error("java.nio.channels.ClosedChannelException", "stopped")
    return False


def answer_again_and_stay(to: Connection, body: bytes) -> bool:
    begin(to, body)
    to.send_error("java.util.concurrent.TimeoutException", "too late")
    return True


def error_behind_the_body(to: Connection, body: bytes) -> bool:
    begin(to, body)
    error = b"com.linkedin.databus2.core.container.request.RequestProcessingException"
    to.send(b"0\r\nx-databus-response-code: 500\r\nx-dbus-error: %s\r\n" % error)
    to.send(b"x-dbus-error-cause: java.lang.IllegalStateException\r\n\r\n")
    return True


def end_twice(to: Connection, body: bytes) -> bool:
    to.send_body(body)
    to.send(b"0\r\n\r\n")
    return True


def end_in_the_headers(to: Connection, _body: bytes) -> bool:
    to.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; char")
    return False


def end_at_once(_to: Connection, _body: bytes) -> bool:
    return False


ENDS = [
    end_after_a_chunk,
    end_inside_a_chunk,
    end_inside_a_size,
    reset,
    answer_again,
    answer_again_and_stay,
    error_behind_the_body,
    end_twice,
    end_in_the_headers,
    end_at_once,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_body_that_ends_early_is_one_line_and_is_read_on(
    relay: StockRelay, end: Act, caplog: pytest.LogCaptureFixture
) -> None:
    relay.script += [end]
    with caplog.at_level(logging.INFO):
        assert read_all(relay, 172) == expected_rows()
    assert all(record.name.startswith("databus") for record in caplog.records), caplog.text
    assert len(caplog.records) <= 1, caplog.text
    assert not relay.script


def test_every_kind_of_end_in_one_life(relay: StockRelay, caplog: pytest.LogCaptureFixture) -> None:
    relay.script += ENDS
    with caplog.at_level(logging.INFO):
        assert read_all(relay, 172, fetch_bytes=1024) == expected_rows()
    assert all(record.name.startswith("databus") for record in caplog.records), caplog.text
    assert len(caplog.records) <= len(ENDS), caplog.text


def test_a_relay_that_is_stopped_and_started_again_is_read_on(
    relay: StockRelay, caplog: pytest.LogCaptureFixture
) -> None:
    is_stopped = threading.Event()

    def stop(to: Connection, body: bytes) -> bool:
        begin(to, body)
        is_stopped.set()
        return False

    relay.script.append(stop)
    with caplog.at_level(logging.INFO):
        rows = in_background(lambda: read_all(relay, 172, fetch_bytes=4096))
        assert is_stopped.wait(30)
        relay.stop()
        relay.start()
        assert rows() == expected_rows()
    assert all(record.name.startswith("databus") for record in caplog.records), caplog.text


def in_background(
    function: Callable[[], list[dict[str, Any]]],
) -> Callable[[], list[dict[str, Any]]]:
    """Call a function in a thread; return what gives its result."""
    results: list[list[dict[str, Any]]] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()

    def result() -> list[dict[str, Any]]:
        thread.join()
        return results[0]

    return result
