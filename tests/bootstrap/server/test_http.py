"""The bootstrap server on a real port: the whole conversation."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from databus.bootstrap.pair import Pair
from databus.bootstrap.service import make_service
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.event.v2 import encode
from databus.schemas.stream.stream_reader import walk
from databus.schemas.table import Column
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.bootstrap.filled import ORDERS, PERSON, SRC_IDS, TEXTS, FilledStore, gone, put
from tests.bootstrap.serving import ServedStore
from tests.bootstrap.walking import Walker, catch_up_at, snapshot_at, split
from tests.relay.fakes import ServiceThread, connect, get

SNAPSHOT = snapshot_at(PERSON.source, 101).to_json()


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
        with closing(HTTPConnection(place, timeout=PATIENCE_S)) as connection:

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
