"""What the relay's API answers, over HTTP and of a running relay."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from databus.relay.sources.log_status import Holding, LogStatus
from databus.relay.sources.source import RowChange
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.metadata import Op
from databus.schemas.table import Column, Table
from tests.relay.fakes import (
    ORDERS,
    PERSON,
    Answer,
    FakeLogProbe,
    ServedRelay,
    connect,
    insert,
    transaction,
    wait_until,
)

ROOT = "/api/v1"


def asked(relay: ServedRelay, path: str, **parameters: Any) -> Any:
    answer = relay.get(ROOT + path, **parameters)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


def post(relay: ServedRelay, path: str, body: Any = None, **headers: str) -> Answer:
    text = json.dumps({} if body is None else body).encode()
    lines = [f"POST {ROOT}{path} HTTP/1.1", "Host: localhost", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(text)}", "", ""]
    with connect(relay.url) as sock:
        sock.sendall("\r\n".join(lines).encode() + text)
        response = http.client.HTTPResponse(sock, method="POST")
        response.begin()
        with response:
            return Answer(response)


def report(**changes: Any) -> dict[str, Any]:
    registration = {
        "name": "people",
        "sources": ["shop.person"],
        "mode": "online",
        "connection": "streaming",
        "scn": "3",
        "events": 10,
        "windows": 3,
        "eventsPerS": 1.5,
        "bufferedBytes": 0,
    }
    return {
        "id": "ann-1",
        "name": "Ann's consumer",
        "state": "running",
        "version": "1",
        "startedAt": 1000.5,
        "registrations": [registration],
    } | changes


def put_some(relay: ServedRelay, count: int = 5) -> None:
    for scn in range(1, count + 1):
        relay.put(transaction(scn, insert(scn, "Ann"), insert(scn, "tea", ORDERS)))


def the_source(relay: ServedRelay) -> dict[str, Any]:
    (found,) = asked(relay, "/physicalSources")["physicalSources"]
    return dict(found)


def the_client(relay: ServedRelay) -> dict[str, Any]:
    (found,) = asked(relay, "/clients")["clients"]
    return dict(found)


@pytest.fixture
def probed(tmp_path: Path) -> Iterator[ServedRelay]:
    found = LogStatus(Holding.HELD, behind_bytes=77, behind_s=1.5, hours_left=float("inf"))
    served = ServedRelay(tmp_path, FakeLogProbe(found))
    yield served
    served.close()


def test_a_physical_source_has_what_was_captured_and_what_its_ring_holds(
    relay: ServedRelay,
) -> None:
    put_some(relay)
    wait_until(lambda: the_source(relay)["events"] == 10)
    found = the_source(relay)
    assert (found["state"], found["problem"], found["windows"]) == ("running", "", 5)
    ring = found["ring"]
    assert (ring["minScn"], ring["maxScn"], ring["prevScn"]) == ("1", "5", None)
    assert (ring["oldestAt"], ring["newestAt"]) == (1.0, 5.0)
    assert ring["usedBytes"] == found["sizeBytes"]
    assert ring["capacityBytes"] == relay.relay.physical_sources["shop"].ring.capacity_bytes
    assert found["sources"] == [
        {"name": "shop.person", "id": 1, "table": "shop.person"},
        {"name": "shop.orders", "id": 2, "table": "shop.orders"},
    ]


def test_one_physical_source_is_answered_as_among_all(relay: ServedRelay) -> None:
    one, of_all = asked(relay, "/physicalSources/shop"), the_source(relay)
    assert {key: one[key] for key in ("name", "uri", "sources", "state", "log")} == {
        key: of_all[key] for key in ("name", "uri", "sources", "state", "log")
    }
    assert relay.get(f"{ROOT}/physicalSources/other").status == 404


def test_an_empty_ring_has_no_scn(relay: ServedRelay) -> None:
    ring = the_source(relay)["ring"]
    assert (ring["minScn"], ring["maxScn"], ring["oldestAt"], ring["sleepS"]) == (None,) * 4


def test_where_it_stands_in_the_databases_log_is_told(probed: ServedRelay) -> None:
    put_some(probed, 1)
    wait_until(lambda: the_source(probed)["log"]["holding"] == "held")
    log = the_source(probed)["log"]
    assert (log["behindBytes"], log["behindS"], log["hoursLeft"]) == (77, 1.5, None)


def test_an_error_of_capture_is_a_problem_with_its_position(relay: ServedRelay) -> None:
    put_some(relay, 2)
    relay.source().fail_for_good(SourceStoppedError("shop", 2, "a row does not fit", "log:3"))
    wait_until(lambda: the_source(relay)["state"] == "error")
    problem, met_once = asked(relay, "/problems")["problems"]
    assert "seen once" in met_once["text"]
    assert (problem["physicalSource"], problem["scn"], problem["place"]) == ("shop", "2", "log:3")
    assert "a row does not fit" in problem["text"]
    assert asked(relay, "/relay")["isHealthy"] is False


def test_history_grows_by_a_sample_a_second(relay: ServedRelay) -> None:
    put_some(relay)
    wait_until(lambda: len(asked(relay, "/physicalSources/shop/history")["at"]) >= 2)
    history = asked(relay, "/physicalSources/shop/history", seconds=60)
    lists = [value for value in history.values() if isinstance(value, list)]
    assert len({len(of) for of in lists}) == 1
    assert history["stepS"] == 1.0
    assert 0.5 < history["at"][1] - history["at"][0] < 30  # 1 s, but for a machine that is busy
    assert history["usedBytes"][-1] == the_source(relay)["ring"]["usedBytes"]


def test_schemas_have_their_versions_and_what_changed(relay: ServedRelay) -> None:
    put_some(relay, 1)
    wider = Table(PERSON.source, (*PERSON.columns, Column("born", "date", 2)), "sqlite")
    row = {"id": 9, "name": "Eve", "born": None}
    relay.put(transaction(2, RowChange(wider, Op.INSERT, row)))
    person, orders = asked(relay, "/schemas")["sources"]
    assert [person["source"], orders["source"]] == ["shop.person", "shop.orders"]
    first, second = person["versions"]
    assert (first["version"], first["changes"], second["sinceScn"]) == (1, [], "2")
    assert [(c["kind"], c["column"]) for c in second["changes"]] == [("added", "born")]
    assert second["isCompatible"] is True
    assert json.loads(second["schemaText"])["name"] == "person"


def test_rows_are_those_of_one_source(relay: ServedRelay) -> None:
    put_some(relay)
    rows = asked(relay, "/physicalSources/shop/rows", source="shop.orders", limit=2)["rows"]
    assert [(row["scn"], row["row"]) for row in rows] == [
        ("4", {"id": 4, "note": "tea"}),
        ("5", {"id": 5, "note": "tea"}),
    ]
    assert relay.get(f"{ROOT}/physicalSources/shop/rows", source="no.table").status == 404
    assert relay.get(f"{ROOT}/physicalSources/shop/rows").status == 400
    assert relay.get(f"{ROOT}/physicalSources/no/rows", source="shop.person").status == 404


def test_a_client_is_told_with_what_it_was_served(relay: ServedRelay) -> None:
    put_some(relay)
    headers = {"x-databus-client": "ann-1", "User-Agent": "test/1"}
    answer = relay.get("/stream", headers, sources="1", size=1 << 20, maxev=2)
    client = the_client(relay)
    assert (client["id"], client["agent"], client["address"]) == ("ann-1", "test/1", "127.0.0.1")
    assert (client["requests"], client["servedBytes"]) == (1, len(answer.body))
    assert (client["sources"], client["positions"][0]["scn"]) == (["shop.person"], None)
    assert client["positions"][0]["behindBytes"] > 0
    at_end = Checkpoint.at(5).to_json()
    relay.get("/stream", headers, sources="1", size=1 << 20, checkPoint=at_end)
    client = the_client(relay)
    assert client["state"] == "live"
    place = client["positions"][0]
    assert (place["scn"], place["behindBytes"], place["edgeShare"]) == ("5", 0, 1.0)
    whole = asked(relay, "/relay")
    assert (whole["clients"], whole["streamRequests"]) == (1, 2)
    assert whole["servedBytes"] == client["servedBytes"]


def test_filters_are_told_as_they_were_sent(relay: ServedRelay) -> None:
    filters = '{"1":{"partitionType":"NONE"}}'
    relay.stream(filters=filters)
    assert the_client(relay)["filters"] == filters


def test_a_refused_request_is_the_clients_last_error(relay: ServedRelay) -> None:
    assert relay.stream(size="many").status == 400
    client = the_client(relay)
    assert "size" in client["lastError"]
    assert client["lastErrorAt"] == pytest.approx(client["lastSeenAt"], abs=1)
    assert asked(relay, "/problems")["problems"] == []


def test_whoever_asks_for_what_is_gone_has_fallen_and_is_a_problem(tmp_path: Path) -> None:
    shop = {"name": "shop", "uri": "fake:", "sources": [PERSON.source], "ring_bytes": 1 << 16}
    relay = ServedRelay(tmp_path, physical_sources=[shop])
    try:
        for scn in range(1, 200):
            relay.put(transaction(scn, insert(scn, "x" * 900)))
        gone = relay.stream(sources="1", checkPoint=Checkpoint.at(3).to_json())
        assert gone.status == 404
        client = the_client(relay)
        assert (client["state"], client["positions"][0]["scn"]) == ("fallen", "3")
        (problem,) = asked(relay, "/problems")["problems"]
        assert (problem["scn"], problem["physicalSource"]) == ("3", "shop")
        assert problem["client"] == client["name"]
    finally:
        relay.close()


def test_a_held_request_is_counted_while_it_is_held(relay: ServedRelay) -> None:
    put_some(relay)
    target = quote(Checkpoint.at(5).to_json())
    with connect(relay.url) as sock:
        sock.sendall(
            f"GET /stream?sources=1&size=1000&wait=20000&checkPoint={target} HTTP/1.1\r\n"
            "Host: a\r\nx-databus-client: holder\r\n\r\n".encode()
        )
        wait_until(lambda: asked(relay, "/relay")["heldRequests"] == 1)
        assert the_client(relay)["state"] == "live"
    wait_until(lambda: asked(relay, "/relay")["heldRequests"] == 0)


def test_what_a_client_tells_of_itself_is_shown(relay: ServedRelay) -> None:
    answer = post(relay, "/clients/ann-1", report())
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["name"] == "Ann's consumer"
    client = the_client(relay)
    assert client["report"]["registrations"][0]["scn"] == "3"
    assert client["report"]["startedAt"] == 1000.5
    snapshot = report()
    snapshot["registrations"][0]["mode"] = "snapshot"
    post(relay, "/clients/ann-1", snapshot)
    assert the_client(relay)["state"] == "bootstrapping"


def put_past(relay: ServedRelay, begin: int, end: int) -> None:
    for scn in range(begin, end):
        relay.put(transaction(scn, insert(scn, "x" * 900)))


def kept(scn: int | None, **changes: Any) -> dict[str, Any]:
    """Return a report with a checkpoint."""
    found = report()
    found["registrations"][0] |= {"keptScn": None if scn is None else str(scn)} | changes
    return found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ServedRelay]:
    """A relay whose ring holds about 60 windows of `put_past`."""
    shop = {"name": "shop", "uri": "fake:", "sources": [PERSON.source], "ring_bytes": 1 << 16}
    served = ServedRelay(tmp_path, physical_sources=[shop])
    yield served
    served.close()


ANN = {"x-databus-client": "ann-1"}


def test_a_client_is_where_its_checkpoint_is_although_it_has_asked_for_all(
    small: ServedRelay,
) -> None:
    put_past(small, 1, 40)
    small.get("/stream", ANN, sources="1", size=1 << 20, checkPoint=Checkpoint.at(39).to_json())
    assert the_client(small)["state"] == "live"
    told = json.loads(post(small, "/clients/ann-1", kept(5)).body)
    (place,) = told["positions"]
    assert (place["by"], place["scn"], place["behindS"]) == ("kept", "5", 33.0)
    assert 0 < place["edgeShare"] < 0.5
    assert told["state"] in ("behind", "falling"), "by how fast the test writes"
    put_past(small, 40, 100)
    assert the_client(small)["state"] == "falling", "it was overwritten since it reported"
    told = json.loads(post(small, "/clients/ann-1", kept(5)).body)
    (place,) = told["positions"]
    assert (told["state"], place["isGone"], place["edgeShare"]) == ("fallen", True, 0.0)
    told = json.loads(post(small, "/clients/ann-1", kept(99)).body)
    assert (told["state"], told["positions"][0]["behindBytes"]) == ("live", 0)


def test_a_client_without_a_checkpoint_is_where_it_began(small: ServedRelay) -> None:
    put_past(small, 1, 20)
    for scn in (9, 19):
        at = Checkpoint.at(scn).to_json()
        small.get("/stream", ANN, sources="1", size=1 << 20, checkPoint=at)
    told = json.loads(post(small, "/clients/ann-1", kept(None)).body)
    (place,) = told["positions"]
    assert (place["by"], place["scn"], place["behindS"]) == ("kept", None, 9.0)


def test_a_report_that_names_no_checkpoint_or_a_bootstrap_gives_no_place(
    small: ServedRelay,
) -> None:
    put_past(small, 1, 20)
    at = Checkpoint.at(19).to_json()
    small.get("/stream", ANN, sources="1", size=1 << 20, checkPoint=at)
    for one in (report(), kept(3, mode="catchup"), kept(3, sources=["of.another"])):
        told = json.loads(post(small, "/clients/ann-1", one).body)
        assert told["positions"][0]["by"] == "asked"


def test_a_client_that_hangs_since_before_its_relay_started_has_a_place(
    small: ServedRelay,
) -> None:
    put_past(small, 1, 20)
    assert json.loads(post(small, "/clients/ann-1", kept(5)).body)["positions"] == []
    here = kept(5, server="http://localhost")  # as `post` calls the relay
    told = json.loads(post(small, "/clients/ann-1", here).body)
    assert told["positions"][0]["scn"] == "5"


def test_a_problem_that_a_client_tells_is_listed(relay: ServedRelay) -> None:
    troubled = report()
    troubled["registrations"][0]["problem"] = "the callback failed"
    for _ in range(3):
        assert post(relay, "/clients/ann-1", troubled).status == 200
    (problem,) = asked(relay, "/problems")["problems"]
    assert (problem["text"], problem["client"]) == ("the callback failed", "Ann's consumer")
    assert (problem["scn"], problem["count"]) == ("3", 1)


@pytest.mark.parametrize(
    "body",
    [
        report(id="other"),
        report(more=1),
        report(name="x" * 201),
        report(startedAt=float("inf")),
        {},
        [],
        "no",
    ],
    ids=["other id", "unknown key", "long name", "no number", "empty", "list", "text"],
)
def test_a_report_that_is_not_as_it_should_be_is_refused(relay: ServedRelay, body: Any) -> None:
    assert post(relay, "/clients/ann-1", body).status == 400
    assert asked(relay, "/clients")["clients"] == []


def test_a_relay_is_ready_once_its_source_was_reached(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    try:
        wait_until(lambda: asked(relay, "/relay")["isReady"])
    finally:
        relay.close()
