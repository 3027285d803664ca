"""The bootstrap server on a real port: the whole conversation, and what strangers may send."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from databus.bootstrap.pair import Pair
from databus.bootstrap.service import make_service
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import SettingsError
from databus.schemas.event.v2 import encode
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table import Column
from databus.schemas.table_schema import avro_schema
from tests.bootstrap.filled import ORDERS, PERSON, SRC_IDS, TEXTS, FilledStore, gone, put, stored
from tests.bootstrap.serving import FakeWorker, ServedStore, pair_settings
from tests.bootstrap.walking import Walker, catch_up_at, snapshot_at, split
from tests.relay.fakes import Answer, ServiceThread, connect, get, wait_until

REQUEST_PACKAGE = "com.linkedin.databus2.core.container.request"
INVALID = f"{REQUEST_PACKAGE}.InvalidRequestParamValueException"
PROCESSING = f"{REQUEST_PACKAGE}.RequestProcessingException"
UNKNOWN_COMMAND = f"{REQUEST_PACKAGE}.UnknownCommandException"
TOO_OLD = f"{REQUEST_PACKAGE}.BootstrapDatabaseTooOldException"
TOO_YOUNG = f"{REQUEST_PACKAGE}.BootstrapDatabaseTooYoungException"
STORE_TROUBLE = "com.linkedin.databus.bootstrap.api.BootstrapProcessingException"
SNAPSHOT = snapshot_at(PERSON.source, 101).to_json()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    made = ServedStore(tmp_path)
    yield made
    made.close()


def error_of(answer: Answer) -> tuple[int, str]:
    """Return the status and the name of the error, or of its cause."""
    body = json.loads(answer.body)
    assert answer.headers["x-dbus-error"] == body["error"]
    assert answer.headers["x-dbus-error-message"]
    assert answer.headers.get("x-dbus-error-cause") == body.get("cause")
    if "cause" not in body:
        return answer.status, body["error"]
    assert body["error"] == PROCESSING
    return answer.status, body["cause"]


class Writer:
    """Changes rows before each page, and knows what must come out."""

    def __init__(self, filled: FilledStore) -> None:
        self.filled = filled
        keys = [(1, key) for key in range(1, 11)] + [(2, key) for key in range(1, 6)]
        self.rows: dict[tuple[int, int | bytes], str] = dict.fromkeys(keys, "old")

    def write(self, number: int) -> None:
        """Update a row of each table, delete one, and insert one."""
        scn = 200 + number
        key = 1 + number % 10
        doomed = (1, 1 + (number * 7) % 10)
        changes = [put(1, key, scn, f"u{number}"), put(2, 1, scn, f"o{number}")]
        changes += [gone(*doomed, scn), put(1, 1000 + number, scn, "inserted")]
        self.filled.apply(scn, *changes)
        self.rows[1, key], self.rows[2, 1] = f"u{number}", f"o{number}"
        self.rows.pop(doomed, None)
        self.rows[1, 1000 + number] = "inserted"


class TestConversation:
    @pytest.mark.parametrize("order", ["linear", "classic"])
    @pytest.mark.parametrize("batch_bytes", [1200, 4000, 1 << 20])
    def test_a_consumer_ends_with_the_rows_of_the_target(
        self, served: ServedStore, order: str, batch_bytes: int
    ) -> None:
        writer = Writer(served.filled)
        walker = Walker(served.ask, SRC_IDS, batch_bytes=batch_bytes)

        def write_for_a_while(number: int) -> None:
            if number <= 12:
                writer.write(number)

        walker.before_page = write_for_a_while
        getattr(walker, order)()
        # What was written after the target was asked for; otherwise it comes from the relay.
        walker.before_page = lambda number: None
        walker.catch_up(list(SRC_IDS), walker.checkpoint.window_scn, walker.target(ORDERS.source))
        assert walker.rows == writer.rows

    def test_a_consumer_that_was_away_is_told_only_what_changed(self, served: ServedStore) -> None:
        first = Walker(served.ask, SRC_IDS)
        first.linear()
        for scn in range(110, 160):
            served.filled.apply(scn, put(1, 3, scn, str(scn)), put(1, 4, scn, str(scn)))
        served.filled.apply(160, gone(1, 5, 160))
        again = Walker(served.ask, SRC_IDS, since_scn=101, rows=dict(first.rows))
        again.linear()
        everything = Walker(served.ask, SRC_IDS)
        everything.linear()
        assert again.rows == everything.rows
        assert (again.events, everything.events) == (3, 14)

    def test_two_consumers_at_once_get_the_same(self, served: ServedStore) -> None:
        walkers = [Walker(served.ask, SRC_IDS, batch_bytes=1200) for _ in range(4)]
        with ThreadPoolExecutor(len(walkers)) as threads:
            for done in [threads.submit(walker.linear) for walker in walkers]:
                done.result()
        assert all(walker.rows == walkers[0].rows for walker in walkers)
        assert len(walkers[0].rows) == 15

    def test_a_page_can_be_asked_for_again(self, served: ServedStore) -> None:
        first = served.page(checkPoint=SNAPSHOT)
        again = served.page(checkPoint=SNAPSHOT)
        assert first.body == again.body

    def test_a_page_of_no_named_source_is_of_the_checkpoints(self, served: ServedStore) -> None:
        # As LinkedIn's client of protocol 3 and 4 asks.
        named = served.page(checkPoint=SNAPSHOT, sources=SRC_IDS[PERSON.source])
        assert served.page(checkPoint=SNAPSHOT, sources="").body == named.body

    def test_a_catch_up_of_linkedins_client_is_of_one_source_and_ends_once(
        self, served: ServedStore
    ) -> None:
        for scn in range(110, 150):
            served.filled.apply(scn, put(1, scn, scn, "p"), put(2, scn, scn, "o"))
        found: list[int] = []
        pages = 0
        stock = {"consumption_mode": "BOOTSTRAP_CATCHUP", "catchup_source": PERSON.source}
        scns = {"bootstrap_start_scn": 101, "bootstrap_target_scn": 149, "bootstrap_since_scn": 0}
        window_scn, offset = 101, 0
        while offset != -1:
            at = json.dumps({"windowScn": window_scn, "windowOffset": offset} | stock | scns)
            answer = served.page(checkPoint=at, sources="1,2", batchSize=1000)
            events, place = split(answer.body)
            assert {event.src_id for event in events} <= {1}
            found += [event.scn for event in events]
            window_scn, offset = place.window_scn, place.window_offset
            # To that client offset -1 is the end.
            assert (offset == -1) == (answer.headers.get("PhaseCompleted") == "TRUE")
            pages += 1
        assert found == list(range(110, 150))
        assert pages > 3

    def test_another_server_of_the_store_goes_on(self, served: ServedStore) -> None:
        _, at = split(served.page(checkPoint=SNAPSHOT, batchSize=1000).body)
        second = ServiceThread(make_service(Pair(served.pair.settings)))
        try:
            query = urlencode(
                {"sources": 1, "batchSize": 1500, "maxev": 2, "checkPoint": at.to_json()}
            )
            answer = get(second.url, f"/bootstrap?{query}")
            assert answer.body == served.page(checkPoint=at.to_json()).body
        finally:
            second.close()

    def test_a_stock_consumer_gets_version_1_events(self, served: ServedStore) -> None:
        body = served.get(
            "/bootstrap", sources=1, checkPoint=SNAPSHOT, output="binary", batchSize=10_000
        ).body
        assert body[0] == 0
        assert len(list(walk(body))) == 11

    def test_parameters_may_come_as_a_form_and_not_be_encoded(self, served: ServedStore) -> None:
        answer = get(served.url, f"/bootstrap?sources=1&batchSize=9999&checkPoint={SNAPSHOT}")
        assert answer.headers["PhaseCompleted"] == "TRUE"
        form = b"source=shop.person"
        with connect(served.url) as sock:
            head = "POST /targetSCN HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            kind = "Content-Type: application/x-www-form-urlencoded\r\n"
            sock.sendall(f"{head}{kind}Content-Length: {len(form)}\r\n\r\n".encode() + form)
            answered = b"".join(iter(lambda: sock.recv(4096), b""))
        assert answered.endswith(b'\r\n\r\n6\r\n"101"\n\r\n0\r\n\r\n')

    def test_a_page_is_compressed_when_that_is_asked_for(self, served: ServedStore) -> None:
        plain = served.page(checkPoint=SNAPSHOT)
        packed = get(
            served.url,
            f"/bootstrap?sources=1&maxev=2&batchSize=1500&checkPoint={SNAPSHOT}",
            {"Accept-Encoding": "gzip"},
        )
        assert gzip.decompress(packed.body) == plain.body

    def test_a_large_batch_is_cut_to_what_one_answer_may_have(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path, http={"max_response_bytes": 4096}, persons=100)
        try:
            answer = served.page(checkPoint=SNAPSHOT, batchSize=10**12)
            assert 3000 < len(answer.body) <= 4096
        finally:
            served.close()

    def test_a_snapshot_is_planned_and_read_in_parts(self, served: ServedStore) -> None:
        measured = json.loads(served.get("/measure", sources=1, checkPoint=SNAPSHOT, rows=4).body)
        body = served.page(checkPoint=SNAPSHOT).body
        assert measured["bytes"] == sum(len(encode(event)) for event in list(walk(body))[:4])
        assert (measured["rows"], measured["isLast"]) == (4, False)
        answer = served.page(checkPoint=SNAPSHOT, untilRow=measured["snapshotOffset"])
        events, at = split(answer.body)
        assert (len(events), at.snapshot_offset) == (4, measured["snapshotOffset"])
        assert answer.headers["PhaseCompleted"] == "TRUE"
        rest = served.get("/measure", sources=1, checkPoint=at.to_json())
        assert json.loads(rest.body) | {"bytes": 0} == {
            "snapshotOffset": 10,
            "rows": 6,
            "bytes": 0,
            "isLast": True,
            "maxRow": 10,
        }

    def test_a_catch_up_is_planned_in_windows(self, served: ServedStore) -> None:
        for scn in (110, 120, 130):
            served.filled.apply(scn, put(1, 1, scn), put(1, 2, scn))
        at = catch_up_at(101, 120).to_json()
        measured = json.loads(served.get("/measure", sources=1, checkPoint=at, rows=3).body)
        size = sum(len(encode(event)) for event in split(served.page(checkPoint=at).body)[0][:2])
        assert measured == {
            "fromScn": 101,
            "scn": 110,
            "rows": 2,
            "bytes": size,
            "timestampNs": 1100,
            "maxScn": 130,
            "maxTimestampNs": 1300,
        }

    def test_the_start_tells_where_it_was_asked_and_whose_row_ids_follow(
        self, served: ServedStore
    ) -> None:
        checkpoint = Checkpoint(ConsumptionMode.SNAPSHOT).to_json()
        answer = served.get("/startSCN", sources=PERSON.source, checkPoint=checkpoint)
        assert json.loads(answer.body) == "101"
        # "Host: relay", as this client says, has no port.
        assert answer.headers["X-DBUS2-BS-HOSTPORT"] == served.url.removeprefix("http://")
        assert answer.headers["x-databus-store"] == served.filled.store.id

    def test_a_stock_java_client_is_told_the_host_and_port_that_it_asked(
        self, served: ServedStore
    ) -> None:
        checkpoint = Checkpoint(ConsumptionMode.SNAPSHOT).to_json()
        path = f"/startSCN?sources={PERSON.source}&checkPoint={checkpoint}"
        answer = get(served.url, path, {"Host": "localhost/127.0.0.1:21115"})
        assert answer.headers["X-DBUS2-BS-HOSTPORT"] == "127.0.0.1:21115"


class TestSources:
    def test_names_and_ids_are_the_relays(self, served: ServedStore) -> None:
        answer = served.get("/sources")
        assert json.loads(answer.body) == [
            {"name": ORDERS.source, "id": 2},
            {"name": PERSON.source, "id": 1},
        ]

    @pytest.mark.parametrize(("agent", "is_ended"), [("Java", True), ("databus/0.1.0", False)])
    def test_a_page_of_a_newer_version_than_was_sent_ends_a_stock_clients_connection(
        self, served: ServedStore, agent: str, is_ended: bool
    ) -> None:
        page = f"/bootstrap?sources=1&maxev=2&batchSize=99999&checkPoint={SNAPSHOT}"
        wider = replace(PERSON, columns=(*PERSON.columns, Column("age", "integer", 2)))
        headers = {"User-Agent": agent, "Host": "localhost/127.0.0.1:1"}
        place = served.url.removeprefix("http://")
        with closing(HTTPConnection(place, timeout=10)) as connection:

            def ask(path: str) -> tuple[bool, bool]:
                """Return whether there is a body, and whether the connection ends."""
                connection.request("GET", path, headers=headers)
                response = connection.getresponse()
                assert response.status == 200
                return bool(response.read()), response.will_close

            assert ask("/register?sources=1") == (True, False)
            assert ask(page) == (True, False)
            served.filled.store.add_schemas(1, [(2, avro_schema(wider))])
            assert ask(page) == (not is_ended, is_ended)
            assert ask("/register?sources=1") == (True, False)
            assert ask(page) == (True, False)

    def test_schemas_are_given_for_the_sources_asked_for(self, served: ServedStore) -> None:
        expected = {"id": 1, "version": 1, "schema": TEXTS[1]}
        assert json.loads(served.get("/register", sources="1").body) == [expected]
        assert len(json.loads(served.get("/register").body)) == 2
        answer = served.get("/register", sources="shop.person", protocolVersion=4)
        assert json.loads(answer.body)["sourceSchemas"] == [expected]
        assert answer.headers["x-dbus-protocol-version"] == "4"

    def test_a_source_that_is_not_captured_any_more_is_not_shown(self, served: ServedStore) -> None:
        served.filled.store.add_sources({PERSON.source: 1})
        assert json.loads(served.get("/sources").body) == [{"name": PERSON.source, "id": 1}]


class TestBadInput:
    @pytest.fixture(autouse=True)
    def _stays_up(self, served: ServedStore) -> Iterator[None]:
        yield
        assert served.get("/admin").body == b"GOOD"
        assert served.page(checkPoint=SNAPSHOT).status == 200

    @pytest.mark.parametrize(
        ("changes", "status", "error", "says"),
        [
            ({"sources": "99"}, 404, "UnknownSourceException", "99"),
            (
                {"sources": "", "checkPoint": catch_up_at(101, 101).to_json()},
                400,
                INVALID,
                "required",
            ),
            ({"checkPoint": ""}, 400, INVALID, "required"),
            ({"checkPoint": "{nonsense"}, 400, INVALID, "JSON"),
            ({"checkPoint": "[1]"}, 400, INVALID, "object"),
            ({"checkPoint": '{"windowScn":"five"}'}, 400, INVALID, "checkpoint"),
            ({"checkPoint": "{" * 70_000}, 400, INVALID, "longer"),
            ({"checkPoint": Checkpoint.at(5).to_json()}, 400, INVALID, "mode"),
            ({"checkPoint": snapshot_at(PERSON.source, 10**9).to_json()}, 503, TOO_OLD, "newer"),
            ({"checkPoint": snapshot_at(PERSON.source, 5).to_json()}, 410, TOO_YOUNG, "older"),
            ({"checkPoint": catch_up_at(5, 101).to_json()}, 410, TOO_YOUNG, "goes back"),
            ({"batchSize": ""}, 400, INVALID, "required"),
            ({"batchSize": "-1"}, 400, INVALID, "batchSize"),
            ({"batchSize": "1"}, 400, INVALID, "batchSize"),
            ({"batchSize": "9" * 40}, 400, INVALID, "batchSize"),
            ({"batchSize": "many"}, 400, INVALID, "batchSize"),
            ({"output": "xml"}, 400, INVALID, "json_plain_value"),
            ({"maxev": "two"}, 400, INVALID, "maxev"),
            ({"untilRow": "-1"}, 400, INVALID, "untilRow"),
            ({"untilRow": "9" * 19}, 400, INVALID, "at most"),
            (
                {
                    "untilRow": "3",
                    "checkPoint": snapshot_at(PERSON.source, 101, offset=4).to_json(),
                },
                400,
                INVALID,
                "snapshot_offset 4",
            ),
            (
                {"untilRow": "3", "checkPoint": catch_up_at(101, 101).to_json(), "afterRow": "4"},
                400,
                INVALID,
                "not below afterRow 4",
            ),
            (
                {"sources": "1,2", "untilRow": "3", "checkPoint": catch_up_at(1, 1).to_json()},
                400,
                INVALID,
                "ids of its rows",
            ),
            ({"afterRow": "1"}, 400, INVALID, "goes on after the checkpoint's snapshot_offset 0"),
            ({"afterRow": "9" * 19}, 400, INVALID, "at most"),
            ({"filter": "{"}, 400, INVALID, "JSON"),
            ({"filter": '{"1":{"partitionType":"ROUND"}}'}, 400, INVALID, "ROUND"),
            ({"filter": '{"partitionType":"ROUND"}'}, 400, INVALID, "ROUND"),
            ({"filter": "x" * 70_000}, 400, INVALID, "max_filter_bytes"),
            ({"filter": "[" * 50_000}, 400, INVALID, "filter"),
        ],
    )
    def test_a_bad_page_is_refused_by_name(
        self, served: ServedStore, changes: dict[str, str], status: int, error: str, says: str
    ) -> None:
        answer = served.page(**{"checkPoint": SNAPSHOT} | changes)
        assert error_of(answer) == (status, error)
        assert says in json.loads(answer.body)["message"]

    @pytest.mark.parametrize(
        ("path", "parameters", "status", "error"),
        [
            ("/startSCN", {}, 400, INVALID),
            ("/startSCN", {"sources": "shop.person"}, 400, INVALID),
            ("/startSCN", {"sources": "shop.person", "checkPoint": "{"}, 400, INVALID),
            ("/startSCN", {"sources": "x", "checkPoint": SNAPSHOT}, 404, "UnknownSourceException"),
            ("/startSCN", {"sources": "crm.contact", "checkPoint": SNAPSHOT}, 503, TOO_OLD),
            (
                "/startSCN",
                {"sources": "1", "checkPoint": Checkpoint.at(4).to_json()},
                400,
                INVALID,
            ),
            (
                "/startSCN",
                {"sources": "1", "checkPoint": snapshot_at("", -1, since_scn=900).to_json()},
                503,
                TOO_OLD,
            ),
            (
                "/startSCN",
                {"sources": "1", "checkPoint": snapshot_at("", -1, since_scn=9).to_json()},
                410,
                TOO_YOUNG,
            ),
            ("/targetSCN", {}, 400, INVALID),
            ("/targetSCN", {"source": "1,2"}, 400, INVALID),
            ("/targetSCN", {"source": "shop.nothing"}, 404, "UnknownSourceException"),
            ("/measure", {}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": "{"}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": SNAPSHOT, "rows": "0"}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": SNAPSHOT, "bytes": "x"}, 400, INVALID),
            ("/measure", {"sources": "1", "checkPoint": SNAPSHOT, "filter": "{"}, 400, INVALID),
            ("/measure", {"sources": "2", "checkPoint": SNAPSHOT}, 400, INVALID),
            ("/measure", {"sources": "x", "checkPoint": SNAPSHOT}, 404, "UnknownSourceException"),
            (
                "/measure",
                {"sources": "1", "checkPoint": snapshot_at(PERSON.source, 10**9).to_json()},
                503,
                TOO_OLD,
            ),
            (
                "/measure",
                {"sources": "1", "checkPoint": catch_up_at(101, 10**9).to_json()},
                503,
                TOO_OLD,
            ),
            (
                "/measure",
                {"sources": "1", "checkPoint": catch_up_at(5, 101).to_json()},
                410,
                TOO_YOUNG,
            ),
            ("/register", {"sources": "77"}, 404, "UnknownSourceException"),
            ("/register", {"protocolVersion": "9"}, 400, INVALID),
            ("/stream", {"sources": "1"}, 404, UNKNOWN_COMMAND),
        ],
    )
    def test_a_bad_command_is_refused_by_name(
        self,
        served: ServedStore,
        path: str,
        parameters: dict[str, Any],
        status: int,
        error: str,
    ) -> None:
        assert error_of(served.get(path, **parameters)) == (status, error)

    def test_a_source_that_is_not_seeded_is_refused_with_how_far_it_is(
        self, served: ServedStore
    ) -> None:
        served.filled.store.reset_source(PERSON.source)
        answer = served.page(checkPoint=SNAPSHOT)
        assert error_of(answer) == (503, TOO_OLD)
        assert "is new" in json.loads(answer.body)["message"]
        rows = [stored(1, key, 101) for key in range(3)]
        served.filled.seed(PERSON.source, rows, scn=101)

    def test_a_first_event_larger_than_the_batch_is_told_by_its_size(
        self, served: ServedStore
    ) -> None:
        served.filled.apply(110, put(1, 1, 110, "x" * 3000))
        at = catch_up_at(101, 110).to_json()
        answer = served.page(checkPoint=at)
        assert answer.body == b""
        needed = int(answer.headers["x-dbus-pending-event-size"])
        whole = served.page(checkPoint=at, batchSize=needed)
        assert 3000 < len(whole.body) <= needed

    def test_a_request_larger_than_the_limit_is_dropped(self, served: ServedStore) -> None:
        with connect(served.url) as sock, pytest.raises((ConnectionResetError, BrokenPipeError)):
            sock.sendall(b"GET /bootstrap?filter=" + b"x" * 100_000_000)

    def test_garbage_disturbs_nobody(self, served: ServedStore) -> None:
        for piece in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"\x00" * 5000):
            with connect(served.url) as sock:
                sock.sendall(piece)
                sock.shutdown(1)
                try:
                    while sock.recv(4096):
                        pass
                except ConnectionResetError:
                    continue

    def test_too_many_connections_are_turned_away(self, tmp_path: Path) -> None:
        few = ServedStore(tmp_path / "few", http={"max_connections": 2})
        held = [connect(few.url) for _ in range(2)]
        try:
            for sock in held:
                sock.sendall(b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
            assert few.get("/admin").status == 503
        finally:
            for sock in held:
                sock.close()
            few.close()


class TestDamage:
    def test_a_damaged_store_is_an_error_and_not_the_end(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path)
        (served.pair.paths["crm"]).write_bytes(b"no SQLite file at all" * 100)
        try:
            answer = served.get("/targetSCN", source="crm.contact")
            assert error_of(answer) == (500, STORE_TROUBLE)
            assert "crm.db" in json.loads(answer.body)["message"]
            assert served.page(checkPoint=SNAPSHOT).status == 200
            wait_until(lambda: "damaged" in served.get("/health").body.decode())
        finally:
            served.close()

    def test_a_store_that_was_made_anew_is_opened_anew(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path)
        try:
            _, at = split(served.page(checkPoint=SNAPSHOT, batchSize=1000).body)
            served.filled.close()
            for path in served.pair.paths["shop"].parent.glob("shop.db*"):
                path.unlink()
            served.filled = FilledStore(served.pair.paths["shop"])
            served.filled.seed_rows(PERSON.source, [1])
            served.filled.apply(150)
            assert error_of(served.page(checkPoint=at.to_json())) == (410, TOO_YOUNG)
            assert json.loads(served.get("/targetSCN", source="1").body) == "150"
        finally:
            served.close()


class TestHealth:
    def test_a_store_that_was_never_made_is_not_well(self, served: ServedStore) -> None:
        wait_until(lambda: "not created" in served.get("/health").body.decode())
        answer = served.get("/health")
        assert answer.status == 503
        assert list(json.loads(answer.body)["problems"]) == ["crm"]

    def test_a_producers_problem_is_told(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path, FakeWorker)
        crm = FilledStore(served.pair.paths["crm"], {"shop.person": 1})
        try:
            wait_until(lambda: served.get("/health").status == 200)
            producer = served.pair.producers["shop"]
            assert isinstance(producer, FakeWorker)
            assert producer.is_running
            producer.problem = "the disk is full"
            answer = served.get("/health")
            assert answer.status == 503
            body = json.loads(answer.body)
            assert body["problems"] == {"shop": ["producer: the disk is full"]}
            assert body["physicalSources"]["shop"]["producerProblem"] == "the disk is full"
        finally:
            crm.close()
            served.close()

    def test_what_fell_off_the_relay_is_told(self, served: ServedStore) -> None:
        served.filled.store.fall_off(101, 500)
        wait_until(lambda: "no relay holds" in served.get("/health").body.decode())

    def test_a_store_has_one_producer(self, tmp_path: Path) -> None:
        served = ServedStore(tmp_path, FakeWorker)
        try:
            with pytest.raises(SettingsError, match=r"shop\.db has a producer already"):
                Pair(pair_settings(tmp_path), FakeWorker)
        finally:
            served.close()


class TestFigures:
    def test_positions_sizes_pages_and_refusals_are_counted(self, served: ServedStore) -> None:
        served.filled.apply(110, put(1, 1, 110), gone(1, 2, 110))
        served.page(checkPoint=SNAPSHOT)
        served.page(checkPoint="{")
        wait_until(lambda: "position_scn" in served.get("/metrics").body.decode())
        wait_until(lambda: value_of(served, "position_scn") == 110)
        text = served.get("/metrics").body.decode()
        who = '{physical_source="shop",source="shop.person"'
        for line in (
            f"databus_bootstrap_rows{who}}} ",
            f"databus_bootstrap_tombstones{who}}} ",
            f"databus_bootstrap_log_rows{who}}} ",
            f"databus_bootstrap_log_bytes{who}}} ",
            f'databus_bootstrap_source_status{who},status="active"}} 1.0',
            'databus_bootstrap_lag_seconds{physical_source="shop"} ',
            "databus_bootstrap_pages_total 1.0",
            'databus_bootstrap_refusals_total{error="InvalidRequestParamValueException"} 1.0',
        ):
            assert line in text

    def test_the_status_has_every_source(self, served: ServedStore) -> None:
        wait_until(lambda: status_of(served)["scn"] == 101)
        shop = status_of(served)
        assert shop["storeId"] == served.filled.store.id
        assert shop["sources"]["shop.person"]["rows"] == 10
        assert shop["sources"]["shop.person"]["status"] == "active"
        served.filled.store.reset_source(PERSON.source)
        served.filled.store.begin_seeding(PERSON.source, 101, 4)
        served.filled.store.merge_chunk(PERSON.source, [stored(1, 1, 101)], "1")
        wait_until(lambda: status_of(served)["sources"]["shop.person"]["seededPercent"] == 25)


def value_of(served: ServedStore, name: str) -> float:
    for line in served.get("/metrics").body.decode().splitlines():
        if line.startswith(f'databus_bootstrap_{name}{{physical_source="shop"}}'):
            return float(line.split()[1])
    return -1


def status_of(served: ServedStore) -> dict[str, Any]:
    body = json.loads(served.get("/bootstrapStatus").body)
    found: dict[str, Any] = body["physicalSources"]["shop"]
    return found
