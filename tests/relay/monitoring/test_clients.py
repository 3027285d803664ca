from __future__ import annotations

from typing import Any

import pytest

from databus.daemon.client_report import ClientReport, RegistrationReport
from databus.relay.admin.client_status import RingMark, client_view
from databus.relay.admin.models import ClientState, ClientView
from databus.relay.monitoring.clients import (
    FORGOTTEN_AFTER_S,
    MOST_CLIENTS,
    MOST_STREAMS,
    SILENT_AFTER_S,
    Caller,
    Client,
    ClientTable,
    KeptKey,
    Stream,
    StreamKey,
    caller_of,
)

KEY = StreamKey("shop", None, "")
KEPT = KeptKey("shop", "r", ("shop.person",))
ANN = Caller("ann", "10.0.0.1", "databus/1")
SECOND = 1_000_000_000


def ring(tail: int = 1000, rate: float = 0.0, head: int = 0) -> RingMark:
    """A ring of 1000 bytes; the event at position p was committed at second p."""
    return RingMark(
        tail,
        1000,
        tail,
        tail * SECOND,
        lambda size: size / rate if rate else None,
        lambda at: at * SECOND if at >= head else 0,
    )


def reads(clients: ClientTable, position: int | None, now_s: float, scn: int = 0) -> Client:
    """Have a client ask for what follows a place, and be answered."""
    client = clients.begin(ANN, now_s)
    stream = client.stream(KEY, now_s)
    stream.scn, stream.position, stream.is_gone = scn, position, False
    clients.end(client, now_s, 100)
    return client


def state(client: Client, mark: RingMark, now_s: float) -> ClientState:
    return client_view(client, {"shop": mark}, lambda _key: ["shop.person"], now_s, 5000.0).state


def tells(client: Client, clients: ClientTable, now_s: float, **kept: Any) -> Client:
    """Have a client report its checkpoint: where that is in the ring, whether it is gone."""
    reported = kept.pop("report", None) or report()
    clients.reported(ANN, reported, now_s)
    client.kept = {KEPT: Stream(scn=4, is_kept=True, **kept)}
    return client


def report(mode: str = "online", **more: Any) -> ClientReport:
    registration = {
        "name": "r",
        "sources": ["shop.person"],
        "mode": mode,
        "connection": "streaming",
        "scn": 4,
        "events": 1,
        "windows": 1,
        "events_per_s": 0.5,
        "buffered_bytes": 0,
    }
    return ClientReport(
        id="ann",
        name="Ann's",
        version="1",
        started_at=1.0,
        registrations=[RegistrationReport.model_validate(registration)],
        **({"state": "running"} | more),
    )


def test_a_client_is_known_by_its_header_or_else_by_address_and_program() -> None:
    assert caller_of("a-1", "10.0.0.1", "curl/8").id == "a-1"
    assert caller_of(None, "10.0.0.1", "curl/8").id == "10.0.0.1 curl/8"
    assert caller_of("not an id", "10.0.0.1", "").id == "10.0.0.1"
    assert len(caller_of(None, "10.0.0.1", "x" * 5000).id) < 100


def test_whoever_has_nothing_before_him_is_live() -> None:
    clients = ClientTable()
    assert state(reads(clients, 1000, 0.0), ring(), 0.0) is ClientState.LIVE
    assert state(reads(clients, 996, 0.0), ring(), 0.0) is ClientState.LIVE
    assert state(reads(clients, 990, 0.0), ring(), 0.0) is ClientState.BEHIND


def test_whoever_is_after_the_newest_window_is_ahead_and_its_lag_is_unknown() -> None:
    clients = ClientTable()
    assert state(reads(clients, None, 0.0, scn=1000), ring(), 0.0) is ClientState.LIVE
    client = reads(clients, None, 0.0, scn=1001)
    view = client_view(client, {"shop": ring()}, lambda _key: ["shop.person"], 0.0, 5000.0)
    assert view.state is ClientState.AHEAD
    (position,) = view.positions
    assert (position.is_ahead, position.behind_s, position.edge_share) == (True, None, None)


def test_near_the_edge_of_the_ring_a_client_is_falling() -> None:
    clients = ClientTable()
    client = reads(clients, 751, 0.0)
    assert state(client, ring(1500), 0.0) is ClientState.BEHIND  # 749 behind, 251 before the edge
    assert state(client, ring(1502), 0.0) is ClientState.FALLING


def test_at_the_rates_of_now_a_client_falls_in_so_many_seconds() -> None:
    clients = ClientTable()
    for second in range(5):
        client = reads(clients, 300 + 2 * second, float(second))
        clients.tick(float(second))
    now = ring(tail=800, rate=7.0)
    view = client_view(client, {"shop": now}, lambda _key: [], 4.0, 5000.0)
    (place,) = view.positions
    assert place.behind_bytes == 492
    assert place.falls_in_s == pytest.approx(508 / (7.0 - 2.0))
    assert view.state is ClientState.BEHIND
    assert state(client, ring(tail=800, rate=20.0), 5.0) is ClientState.FALLING


def test_a_client_whose_place_was_overwritten_has_no_distance_left() -> None:
    clients = ClientTable()
    client = reads(clients, 10, 0.0)
    view = client_view(client, {"shop": ring(2000, head=1000)}, lambda _key: [], 0.0, 0.0)
    assert view.positions[0].edge_share == 0.0
    assert view.positions[0].behind_bytes is None
    assert view.state is ClientState.FALLING


def test_whoever_was_answered_scn_not_found_has_fallen_until_he_reads_again() -> None:
    clients = ClientTable()
    client = reads(clients, 10, 0.0)
    client.streams[KEY].is_gone = True
    assert state(client, ring(), 0.0) is ClientState.FALLEN
    reads(clients, 1000, 1.0)
    assert state(client, ring(), 1.0) is ClientState.LIVE


def test_a_client_that_says_so_is_bootstrapping_whatever_it_was_answered() -> None:
    clients = ClientTable()
    client = reads(clients, 10, 0.0)
    client.streams[KEY].is_gone = True
    clients.reported(ANN, report("snapshot"), 1.0)
    assert state(client, ring(), 1.0) is ClientState.BOOTSTRAPPING
    assert state(client, ring(), 40.0) is ClientState.SILENT
    clients.reported(ANN, report("online"), 41.0)
    reads(clients, 1000, 41.0)
    assert state(client, ring(), 41.0) is ClientState.LIVE


def test_a_client_is_silent_when_not_heard_of_but_not_while_a_request_of_it_is_held() -> None:
    clients = ClientTable()
    client = reads(clients, 1000, 0.0)
    assert state(client, ring(), 29.0) is ClientState.LIVE
    assert state(client, ring(), 30.0) is ClientState.SILENT
    clients.begin(ANN, 31.0)
    assert state(client, ring(), 90.0) is ClientState.LIVE
    clients.end(client, 95.0)
    assert state(client, ring(), 120.0) is ClientState.LIVE
    assert state(client, ring(), 126.0) is ClientState.SILENT


def test_of_several_streams_the_one_that_is_furthest_behind_counts() -> None:
    clients = ClientTable()
    client = reads(clients, 1000, 0.0)
    other = client.stream(StreamKey("shop", frozenset({1}), ""), 0.0)
    other.scn, other.position = 3, 900
    assert state(client, ring(), 0.0) is ClientState.BEHIND
    reads(clients, 1000, 200.0)  # the other one was not asked for in a long time
    assert state(client, ring(), 200.0) is ClientState.LIVE


def test_the_view_has_what_was_counted() -> None:
    clients = ClientTable()
    for second in range(3):
        clients.tick(float(second))
        client = reads(clients, 1000, float(second), scn=7)
    clients.failed(client, 2.0, "no")
    clients.reported(ANN, report(), 2.5)
    view = client_view(client, {"shop": ring()}, lambda _key: ["shop.person"], 3.0, 5003.0)
    assert (view.requests, view.served_bytes, view.name) == (3, 300, "Ann's")
    assert (view.first_seen_at, view.last_seen_at) == (5000.0, 5002.5)
    assert (view.last_error, view.last_error_at) == ("no", 5002.0)
    assert (view.sources, view.positions[0].scn) == (["shop.person"], 7)
    assert view.bytes_per_s == pytest.approx((300 - 100) / 2)


def test_who_was_silent_for_an_hour_is_forgotten() -> None:
    clients = ClientTable()
    reads(clients, 1000, 0.0)
    clients.tick(FORGOTTEN_AFTER_S)
    assert len(clients) == 1
    clients.tick(FORGOTTEN_AFTER_S + 1)
    assert len(clients) == 0


def test_there_are_never_more_clients_or_streams_than_so_many() -> None:
    clients = ClientTable()
    for number in range(MOST_CLIENTS + 10):
        caller = Caller(f"c{number}", "10.0.0.1", "")
        clients.end(clients.begin(caller, float(number)), float(number))
    assert len(clients) == MOST_CLIENTS
    assert clients.get("c9") is None
    assert clients.get("c10") is not None
    client = reads(clients, 1, 5000.0)
    for number in range(MOST_STREAMS + 10):
        client.stream(StreamKey("shop", frozenset({number}), ""), 5000.0)
    assert len(client.streams) == MOST_STREAMS


def test_a_drain_waits_for_those_who_are_not_there_yet() -> None:
    clients = ClientTable()
    reads(clients, 500, 0.0, scn=5)
    assert clients.waiting_for("shop", 9, 900, 1.0) == ["ann"]
    assert clients.waiting_for("other", 9, 900, 1.0) == []
    assert clients.waiting_for("shop", 9, 900, 31.0) == [], "nobody waits for who is silent"
    client = reads(clients, 500, 40.0, scn=9)
    client.streams[KEY].is_inside = True
    assert clients.waiting_for("shop", 9, 900, 41.0) == ["ann"], "it has a part of the window"
    reads(clients, 900, 42.0, scn=8)
    assert clients.waiting_for("shop", 9, 900, 42.0) == []


def view_of(client: Client, mark: RingMark, now_s: float) -> ClientView:
    return client_view(client, {"shop": mark}, lambda _key: [], now_s, 5000.0)


def test_a_client_that_reports_is_where_its_checkpoint_is_whatever_it_asked_for() -> None:
    clients = ClientTable()
    client = tells(reads(clients, 1000, 0.0, scn=9), clients, 0.0, position=900)
    view = view_of(client, ring(), 0.0)
    (place,) = view.positions
    assert (place.by, place.scn, place.behind_bytes, place.behind_s) == ("kept", 4, 100, 100.0)
    assert view.state is ClientState.BEHIND
    assert clients.waiting_for("shop", 1000, 1000, 0.0) == ["Ann's"], "it has not consumed it"
    assert state(client, ring(1700), 0.0) is ClientState.FALLING
    tells(client, clients, 1.0, position=1000)
    assert state(client, ring(), 1.0) is ClientState.LIVE
    assert clients.waiting_for("shop", 1000, 1000, 1.0) == []


def test_a_stuck_client_falls_at_the_rate_of_the_writer_although_it_reads_on() -> None:
    clients = ClientTable()
    client = reads(clients, 500, 0.0)
    for second in range(5):
        reads(clients, 500 + 50 * second, float(second))
        tells(client, clients, float(second), position=500)
        clients.tick(float(second))
    view = view_of(client, ring(tail=700, rate=50.0), 5.0)
    assert view.positions[0].falls_in_s == pytest.approx(800 / 50)
    assert view.state is ClientState.FALLING


def test_a_client_whose_checkpoint_was_overwritten_has_fallen_while_it_lives_on_its_buffer() -> (
    None
):
    clients = ClientTable()
    client = tells(reads(clients, 1000, 0.0), clients, 0.0, is_gone=True)
    view = view_of(client, ring(), 0.0)
    (place,) = view.positions
    assert (place.is_gone, place.edge_share, place.behind_s) == (True, 0.0, None)
    assert view.state is ClientState.FALLEN
    assert clients.waiting_for("shop", 1000, 1000, 0.0) == ["Ann's"]


def test_without_a_report_the_place_is_what_was_asked_for_and_is_said_to_be_that() -> None:
    clients = ClientTable()
    (place,) = view_of(reads(clients, 1000, 0.0), ring(), 0.0).positions
    assert (place.by, place.is_gone) == ("asked", False)


def test_a_report_counts_for_three_intervals_and_half_a_minute_at_least() -> None:
    clients = ClientTable()
    client = tells(reads(clients, 1000, 0.0), clients, 0.0, position=900)
    assert client.has_fresh_report(29.0)
    assert not client.has_fresh_report(30.0)
    tells(client, clients, 0.0, position=900, report=report(every_s=60.0))
    assert client.has_fresh_report(179.0)
    assert not client.has_fresh_report(180.0)


def test_who_asks_on_without_reporting_is_where_he_asks_once_his_report_is_old() -> None:
    clients = ClientTable()
    client = tells(reads(clients, 1000, 0.0), clients, 0.0, position=200)
    reads(clients, 1000, 29.0)
    assert state(client, ring(), 29.0) is ClientState.FALLING
    reads(clients, 1000, 31.0)
    (place,) = view_of(client, ring(), 31.0).positions
    assert (place.by, place.edge_share) == ("asked", 1.0)
    assert state(client, ring(), 31.0) is ClientState.LIVE


def test_of_a_client_gone_silent_the_last_place_stands_and_its_lag_is_not_known() -> None:
    clients = ClientTable()
    client = tells(reads(clients, 1000, 0.0), clients, 5.0, position=900)
    view = view_of(client, ring(1500), 100.0)
    (place,) = view.positions
    assert view.state is ClientState.SILENT
    assert (place.by, place.edge_share, place.behind_s) == ("kept", 0.4, None)


def test_what_came_since_the_last_report_makes_nobody_late() -> None:
    clients = ClientTable()
    seldom = report(every_s=20.0)
    client = tells(reads(clients, 1010, 9.0), clients, 0.0, position=1000, report=seldom)
    assert state(client, ring(1010), 9.0) is ClientState.LIVE
    assert state(client, ring(1015), 9.0) is ClientState.BEHIND


@pytest.mark.parametrize("halt", ["paused", "suspended"])
def test_who_stands_still_says_so_unless_it_is_worse_than_that(halt: str) -> None:
    clients = ClientTable()
    stands = report(state=halt)
    client = tells(reads(clients, 1000, 0.0), clients, 0.0, position=1000, report=stands)
    assert state(client, ring(), 0.0) is ClientState(halt)
    assert state(client, ring(1900), 0.0) is ClientState.FALLING
    bootstrapping = report("snapshot", state=halt)
    tells(client, clients, 0.0, position=1000, report=bootstrapping)
    assert state(client, ring(), 0.0) is ClientState(halt)


def test_a_ring_that_was_emptied_has_nobodys_place() -> None:
    clients = ClientTable()
    client = tells(reads(clients, 1000, 0.0), clients, 0.0, position=900)
    clients.forget_positions("shop")
    assert client.kept[KEPT].position is None
    assert view_of(client, ring(), 0.0).positions[0].edge_share is None


def test_a_stream_comes_back_for_its_last_answer_at_most_once_a_second() -> None:
    stream = Stream(read_from=100, read_until=200)
    assert [stream.comes_back(position, 0.0) for position in (99, 200)] == [False, False]
    asked_s = (0.0, 0.0, 0.9, 1.0, 1.5, 60.0)
    found = [now_s for now_s in asked_s if stream.comes_back(100, now_s)]
    assert found == [0.0, 1.0, 60.0]


def test_a_client_that_says_goodbye_is_stopped_and_no_longer_falling() -> None:
    clients = ClientTable()
    client = tells(reads(clients, 0, 1.0), clients, 1.0, position=10)
    assert state(client, ring(1000), 2.0) is ClientState.FALLING
    tells(client, clients, 3.0, report=report(state="shut_down"), position=10)
    view = client_view(client, {"shop": ring(1000)}, lambda _key: ["shop.person"], 3.0, 5000.0)
    assert (view.state, view.positions[0].behind_s) == (ClientState.STOPPED, None)
    assert state(client, ring(5000, head=4000), 3000.0) is ClientState.STOPPED
    assert len(clients) == 1, "it may come back, and goes on from its checkpoint"


def test_a_client_without_checkpoints_is_forgotten_when_it_ends() -> None:
    clients = ClientTable()
    reads(clients, 0, 1.0)
    clients.reported(ANN, report(state="shut_down", keeps_checkpoints=False), 2.0)
    assert len(clients) == 0


def test_a_client_without_checkpoints_that_is_killed_is_forgotten_after_half_a_minute() -> None:
    clients = ClientTable()
    tells(reads(clients, 0, 1.0), clients, 1.0, report=report(keeps_checkpoints=False))
    clients.tick(1.0 + SILENT_AFTER_S)
    assert len(clients) == 1
    clients.tick(1.1 + SILENT_AFTER_S)
    assert len(clients) == 0
