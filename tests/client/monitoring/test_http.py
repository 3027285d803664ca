"""The client's own HTTP server, on a real port, with a client that reads from a fake relay."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent, Result
from databus.client.machines.states import Lifecycle
from databus.client.monitoring.api import endpoints
from databus.client.monitoring.http import health_of, make_service
from databus.conf.settings import ClientHttpSettings
from databus.daemon.client_report import ClientReport
from databus.schemas.errors import SettingsError
from tests import PATIENCE_S
from tests.api_fuzz import check_answer, fuzz, operations_of
from tests.client.fake_relay import FakeRelay
from tests.client.shop import orders, wait_until

QUICK: dict[str, Any] = {"back_off": {"first_s": 0.001, "max_s": 0.02}, "report_every_s": 0}
DOCUMENT = "/api/v1/openapi.json"


class Serving:
    """A client with a server, and what its callback saw."""

    def __init__(self, relay: FakeRelay, is_held: bool = False, **options: Any) -> None:
        http = {"port": 0} | options.pop("http", {})
        self.client = DatabusClient([relay.url], http=http, **(QUICK | options))
        self.seen: list[int] = []
        self.fails = False
        self.goes_on = threading.Event()
        if not is_held:
            self.goes_on.set()
        self.client.on("shop.orders", name="copy")(self._take)

    def _take(self, event: DataEvent) -> Result | None:
        assert self.goes_on.wait(PATIENCE_S)
        if self.fails:
            return Result.ERROR_FATAL
        self.seen.append(event.scn)
        return None

    @property
    def state(self) -> str:
        return self.client.state.value

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        request = urllib.request.Request(
            self.client.url + path, method=method, headers=headers or {}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def json(self, path: str, method: str = "GET") -> Any:
        status, body = self.ask(path, method)
        assert status == 200, body
        return json.loads(body)


@contextmanager
def serving(relay: FakeRelay, **options: Any) -> Iterator[Serving]:
    one = Serving(relay, **options)
    with one.client:
        yield one


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with FakeRelay(orders(range(1, 6), per_window=2)) as fake:
        yield fake


def test_it_tells_what_the_client_does(relay: FakeRelay) -> None:
    with serving(relay, name="the copy") as one:
        wait_until(lambda: len(one.seen) == 10)
        wait_until(lambda: one.json("/api/v1/client")["registrations"][0]["scn"] == "5")
        report = ClientReport.model_validate(one.json("/api/v1/client"))
    assert (report.name, report.url, report.state) == ("the copy", one.client.url, "running")
    (copy,) = report.registrations
    assert (copy.name, copy.events, copy.windows, copy.mode) == ("copy", 10, 5, "online")


def test_pausing_holds_callbacks_until_it_is_resumed(relay: FakeRelay) -> None:
    with serving(relay) as one:
        wait_until(lambda: len(one.seen) == 10)
        assert one.json("/api/v1/client/pause", "POST")["state"] == "paused"
        relay.append(*orders(range(6, 8)))
        wait_until(lambda: one.json("/api/v1/client")["registrations"][0]["bufferedBytes"] > 0)
        assert len(one.seen) == 10
        assert one.json("/api/v1/client/resume", "POST")["state"] == "running"
        wait_until(lambda: len(one.seen) == 12)


def test_health_is_bad_when_an_error_needs_somebody_and_good_after_resume(
    relay: FakeRelay,
) -> None:
    with serving(relay) as one:
        wait_until(lambda: len(one.seen) == 10)
        assert one.ask("/health")[0] == 200
        one.fails = True
        relay.append(*orders(range(6, 7)))
        wait_until(lambda: one.ask("/health")[0] == 503)
        told = json.loads(one.ask("/health")[1])
        assert told["state"] == "suspended"
        assert "ERROR_FATAL" in told["problem"]
        assert "ERROR_FATAL" in one.json("/api/v1/client")["registrations"][0]["problem"]
        one.fails = False
        one.json("/api/v1/client/resume", "POST")
        wait_until(lambda: len(one.seen) == 11)
        assert one.ask("/health")[0] == 200
        assert one.json("/api/v1/client")["registrations"][0]["problem"] == ""


def test_health_says_that_it_waits_while_its_relay_hears_nothing_of_the_source(
    relay: FakeRelay,
) -> None:
    here = {"physicalSource": "shop", "behindBytes": 0, "behindS": 0.0, "waitsFor": None}
    gone = here | {"behindS": None, "waitsFor": {"state": "error", "since": 7.5}}
    relay.takes_reports, relay.positions = True, [here]
    with serving(relay, report_every_s=0.02) as one:
        wait_until(lambda: json.loads(one.ask("/health")[1])["behindSeconds"] == 0)
        wait_until(lambda: "\ndatabus_client_lag_seconds{" in one.ask("/metrics")[1].decode())
        relay.positions = [gone]
        wait_until(lambda: one.ask("/health")[0] == 503)
        told = json.loads(one.ask("/health")[1])
        assert (told["status"], told["behindSeconds"]) == ("waiting", None)
        awaited = {"physicalSource": "shop", "state": "error", "since": 7.5}
        assert told["waitsFor"] == [awaited]
        assert one.json("/api/v1/client")["waitsFor"] == [awaited]
        assert one.ask("/ready")[0] == 200
        metrics = one.ask("/metrics")[1].decode()
        for unknown in ("lag_seconds", "behind_seconds", "behind_bytes"):
            assert f"\ndatabus_client_{unknown}" not in metrics
        relay.positions = [gone | {"waitsFor": {"state": "paused", "since": 8.5}}]
        wait_until(lambda: one.ask("/health")[0] == 200)
        assert json.loads(one.ask("/health")[1])["waitsFor"][0]["state"] == "paused"
        relay.positions = [here]
        wait_until(lambda: json.loads(one.ask("/health")[1])["waitsFor"] == [])


def test_health_says_what_its_relay_says_of_it(relay: FakeRelay) -> None:
    late = {"physicalSource": "shop", "behindBytes": 90, "behindS": 16.5, "waitsFor": None}
    relay.takes_reports, relay.positions, relay.state = True, [late], "falling"
    with serving(relay, report_every_s=0.02) as one:
        wait_until(lambda: json.loads(one.ask("/health")[1])["relaySays"] == "falling")
        assert json.loads(one.ask("/health")[1])["behindSeconds"] == 16.5
        assert one.ask("/health")[0] == 200, "who is ended for it would lose its buffer"


def test_lag_is_there_while_the_very_first_window_is_worked_on(relay: FakeRelay) -> None:
    with serving(relay, is_held=True) as one:
        wait_until(lambda: "\ndatabus_client_lag_seconds{" in one.ask("/metrics")[1].decode())
        assert one.json("/api/v1/client")["registrations"][0]["windows"] == 0
        one.goes_on.set()
        wait_until(lambda: len(one.seen) == 10)


def test_lag_is_there_in_the_first_turn_of_a_loop_too(relay: FakeRelay) -> None:
    with DatabusClient([relay.url], http={"port": 0}, **QUICK) as client:
        windows = client.windows("shop.orders")
        assert next(windows).scn == 1
        with urllib.request.urlopen(f"{client.url}/metrics", timeout=PATIENCE_S) as answer:
            assert "\ndatabus_client_lag_seconds{" in answer.read().decode()


def test_it_is_ready_when_every_registration_reads_and_it_is_not_paused(relay: FakeRelay) -> None:
    with serving(relay) as one:
        wait_until(lambda: one.ask("/ready")[0] == 200)
        one.client.pause()
        assert one.ask("/ready")[0] == 503
        one.client.resume()
        assert one.ask("/ready")[0] == 200
        relay.stop()
        wait_until(lambda: one.ask("/ready")[0] == 503)


def test_metrics_are_those_counted_by_the_test(relay: FakeRelay) -> None:
    with serving(relay) as one:
        wait_until(lambda: len(one.seen) == 10)
        wait_until(lambda: one.client.status()[0].scn == 5)
        text = one.ask("/metrics")[1].decode()
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]

    def value(name: str, **labels: str) -> float:
        (found,) = [
            s.value for s in samples if s.name == name and labels.items() <= s.labels.items()
        ]
        return found

    copy = {"registration": "copy", "sources": "shop.orders"}
    assert value("databus_client_events_total", **copy) == 10
    assert value("databus_client_windows_total", **copy) == 5
    assert value("databus_client_scn", **copy) == 5
    assert value("databus_client_callback_seconds_count", **copy) == 5
    assert value("databus_client_callback_seconds_bucket", **copy, le="+Inf") == 5
    assert value("databus_client_bootstraps_total", **copy) == 0
    assert value("databus_client_bootstrap_rows", **copy, phase="snapshot") == 0
    assert value("databus_client_phase", **copy, state="live") == 1
    assert value("databus_client_connection_state", **copy, state="streaming") == 1
    assert value("databus_client_state", state="running") == 1
    assert value("databus_client_lag_seconds", **copy) > 0
    assert value("process_resident_memory_bytes") > 0


def test_a_client_without_the_setting_has_no_server(relay: FakeRelay) -> None:
    with DatabusClient([relay.url], **QUICK) as client:
        assert client.url == ""


def test_a_port_that_is_in_use_is_said_at_the_start_and_nothing_runs(relay: FakeRelay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        one = Serving(relay, http={"port": taken.getsockname()[1]})
        with pytest.raises(SettingsError, match="in use"):
            one.client.start()
        assert one.client.state is Lifecycle.SHUT_DOWN
        assert relay.requests == []


def test_a_reader_may_look_and_not_pause(relay: FakeRelay, tmp_path: Path) -> None:
    for name in ("readers", "admins"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(f"{name}-token-of-some-length\n")
    tokens = {
        "reader_tokens_file": tmp_path / "readers",
        "admin_tokens_file": tmp_path / "admins",
    }
    with serving(relay, http=tokens) as one:
        bearer = {
            name: {"Authorization": f"Bearer {name}-token-of-some-length"}
            for name in ("readers", "admins")
        }
        assert one.ask("/api/v1/client")[0] == 401
        assert one.ask("/api/v1/client", headers=bearer["readers"])[0] == 200
        for verb in ("pause", "resume"):
            path = f"/api/v1/client/{verb}"
            assert one.ask(path, "POST")[0] == 401
            assert one.ask(path, "POST", bearer["readers"])[0] == 403
        assert one.state == "running"
        assert one.ask("/api/v1/client/pause", "POST", bearer["admins"])[0] == 200
        assert one.state == "paused"
        assert one.ask("/api/v1/client/pause", "GET", bearer["admins"])[0] == 405


def test_the_document_has_every_endpoint_and_real_answers_are_as_it_says(relay: FakeRelay) -> None:
    with serving(relay) as one:
        document = one.json(DOCUMENT)
        served = {(e.method, e.path) for e in endpoints(one.client)}
        assert operations_of(document) == served
        routes = make_service(one.client, ClientHttpSettings()).routes
        assert {path for _, path in served} <= {route[0] for route in routes}
        for method, path in sorted(served):
            check_answer(document, method, path, *one.ask(path, method))


def test_no_request_gets_an_answer_that_is_not_in_the_document(relay: FakeRelay) -> None:
    with serving(relay) as one:
        document = one.json(DOCUMENT)
        assert fuzz(one.client.url, document) > 100
        one.client.resume()
        assert one.ask("/health")[0] == 200


def test_health_says_that_it_waits_while_no_relay_can_be_reached(relay: FakeRelay) -> None:
    port = int(relay.url.rpartition(":")[2])
    with serving(relay) as one:
        wait_until(lambda: one.ask("/health")[0] == 200)
        began_at = time.time()
        relay.stop()
        wait_until(lambda: one.ask("/health")[0] == 503)
        told = json.loads(one.ask("/health")[1])
        (copy,) = told["registrations"]
        assert told["status"] == "waiting"
        assert relay.url in copy["problem"]
        assert began_at - 60 < copy["silentSince"] <= time.time()
        assert "\ndatabus_client_lag_seconds{" not in one.ask("/metrics")[1].decode()
        with FakeRelay(orders(range(1, 6), per_window=2), port=port):
            wait_until(lambda: one.ask("/health")[0] == 200)


def test_health_says_that_it_waits_while_its_relay_takes_requests_and_says_nothing(
    relay: FakeRelay,
) -> None:
    relay.takes_reports = True
    with serving(relay, report_every_s=0.02) as one:
        wait_until(lambda: relay.posts > 0 and one.ask("/health")[0] == 200)
        wait_until(lambda: any("wait" in asked for asked in relay.streams()[-1:]))
        relay.holds_reports = True  # as it holds the request for events, by design
        wait_until(lambda: one.ask("/health")[0] == 503)
        told = json.loads(one.ask("/health")[1])
        assert (told["status"], told["registrations"][0]["connection"]) == ("waiting", "streaming")
        assert "within 2" in told["registrations"][0]["problem"]
        relay.holds_reports = False
        wait_until(lambda: one.ask("/health")[0] == 200)


def test_health_says_that_it_is_starting_until_a_relay_has_answered() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        client = DatabusClient(
            [f"http://127.0.0.1:{deaf.getsockname()[1]}"], http={"port": 0}, **QUICK
        )
        client.on("shop.orders")(lambda _event: None)
        with client:
            health = health_of(client)
            assert (health.is_ok, health.word) == (False, "starting")
