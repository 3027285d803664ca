"""Batches of a stock Databus relay: planned by reading it, and never taken for another's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from databus.client.spark.options import parse_options
from databus.client.spark.planning.measure_client import MeasureClient
from databus.client.spark.planning.offsets import STOCK_RELAY, AtScn, Group, Place, check_physical
from databus.client.spark.planning.partitions import PartitionPlanner
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import LogRange, range_from_text, range_to_text
from databus.client.spark.planning.server_pool import MAX_ANSWER_BYTES, Answer, ServerPool
from databus.client.spark.planning.stock_stream import StockStream
from databus.schemas.errors import (
    CheckpointError,
    DatabusError,
    InvalidParameterError,
    ScnNotFoundError,
    ServerError,
    SettingsError,
    UnknownCommandError,
    UnknownSourceError,
)
from tests.client.spark.planning.fake_servers import FakeRelay, answer, refusal
from tests.promises.stock_databus.recordings import CODE, PERSON, expected_rows, recording
from tests.promises.stock_databus.stock_events import cut_events
from tests.promises.stock_databus.stock_relay import Connection, StockRelay

SCNS = [e.scn for e, _ in cut_events(recording().streams[2]) if e.is_end_of_period]
OLDEST, NEWEST = SCNS[0], SCNS[-1]


@pytest.fixture
def relay() -> Iterator[StockRelay]:
    with StockRelay(recording()) as relay:
        yield relay


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Query:
    """The planners of one query."""

    def __init__(self, opened: ExitStack, relays: str, **given: str) -> None:
        options = parse_options(
            {"sources": f"{PERSON},{CODE}", "relays": relays, "retrySeconds": "0", **given}
        )
        pool = ServerPool(options.relays, options.retry_seconds)
        self.client = MeasureClient(options, pool, None)
        opened.callback(self.client.close)
        self.planner = Planner(self.client, options.start)
        self.tasks = PartitionPlanner(self.client, options.shards)

    def step(self, place: Place | None, rows: int | None = 10, target: int | None = None) -> Any:
        """Return the end of the next batch."""
        places = {} if place is None else {STOCK_RELAY: place}
        targets = None if target is None else {STOCK_RELAY: target}
        return self.planner.next_places(places, rows, targets).get(STOCK_RELAY)

    def walk(self, rows: int, place: Place | None = None) -> list[Any]:
        """Return the ends of all batches."""
        found: list[Any] = []
        while (further := self.step(place, rows)) != place:
            found.append(further)
            place = further
        return found


def rows_between(after: int, until: int) -> int:
    return sum(after < row["scn"] <= until for row in expected_rows())


@pytest.mark.parametrize("fetch_bytes", ["4096", "1000000"])
def test_batches_end_at_windows_and_have_at_most_so_many_rows(
    relay: StockRelay, opened: ExitStack, fetch_bytes: str
) -> None:
    query = Query(opened, relay.url, start="earliest", fetchBytes=fetch_bytes)
    ends = query.walk(20)
    assert ends[0].from_scn == OLDEST - 1
    assert ends[-1].scn == NEWEST
    assert {end.scn for end in ends} <= set(SCNS)
    for after, until in pairwise([OLDEST - 1, *(end.scn for end in ends)]):
        windows = {row["scn"] for row in expected_rows() if after < row["scn"] <= until}
        assert rows_between(after, until) <= 20 or len(windows) == 1


def test_windows_that_were_read_once_are_not_read_again_to_plan(
    relay: StockRelay, opened: ExitStack
) -> None:
    assert len(Query(opened, relay.url, start="earliest").walk(20)) > 5
    # Everything at once; twice, that there is nothing more: for the last batch, and after it.
    assert relay.paths().count("/stream") == 3


def test_a_batch_is_shared_by_tasks_at_the_ends_of_windows(
    relay: StockRelay, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("databus.client.spark.planning.partitions.LEAST_TASK_ROWS", 10)
    query = Query(opened, relay.url, start="earliest", shards="4")
    end = query.step(None, None)
    before = len(relay.requests)
    ranges = query.tasks.planned_now(Group(STOCK_RELAY, (PERSON, CODE)), None, end)
    assert len(relay.requests) == before
    assert 4 <= len(ranges) <= 5
    scns = [ranges[0].from_scn, *(one.to_scn for one in ranges)]  # type: ignore[union-attr]
    assert (scns[0], scns[-1]) == (OLDEST - 1, NEWEST)
    assert set(scns[1:]) <= set(SCNS)
    assert all(rows_between(after, until) > 0 for after, until in pairwise(scns))
    assert [range_from_text(range_to_text(one)) for one in ranges] == ranges


def test_a_batch_that_was_planned_before_a_restart_is_not_read_to_plan_its_tasks(
    relay: StockRelay, opened: ExitStack
) -> None:
    place = AtScn(NEWEST, 0, from_scn=OLDEST - 1)
    ranges = Query(opened, relay.url).tasks.planned_before(
        Group(STOCK_RELAY, (PERSON, CODE)), None, place
    )
    assert ranges == [LogRange(STOCK_RELAY, (PERSON, CODE), OLDEST - 1, NEWEST)]
    assert "/stream" not in relay.paths()


def test_a_batch_has_at_most_so_many_bytes_or_one_window(
    relay: StockRelay, opened: ExitStack
) -> None:
    query = Query(opened, relay.url, start="earliest", maxBytesPerTrigger="2000")
    ends = query.walk(1000)
    assert ends[-1].scn == NEWEST
    size_bytes = sum(map(len, recording().streams.values())) // 2
    assert len(ends) >= size_bytes // 2000


def test_latest_begins_after_the_newest_window(relay: StockRelay, opened: ExitStack) -> None:
    relay.held_scn = SCNS[30]
    query = Query(opened, relay.url, start="latest")
    first = query.step(None)
    assert (first.scn, first.from_scn) == (SCNS[30], SCNS[30])
    assert query.step(first) == first
    relay.held_scn = NEWEST
    assert query.step(first, None).scn == NEWEST


def stream_of(relay: StockRelay, opened: ExitStack, fetch_bytes: int) -> StockStream:
    pool = ServerPool([relay.url], 0)
    opened.callback(pool.close)
    return StockStream(pool, {PERSON: 101, CODE: 102}, {}, fetch_bytes)


@pytest.mark.parametrize("fetch_bytes", [20, 300])
def test_a_window_that_does_not_fit_is_asked_for_with_more_room(
    relay: StockRelay, opened: ExitStack, fetch_bytes: int
) -> None:
    stream, scns = stream_of(relay, opened, fetch_bytes), [-1]
    while windows := stream.after(scns[-1]).windows:
        scns += [window.scn for window in windows]
    assert scns[1:] == SCNS


def test_a_newest_window_that_does_not_fit_is_known_by_its_rows(
    relay: StockRelay, opened: ExitStack
) -> None:
    largest = max(SCNS, key=lambda scn: rows_between(scn - 1, scn))
    relay.held_scn = largest
    newest = stream_of(relay, opened, 300).newest()
    assert newest == (largest, 0)


def test_an_event_that_no_answer_can_have_is_an_error(relay: StockRelay, opened: ExitStack) -> None:
    stream = stream_of(relay, opened, MAX_ANSWER_BYTES)

    def has_none(to: Connection, _body: bytes) -> bool:
        to.send_body(b"", x_dbus_pending_event_size=str(MAX_ANSWER_BYTES + 1))
        return True

    relay.script.append(has_none)
    with pytest.raises(ServerError, match="an event after scn 1002 does not come"):
        stream.after(1002)


def test_a_query_of_an_empty_relay_has_no_place_until_the_first_window_and_skips_none(
    relay: StockRelay, opened: ExitStack
) -> None:
    relay.held_scn = 0
    query = Query(opened, relay.url, start="latest")
    assert query.step(None) is None
    assert query.client.newest_scns() == {STOCK_RELAY: -1}
    assert query.step(None, target=-1) is None
    relay.held_scn = SCNS[5]
    first = query.step(None, None)
    assert (first.from_scn, first.scn) == (OLDEST - 1, SCNS[5])


def test_an_scn_is_a_start_and_a_target_is_not_passed(relay: StockRelay, opened: ExitStack) -> None:
    query = Query(opened, relay.url, start=str(SCNS[3]))
    first = query.step(None, None, target=SCNS[9])
    assert (first.from_scn, first.scn) == (SCNS[3], SCNS[9])
    assert query.step(first, None, target=SCNS[9]) == first
    assert query.client.newest_scns() == {STOCK_RELAY: NEWEST}
    assert query.client.newest[STOCK_RELAY].scn == NEWEST


@pytest.mark.parametrize("start", ["beginning", "2026-11-21T10:00:00Z"])
def test_a_start_that_such_a_relay_cannot_find_is_refused_with_those_that_it_can(
    relay: StockRelay, opened: ExitStack, start: str
) -> None:
    with pytest.raises(SettingsError, match=r"option start.*LinkedIn.*earliest, latest or an SCN"):
        Query(opened, relay.url, start=start).step(None)


def test_bootstrap_servers_are_refused(relay: StockRelay, opened: ExitStack) -> None:
    query = Query(opened, relay.url, start="latest", bootstrapServers="http://127.0.0.1:1")
    with pytest.raises(SettingsError, match=r"option bootstrapServers.*LinkedIn"):
        query.step(None)


def test_windows_that_were_evicted_are_an_error_with_a_way_on(
    relay: StockRelay, opened: ExitStack
) -> None:
    relay.gone_scn = SCNS[20]
    with pytest.raises(SettingsError, match=rf"after scn {SCNS[9]} any more.*folder") as refused:
        Query(opened, relay.url).step(AtScn(SCNS[9]))
    assert isinstance(refused.value.__cause__, ScnNotFoundError)
    assert "bootstrapServers" not in str(refused.value)


def test_a_source_that_the_relay_lacks_is_named_with_those_it_has(
    relay: StockRelay, opened: ExitStack
) -> None:
    query = Query(opened, relay.url, sources="com.example.shop.Order")
    with pytest.raises(UnknownSourceError, match=r"shop\.Order'.*shop\.Person"):
        query.step(None)


def test_filters_go_to_the_relay_and_rows_that_it_leaves_out_do_not_count(
    relay: StockRelay, opened: ExitStack
) -> None:
    key_range = {"keyRange": {"start": 20, "end": 60}}
    wanted = {PERSON: {"partitionType": "RANGE", "filters": [key_range]}}
    query = Query(opened, relay.url, start="earliest", sources=PERSON, filters=json.dumps(wanted))
    end = query.step(None, None)
    rows = [r for r in expected_rows() if r["src"] == PERSON and 20 <= r["key"] < 60]
    assert query.client.rows_until(Group(STOCK_RELAY, (PERSON,)), end.scn) == len(rows)
    asked = [parameters for path, parameters in relay.requests if path == "/stream"]
    assert all(parameters["sources"] == "101" for parameters in asked)
    assert all("101" in json.loads(parameters["filters"]) for parameters in asked)


# Which kind of relay it is


class Pool:
    """Relays of several kinds, which all answer `/physicalSources` as the first one does."""

    def __init__(self, *answers: Answer | DatabusError) -> None:
        self.urls = [f"http://{number}" for number in range(len(answers))]
        self._answers = answers

    def get(self, path: str, _parameters: Mapping[str, str], _scn: int = -1) -> Answer:
        assert path == "/physicalSources"
        return answer([{"uri": "jdbc:oracle", "role": "MASTER"}])

    def ask_each(self, path: str) -> list[tuple[str, Answer | DatabusError]]:
        assert path == "/measure"
        return list(zip(self.urls, self._answers, strict=True))


def client_of(pool: Any) -> MeasureClient:
    return MeasureClient(parse_options({"sources": PERSON, "relays": "http://0"}), pool, None)


def test_relays_of_both_kinds_are_refused_with_their_addresses() -> None:
    ours, stock = refusal(InvalidParameterError), refusal(UnknownCommandError)
    away = ServerError("http://2", "is away")
    with pytest.raises(SettingsError, match=r"http://1 is a LinkedIn relay and http://0 one of"):
        _ = client_of(Pool(ours, stock, away)).by_physical


@pytest.mark.parametrize("other", [refusal(InvalidParameterError), ServerError("x", "away")])
def test_a_relay_that_is_not_known_to_lack_the_command_is_none_of_linkedins(
    other: DatabusError,
) -> None:
    with pytest.raises(ServerError, match="/physicalSources is malformed"):
        _ = client_of(Pool(other)).by_physical


def test_a_relay_of_ours_is_asked_nothing_more() -> None:
    relay = FakeRelay()
    client = MeasureClient(
        parse_options({"sources": "shop.orders", "relays": "http://0"}),
        relay,  # type: ignore[arg-type]
        None,
    )
    assert client.by_physical == {"shop": ("shop.orders",)}
    assert [path for path, _ in relay.asked] == ["/physicalSources"]


@pytest.mark.parametrize(
    ("held", "known", "problem"),
    [
        (STOCK_RELAY, "shop", "is of a LinkedIn relay"),
        ("shop", STOCK_RELAY, "shop, but reads a LinkedIn relay"),
        ("shop", "store", "store: was it renamed?"),
    ],
)
def test_a_checkpoint_of_one_kind_of_relay_is_refused_by_the_other(
    held: str, known: str, problem: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"{problem}.*another checkpoint folder"):
        check_physical({held: AtScn(5)}, [known])
    check_physical({held: AtScn(5)}, [held])


def test_a_relay_that_becomes_one_of_ours_while_the_query_runs_is_refused(
    relay: StockRelay, opened: ExitStack
) -> None:
    def resumes(to: Connection, body: bytes) -> bool:
        to.send_body(body, x_databus_resume="5,-1")
        return True

    query = Query(opened, relay.url, start="earliest")
    relay.script.append(resumes)
    with pytest.raises(CheckpointError, match="relay of this project"):
        query.step(None)
