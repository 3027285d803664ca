"""The pair's API: over a hand-filled store, and with a real relay and a real producer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from databus.bootstrap.admin.api import PairApi
from databus.bootstrap.admin.status import SeedRates, StoreStatus
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.producer.relay_monitor import RelayPoint, behind_s, read_point
from databus.bootstrap.seeder.job import SeedingThread
from databus.bootstrap.service import make_service, routes
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.conf.settings import BackOffSettings, BootstrapSettings, PhysicalSourceSettings
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ServerError
from tests import PATIENCE_S
from tests.api_fuzz import check_answer, fuzz, operations_of
from tests.bootstrap.filled import PERSON
from tests.bootstrap.serving import FakeWorker, ServedStore
from tests.client.shop import FakeClock
from tests.promises.running import RunningRelay, Shop, running, wait_until
from tests.relay.fakes import ServiceThread

DOCUMENT = "/api/v1/openapi.json"
SNAPSHOT = Checkpoint(
    mode=ConsumptionMode.SNAPSHOT,
    snapshot_source=PERSON.source,
    snapshot_offset=0,
    bootstrap_since_scn=0,
    bootstrap_start_scn=101,
)


def ask(url: str, method: str, path: str, **headers: str) -> tuple[int, bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            return answer.status, answer.read()
    finally:
        connection.close()


def json_of(url: str, path: str, method: str = "GET") -> Any:
    status, body = ask(url, method, f"/api/v1/{path}")
    assert status == 200, body
    return json.loads(body)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    store = ServedStore(tmp_path, FakeWorker)
    try:
        wait_until(lambda: json_of(store.url, "physicalSources/shop")["scn"] == "101")
        yield store
    finally:
        store.close()


def test_a_store_is_shown_with_its_sources(served: ServedStore) -> None:
    shop, crm = json_of(served.url, "physicalSources")["physicalSources"]
    assert (shop["name"], shop["state"], shop["problems"]) == ("shop", "running", [])
    assert (shop["relay"], shop["behindScn"], shop["behindS"]) == (None, None, None)
    person = next(s for s in shop["sources"] if s["name"] == PERSON.source)
    assert (person["status"], person["rows"], person["seed"]) == ("active", 10, None)
    assert shop["fileBytes"] > 0
    assert shop["packedBytes"] == 0
    assert (crm["scn"], crm["problems"]) == (None, ["the producer has not created this store yet"])
    pair = json_of(served.url, "bootstrap")
    assert [p["physicalSource"] for p in pair["problems"]] == ["crm"]
    assert (pair["isHealthy"], pair["isReady"], pair["role"]) == (False, False, "admin")


def test_the_lease_of_a_store_is_shown_and_pauses_are_for_its_owner(tmp_path: Path) -> None:
    owner = ServedStore(tmp_path, FakeWorker, fill_lease_s=10.0)
    try:
        shop = "physicalSources/shop"
        wait_until(lambda: json_of(owner.url, shop)["lease"]["role"] == "active", "an owner")
        lease = json_of(owner.url, shop)["lease"]
        assert (lease["term"], lease["problem"], lease["owner"] != "") == (1, "", True)
        assert json_of(owner.url, f"{shop}/pause", "POST")["state"] == "paused"
        standby = Pair(owner.pair.settings, FakeWorker)
        server = ServiceThread(make_service(standby))
        try:
            wait_until(lambda: json_of(server.url, shop)["lease"]["owner"] != "", "its owner")
            shown = json_of(server.url, shop)
            assert shown["lease"] == lease | {"role": "standby"}
            assert (shown["state"], shown["producer"]) == ("absent", None)
            assert ask(server.url, "POST", f"/api/v1/{shop}/pause")[0] == 400
            status = json.loads(ask(server.url, "GET", "/bootstrapStatus")[1])
            assert status["physicalSources"]["shop"]["lease"]["role"] == "standby"
            metrics = ask(server.url, "GET", "/metrics")[1].decode()
            who = '{physical_source="shop"}'
            assert f"databus_bootstrap_is_active{who} 0.0" in metrics
            assert f"databus_bootstrap_lease_term{who} 1.0" in metrics
        finally:
            server.close()
    finally:
        owner.close()


def test_who_is_served_is_shown_with_what_he_was_sent(served: ServedStore) -> None:
    answer = served.get(
        "/bootstrap",
        {"x-databus-client": "3f9a", "User-Agent": "databus/test"},
        sources=1,
        output="binary",
        batchSize=1 << 20,
        maxev=2,
        checkPoint=SNAPSHOT.to_json(),
    )
    assert answer.status == 200
    (session,) = json_of(served.url, "sessions")["sessions"]
    assert (session["client"], session["agent"]) == ("3f9a", "databus/test")
    assert (session["sources"], session["phase"]) == ([PERSON.source], "snapshot")
    assert (session["rows"], session["pages"], session["startScn"]) == (10, 1, "101")
    assert session["sizeBytes"] == len(answer.body)
    pair = json_of(served.url, "bootstrap")
    assert (pair["rows"], pair["servedBytes"]) == (10, len(answer.body))


def test_one_that_is_refused_is_shown_with_the_reason(served: ServedStore) -> None:
    served.filled.store.reset_source(PERSON.source)
    asked = Checkpoint(mode=ConsumptionMode.SNAPSHOT, bootstrap_since_scn=0)
    answer = served.get("/startSCN", sources=PERSON.source, checkPoint=asked.to_json())
    assert answer.status == 503
    (session,) = json_of(served.url, "sessions")["sessions"]
    assert "is new" in session["problem"]


def test_pause_and_resume_reach_what_fills_the_store_and_nothing_else(
    served: ServedStore,
) -> None:
    assert json_of(served.url, "physicalSources/shop/pause", "POST")["state"] == "paused"
    states = {
        s["name"]: s["state"] for s in json_of(served.url, "physicalSources")["physicalSources"]
    }
    assert states == {"shop": "paused", "crm": "running"}
    assert json_of(served.url, "physicalSources/shop/resume", "POST")["state"] == "running"
    assert ask(served.url, "POST", "/api/v1/physicalSources/shpo/pause")[0] == 404
    assert ask(served.url, "GET", "/api/v1/physicalSources/shop/pause")[0] == 405


def test_a_server_alone_says_that_another_process_fills_the_store(tmp_path: Path) -> None:
    store = ServedStore(tmp_path)
    try:
        assert json_of(store.url, "physicalSources/shop")["state"] == "absent"
        status, body = ask(store.url, "POST", "/api/v1/physicalSources/shop/pause")
        assert status == 400
        assert b"only serves" in body
    finally:
        store.close()


def test_it_is_ready_when_every_source_is_served(served: ServedStore) -> None:
    status, body = ask(served.url, "GET", "/ready")
    assert status == 503  # nobody fills the crm
    assert json.loads(body)["physicalSources"]["shop"] == {
        "shop.person": "active",
        "shop.orders": "active",
    }


def test_the_document_has_every_endpoint_and_real_answers_are_as_it_says(
    served: ServedStore,
) -> None:
    document = json_of(served.url, "openapi.json")
    endpoints = {(e.method, e.path) for e in PairApi(served.pair).endpoints()}
    assert operations_of(document) == endpoints
    served_paths = {route[0] for route in routes(served.pair)}
    for method, path in sorted(endpoints):
        assert path.replace("{name}", "(?P<name>[^/]+)") in served_paths
        for name in ("shop", "crm", "nobody"):
            place = path.replace("{name}", name)
            check_answer(document, method, path, *ask(served.url, method, place))


def test_no_request_gets_an_answer_that_is_not_in_the_document(served: ServedStore) -> None:
    assert fuzz(served.url, json_of(served.url, "openapi.json"), examples=15) > 100
    assert ask(served.url, "GET", "/api/v1/bootstrap")[0] == 200


def test_a_reader_may_look_and_not_pause(tmp_path: Path) -> None:
    tokens = {}
    for name in ("reader", "admin"):
        file = tmp_path / f"{name}s"
        file.touch(mode=0o600)
        file.write_text(f"{name}-token-of-some-length\n")
        tokens[f"{name}_tokens_file"] = str(file)
    bearer = {name: f"Bearer {name}-token-of-some-length" for name in ("reader", "admin")}
    store = ServedStore(tmp_path, FakeWorker, http=tokens)
    try:
        for path in ("bootstrap", "physicalSources", "sessions"):
            assert ask(store.url, "GET", f"/api/v1/{path}")[0] == 401
            assert (
                ask(store.url, "GET", f"/api/v1/{path}", Authorization=bearer["reader"])[0] == 200
            )
        for verb in ("pause", "resume"):
            path = f"/api/v1/physicalSources/shop/{verb}"
            assert ask(store.url, "POST", path)[0] == 401
            assert ask(store.url, "POST", path, Authorization=bearer["reader"])[0] == 403
            assert ask(store.url, "POST", path, Authorization=bearer["admin"])[0] == 200
    finally:
        store.close()


@pytest.mark.parametrize(
    ("scn", "timestamp_ns", "behind"),
    [(-1, 0, None), (5, 2 * 10**9, 3.0), (9, 5 * 10**9, 0.0), (10, 6 * 10**9, 0.0)],
)
def test_a_store_is_behind_by_the_time_between_two_commits(
    scn: int, timestamp_ns: int, behind: float | None
) -> None:
    assert behind_s(RelayPoint("r", 9, 5 * 10**9), scn, timestamp_ns) == behind


def test_a_relays_answer_that_makes_no_sense_is_an_error_and_an_empty_ring_is_nothing() -> None:
    empty = {"minScn": -1, "maxScn": -1, "timestampFirstEvent": 0, "timestampLatestEvent": 0}
    assert read_point("r", json.dumps(empty).encode()) is None
    with pytest.raises(ServerError, match="bufferInfo"):
        read_point("r", b"[]")


def test_the_rate_of_seeding_is_that_of_the_last_few_seconds() -> None:
    clock = FakeClock()
    rates = SeedRates(clock)
    for second in range(30):
        clock.now_s += 1
        rows = 1000 * second if second < 15 else 15_000 + 10 * (second - 15)
        state = SourceState("shop.orders", 1, SourceStatus.SEEDING, seed_rows=rows)
        rates.look({"shop": StoreStatus(sources=(state,))})
    assert rates.rows_per_s("shop", "shop.orders") == pytest.approx(10)
    assert rates.rows_per_s("shop", "shop.people") is None
    rates.look({"shop": StoreStatus()})
    assert rates.rows_per_s("shop", "shop.orders") is None


def seen_at(relay: RunningRelay) -> dict[str, Any]:
    """Return what a relay shows of a pair's producer."""
    clients = relay.get("/api/v1/clients").json()["clients"]
    (found,) = [one for one in clients if one["name"].startswith("bootstrap producer ")]
    return dict(found)


def test_a_pair_at_a_relay_says_how_far_behind_it_is_and_rests_when_it_is_told(
    tmp_path: Path,
) -> None:
    shop = Shop(tmp_path / "shop.db")
    shop.insert(*range(1, 11))
    relay = RunningRelay(tmp_path, shop.settings())
    with running(relay):
        relay.start()
        shop.insert(*range(11, 21))
        settings = BootstrapSettings(
            data_dir=tmp_path / "pair",
            relays=(relay.url,),
            physical_sources=(PhysicalSourceSettings(**shop.settings()),),
            http={"port": 0},
            back_off=BackOffSettings(first_s=0.01, max_s=0.1),
        )
        server = ServiceThread(make_service(Pair(settings, Producer, SeedingThread)))
        try:

            def look() -> Any:
                return json_of(server.url, "physicalSources/shop")

            wait_until(lambda: ask(server.url, "GET", "/ready")[0] == 200, "readiness", look)
            wait_until(lambda: look()["behindScn"] == "0", "no distance", look)
            producer = look()["producer"]
            assert (producer["isRunning"], producer["server"]) == (True, relay.url)
            assert json_of(server.url, "physicalSources/shop/pause", "POST")["state"] == "paused"
            before = look()["scn"]
            shop.insert(*range(21, 31))
            wait_until(lambda: int(look()["behindScn"]) > 0, "a distance", look)
            assert look()["scn"] == before
            assert look()["behindS"] > 0

            def is_seen_behind() -> bool:
                found = seen_at(relay)
                places = [(p["by"], p["behindBytes"] > 0) for p in found.get("positions", ())]
                return found["state"] == "paused" and places == [("kept", True)]

            wait_until(is_seen_behind, "the relay to see it paused", lambda: seen_at(relay))
            json_of(server.url, "physicalSources/shop/resume", "POST")
            wait_until(lambda: look()["behindScn"] == "0", "no distance", look)
            wait_until(
                lambda: seen_at(relay)["state"] == "live",
                "the relay to see it live",
                lambda: seen_at(relay),
            )
        finally:
            server.close()
            shop.close()
