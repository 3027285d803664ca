"""A checkpoint is resumed on the log that it was made of, and on no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from databus.relay.serving.ptubes.places import NO_UUID
from databus.relay.serving.ptubes.rows.java_hashes import partition_id
from databus.relay.sources.source import Transaction
from tests.relay.fakes import ORDERS, ServedRelay, insert, transaction
from tests.relay.serving.ptubes.stock import Sent, StockClient, serve_ptubes

HEARTBEAT = 17
LATER_S = 1000
PERSON = ("shop.person",)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedRelay]]:
    opened: list[ServedRelay] = []

    def make(*windows: Transaction) -> ServedRelay:
        folder = tmp_path / str(len(opened))
        opened.append(serve_ptubes(folder, ptubes={"heartbeat_s": 0.05}))
        opened[-1].put(*windows)
        return opened[-1]

    yield make
    for relay in opened:
        relay.close()


def rows(scn: int, time_s: int | None = None, table: Any = None) -> Transaction:
    changes = (insert(scn * 10),) if table is None else (insert(scn * 10, "n", table),)
    window = transaction(scn, *changes)
    return window if time_s is None else replace(window, timestamp_ns=time_s * 10**9)


def places(relay: ServedRelay, count: int, tables: Sequence[str] = PERSON) -> list[dict[str, Any]]:
    """Return the places of rows, ends of transactions and a heartbeat, each of them once."""
    found: list[dict[str, Any]] = []
    with StockClient(relay) as client:
        asked = {"partitions": 1, "commits": True, "tables": tables}
        assert client.subscribe(**asked) == "success"
        found += [event.checkpoint for event in client.fetch_rows(count)]
        last = client.fetch(wait_ms=300)
        while HEARTBEAT not in [event.event_type for event in last.events]:
            last = client.fetch(wait_ms=300)
        return [*found, last.latest]


def refusal(relay: ServedRelay, place: dict[str, Any]) -> str:
    """Return why a place is refused; "" if it is not."""
    asked: dict[str, Any] = {"partitions": 1, "tables": PERSON, "checkpoint": place}
    with StockClient(relay) as client:
        answer = client.server_info(**asked)
    with StockClient(relay) as client:
        is_served = client.subscribe(**asked) == "success"
        text = "" if is_served else client.headers["x-databus-error-message"]
    assert (answer["serverStatus"] == "AVAILABLE") is is_served
    assert answer.get("errorMessage", "") == text
    return text


def served(relay: ServedRelay, place: dict[str, Any], count: int) -> list[int]:
    with StockClient(relay) as client:
        asked = {"partitions": 1, "tables": PERSON, "checkpoint": place}
        assert client.subscribe(**asked) == "success", client.headers
        return [int(one.after["id"] or 0) for one in client.fetch_rows(count)]


Serve = Callable[..., ServedRelay]


def test_each_place_goes_on_at_a_relay_of_the_same_log(serve: Serve) -> None:
    log = [rows(2), transaction(3), rows(4, 9), rows(5, 7), rows(6, table=ORDERS)]
    found = places(serve(*log), 6)
    # The other one has other empty windows.
    other = serve(transaction(1), log[0], log[2], log[3], log[4], transaction(7))
    for place in found:
        assert refusal(other, place) == "", place
        assert refusal(other, place | {"uuid": NO_UUID, "transactionId": 0}) == "", place


def test_no_place_goes_on_at_another_log_that_has_its_windows_by_chance(serve: Serve) -> None:
    found = places(serve(rows(2), rows(4), rows(6)), 6)
    other = serve(*(rows(scn, scn + LATER_S) for scn in (2, 4, 6, 8)))
    for place in found:
        text = refusal(other, place)
        assert "another log" in text
        assert "EARLIEST" in text


def test_no_place_goes_on_at_another_log_with_other_windows(serve: Serve) -> None:
    found = places(serve(rows(2), rows(4), rows(6)), 6)
    # Also one that is older, as a database that was restored has.
    for shift_s in (-1, LATER_S):
        other = serve(rows(1), *(rows(scn, scn + shift_s) for scn in (3, 5, 7, 9)))
        for place in found:
            assert "another log" in refusal(other, place)


def test_a_place_ahead_says_so_and_is_not_available_later(serve: Serve) -> None:
    found = places(serve(rows(20), rows(40)), 4)
    other = serve(rows(1, LATER_S))
    for place in found:
        text = refusal(other, place)
        assert "not reached yet" in text
        assert "another log" in text
        assert "EARLIEST" in text
    other.put(rows(30, LATER_S), rows(50, LATER_S), rows(60, LATER_S))
    for place in found:
        assert "another log" in refusal(other, place)


def test_what_proves_nothing_loses_nothing_on_another_log(serve: Serve) -> None:
    *_, last = places(serve(rows(20), rows(40)), 4)
    unproved = last | {"uuid": NO_UUID, "transactionId": 0}
    other = serve(rows(1, 1), *(rows(scn, LATER_S) for scn in (2, 30, 50)))
    assert served(other, unproved, 3) == [20, 300, 500]
    # Where nothing that is held is as old as the place, some of the log may be missing.
    late = serve(transaction(7, insert(1)), *(rows(scn, LATER_S) for scn in (30, 50)))
    early = unproved | {"timestamp": 2000}
    assert "another log" in refusal(late, early)


def test_a_client_of_an_idle_table_loses_nothing_on_another_log(serve: Serve) -> None:
    relay = serve(rows(1, table=ORDERS), rows(2, table=ORDERS))
    with StockClient(relay) as client:
        latest = {"checkpointMode": "LATEST"}
        assert client.subscribe(partitions=1, tables=PERSON, checkpoint=latest) == "success"
        while not (place := client.fetch(wait_ms=300).latest):
            pass
        assert place["uuid"] == NO_UUID
        relay.put(rows(30, table=ORDERS), rows(31, table=ORDERS))
        while place["binlogOffset"] < 31:
            place = client.fetch(wait_ms=300).latest or place
    assert place["timestamp"] == 31_000  # that of the window there: nothing makes it doubtful
    assert refusal(relay, place) == ""
    other = serve(rows(1, 1), rows(2, LATER_S), rows(30, LATER_S), rows(40, LATER_S))
    assert served(other, place, 3) == [20, 300, 400]


def test_old_rows_are_known_by_their_time(serve: Serve) -> None:
    first, *_ = places(serve(rows(2), rows(4)), 4)
    old = first | {"uuid": NO_UUID, "transactionId": 17}
    assert refusal(serve(rows(2), rows(4)), old) == ""
    assert refusal(serve(rows(2, 1), rows(4)), old) == ""  # its time is the newest up to there
    assert "another log" in refusal(serve(rows(2, 3), rows(4)), old)
    assert "another log" in refusal(serve(rows(1), rows(3), rows(4)), old)


def test_rows_of_unowned_partitions_are_marks_too(serve: Serve) -> None:
    relay = serve(rows(2), rows(4))
    own = {partition_id(key) % 11 for key in (20, 40)}
    with StockClient(relay) as client:
        assert client.subscribe(owned=sorted({*range(11)} - own)[:1], tables=PERSON) == "success"
        found: list[Sent] = []
        while not found:
            found = client.fetch(wait_ms=300).events
    assert [one.event_type for one in found] == [HEARTBEAT]
    place = found[0].checkpoint
    assert place["uuid"] != NO_UUID
    assert "another log" in refusal(serve(rows(2), rows(4, LATER_S)), place)
