"""What a stock client is answered, by a real relay on a real port."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.relay.serving.ptubes import routes
from databus.relay.serving.ptubes.rows.java_hashes import partition_id
from databus.relay.sources.source import TableDefined, Transaction
from tests.relay.fakes import ORDERS, ServedRelay, insert, transaction, wait_until
from tests.relay.serving.ptubes.stock import (
    Sent,
    StockClient,
    door_of,
    read_envelope,
    serve_ptubes,
    subscription,
)

HEARTBEAT, COMMIT, DDL = 17, 16, 7
LATEST = {"checkpointMode": "LATEST"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRelay]:
    relay = serve_ptubes(tmp_path)
    yield relay
    relay.close()


@pytest.fixture
def client(served: ServedRelay) -> Iterator[StockClient]:
    with StockClient(served) as connection:
        yield connection


def rows(scn: int, count: int = 1, text: str = "x") -> Transaction:
    return transaction(scn, *(insert(scn * 1000 + i, text) for i in range(count)))


def ids(events: Iterable[Sent]) -> list[int]:
    return [int(event.after["id"] or 0) for event in events if event.event_type == 1]


def test_rows_come_in_their_partitions_in_order(served: ServedRelay, client: StockClient) -> None:
    served.put(rows(1, 40), transaction(2, insert(7, "note", ORDERS)))
    assert client.subscribe() == "success"
    found = client.fetch_rows(41)
    assert sorted(ids(found)) == sorted([7, *range(1000, 1040)])
    for event in found:
        assert event.partition == partition_id(int(event.after["id"] or 0)) % 11
    for partition in range(11):
        own = ids(event for event in found if event.partition == partition)
        assert own == sorted(own, key=lambda one: (one == 7, one))
    assert {event.table for event in found} == {"shop.person", "shop.orders"}


def test_an_answer_has_at_most_what_was_asked_for(served: ServedRelay, client: StockClient) -> None:
    served.put(rows(1, 200, "y" * 1000))
    assert client.subscribe() == "success"
    seen: list[int] = []
    while len(seen) < 30:
        answer = client.fetch(batch=10)
        assert len(answer.events) <= 10
        assert answer.total == len(answer.events)
        seen += ids(answer.events)
    large = client.fetch(size=64 << 10)
    assert 40 < len(large.events) < 66


def test_a_fetch_with_nothing_to_come_is_answered_in_its_time(
    served: ServedRelay, client: StockClient
) -> None:
    served.put(rows(1))
    assert client.subscribe(checkpoint=LATEST) == "success"
    began = time.monotonic()
    assert client.fetch(wait_ms=300).total == 0
    assert 0.2 <= time.monotonic() - began < 20


def test_latest_brings_nothing_from_before_and_everything_after(
    served: ServedRelay, client: StockClient
) -> None:
    served.put(rows(1))
    assert client.subscribe(checkpoint=LATEST) == "success"
    served.put(rows(2))
    assert ids(client.fetch_rows(1)) == [2000]


def test_a_second_fetch_in_flight_is_told_that_one_is(
    served: ServedRelay, client: StockClient
) -> None:
    served.put(rows(1))
    assert client.subscribe(checkpoint=LATEST) == "success"
    body = {"batchSize": 1, "timeoutMs": 300, "maxByteSize": 1000}
    client.send("/v1/fetchMessages", body)
    client.send("/v1/fetchMessages", body)
    assert read_envelope(client.answer()).error_code == 0
    busy = read_envelope(client.answer())
    assert busy.error_code == -2
    assert "one at a time" in busy.error
    assert client.fetch().error_code == 0


def test_normal_goes_on_strictly_after_each_row(served: ServedRelay) -> None:
    served.put(rows(1, 3), rows(2, 3))
    with StockClient(served) as client:
        assert client.subscribe(partitions=1) == "success"
        found = client.fetch_rows(6)
    assert ids(found) == [1000, 1001, 1002, 2000, 2001, 2002]
    for at, event in enumerate(found):
        with StockClient(served) as client:
            assert client.server_info(checkpoint=event.checkpoint)["serverStatus"] == "AVAILABLE"
        with StockClient(served) as client:
            assert client.subscribe(partitions=1, checkpoint=event.checkpoint) == "success"
            rest = len(found) - at - 1
            assert ids(client.fetch_rows(rest)) == ids(found)[at + 1 :]
            assert client.fetch().total == 0


def test_a_place_of_another_server_is_found_by_its_time(
    served: ServedRelay, client: StockClient
) -> None:
    served.put(rows(1), rows(2), rows(3))
    stock = {"checkpointMode": "NORMAL", "serverId": 4711, "binlogFile": 3, "binlogOffset": 99}
    assert client.subscribe(checkpoint=stock | {"eventIndex": 5, "timestamp": 2000}) == "success"
    assert ids(client.fetch_rows(2)) == [2000, 3000]
    assert client.subscribe(checkpoint=stock | {"timestamp": 900_000}) == "success"
    assert client.fetch().total == 0
    answer = client.server_info(checkpoint=stock)
    assert answer["serverStatus"] == "UNAVAILABLE"
    assert "timestamp" in answer["errorMessage"]


def test_what_cannot_be_served_is_unavailable_and_says_why(served: ServedRelay) -> None:
    served.put(rows(5))
    known = {"checkpointMode": "NORMAL", "serverId": 0x7FFFFFFF, "binlogFile": 1 << 23}
    for changes, text in (
        ({"reader": "other"}, "no reader task other"),
        ({"tables": ("shop.nothing",)}, "no table shop.nothing"),
        ({"checkpoint": known | {"binlogOffset": 9, "timestamp": 9}}, "newest"),
        ({"checkpoint": known | {"binlogOffset": 1, "timestamp": 1}}, "oldest"),
    ):
        with StockClient(served) as client:
            answer = client.server_info(**changes)
            assert answer["serverStatus"] == "UNAVAILABLE"
            assert text in answer["errorMessage"]
            assert client.is_closed()
        with StockClient(served) as client:
            assert client.subscribe(**changes) == "fail"
            assert text in client.headers["x-databus-error-message"]


def test_the_clients_own_order_of_places_is_that_of_the_log(
    served: ServedRelay, client: StockClient
) -> None:
    # A long statement is committed after short ones, with the time at which it began.
    times = [(1, 5), (2, 9), (3, 7), (4, 9)]
    served.put(*(replace(rows(scn), timestamp_ns=s * 10**9) for scn, s in times))
    assert client.subscribe() == "success"
    found = sorted(client.fetch_rows(4), key=lambda event: order_of(event.checkpoint))
    assert ids(found) == [1000, 2000, 3000, 4000]
    assert [event.time_ms for event in found] == [5000, 9000, 7000, 9000]
    # It goes on at the oldest of its partitions' places: none of the later rows is left out.
    for at, event in enumerate(found):
        with StockClient(served) as again:
            assert again.subscribe(checkpoint=event.checkpoint) == "success"
            rest = again.fetch_rows(len(found) - at - 1)
            assert sorted(ids(rest)) == ids(found)[at + 1 :]
            assert all(order_of(one.checkpoint) >= order_of(event.checkpoint) for one in rest)


def order_of(place: dict[str, Any]) -> tuple[int, ...]:
    """Return the key by which the stock client compares places of one version."""
    return tuple(place[k] for k in ("timestamp", "binlogFile", "binlogOffset", "eventIndex"))


def test_a_statement_without_rows_is_a_query_that_is_no_ddl(served: ServedRelay) -> None:
    update = "UPDATE person SET name = UUID()"
    told = TableDefined(("shop.person",), "shop", update, is_dml=True)
    served.put(rows(1), transaction(2, insert(7), told), transaction(3, told), rows(4))
    with StockClient(served) as client:
        assert client.subscribe(owned=[3, 4], ddl=True) == "success"
        events = client.fetch().events
        queries = [event for event in events if event.event_type == DDL]
        told_to = sorted((event.partition, event.is_ddl, event.sql) for event in queries)
        assert told_to == [(one, False, update) for one in (3, 3, 4, 4)]
        assert {event.table for event in queries} == {"shop.person"}
        assert all(event.before == event.after == {} for event in queries)
    with StockClient(served) as client:
        assert client.subscribe() == "success"
        assert [event.event_type for event in client.fetch_rows(3)] == [1, 1, 1]


def test_server_info_lists_who_is_here(served: ServedRelay, client: StockClient) -> None:
    assert client.server_info()["writerTaskList"] == []
    assert client.subscribe(task="billing") == "success"
    with StockClient(served) as other:
        answer = other.server_info()
        assert answer["writerTaskList"] == ["billing"]
        assert answer["loadFactor"] == 1
        assert "address" not in answer
    client.close()
    wait_until(lambda: len(door_of(served).sessions) == 0)


def test_a_subscription_replaces_the_one_before(served: ServedRelay, client: StockClient) -> None:
    served.put(rows(1, 30), *(transaction(2 + i, insert(i, "n", ORDERS)) for i in range(30)))
    assert client.subscribe(owned=[]) == "success"
    assert client.fetch().total == 0
    assert client.subscribe(tables=("shop.person",)) == "success"
    assert {event.table for event in client.fetch(batch=5).events} == {"shop.person"}
    assert client.subscribe(tables=("shop.orders",), owned=[3, 4]) == "success"
    found = client.fetch().events
    assert found
    assert {event.table for event in found} == {"shop.orders"}
    assert {event.partition for event in found} <= {3, 4}


def test_partitions_of_all_instances_make_up_all_rows(served: ServedRelay) -> None:
    served.put(rows(1, 500))
    found: list[int] = []
    for owned in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]):
        with StockClient(served) as client:
            assert client.subscribe(owned=owned) == "success"
            answer = client.fetch()
            assert {event.partition for event in answer.events} == set(owned)
            found += ids(answer.events)
    assert sorted(found) == list(range(1000, 1500))


def test_an_instance_is_sent_its_own_partitions_bytes_alone(served: ServedRelay) -> None:
    served.put(rows(1, 3000, "y" * 50))
    found: dict[tuple[int, ...], list[int]] = {}
    for owned in ((0,), (1, 2)):
        with StockClient(served) as client:
            assert client.subscribe(partitions=3, owned=owned) == "success"
            found[owned] = ids(client.fetch_rows(len(_ids_in(owned))))
            assert client.fetch().total == 0
    assert {*found[0,]}.isdisjoint(found[1, 2])
    assert sorted([*found[0,], *found[1, 2]]) == list(range(1000, 4000))
    with StockClient(served) as few, StockClient(served) as all_of_them:
        assert few.subscribe(partitions=3, owned=[0]) == "success"
        assert all_of_them.subscribe(partitions=3) == "success"
        few.fetch_rows(len(_ids_in((0,))))
        all_of_them.fetch_rows(3000)
        sent = [one.session.bytes_sent for one in door_of(served).sessions]
    assert sent[0] < 0.45 * sent[1]


def _ids_in(owned: Sequence[int]) -> list[int]:
    return [key for key in range(1000, 4000) if partition_id(key) % 3 in owned]


def test_keys_of_several_columns_are_not_run_together(tmp_path: Path) -> None:
    keys = {"shop.person": ["id", "name"]}
    served = serve_ptubes(tmp_path, ptubes={"task": {"key_columns": keys}})
    try:
        served.put(transaction(1, insert(1, "23"), insert(12, "3")))
        with StockClient(served) as client:
            assert client.subscribe(partitions=32767) == "success"
            one, other = client.fetch_rows(2)
        assert one.partition != other.partition
    finally:
        served.close()


def test_a_client_that_sleeps_costs_what_is_configured_and_loses_nothing(tmp_path: Path) -> None:
    row_bytes, held = 1 << 20, 2 << 20
    source = {"name": "shop", "uri": "fake:", "sources": ["shop.person"], "ring_bytes": 80 << 20}
    ptubes = {"read_bytes": held}
    served = serve_ptubes(tmp_path, ptubes=ptubes, physical_sources=[source])
    try:
        served.put(rows(1, 3, "y" * row_bytes))
        with StockClient(served) as client:
            assert client.subscribe(partitions=1, tables=("shop.person",)) == "success"
            found = ids(client.fetch(batch=1).events)
            (session,) = door_of(served).sessions
            for scn in range(2, 22):
                served.put(rows(scn, 2, "z" * row_bytes))
                assert session.session.held_bytes <= held + row_bytes
            assert "databus_ptubes_held_bytes" in served.get("/metrics").body.decode()
            while len(found) < 43:
                found += ids(client.fetch(batch=7, wait_ms=200).events)
                assert session.session.held_bytes <= held
        assert found == [1000, 1001, 1002, *(s * 1000 + i for s in range(2, 22) for i in (0, 1))]
    finally:
        served.close()


def test_earliest_is_the_first_row_of_the_log(served: ServedRelay, client: StockClient) -> None:
    served.put(rows(1), rows(2))
    assert client.subscribe(checkpoint={"checkpointMode": "EARLIEST"}) == "success"
    assert ids(client.fetch_rows(2)) == [1000, 2000]
    # An operator's wish, whatever the client has had: the version is the client's own affair.
    wish = {"checkpointMode": "EARLIEST", "versionTs": 1 << 50}
    assert client.subscribe(checkpoint=wish) == "success"
    assert ids(client.fetch_rows(2)) == [1000, 2000]


def test_the_api_shows_sessions(served: ServedRelay, client: StockClient) -> None:
    served.put(rows(1, 3))
    client.subscribe(owned=[1, 2], tables=("shop.person",))
    client.fetch()
    view = json.loads(served.get("/api/v1/ptubes").body)
    (session,) = view["sessions"]
    assert view["address"] == f"127.0.0.1:{door_of(served).ports[0]}"
    assert (view["connections"], view["leftOut"]) == (1, 0)
    assert (session["task"], session["readerTask"]) == ("task", "reader")
    assert (session["tables"], session["scn"]) == (["shop.person"], "1")
    assert (session["partitions"], session["partitionSet"]) == (11, [1, 2])
    client.close()
    wait_until(lambda: not json.loads(served.get("/api/v1/ptubes").body)["sessions"])


def test_ddl_and_commits_go_to_every_instance_once(served: ServedRelay) -> None:
    statement = "ALTER TABLE person ADD age INT"
    defined = TableDefined(("shop.person",), "shop", statement)
    served.put(rows(1, 2), transaction(2, defined), transaction(3), rows(4, 1))
    for owned in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]):
        with StockClient(served) as client:
            assert client.subscribe(owned=owned, ddl=True, commits=True) == "success"
            events = client.fetch().events
        for partition in owned:
            own = [event for event in events if event.partition == partition]
            assert [event.sql for event in own if event.event_type == DDL] == [statement]
            ends = [event for event in own if event.event_type == COMMIT]
            with_rows = {e.checkpoint["timestamp"] for e in events if e.event_type == 1}
            assert {event.checkpoint["timestamp"] for event in ends} == with_rows


def test_a_client_that_went_down_before_a_commit_gets_it(served: ServedRelay) -> None:
    served.put(rows(1, 2))
    with StockClient(served) as client:
        client.subscribe(partitions=1)
        last = client.fetch_rows(2)[-1].checkpoint
    with StockClient(served) as client:
        assert client.subscribe(partitions=1, commits=True, checkpoint=last) == "success"
        (event,) = client.fetch().events
        assert event.event_type == COMMIT
    with StockClient(served) as client:
        client.subscribe(partitions=1, commits=True, checkpoint=event.checkpoint)
        assert client.fetch().total == 0


def test_idle_partitions_are_told_how_far_their_client_is(tmp_path: Path) -> None:
    served = serve_ptubes(tmp_path, ptubes={"heartbeat_s": 0.05})
    try:
        served.put(rows(1), transaction(2, insert(5, "n", ORDERS)), rows(3))
        with StockClient(served) as client:
            client.subscribe(tables=("shop.orders",), owned=[4, 5], checkpoint=LATEST)
            beats = client.fetch(wait_ms=1000).events
            assert [(one.event_type, one.partition) for one in beats] == [(17, 4), (17, 5)]
            assert int(beats[0].after["utime"] or 0) == beats[0].time_ms
            served.put(rows(4))
            wait_until(lambda: _timestamp(client) >= 3000)
            place = client.fetch(wait_ms=1000).latest
        with StockClient(served) as client:
            assert client.server_info(checkpoint=place)["serverStatus"] == "AVAILABLE"
            assert client.subscribe(checkpoint=place, partitions=1) == "success"
            served.put(rows(5))
            assert ids(client.fetch_rows(1)) == [5000]
    finally:
        served.close()


def _timestamp(client: StockClient) -> int:
    return int(client.fetch(wait_ms=500).latest.get("timestamp", 0))


def test_a_fetch_without_a_subscription_is_told_so(client: StockClient) -> None:
    answer = client.fetch()
    assert answer.error_code == -1
    assert "subscribe first" in answer.error
    assert client.ask("/monitor/alive") == b"OK"


def test_a_fetch_that_fails_says_why_and_does_not_hammer(
    served: ServedRelay, client: StockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "ERROR_PAUSE_S", 0.01)
    assert client.subscribe() == "success"
    client.send("/v1/fetchMessages", b"nonsense")
    failed = read_envelope(client.answer())
    assert failed.error_code == -100
    assert "JSON" in failed.error
    served.put(rows(1))
    assert ids(client.fetch_rows(1)) == [1000]


def test_other_paths_are_said_goodbye(client: StockClient) -> None:
    assert client.ask("/nowhere") == b"Bye"
    assert client.is_closed()


def test_a_page_of_somebody_else_reads_nothing(served: ServedRelay) -> None:
    for headers in (("Host: evil.example.com",), ("Host: localhost", "Origin: http://evil.com")):
        with StockClient(served) as client:
            answer = client.ask("/v1/getServerInfo", subscription(), *headers)
            assert b"serverStatus" not in answer
    with StockClient(served) as client:
        java = ("Host: 127.0.0.1:28332", "User-Agent: Java/17", "Accept-Encoding: gzip")
        form = "Content-type: application/x-www-form-urlencoded"
        answer = client.ask("/v1/getServerInfo", subscription(), *java, form)
        assert json.loads(answer)["serverStatus"] == "AVAILABLE"


def test_the_dump_point_is_for_operators_only(tmp_path: Path) -> None:
    served = serve_ptubes(tmp_path, http={"port": 0, "admin_token_env": "PTUBES_ADMIN"})
    try:
        served.put(rows(1))
        wanted = {"readerTask": "reader", "strategy": "FREEZE"}
        with StockClient(served) as client:
            answer = json.loads(client.ask("/v1/adjustDumpPoint", wanted))
            assert answer["code"] == "FAIL"
            assert "token" in answer["msg"]
        with StockClient(served) as reader, StockClient(served) as client:
            assert reader.subscribe() == "success"
            own = ("Authorization: Bearer sesame-of-the-admins",)
            answer = json.loads(client.ask("/v1/adjustDumpPoint", wanted, *own))
            assert answer == {"code": "SUCCESS", "msg": ""}
            assert reader.fetch().error_code == -1
            assert reader.subscribe(checkpoint=LATEST) == "success"
            served.source().put(rows(2))
            assert ids(reader.fetch_rows(1)) == [2000]
    finally:
        served.close()


@pytest.fixture(autouse=True)
def admin_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTUBES_ADMIN", "sesame-of-the-admins")


def test_monitoring_shows_tasks_and_sessions(served: ServedRelay, client: StockClient) -> None:
    served.put(rows(1, 3))
    client.subscribe(owned=[1, 2])
    client.fetch()
    with StockClient(served, port=1) as monitor:
        (session,) = json.loads(monitor.ask("/v1/clientSessionInfo"))
        assert session["taskName"] == "task"
        assert session["partitionSet"] == [1, 2]
        assert session["scn"] == "1"
        (task,) = json.loads(monitor.ask("/v1/readerTaskInfo"))
        assert task["clients"] == ["task"]
        assert task["newestScn"] == "1"
        assert json.loads(monitor.ask("/v1/containerInfo"))["sessions"] == 1
        assert "version" in json.loads(monitor.ask("/v1/basicInfo"))
        (conf,) = json.loads(monitor.ask("/v1/readerTaskRuntimeConf?taskName=reader"))
        assert conf["tables"] == ["shop.orders", "shop.person"]
        assert monitor.ask("/v1/subscribe", subscription()) == b"Bye"
    metrics = served.get("/metrics").body.decode()
    assert "databus_ptubes_sessions 1.0" in metrics
