"""Our client on a stock relay: every row once, and a quiet log however the relay stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.client.monitoring.http import health_of
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.filters import ModFilter, RangeFilter
from tests import PATIENCE_S
from tests.promises.running import wait_until
from tests.promises.stock_databus.recordings import (
    CODE,
    PERSON,
    expected_rows,
    recorded,
    recording,
)
from tests.promises.stock_databus.stock_ends import ENDS, begin
from tests.promises.stock_databus.stock_events import cut_events
from tests.promises.stock_databus.stock_relay import Act, Connection, StockRelay

SOURCES = (PERSON, CODE)
CODE_ID = 102
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


def never_lists(relay: StockRelay, rows: int) -> list[dict[str, Any]]:
    """Make the relay hold the codes' schema back, of which it has no row before row `rows`.

    Returns the rows that it holds then.
    """
    kept, first_scn = bytearray(), expected_rows()[rows]["scn"]
    for event, data in cut_events(recorded("v2.stream.bin")):
        if event.src_id != CODE_ID or event.scn >= first_scn:
            kept += data
    register = recorded("v2.register.json").replace(b"Code_V1", b"Code_V0")
    relay.recording = replace(relay.recording, register=register, streams={2: bytes(kept)})
    return [row for row in expected_rows() if row["src"] != CODE or row["scn"] >= first_scn]


def test_a_schema_that_a_stock_relay_never_lists_is_an_error_until_it_lists_it(
    relay: StockRelay, caplog: pytest.LogCaptureFixture
) -> None:
    found, register = Rows(), relay.recording.register
    rows = never_lists(relay, 60)
    with DatabusClient([relay.url], **QUICK) as client, caplog.at_level(logging.INFO):
        client.register(found, SOURCES)
        client.start()
        (registration,) = client.registrations
        wait_until(lambda: relay.paths().count("/register") > 5, "tries")
        health = health_of(client)
        assert (health.is_ok, health.word) == (False, "waiting")
        assert "with schema" in registration.problem
        before = [row for row in rows if row["scn"] < expected_rows()[60]["scn"]]
        wait_until(lambda: len(found.rows) >= len(before), "rows before", lambda: found.rows)
        assert found.rows == before
        assert registration.stats.failed_requests > 0
        assert client.error is None
        (record,) = caplog.records
        assert f"{relay.url} sends rows of source {CODE} (102) at scn" in record.getMessage()
        relay.recording = replace(relay.recording, register=register)
        wait_until(lambda: len(found.rows) >= len(rows), "all rows", lambda: len(found.rows))
        assert found.rows == rows
        wait_until(lambda: health_of(client).is_ok, "health", lambda: health_of(client))
        assert registration.problem == ""


@pytest.mark.parametrize("chunk_bytes", [100, 1 << 20])
def test_windows_before_a_damaged_one_arrive(
    relay: StockRelay, caplog: pytest.LogCaptureFixture, chunk_bytes: int
) -> None:
    def damage(to: Connection, body: bytes) -> bool:
        at = 0
        for event, data in cut_events(body):
            if event.scn == bad_scn:
                break
            at += len(data)
        body = body[: at + 70] + bytes([body[at + 70] ^ 1]) + body[at + 71 :]
        to.send_head(Transfer_Encoding="chunked")
        for begin_at in range(0, len(body), chunk_bytes):
            to.send_chunk(body[begin_at : begin_at + chunk_bytes])
        to.send(b"0\r\n\r\n")
        return True

    found, bad_scn = Rows(), expected_rows()[60]["scn"]
    before = [row for row in expected_rows() if row["scn"] < bad_scn]
    relay.script += [damage] * 1000
    with DatabusClient([relay.url], **QUICK) as client, caplog.at_level(logging.INFO):
        client.register(found, SOURCES)
        client.start()
        wait_until(lambda: len(relay.script) < 995, "tries", lambda: len(relay.script))
        wait_until(lambda: len(found.rows) >= len(before), "rows", lambda: len(found.rows))
        assert found.rows == before
        assert (health_of(client).is_ok, health_of(client).word) == (False, "waiting")
        (record,) = caplog.records
        assert "bad bytes in /stream" in record.getMessage()
        relay.script.clear()
        wait_until(lambda: len(found.rows) >= 172, "all rows", lambda: len(found.rows))
        assert found.rows == expected_rows()


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
        assert is_stopped.wait(PATIENCE_S)
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
