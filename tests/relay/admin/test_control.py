"""Pause, resume, drain and restart of a running relay, over its API."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.relay.relay import Relay
from databus.relay.service import make_service
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SourceStoppedError
from databus.schemas.stream.stream_reader import walk
from tests.promises.running import Shop
from tests.relay.admin.test_api import ROOT, asked, post, put_some, report, the_client, the_source
from tests.relay.fakes import (
    ORDERS,
    Answer,
    ServedRelay,
    ServiceThread,
    get,
    insert,
    transaction,
    wait_until,
)

ONE = "/physicalSources/shop"


def do(relay: ServedRelay, verb: str, body: Any = None) -> dict[str, Any]:
    answer = post(relay, f"{ONE}/{verb}", body)
    assert answer.status == 200, answer.body
    return dict(json.loads(answer.body))


def scns(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return [event.scn for event in walk(answer.body) if event.is_eop]


def test_a_paused_source_serves_its_ring_and_goes_on_when_resumed(relay: ServedRelay) -> None:
    put_some(relay, 3)
    assert do(relay, "pause")["state"] == "paused"
    relay.source().put(transaction(4, insert(4)))
    assert scns(relay.stream()) == [1, 2, 3]
    assert do(relay, "resume")["state"] == "running"
    relay.wait_for_scn(4)


def test_resume_tries_again_after_an_error(relay: ServedRelay) -> None:
    put_some(relay, 2)
    relay.source().fail_for_good(SourceStoppedError("shop", 2, "it went wrong"))
    wait_until(lambda: the_source(relay)["state"] == "error")
    assert do(relay, "pause")["state"] == "error"
    assert do(relay, "resume")["state"] == "running"
    relay.put(transaction(3, insert(3)))


@pytest.mark.parametrize("verb", ["pause", "resume", "drain", "restart"])
def test_a_verb_is_a_post_and_of_a_source_that_there_is(relay: ServedRelay, verb: str) -> None:
    assert relay.get(f"{ROOT}{ONE}/{verb}").status == 405
    body = {"scn": "1"} if verb == "restart" else None
    assert post(relay, f"/physicalSources/other/{verb}", body).status == 404


def test_a_drain_waits_for_the_clients_that_are_not_there_yet(relay: ServedRelay) -> None:
    put_some(relay, 3)
    headers = {"x-databus-client": "ann-1"}
    checkpoint = Checkpoint.at(1).to_json()
    relay.get("/stream", headers, sources="1", size=1 << 20, checkPoint=checkpoint)
    post(relay, "/clients/ann-1", report())
    drain = do(relay, "drain")["drain"]
    assert drain == {"untilScn": "3", "waitingFor": ["Ann's consumer"], "isDone": False}
    relay.source().put(transaction(4, insert(4)))
    relay.get("/stream", headers, sources="1", size=1 << 20, checkPoint=Checkpoint.at(3).to_json())
    found = the_source(relay)
    assert (found["state"], found["drain"]["isDone"]) == ("paused", True)
    assert found["ring"]["maxScn"] == "3"
    assert do(relay, "resume")["drain"] is None
    relay.wait_for_scn(4)


def test_a_drain_without_clients_is_done(relay: ServedRelay) -> None:
    put_some(relay, 2)
    assert do(relay, "drain")["drain"]["isDone"] is True
    assert do(relay, "pause")["drain"] is None


def test_a_restart_reads_the_windows_after_the_scn_anew(relay: ServedRelay) -> None:
    put_some(relay, 9)
    do(relay, "restart", {"scn": "4"})
    relay.wait_for_scn(9)
    wait_until(lambda: the_source(relay)["ring"]["minScn"] == "5")
    ring = the_source(relay)["ring"]
    assert (ring["prevScn"], ring["maxScn"]) == ("4", "9")
    assert scns(relay.stream(checkPoint=Checkpoint.at(4).to_json())) == [5, 6, 7, 8, 9]
    gone = relay.stream(checkPoint=Checkpoint.at(3).to_json())
    assert gone.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"


def test_a_restart_further_on_is_a_gap_that_everybody_is_told_of(relay: ServedRelay) -> None:
    put_some(relay, 3)
    do(relay, "pause")
    relay.source().put(*(transaction(scn, insert(scn)) for scn in range(4, 10)))
    do(relay, "restart", {"scn": "6"})
    relay.wait_for_scn(9)
    for before in (1, 3, 5):
        answer = relay.stream(checkPoint=Checkpoint.at(before).to_json())
        assert (
            answer.headers["x-dbus-error-cause"] == "com.linkedin.databus.core.ScnNotFoundException"
        )
    assert scns(relay.stream(checkPoint=Checkpoint.at(6).to_json())) == [7, 8, 9]
    assert the_client(relay)["state"] == "live"


def test_a_request_that_is_held_over_a_restart_gets_nothing_twice(relay: ServedRelay) -> None:
    put_some(relay, 9)
    answers: list[Answer] = []
    checkpoint = Checkpoint.at(9).to_json()
    asking = threading.Thread(
        target=lambda: answers.append(relay.stream(checkPoint=checkpoint, wait=20_000))
    )
    asking.start()
    wait_until(lambda: asked(relay, "/relay")["heldRequests"] == 1)
    do(relay, "restart", {"scn": "4"})
    relay.wait_for_scn(9)
    relay.put(transaction(10, insert(10)))
    asking.join()
    assert scns(answers[0]) == [10]


def test_after_a_restart_and_another_start_it_goes_on_from_there(tmp_path: Path) -> None:
    relay = ServedRelay(tmp_path)
    put_some(relay, 9)
    do(relay, "restart", {"scn": "4"})
    relay.wait_for_scn(9)
    relay.close()
    again = ServedRelay(tmp_path)
    try:
        again.put(transaction(10, insert(10, table=ORDERS)))
        assert again.source().opened_after[0] == 9
        assert scns(again.stream(checkPoint=Checkpoint.at(4).to_json())) == [5, 6, 7, 8, 9, 10]
    finally:
        again.close()


@pytest.mark.parametrize("scn", ["-1", -1, "x", None, str(1 << 63), 1 << 70, "5.5"])
def test_an_scn_that_makes_no_sense_is_refused(relay: ServedRelay, scn: Any) -> None:
    put_some(relay, 3)
    assert post(relay, f"{ONE}/restart", {"scn": scn}).status == 400
    assert the_source(relay)["ring"]["minScn"] == "1"


def test_what_the_source_does_not_have_is_refused_and_nothing_changes(relay: ServedRelay) -> None:
    put_some(relay, 3)
    do(relay, "pause")
    relay.source().fail_for_good(SourceStoppedError("shop", 77, "the log begins later"))
    answer = post(relay, f"{ONE}/restart", {"scn": "77"})
    assert answer.status == 409
    assert b"the log begins later" in answer.body
    found = the_source(relay)
    assert (found["state"], found["ring"]["minScn"], found["ring"]["maxScn"]) == (
        "paused",
        "1",
        "3",
    )
    do(relay, "resume")
    relay.put(transaction(4, insert(4)))


@contextlib.contextmanager
def sqlite_relay(folder: Path, shop: Shop) -> Iterator[str]:
    raw = {"data_dir": folder / "data", "http": {"port": 0}, "physical_sources": [shop.settings()]}
    service = ServiceThread(make_service(Relay(build_settings(raw, RelaySettings))))
    try:
        yield service.url
    finally:
        service.close()


def test_an_sqlite_log_says_what_it_does_not_have(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    with contextlib.closing(shop), sqlite_relay(tmp_path, shop) as url:
        here: Any = SimpleNamespace(url=url, get=lambda path: get(url, path))
        wait_until(lambda: asked(here, "/relay")["isReady"])
        for count in range(1, 11):  # each a window of its own
            shop.insert(count)
            wait_until(lambda: the_source(here)["events"] == count)  # noqa: B023
        newest = int(the_source(here)["ring"]["maxScn"])
        refused = post(here, f"{ONE}/restart", {"scn": str(newest + 1000)})
        assert refused.status == 409, refused.body
        assert the_source(here)["state"] == "running"
        assert int(the_source(here)["ring"]["maxScn"]) == newest
        assert post(here, f"{ONE}/restart", {"scn": str(newest - 5)}).status == 200
        wait_until(lambda: the_source(here)["ring"]["maxScn"] == str(newest))
        shop.insert(100)
        wait_until(lambda: int(the_source(here)["ring"]["maxScn"]) > newest)
        rows = asked(here, f"{ONE}/rows?source=shop.orders&limit=200")["rows"]
        assert [row["row"]["id"] for row in rows] == [6, 7, 8, 9, 10, 100]


def test_an_sqlite_log_is_read_again_from_a_place_of_any_form_that_it_has(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop.db")
    with contextlib.closing(shop), sqlite_relay(tmp_path, shop) as url:
        here: Any = SimpleNamespace(url=url, get=lambda path: get(url, path))
        wait_until(lambda: asked(here, "/relay")["isReady"])
        for count in range(1, 6):
            shop.insert(count)
            wait_until(lambda: the_source(here)["events"] == count)  # noqa: B023
        newest = int(the_source(here)["ring"]["maxScn"])
        third = asked(here, f"/sources/shop.orders/position?at={newest - 2}")["committedAt"]
        at_third = f"time:{datetime.fromtimestamp(third, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        before = int(asked(here, f"/sources/shop.orders/position?at={at_third}")["scn"])
        for at, prev_scn in (
            ("latest", newest),
            (at_third, before),
            (f"scn:{newest - 1}", newest - 1),
        ):
            assert do(here, "restart", {"at": at})["state"] == "running"
            wait_until(lambda: the_source(here)["ring"]["maxScn"] == str(newest))
            assert the_source(here)["ring"]["prevScn"] == str(prev_scn), at
        for at in ("gtid:0-1-17", "binlog:bin.000001:4", "time:2100-01-01"):
            refused = post(here, f"{ONE}/restart", {"at": at})
            assert (refused.status, b"nothing was changed" in refused.body) == (409, True)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"scn": "1", "at": "latest"},
        {"at": "soon"},
        {"at": "beginning"},
        {"at": "gtid-set:0-1-5"},
    ],
)
def test_a_restart_is_at_one_place_of_the_log(relay: ServedRelay, body: dict[str, str]) -> None:
    put_some(relay, 2)
    refused = post(relay, f"{ONE}/restart", body)
    assert refused.status == 400, refused.body
    assert the_source(relay)["ring"]["minScn"] == "1"


def test_a_source_without_names_for_places_is_read_again_after_an_scn_only(
    relay: ServedRelay,
) -> None:
    put_some(relay, 2)
    refused = post(relay, f"{ONE}/restart", {"at": "time:2026-11-21"})
    assert (refused.status, b"after an SCN only" in refused.body) == (409, True)
    assert do(relay, "restart", {"at": "scn:1"})["ring"]["prevScn"] == "1"
