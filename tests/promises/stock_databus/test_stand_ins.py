"""The stand-ins themselves: against the recordings, and what the client refuses."""

from __future__ import annotations

import ast
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.promises.stock_databus.recordings import (
    CODE,
    PERSON,
    client_requests,
    expected_rows,
    recorded,
    recording,
)
from tests.promises.stock_databus.stock_checkpoint import StockCheckpoint
from tests.promises.stock_databus.stock_client import StockClient, StockWindow
from tests.promises.stock_databus.stock_events import StockRefusalError, crc, cut_events
from tests.promises.stock_databus.stock_relay import CHUNK_BYTES, Connection, Recording, StockRelay
from tests.promises.stock_databus.stock_schemas import normal_form

SOURCES = (PERSON, CODE)
BOTH = pytest.mark.parametrize("event_version", [0, 2])
PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3, 4])


@pytest.fixture
def relay() -> Iterator[StockRelay]:
    with StockRelay(recording()) as relay:
        yield relay


def read_all(relay: StockRelay, **options: Any) -> StockClient:
    """Return a client that has read what the relay holds."""
    options.setdefault("checkpoint", StockCheckpoint.flexible())
    client = StockClient(port_of(relay), SOURCES, **options)
    newest = expected_rows()[-1]["scn"]
    try:
        client.run(lambda: client.checkpoint.scn >= newest and not client.checkpoint.is_inside)
    finally:
        client.close()
    return client


def port_of(relay: StockRelay) -> int:
    return int(relay.url.rpartition(":")[2])


def rows_of(windows: list[StockWindow]) -> list[dict[str, Any]]:
    """Return rows in the form of the recordings' expected ones."""
    found = []
    for window in windows:
        for one in window.rows:
            values = one.row
            key = values["key"] if one.source == PERSON else values["code"]
            blob = values["blob"]
            found.append(
                {
                    "scn": window.scn,
                    "src": one.source,
                    "op": "DELETE" if one.event.is_delete else "UPSERT",
                    "key": key,
                    "first": values["firstName"],
                    "amount": values["amount"],
                    "blob": None if blob is None else blob.hex(),
                }
            )
    return found


def test_the_stand_ins_share_no_code_with_databus() -> None:
    for path in Path(__file__).parent.glob("stock_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert all(name.name.split(".")[0] != "databus" for name in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] != "databus", path


def test_the_check_value_of_the_crc() -> None:
    assert crc(b"123456789") == 0x2DFD2D88


@BOTH
@PROTOCOLS
def test_a_recorded_stream_gives_the_rows_that_were_put_in(
    relay: StockRelay, protocol: int, event_version: int
) -> None:
    client = read_all(relay, protocol=protocol, event_version=event_version)
    assert rows_of(client.tables.windows) == expected_rows()
    assert len(client.tables.windows) == 60


@BOTH
def test_small_answers_give_the_same_windows(relay: StockRelay, event_version: int) -> None:
    client = read_all(relay, event_version=event_version, size_bytes=900)
    assert rows_of(client.tables.windows) == expected_rows()
    assert len(client.requests) > 20


def test_the_requests_are_those_of_a_stock_client(relay: StockRelay) -> None:
    found = set()
    for protocol, event_version in ((2, 2), (2, 0), (4, 2)):
        client = read_all(relay, protocol=protocol, event_version=event_version)
        found |= set(client.requests)
    for target, _ in client_requests():
        assert target in found


def test_a_schema_id_is_the_md5_of_what_avro_prints() -> None:
    ids = {event.schema_id for event, _ in cut_events(recorded("v1.stream.bin"))}
    texts = [one["schema"] for one in json.loads(recorded("v1.register.json"))]
    hashes = {hashlib.md5(normal_form(json.loads(text)).encode()).digest() for text in texts}
    assert ids - {bytes(16)} == hashes


def test_what_avro_prints_has_no_attribute_that_is_not_a_string() -> None:
    schema = {
        "aliases": ["a.Old"],
        "doc": "a record",
        "type": "record",
        "namespace": "a",
        "name": "R",
        "meta": "pk=x;",
        "version": 3,
        "fields": [
            {"doc": "d", "default": None, "type": ["null", "int"], "name": "x", "meta": {"n": 1}},
            {"name": "y", "type": {"type": "bytes", "logicalType": "decimal", "scale": 2}},
            {"name": "e", "type": {"type": "enum", "name": "a.E", "symbols": ["A"]}, "meta": "m"},
        ],
    }
    assert normal_form(schema) == (
        '{"type":"record","name":"R","namespace":"a","fields":['
        '{"name":"x","type":["null","int"],"doc":"d","default":null},'
        '{"name":"y","type":{"type":"bytes","logicalType":"decimal"}},'
        '{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]},"meta":"m"}'
        '],"meta":"pk=x;"}'
    )


@BOTH
def test_a_filter_selects_by_key(relay: StockRelay, event_version: int) -> None:
    def partition(start: int, end: int) -> dict[str, Any]:
        ranges = [{"numBuckets": 4, "bktRange": {"start": start, "end": end}}]
        return {"partitionType": "MOD", "filters": ranges}

    rows = []
    for part in (partition(0, 1), partition(1, 4)):
        client = read_all(relay, event_version=event_version, filters={PERSON: part, CODE: part})
        rows += rows_of(client.tables.windows)
    assert sorted(rows, key=str) == sorted(expected_rows(), key=str)


def test_a_window_that_is_gone_suspends_a_client_without_a_bootstrap_server(
    relay: StockRelay,
) -> None:
    relay.gone_scn = expected_rows()[0]["scn"]
    with pytest.raises(StockRefusalError, match="suspended: ScnNotFound"):
        read_all(relay, checkpoint=StockCheckpoint.from_nothing())


# What it refuses


def sends(version: int, change: Callable[[bytearray], None]) -> Callable[[Connection, bytes], bool]:
    """Return an answer: the recorded events with a change in the first of them."""
    stream = bytearray(recorded("v1.stream.bin" if version == 0 else "v2.stream.bin"))
    change(stream)

    def send(to: Connection, _body: bytes) -> bool:
        to.send_body(bytes(stream))
        return True

    return send


def flip(at: int) -> Callable[[bytearray], None]:
    def change(stream: bytearray) -> None:
        stream[at] ^= 1

    return change


@pytest.mark.parametrize(
    ("version", "at", "problem"),
    [
        (0, 12, "header CRC"),
        (0, 62, "value CRC"),
        (2, 24, "header CRC"),
        (2, 70, "body CRC"),
        (2, 2, "magic"),
        (0, 0, "version byte 1"),
    ],
)
def test_a_flipped_bit_is_refused(relay: StockRelay, version: int, at: int, problem: str) -> None:
    relay.script.append(sends(version, flip(at)))
    with pytest.raises(StockRefusalError, match=problem):
        read_all(relay, event_version=version)


def without_first_end(stream: bytearray) -> None:
    at = 0
    for event, data in cut_events(bytes(stream)):
        if event.is_end_of_period:
            del stream[at : at + len(data)]
            return
        at += len(data)


def first_window_again(stream: bytearray) -> None:
    at = 0
    for event, data in cut_events(bytes(stream)):
        at += len(data)
        if event.is_end_of_period:
            stream += stream[:at]
            return


@pytest.mark.parametrize(
    ("change", "problem"),
    [(without_first_end, "has no end"), (first_window_again, "SCN 1003 after")],
)
def test_windows_out_of_order_are_refused(
    relay: StockRelay, change: Callable[[bytearray], None], problem: str
) -> None:
    relay.script.append(sends(2, change))
    with pytest.raises(StockRefusalError, match=problem):
        read_all(relay)


def without_payload(stream: bytearray) -> None:
    """Make the first event one of a row without value, with CRCs that fit."""
    header = bytearray(stream[:61])
    struct.pack_into(">I", header, 5, 61)
    struct.pack_into(">I", header, 49, crc(b""))
    struct.pack_into(">I", header, 1, crc(bytes(header[5:61])))
    _, first = next(cut_events(bytes(stream)))
    stream[: len(first)] = header


def test_an_event_without_payload_is_refused(relay: StockRelay) -> None:
    relay.script.append(sends(0, without_payload))
    with pytest.raises(StockRefusalError, match="without payload"):
        read_all(relay, event_version=0)


def test_a_schema_that_was_not_registered_is_refused(relay: StockRelay) -> None:
    held = relay.recording
    other = held.register.replace(b"firstName", b"lastName")
    relay.recording = Recording(held.sources, other, held.register4, held.streams)
    with pytest.raises(StockRefusalError, match="unable to find schema"):
        read_all(relay)


def test_a_name_of_two_parts_is_refused() -> None:
    with pytest.raises(StockRefusalError, match="Espresso"):
        StockClient(1, ["shop.orders"])


def send_with_length(to: Connection, body: bytes) -> bool:
    to.send_head(Content_Length=str(len(body)))
    to.send(body)
    return True


def send_bare_error(to: Connection, _body: bytes) -> bool:
    to.send_error("RequestProcessingException", "ScnNotFoundException", "ScnNotFoundException")
    return True


def send_error_without_cause(to: Connection, _body: bytes) -> bool:
    to.send_error("com.linkedin.databus.core.ScnNotFoundException", "gone")
    return True


def end_inside_a_chunk(to: Connection, body: bytes) -> bool:
    to.send_head(Transfer_Encoding="chunked")
    to.send(b"%x\r\n" % CHUNK_BYTES + body[:100])
    return False


def end_without_last_chunk(to: Connection, body: bytes) -> bool:
    to.send_head(Transfer_Encoding="chunked")
    to.send_chunk(body[:100])
    return False


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (send_with_length, "Content-Length"),
        (send_bare_error, "unexpected error"),
        (send_error_without_cause, "no cause"),
        (end_inside_a_chunk, "ends early"),
        (end_without_last_chunk, "ends early"),
    ],
)
def test_an_answer_of_another_form_is_refused(
    relay: StockRelay, act: Callable[[Connection, bytes], bool], problem: str
) -> None:
    relay.script.append(act)
    with pytest.raises(StockRefusalError, match=problem):
        read_all(relay)


def test_a_connection_that_is_closed_between_answers_is_opened_and_registered_again(
    relay: StockRelay,
) -> None:
    def close(to: Connection, body: bytes) -> bool:
        to.send_body(body)
        return False

    relay.script.append(close)
    client = read_all(relay, size_bytes=900)
    assert rows_of(client.tables.windows) == expected_rows()
    assert client.picks == 2
    assert relay.paths().count("/register") == 2
