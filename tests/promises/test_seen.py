"""What a relay and a pair show of a client, while it falls behind, bootstraps and comes back."""

from __future__ import annotations

import threading
from contextlib import closing
from http.client import HTTPConnection
from json import loads
from pathlib import Path
from typing import Any

from databus.client.consumer import DataEvent
from databus.client.monitoring.reporter import ReportedLag
from tests import PATIENCE_S
from tests.promises.bootstrapping import (
    PAGE_BYTES,
    Applying,
    SqlitePlace,
    insert_orders,
    rows_of,
    running_pair,
    serving,
    update_orders,
    write_past_the_ring,
)
from tests.promises.running import (
    Remembering,
    RunningRelay,
    Shop,
    consuming,
    running,
    wait_until,
)

NAME = "the copy"
ORDERS = 600
SMALL: dict[str, Any] = {
    "name": NAME,
    "start": "latest",
    "fetch_bytes": PAGE_BYTES,
    "buffer_bytes": 2 * PAGE_BYTES,
    "report_every_s": 0.05,
}


class Held(Applying):
    """Takes no event, and no page, while its gate is shut."""

    def __init__(self) -> None:
        self.events, self.page = threading.Event(), threading.Event()
        self.events.set()
        super().__init__(lambda _: self._wait(self.page))

    def on_data_event(self, event: DataEvent) -> None:
        """Wait for the gate, then apply it."""
        self._wait(self.events)
        super().on_data_event(event)

    def _wait(self, gate: threading.Event) -> None:
        assert gate.wait(PATIENCE_S)


def seen(relay: RunningRelay) -> dict[str, Any]:
    """Return what the relay shows of the client; nothing before it knows it."""
    clients = relay.get("/api/v1/clients").json()["clients"]
    return next((client for client in clients if client["name"] == NAME), {})


def write_until(place: SqlitePlace, relay: RunningRelay, state: str) -> None:
    """Update orders until the relay shows the client in a state."""

    def is_so() -> bool:
        if seen(relay).get("state") == state:
            return True
        before = relay.max_scn()
        update_orders(place)
        wait_until(lambda: relay.max_scn() > before, "the window")
        return False

    wait_until(is_so, state, lambda: seen(relay))


def sessions(url: str) -> list[dict[str, Any]]:
    """Return whom a bootstrap server serves."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = HTTPConnection(host, int(port), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/api/v1/sessions")
        with connection.getresponse() as answer:
            found: list[dict[str, Any]] = loads(answer.read())["sessions"]
            return found
    finally:
        connection.close()


def wait_for(relay: RunningRelay, state: str) -> None:
    """Wait until a relay shows its client in a state."""
    wait_until(lambda: seen(relay).get("state") == state, state, lambda: seen(relay))


def test_a_relay_shows_a_client_fall_behind_bootstrap_and_come_back(
    shop: Shop, tmp_path: Path
) -> None:
    place = SqlitePlace(shop)
    insert_orders(place, range(ORDERS))
    with running_pair(tmp_path, place) as (relay, pair):
        pair.seed()
        consumer = Held()
        with (
            serving(pair.server()) as (server,),
            consuming(
                [relay.url], [place.orders], consumer, bootstrap_servers=[server], **SMALL
            ) as client,
        ):
            write_until(place, relay, "live")
            assert seen(relay)["id"] == client.id
            consumer.events.clear()
            write_until(place, relay, "falling")
            position = seen(relay)["positions"][0]
            assert position["edgeShare"] < 0.25 or position["fallsInS"] < 60
            wait_until(
                lambda: seen(relay)["report"]["registrations"][0]["bufferedBytes"] > 0,
                "what it has read and not consumed",
            )
            assert seen(relay)["report"]["registrations"][0]["mode"] == "online"
            write_past_the_ring(place, relay)  # what it asks for next is gone
            consumer.events.set()
            wait_for(relay, "bootstrapping")
            wait_until(
                lambda: [s["phase"] for s in sessions(server)] == ["snapshot"],
                "a snapshot",
                lambda: sessions(server),
            )
            (session,) = sessions(server)
            assert (session["client"], session["sources"]) == (client.id, [place.orders])
            consumer.page.set()
            wait_for(relay, "live")
            wait_until(
                lambda: (
                    consumer.rows(place.orders, "id", "note")
                    == rows_of(place, "orders", "id", "note")
                ),
                "all rows",
            )
            report = seen(relay)["report"]["registrations"][0]
            assert report["bootstraps"] == 1
            (session,) = sessions(server)
            assert (session["phase"], session["rows"]) == ("finished", consumer.bootstrapped)
    assert consumer.problems == []


def test_a_client_whose_relay_is_killed_reads_on_and_reports_to_the_next_one(
    shop: Shop, tmp_path: Path
) -> None:
    first = RunningRelay(tmp_path, shop.settings(), name="first")
    second = RunningRelay(tmp_path, shop.settings(), name="second")
    try:
        first.start()
        second.start()
        shop.insert(*range(1, 11))
        consumer = Applying()
        urls, at = [first.url, second.url], {first.url: first, second.url: second}
        with consuming(urls, ["shop.orders"], consumer, name=NAME, report_every_s=0.05) as client:

            def reading() -> RunningRelay:
                return at[client.report().registrations[0].server]

            wait_until(lambda: len(consumer.state.get("shop.orders", {})) == 10, "ten orders")
            wait_until(lambda: seen(reading()).get("report"), "a report")
            lost = reading()
            other = second if lost is first else first
            lost.child.kill()
            shop.insert(*range(11, 21))
            wait_until(lambda: len(consumer.state["shop.orders"]) == 20, "twenty orders")

            def has_been_told() -> bool:
                # It may have been told something earlier, when none was read from yet.
                report = seen(other).get("report") or {"registrations": []}
                return any(r["retries"] > 0 for r in report["registrations"])

            wait_until(has_been_told, "a report to the other relay", lambda: seen(other))
        assert consumer.problems == []
    finally:
        first.child.stop()
        second.child.stop()


def test_a_consumers_own_health_says_that_it_waits_while_its_relays_database_is_away(
    tmp_path: Path,
) -> None:
    shop, seen = Shop(tmp_path / "shop.db"), Remembering()
    away = shop.path.with_suffix(".away")
    told = {"http": {"port": 0}, "report_every_s": 0.05, "start": "earliest"}
    with running(RunningRelay(tmp_path, shop.settings()).start()) as relay:
        shop.insert(1)
        with consuming([relay.url], ["shop.orders"], seen, **told) as client:
            wait_until(lambda: _status(client.url) == (200, "ok") and len(seen.events) == 1, "ok")
            shop.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shop.path.rename(away)
            wait_until(lambda: _status(client.url) == (503, "waiting"), "waiting", relay.tell)
            wait_until(
                lambda: [one.state for one in client.report_answer.waits_for] == ["unreachable"],
                "its cause",
                relay.tell,
            )
            assert client.report_answer.behind == ReportedLag(None, None)
            away.rename(shop.path)
            wait_until(lambda: _status(client.url) == (200, "ok"), "ok again", relay.tell)
    shop.close()


def _status(url: str) -> tuple[int, str]:
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        return answer.status, loads(answer.read())["status"]
