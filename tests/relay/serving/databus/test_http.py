from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from databus.relay.sources.log_status import Holding, LogStatus
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.v2 import encode
from databus.schemas.stream.stream_reader import walk
from tests import PATIENCE_S
from tests.relay.fakes import (
    ORDERS,
    PERSON,
    Answer,
    FakeLogProbe,
    ServedRelay,
    connect,
    get,
    insert,
    transaction,
    wait_until,
)

AT_5 = '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":5,"windowOffset":-1}'
TWO = [
    {"name": "shop", "uri": "fake:", "sources": [PERSON.source]},
    {"name": "sales", "uri": "fake:", "sources": [{"name": ORDERS.source, "id": 40}]},
]


def put_some(relay: ServedRelay, first: int = 1, last: int = 5) -> None:
    for scn in range(first, last + 1):
        relay.put(transaction(scn, insert(scn, "Ann"), insert(scn, "tea", ORDERS)))


def scns(answer: Answer) -> list[int]:
    return [event.scn for event in walk(answer.body) if event.is_eop]


def as_json(answer: Answer) -> Any:
    assert answer.headers["Content-Type"].startswith("application/json")
    return json.loads(answer.body)


def test_sources_have_names_and_ids(relay: ServedRelay) -> None:
    assert as_json(relay.get("/sources", v=1)) == [
        {"name": "shop.person", "id": 1},
        {"name": "shop.orders", "id": 2},
    ]


def test_register_gives_every_version_of_the_sources_asked_for(relay: ServedRelay) -> None:
    put_some(relay)
    answer = relay.get("/register", sources="2", protocolVersion=3)
    assert answer.headers["x-dbus-protocol-version"] == "3"
    (schema,) = as_json(answer)
    assert (schema["id"], schema["version"]) == (2, 1)
    assert json.loads(schema["schema"])["name"] == "orders"
    assert [s["id"] for s in as_json(relay.get("/register"))] == [1, 2]


def test_register_version_4_has_every_version_of_the_metadata_schema(relay: ServedRelay) -> None:
    put_some(relay)
    answer = as_json(relay.get("/register", protocolVersion=4))
    assert [s["id"] for s in answer["sourceSchemas"]] == [1, 2]
    first, second = answer["metadataSchemas"]
    assert (first["version"], second["version"]) == (1, 2)
    for metadata in (first, second):
        assert json.loads(metadata["schema"])["type"] == "record"
        digest = crc32(metadata["schema"].encode()).to_bytes(4, "big")
        assert b64decode(metadata["crc32"], validate=True) == digest


def test_who_gets_no_rows_is_told_a_window_by_which_to_know_the_log_again(
    relay: ServedRelay,
) -> None:
    relay.put(transaction(1, insert(1, "x", ORDERS)), transaction(2), transaction(3))
    held = relay.relay.physical_sources["shop"].reader.window_at(1)
    assert held is not None
    ids = relay.relay.catalog.src_ids_of("shop")
    people = relay.stream(sources=str(ids["shop.person"]))
    assert people.headers["x-databus-mark"] == f"{held[0]},{held[1]}"
    assert people.headers["x-databus-log-window"] == f"{held[0]},{held[1]},shop.orders"
    idle = relay.stream(checkPoint=Checkpoint.at(3).to_json())
    assert (idle.body, idle.headers["x-databus-mark"]) == (b"", f"{held[0]},{held[1]}")
    assert relay.stream().headers["x-databus-mark"], "its last window has none"
    relay.put(transaction(4, insert(2, "y", ORDERS)))
    assert "x-databus-mark" not in relay.stream().headers, "its last window is a mark"


def test_stream_has_whole_windows_and_says_where_to_go_on(relay: ServedRelay) -> None:
    put_some(relay)
    answer = relay.stream()
    assert answer.headers["x-databus-resume"] == "5,-1"
    assert scns(answer) == [1, 2, 3, 4, 5]
    assert relay.stream(checkPoint=Checkpoint.at(3).to_json()).headers["x-databus-resume"] == "5,-1"


def test_stream_without_maxev_is_version_1(relay: ServedRelay) -> None:
    put_some(relay)
    answer = relay.stream(maxev=0)
    assert answer.body[0] == 0
    assert scns(answer) == [1, 2, 3, 4, 5]


def test_json_in_the_query_string_need_not_be_encoded(relay: ServedRelay) -> None:
    put_some(relay, last=9)
    filters = '{"1":{"partitionType":"RANGE","filters":[{"keyRange":{"start":7,"end":8}}]}}'
    target = f"/stream?sources=1&size=100000&maxev=2&checkPoint={AT_5}&filters={filters}"
    answer = get(relay.url, target)
    assert [e.key for e in walk(answer.body) if not e.is_eop] == [7]
    assert scns(answer) == [6, 7, 8, 9]


def test_parameters_may_come_as_a_form(relay: ServedRelay) -> None:
    put_some(relay)
    form = b"sources=1&size=100000&maxev=2"
    with connect(relay.url) as sock:
        sock.sendall(
            b"POST /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(form), form)
        )
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("output", ["json", "json_plain_value"])
def test_json_outputs_have_a_line_for_each_event(relay: ServedRelay, output: str) -> None:
    put_some(relay)
    answer = relay.stream(output=output, sources="shop.person")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["srcId"] for line in lines] == [1, -2] * 5
    if output == "json_plain_value":
        assert lines[0]["value"] == {"id": 1, "name": "Ann"}


def test_gzip_only_when_asked_for(relay: ServedRelay) -> None:
    put_some(relay, last=50)
    target = "/stream?sources=1,2&size=1000000&maxev=2"
    plain = get(relay.url, target)
    packed = get(relay.url, target, {"Accept-Encoding": "deflate, gzip;q=0.5"})
    refused = get(relay.url, target, {"Accept-Encoding": "gzip;q=0"})
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body == refused.body
    assert len(packed.body) < len(plain.body) / 2


def test_an_answer_of_many_slices_is_whole(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        rows = [insert(n, "x" * 1000) for n in range(1000)]
        relay.put(*(transaction(scn, *rows) for scn in range(1, 5)))
        answer = relay.stream(size=16 << 20)
        assert len(answer.body) > 4_000_000
        assert scns(answer) == [1, 2, 3, 4]
    finally:
        relay.close()


def test_a_held_request_is_answered_at_once_when_data_comes(relay: ServedRelay) -> None:
    put_some(relay)
    answers: list[Answer] = []
    asking = threading.Thread(
        target=lambda: answers.append(relay.stream(checkPoint=AT_5, wait=20_000))
    )
    started = time.monotonic()
    asking.start()
    notifier = relay.relay.physical_sources["shop"].notifier
    wait_until(lambda: notifier.waiting > 0)
    relay.put(transaction(6, insert(6)))
    asking.join()
    assert time.monotonic() - started < 20  # the time for which it was held
    assert scns(answers[0]) == [6]
    assert notifier.waiting == 0


def test_a_held_request_ends_empty_when_nothing_comes(relay: ServedRelay) -> None:
    put_some(relay)
    answer = relay.stream(checkPoint=AT_5, wait=50)
    assert (answer.status, answer.body, answer.headers["x-databus-resume"]) == (200, b"", "5,-1")


def test_a_held_request_for_the_future_is_answered_when_it_comes(relay: ServedRelay) -> None:
    put_some(relay, last=3)
    assert relay.stream(checkPoint=AT_5).headers["x-databus-ahead"] == "true"
    answers: list[Answer] = []
    asking = threading.Thread(
        target=lambda: answers.append(relay.stream(checkPoint=AT_5, wait=20_000))
    )
    asking.start()
    wait_until(lambda: relay.relay.physical_sources["shop"].notifier.waiting > 0)
    put_some(relay, 4, 7)
    asking.join()
    assert scns(answers[0])[0] == 6
    assert "x-databus-ahead" not in answers[0].headers


def test_a_held_request_whose_client_leaves_is_let_go(relay: ServedRelay) -> None:
    put_some(relay)
    notifier = relay.relay.physical_sources["shop"].notifier
    with connect(relay.url) as sock:
        sock.sendall(
            f"GET /stream?sources=1&size=1000&wait=20000&checkPoint={AT_5} HTTP/1.1\r\n"
            "Host: a\r\n\r\n".encode()
        )
        wait_until(lambda: notifier.waiting > 0)
    wait_until(lambda: notifier.waiting == 0)
    assert relay.get("/admin").body == b"GOOD"


def test_streaming_from_the_latest_begins_after_the_newest_window(relay: ServedRelay) -> None:
    put_some(relay)
    answer = relay.stream(streamFromLatestScn="true")
    assert (answer.body, answer.headers["x-databus-resume"]) == (b"", "5,-1")


def test_one_connection_serves_many_requests(relay: ServedRelay) -> None:
    request = b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n"
    with connect(relay.url) as sock:
        for _ in range(5):
            sock.sendall(request)
            answer = b""
            while not answer.endswith(b"4\r\nGOOD\r\n0\r\n\r\n"):
                answer += sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200")


def exchange(relay: ServedRelay, target: str, version: str, more: str = "") -> tuple[str, bytes]:
    """Return the head and the body of an answer, as they are on the wire."""
    with connect(relay.url) as sock:
        request = f"GET {target} HTTP/{version}\r\nHost: a\r\nConnection: close\r\n{more}\r\n"
        sock.sendall(request.encode())
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.decode().lower(), body


def chunks_of(body: bytes) -> list[bytes]:
    found: list[bytes] = []
    while True:
        line, _, body = body.partition(b"\r\n")
        size = int(line, 16)
        assert body[size : size + 2] == b"\r\n"
        if not size:
            assert body == b"\r\n"
            return found
        found.append(body[:size])
        body = body[size + 2 :]


@pytest.mark.parametrize(("name_chars", "count"), [(1, 1), (9_000, 1), (60_000, 2), (70_000, 12)])
def test_bodies_are_sent_in_chunks_without_a_length(
    relay: ServedRelay, name_chars: int, count: int
) -> None:
    relay.put(*(transaction(scn, insert(scn, "x" * name_chars)) for scn in range(1, count + 1)))
    target = "/stream?sources=1,2&size=2000000&maxev=2"
    head, sent = exchange(relay, target, "1.1")
    assert "transfer-encoding: chunked" in head
    assert "content-length" not in head
    chunks = chunks_of(sent)
    assert len(chunks) <= 2
    body = b"".join(chunks)
    assert [event.scn for event in walk(body) if event.is_eop] == list(range(1, count + 1))
    head, packed = exchange(relay, target, "1.1", "Accept-Encoding: gzip\r\n")
    assert "content-length" not in head
    unpacked = b"".join(chunks_of(packed))
    assert (gzip.decompress(unpacked) if "content-encoding: gzip" in head else unpacked) == body
    # HTTP/1.0 has no chunks.
    head, whole = exchange(relay, target, "1.0")
    assert "transfer-encoding" not in head
    assert f"content-length: {len(body)}" in head
    assert whole == body


def test_an_empty_body_has_a_length_and_an_error_is_sent_in_chunks(relay: ServedRelay) -> None:
    put_some(relay)
    head, body = exchange(relay, "/stream?sources=1&size=1000&streamFromLatestScn=true", "1.1")
    assert "content-length: 0" in head
    assert "transfer-encoding" not in head
    assert not body
    for target in ("/stream?sources=1", "/nosuch"):
        head, body = exchange(relay, target, "1.1")
        assert "content-length" not in head
        assert set(json.loads(b"".join(chunks_of(body)))) == {"error", "message"}


def test_a_small_answer_comes_in_one_packet(relay: ServedRelay) -> None:
    put_some(relay)
    with connect(relay.url) as connection:
        for _ in range(2):
            request = "GET /stream?sources=1&size=1000 HTTP/1.1\r\nHost: relay\r\n\r\n"
            connection.sendall(request.encode())
            answer = connection.recv(1 << 20)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"\r\n0\r\n\r\n")


def test_an_answer_that_follows_goes_on_with_what_comes_and_ends_with_wait(
    relay: ServedRelay,
) -> None:
    put_some(relay)
    notifier = relay.relay.physical_sources["shop"].notifier
    with following(relay, "&size=100000&wait=6000") as read:
        body = read(5)
        for scn in range(6, 9):
            wait_until(lambda: notifier.waiting > 0)
            relay.put(transaction(scn, insert(scn)))
            body += read(scn)
        (client,) = relay.relay.monitor.clients
        assert (client.requests, client.open_requests) == (1, 1)
        assert client.served_bytes == len(body)
        wait_until(lambda: notifier.waiting == 0)
        assert not read(0)
    assert [event.scn for event in walk(body) if event.is_eop] == list(range(1, 9))
    assert client.open_requests == 0


def test_an_answer_that_follows_ends_before_it_is_larger_than_size(relay: ServedRelay) -> None:
    put_some(relay, last=1)
    notifier = relay.relay.physical_sources["shop"].notifier
    with following(relay, "&size=1000&wait=20000") as read:
        size_bytes = len(read(1))
        for scn in range(2, 20):
            wait_until(lambda: notifier.waiting > 0 or not read.is_open)
            relay.put(transaction(scn, insert(scn)))
            part = read(scn)
            if not part:
                break
            size_bytes += len(part)
    assert size_bytes <= 1000 < size_bytes + 500


def test_who_does_not_ask_to_follow_or_cannot_is_answered_once(relay: ServedRelay) -> None:
    put_some(relay)
    for more, version in (("", "1.1"), ("&follow=true", "1.0"), ("&follow=true&untilScn=9", "1.1")):
        target = f"/stream?sources=1&size=100000&maxev=2&wait=20000{more}"
        head, _ = exchange(relay, target, version)
        assert "x-databus-resume: 5,-1" in head
    packed = exchange(
        relay,
        "/stream?sources=1&size=100000&maxev=2&wait=20000&follow=true",
        "1.1",
        "Accept-Encoding: gzip\r\n",
    )
    assert "x-databus-resume: 5,-1" in packed[0]


def test_an_answer_that_follows_ends_when_the_relay_does(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        put_some(relay)
        notifier = relay.relay.physical_sources["shop"].notifier
        with following(relay, "&size=100000&wait=20000") as read:
            read(5)
            wait_until(lambda: notifier.waiting > 0)
            relay.close()
            assert not read(0)
    finally:
        relay.close()


class Following:
    """An open answer, read chunk by chunk."""

    def __init__(self, sock: socket.socket) -> None:
        self._stream = sock.makefile("rb")
        self.is_open = True

    def read_head(self) -> str:
        return b"".join(iter(self._stream.readline, b"\r\n")).decode().lower()

    def __call__(self, scn: int) -> bytes:
        """Return the chunks up to the end of a window, or what there is up to the end."""
        body = b""
        while self.is_open:
            size = int(self._stream.readline(), 16)
            body += self._stream.read(size)
            assert self._stream.readline() == b"\r\n"
            self.is_open = size > 0
            if any(event.is_eop and event.scn == scn for event in walk(body)):
                break
        return body


@contextmanager
def following(relay: ServedRelay, more: str) -> Iterator[Following]:
    """Ask to follow from the oldest window; yield the answer behind its headers."""
    with connect(relay.url) as sock:
        target = f"/stream?sources=1&maxev=2&follow=true{more}"
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        read = Following(sock)
        head = read.read_head()
        assert "transfer-encoding: chunked" in head
        assert "x-databus-resume" not in head
        yield read


def test_several_physical_sources_are_read_together(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path, physical_sources=TWO)
    try:
        relay.put(transaction(5, insert(1)))
        relay.put(transaction(900, insert(1, "tea", ORDERS)), name="sales")
        subs = [
            {"logicalPartition": {"source": {"id": 1, "name": PERSON.source}, "id": -1}},
            {"logicalPartition": {"source": {"id": 40, "name": ORDERS.source}, "id": -1}},
        ]
        flexible = Checkpoint.flexible().to_json()
        checkpoints = {
            json.dumps({"id": 0, "name": "shop"}): flexible,
            json.dumps({"id": 0, "name": "sales"}): flexible,
        }
        asked: dict[str, Any] = {"size": 100_000, "maxev": 2, "subs": json.dumps(subs)}
        answer = relay.get("/stream", checkPointMult=json.dumps(checkpoints), **asked)
        assert scns(answer) == [5, 900]
        assert json.loads(answer.headers["x-databus-resume"]) == {
            "shop": [5, -1],
            "sales": [900, -1],
        }
        both = relay.get("/stream", sources="1,40", size=1000)
        assert both.status == 400
        assert "several physical sources" in both.headers["x-dbus-error-message"]
        everything = [{"logicalPartition": {"source": {"id": -1, "name": "*"}}}]
        asked["subs"] = json.dumps(everything)
        assert scns(relay.get("/stream", checkPointMult=json.dumps(checkpoints), **asked)) == [
            5,
            900,
        ]
    finally:
        relay.close()


def test_physical_sources_and_their_rings_can_be_looked_at(relay: ServedRelay) -> None:
    put_some(relay)
    (shop,) = as_json(relay.get("/physicalSources"))
    assert (shop["name"], [s["id"] for s in shop["sources"]]) == ("shop", [1, 2])
    assert as_json(relay.get("/bufferInfo/inbound/shop/0")) == {
        "minScn": 1,
        "maxScn": 5,
        "timestampFirstEvent": 1000,
        "timestampLatestEvent": 5000,
    }


def test_stats_count_what_came_in_and_what_went_out(relay: ServedRelay) -> None:
    put_some(relay)
    served = len(relay.stream().body)
    assert as_json(relay.get("/containerStats/inbound/events/total"))["events"] == 10
    assert as_json(relay.get("/containerStats/inbound/events/psources/shop"))["scn"] == 5
    outbound = as_json(relay.get("/relayStats/outbound/http/total"))
    assert (outbound["streamRequests"], outbound["bytes"]) == (1, served)


def test_capture_can_be_paused_resumed_stopped_and_started(relay: ServedRelay) -> None:
    def state_after(verb: str, expected: str) -> None:
        told = as_json(relay.post(f"/controlSources/{verb}", source="shop"))["shop"]["state"]
        assert told == expected or verb in ("unpause", "start")
        wait_until(
            lambda: as_json(relay.get("/controlSources/status"))["shop"]["state"] == expected
        )

    put_some(relay)
    state_after("pause", "paused")
    relay.source().put(transaction(6, insert(6)))
    state_after("unpause", "running")
    relay.wait_for_scn(6)
    state_after("shutdown", "stopped")
    relay.source().put(transaction(7, insert(7)))
    assert relay.relay.physical_sources["shop"].ring.max_scn == 6
    state_after("start", "running")
    relay.wait_for_scn(7)


def test_relay_commands(relay: ServedRelay) -> None:
    put_some(relay)
    assert as_json(relay.get("/relayCommand/getPrevScn")) == {"shop": -1}
    assert as_json(relay.post("/relayCommand/runGC"))["result"] == "done"
    assert as_json(relay.post("/relayCommand/saveMetaState"))["result"] == "done"
    assert relay.get("/relayCommand/selfDestruct").status == 404


def test_admin_says_good(relay: ServedRelay) -> None:
    assert relay.get("/admin").body == b"GOOD"


def test_metrics_tell_of_the_ring_and_the_source(relay: ServedRelay) -> None:
    put_some(relay)
    relay.stream()
    answer = relay.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    found = dict(re.findall(r"^(databus_\S+) (\S+)$", answer.body.decode(), re.MULTILINE))
    label = '{physical_source="shop"}'
    assert float(found[f"databus_relay_events_total{label}"]) == 10
    assert float(found[f"databus_relay_ring_max_scn{label}"]) == 5
    assert float(found[f"databus_relay_ring_min_scn{label}"]) == 1
    running = 'databus_relay_source_state{physical_source="shop",state="running"}'
    assert float(found[running]) == 1
    assert float(found["databus_relay_stream_requests_total"]) == 1
    assert float(found["databus_relay_stream_bytes_total"]) > 0


def test_health_and_metrics_tell_what_the_last_look_at_the_database_found(
    tmp_path: Path,
) -> None:
    near = LogStatus(Holding.NEAR_PURGE, 1100, 60.0, 2.5, "purged soon")
    served = ServedRelay(tmp_path, log_probe=FakeLogProbe(near))
    try:
        log_monitor = served.relay.physical_sources["shop"].log_monitor
        wait_until(lambda: log_monitor.status == near)
        capture = served.relay.physical_sources["shop"].capture
        wait_until(lambda: capture.status.is_connected)
        status = as_json(served.get("/health"))
        assert status["status"] == "ok"
        assert status["physicalSources"]["shop"]["log"] == {
            "holding": "near_purge",
            "behindBytes": 1100,
            "behindSeconds": 60.0,
            "hoursLeft": 2.5,
            "warning": "purged soon",
        }
        metrics = served.get("/metrics").body.decode()
        for name, value in (
            ("log_behind_bytes", "1100.0"),
            ("log_behind_seconds", "60.0"),
            ("log_hours_left", "2.5"),
            ("source_warnings", "1.0"),
        ):
            assert f'databus_relay_{name}{{physical_source="shop"}} {value}' in metrics
    finally:
        served.close()


def test_what_is_not_known_of_the_database_is_left_out(relay: ServedRelay) -> None:
    log = as_json(relay.get("/controlSources/status"))["shop"]["log"]
    assert (log["holding"], log["hoursLeft"]) == ("unknown", None)
    assert "databus_relay_log_hours_left{" not in relay.get("/metrics").body.decode()


def test_a_restarted_relay_serves_what_it_served_before(tmp_path: Path) -> None:
    first = ServedRelay(tmp_path)
    put_some(first)
    before = first.stream().body
    first.close()
    second = ServedRelay(tmp_path)
    try:
        assert second.stream().body == before
        assert as_json(second.get("/register"))[0]["version"] == 1
        second.source().put(transaction(6, insert(6)))
        second.wait_for_scn(6)
        assert scns(second.stream(checkPoint=AT_5)) == [6]
    finally:
        second.close()


def measure(relay: ServedRelay, **parameters: Any) -> dict[str, Any]:
    answer = relay.get("/measure", **({"sources": "shop.person"} | parameters))
    assert answer.status == 200
    return dict(as_json(answer))


def test_measure_says_with_which_window_so_many_rows_end(relay: ServedRelay) -> None:
    put_some(relay, last=9)
    at_2 = Checkpoint.at(2).to_json()
    measured = measure(relay, checkPoint=at_2, rows=3)
    body = relay.stream(sources="1", checkPoint=at_2, untilScn=measured["scn"]).body
    size = sum(len(encode(event)) for event in walk(body) if not event.is_eop)
    assert measured == {
        "fromScn": 2,
        "scn": 5,
        "rows": 3,
        "bytes": size,
        "timestampNs": 5 * 10**9,
        "maxScn": 9,
        "maxTimestampNs": 9 * 10**9,
    }
    assert measure(relay, checkPoint=at_2, bytes=1)["scn"] == 3
    assert measure(relay, checkPoint=at_2, untilScn=4)["scn"] == 4
    assert measure(relay, checkPoint=at_2)["scn"] == 9
    assert measure(relay, checkPoint=at_2, sources="1,shop.orders")["rows"] == 14
    filters = '{"1":{"partitionType":"RANGE","filters":[{"keyRange":{"start":7,"end":8}}]}}'
    assert measure(relay, checkPoint=at_2, filters=filters)["rows"] == 1
    assert measure(relay, streamFromLatestScn="true")["fromScn"] == 9
    assert measure(relay, since=6500)["fromScn"] == 6


def test_a_window_of_another_source_proves_a_log_to_a_relay_that_captures_it(
    relay: ServedRelay,
) -> None:
    relay.put(transaction(1, insert(1, "Ann")), transaction(2, insert(1, "tea", ORDERS)))
    relay.put(transaction(3), transaction(4, insert(2, "Bob")), transaction(5))
    found = measure(relay, checkPoint=Checkpoint.at(1).to_json(), untilScn=3, mark="true")
    scn, time_ns, source = found["logWindow"]
    assert (scn, time_ns, source) == (2, 2 * 10**9, "shop.orders")
    assert found["mark"] == [1, 10**9], "of its own source"

    def status(*window: Any) -> int:
        checkpoint = Checkpoint.at(3).with_mark((1, 10**9)).with_log_window(window)
        asked: dict[str, Any] = {"sources": "shop.person", "checkPoint": checkpoint.to_json()}
        statuses = {relay.get("/measure", **asked).status, relay.stream(**asked).status}
        assert len(statuses) == 1
        return statuses.pop()

    assert status(scn, time_ns, source) == 200
    assert status(scn, time_ns + 1, source) == 409
    assert status(3, 3 * 10**9 + 1, source) == 409, "a window that this log has without rows"
    assert status(scn, time_ns + 1, "shop.unknown") == 200, "which this relay cannot tell"
    assert status(scn, time_ns + 1, "") == 200, "of an earlier version, and there is a mark"


def test_measure_gives_a_mark_and_refuses_one_of_another_log(relay: ServedRelay) -> None:
    put_some(relay, last=9)
    at_2 = Checkpoint.at(2)
    scn, time_ns = measure(relay, checkPoint=at_2.to_json(), rows=3, mark="true")["mark"]
    assert 2 < scn <= 5
    assert time_ns == scn * 10**9
    known = at_2.with_mark((scn, time_ns)).to_json()
    assert measure(relay, checkPoint=known)["scn"] == 9
    at_end = Checkpoint.at(9).to_json()
    assert "mark" not in measure(relay, checkPoint=at_end, mark="true"), "nothing was counted"
    other = at_2.with_mark((scn, time_ns + 1)).to_json()
    answer = relay.get("/measure", sources="shop.person", checkPoint=other)
    assert (answer.status, answer.headers["x-dbus-error"]) == (409, "OtherLogException")
    assert measure(relay)["fromScn"] == -1, "nobody knows what came before a first start"
    ahead = relay.get("/measure", sources="1", checkPoint=Checkpoint.at(99).to_json())
    assert ahead.headers["x-databus-ahead"] == "true"
    assert (as_json(ahead)["scn"], as_json(ahead)["maxScn"]) == (99, 9)


def test_stream_ends_with_the_window_asked_for_and_is_not_held_there(relay: ServedRelay) -> None:
    put_some(relay, last=9)
    at_2 = Checkpoint.at(2).to_json()
    for sources in ("1", "1,2"):
        answer = relay.stream(sources=sources, checkPoint=at_2, untilScn=6, wait=10_000)
        assert scns(answer) == [3, 4, 5, 6]
        assert answer.headers["x-databus-resume"] == "6,-1"
    over = relay.stream(checkPoint=Checkpoint.at(6).to_json(), untilScn=6, wait=10_000)
    assert (over.body, over.headers["x-databus-resume"]) == (b"", "6,-1")


def test_a_request_for_what_is_yet_to_come_is_held_until_it_is_there(relay: ServedRelay) -> None:
    put_some(relay)
    answers: list[Answer] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            relay.stream(checkPoint=Checkpoint.at(5).to_json(), untilScn=7, wait=10_000)
        )
    )
    asking.start()
    wait_until(lambda: relay.relay.physical_sources["shop"].notifier.waiting > 0)
    relay.put(*(transaction(scn, insert(scn)) for scn in (6, 7, 8)))
    asking.join(PATIENCE_S)
    (answer,) = answers
    assert scns(answer)[0] == 6
    assert 8 not in scns(answer)
