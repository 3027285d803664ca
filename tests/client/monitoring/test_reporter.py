"""Reports to relays: to whom, how often, and that they disturb nobody."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.client.monitoring.reporter import (
    REFUSED_S,
    ReportAnswer,
    ReportedLag,
    ReportOrder,
    read_answer,
)
from databus.daemon.client_report import ClientReport, WaitsFor
from databus.schemas.protocol import Header
from tests import PATIENCE_S
from tests.client.fake_bootstrap import FakeBootstrap
from tests.client.fake_relay import FakeRelay
from tests.client.shop import FakeClock, orders, wait_until

AWAITED = {"state": "unreachable", "since": 7.5}
AT_NEWEST = {"physicalSource": "shop", "behindBytes": 0, "behindS": 0.0, "waitsFor": None}
WAITING = AT_NEWEST | {"behindS": None, "waitsFor": AWAITED}
SHOP = WaitsFor(physical_source="shop", state="unreachable", since=7.5)
QUICK: dict[str, Any] = {"back_off": {"first_s": 0.001, "max_s": 0.02}, "report_every_s": 0.02}


def test_those_that_are_read_from_are_told_and_one_of_the_others_if_they_cannot_be() -> None:
    order = ReportOrder(FakeClock())
    assert order.split(["b", "b", "gone"], ["a", "b", "c"]) == (["b"], ["a", "c"])
    assert order.split([], ["a", "b"]) == ([], ["a", "b"])


def test_a_relay_that_takes_no_reports_is_left_alone_for_a_minute() -> None:
    clock = FakeClock()
    order = ReportOrder(clock)
    order.refused("a")
    assert order.split(["a"], ["a", "b"]) == ([], ["b"])
    clock.now_s += REFUSED_S
    assert order.split(["a"], ["a", "b"]) == (["a"], ["b"])


@pytest.mark.parametrize(
    ("body", "behind"),
    [
        ({"positions": [{"behindBytes": 5, "behindS": 2.5}]}, ReportedLag(5, 2.5)),
        (
            {"positions": [{"behindBytes": 5, "behindS": None}, {"behindBytes": 9, "behindS": 1}]},
            ReportedLag(9, None),
        ),
        ({"positions": []}, None),
        ({"positions": 7}, None),
        ({}, None),
        ([], None),
    ],
)
def test_a_relays_answer_says_how_far_behind_the_client_is(
    body: Any, behind: ReportedLag | None
) -> None:
    assert read_answer(json.dumps(body).encode()) == ReportAnswer(behind)


def test_an_answer_that_is_no_json_says_nothing() -> None:
    assert read_answer(b"\xff") == ReportAnswer()


def test_of_a_source_that_nobody_hears_of_no_distance_is_known() -> None:
    answer = {"positions": [AT_NEWEST | {"physicalSource": "other"}, WAITING]}
    assert read_answer(json.dumps(answer).encode()) == ReportAnswer(
        ReportedLag(None, None), (SHOP,)
    )
    for nonsense in ({}, 7, {"state": "unreachable"}):
        answer = {"positions": [AT_NEWEST | {"waitsFor": nonsense}]}
        assert read_answer(json.dumps(answer).encode()) == ReportAnswer()


def test_a_client_waits_until_a_relay_says_otherwise_also_when_that_relay_goes_too() -> None:
    with FakeRelay(orders(range(1, 4))) as relay:
        relay.takes_reports, relay.positions = True, [WAITING]
        client = DatabusClient([relay.url], **QUICK)
        collect(client)
        with client:
            wait_until(lambda: SHOP in client.report_answer.waits_for)
            assert client.report().waits_for == [SHOP]
            relay.positions = [AT_NEWEST]
            wait_until(lambda: client.report_answer.behind == ReportedLag(0, 0.0))
            assert not client.report_answer.waits_for
            relay.positions = [WAITING]
            wait_until(lambda: client.report_answer.waits_for)
            relay.stop()
            wait_until(lambda: client.report_answer.behind is None)
            assert client.report_answer.waits_for == (SHOP,)
    assert all("waitsFor" not in report for report in relay.reports)


def collect(client: DatabusClient) -> list[int]:
    seen: list[int] = []

    @client.on("shop.orders")
    def take(event: DataEvent) -> None:
        seen.append(event.scn)

    return seen


def test_a_relay_is_told_how_the_client_is_and_each_request_says_whose_it_is() -> None:
    with FakeRelay(orders(range(1, 6), per_window=3)) as relay:
        relay.takes_reports = True
        client = DatabusClient([relay.url], name="the warehouse", **QUICK)
        seen = collect(client)
        with client:
            wait_until(lambda: len(seen) == 15)
            wait_until(
                lambda: relay.reports and relay.reports[-1]["registrations"][0]["events"] == 15
            )
            assert {headers.get(Header.CLIENT_ID) for headers in relay.headers} == {client.id}
    report = ClientReport.model_validate(relay.reports[-1])
    (one,) = report.registrations
    assert (report.id, report.name, report.state) == (client.id, "the warehouse", "shut_down")
    assert not report.keeps_checkpoints
    assert "running" in {one["state"] for one in relay.reports}
    assert (one.sources, one.mode, one.scn, one.windows) == (["shop.orders"], "stopped", 5, 5)
    assert one.callback_p99_s is not None


def test_a_client_that_ends_before_its_first_report_says_goodbye_all_the_same() -> None:
    with FakeRelay(orders(range(1, 6))) as relay:
        relay.takes_reports = True
        client = DatabusClient([relay.url], **QUICK | {"report_every_s": 60.0})
        seen = collect(client)
        with client:
            wait_until(lambda: len(seen) == 5)
        assert [one["state"] for one in relay.reports][-1:] == ["shut_down"]


def last_registration(relay: FakeRelay) -> dict[str, Any]:
    found: dict[str, Any] = relay.reports[-1]["registrations"][0] if relay.reports else {}
    return found


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_report_tells_what_is_kept_and_not_what_was_read(is_loop: bool) -> None:
    held = threading.Event()
    with FakeRelay(orders(range(1, 9))) as relay:
        relay.takes_reports = True
        client = DatabusClient([relay.url], checkpoint_every_s=0, **QUICK)

        def take(event: DataEvent) -> None:
            if event.scn == 4:
                assert held.wait(PATIENCE_S)

        def loop() -> None:
            for window in client.windows("shop.orders"):
                for event in window.events:
                    take(event)

        def is_told() -> bool:
            one = last_registration(relay)
            return one.get("keptScn") == "3" and one["bufferedBytes"] > 0

        thread = threading.Thread(target=loop if is_loop else client.run)
        if not is_loop:
            client.on("shop.orders")(take)
        thread.start()
        wait_until(is_told)
        assert relay.reports[-1]["everyS"] == QUICK["report_every_s"]
        held.set()
        wait_until(lambda: last_registration(relay)["keptScn"] == "8")
        client.stop()
        thread.join(PATIENCE_S)


def test_before_anything_is_kept_a_report_tells_where_it_starts(tmp_path: Path) -> None:
    with FakeRelay() as relay:
        relay.takes_reports = True
        for start, kept in (("earliest", None), ("beginning", "0"), ("7", "7")):
            folder = tmp_path / start
            client = DatabusClient([relay.url], start=start, checkpoint_dir=folder, **QUICK)
            collect(client)
            with client:
                registrations = client.report().registrations
                assert registrations[0].model_dump(mode="json")["kept_scn"] == kept


def test_a_relay_that_says_that_the_client_falls_is_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with FakeRelay(orders(range(1, 4))) as relay:
        relay.takes_reports, relay.positions = True, [AT_NEWEST]
        client = DatabusClient([relay.url], **QUICK)
        collect(client)
        with client:
            for state in ("live", "falling", "fallen", "live"):
                relay.state = state
                wait_until(lambda: client.report_answer.state == relay.state)
    said = [r.getMessage() for r in caplog.records if "this client is" in r.getMessage()]
    assert [text.split(":")[0] for text in said] == [
        "this client is falling",
        "this client is fallen",
    ]


def test_two_clients_of_a_process_have_ids_of_their_own() -> None:
    first, second = (DatabusClient(["http://127.0.0.1:1"]) for _ in range(2))
    assert first.id != second.id


def test_a_relay_that_takes_no_reports_is_read_from_all_the_same_and_asked_once() -> None:
    with FakeRelay(orders(range(1, 4))) as relay:
        client = DatabusClient([relay.url], **QUICK)
        seen = collect(client)
        with client:
            wait_until(lambda: relay.posts == 1)
            relay.append(*orders(range(4, 6)))
            wait_until(lambda: len(seen) == 5)
        assert relay.posts == 1


def test_a_report_that_is_never_answered_holds_up_neither_reading_nor_the_end() -> None:
    with FakeRelay(orders(range(1, 4))) as relay:
        relay.takes_reports = relay.holds_reports = True
        client = DatabusClient([relay.url], **QUICK)
        seen = collect(client)
        with client:
            wait_until(lambda: relay.posts == 1)
            relay.append(*orders(range(4, 6)))
            wait_until(lambda: len(seen) == 5)


def test_reports_that_are_lost_are_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    with FakeRelay(orders(range(1, 4))) as relay:
        relay.takes_reports = True
        client = DatabusClient([relay.url], **QUICK)
        seen = collect(client)
        with client:
            wait_until(lambda: len(seen) == 3)
            wait_until(lambda: relay.reports)
            relay.stop()
            wait_until(lambda: client.status()[0].problem)
            wait_until(lambda: client.report().registrations[0].retries > 2)
    assert [r for r in caplog.records if "report" in r.getMessage()] == []


def test_no_report_is_sent_where_the_settings_say_so() -> None:
    with FakeRelay(orders(range(1, 4))) as relay:
        relay.takes_reports = True
        client = DatabusClient([relay.url], **(QUICK | {"report_every_s": 0}))
        seen = collect(client)
        with client:
            wait_until(lambda: len(seen) == 3)
            relay.append(*orders(range(4, 6)))
            wait_until(lambda: len(seen) == 5)
        assert relay.posts == 0


def test_while_it_bootstraps_its_relay_is_told_so() -> None:
    held = threading.Event()
    with FakeRelay(orders(range(5, 8))) as relay, FakeBootstrap(orders(range(1, 5))) as pair:
        relay.takes_reports = True
        relay.oldest_gone = 4
        client = DatabusClient(
            [relay.url], bootstrap_servers=[pair.url], start="beginning", **QUICK
        )
        seen: list[int] = []

        @client.on("shop.orders")
        def take(event: DataEvent) -> None:
            assert held.wait(PATIENCE_S)
            seen.append(event.scn)

        with client:
            wait_until(lambda: relay.reports and mode(relay) == "snapshot")
            held.set()
            wait_until(lambda: mode(relay) == "online")
    last = relay.reports[-1]["registrations"][0]
    assert (last["bootstraps"], last["snapshotRows"] > 0) == (1, True)


def mode(relay: FakeRelay) -> str:
    found: str = relay.reports[-1]["registrations"][0]["mode"]
    return found
