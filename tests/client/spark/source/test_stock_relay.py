"""Queries of a stock Databus relay: every row once, whatever the relay does; without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from databus.client.spark.options import parse_options
from databus.client.spark.planning.offsets import STOCK_RELAY
from databus.client.spark.planning.ranges import LogRange, range_to_text
from databus.client.spark.source.changes_between import ranges_of_changes
from databus.client.spark.verify.stream_changes import StreamChanges
from databus.schemas.errors import (
    CheckpointError,
    DatabusError,
    NoAnswerError,
    SchemaNotFoundError,
    ScnNotFoundError,
    SettingsError,
)
from databus.schemas.filters import ModFilter, RangeFilter
from tests.client.spark.source.queries import Query
from tests.promises.running import RunningRelay, Shop, running
from tests.promises.stock_databus.recordings import (
    CODE,
    PERSON,
    expected_rows,
    recorded,
    recording,
    row_of_record,
)
from tests.promises.stock_databus.stock_ends import ENDS
from tests.promises.stock_databus.stock_events import cut_events
from tests.promises.stock_databus.stock_relay import Act, Connection, StockRelay

EVENT_VERSIONS = pytest.mark.parametrize("stream", ["v1.stream.bin", "v2.stream.bin"])
SCNS = [e.scn for e, _ in cut_events(recording().streams[2]) if e.is_end_of_period]
MOD = {"partitionType": "MOD", "filters": [{"numBuckets": 3, "bktRange": {"start": 0, "end": 2}}]}
RANGE = {"partitionType": "RANGE", "filters": [{"keyRange": {"start": 20, "end": 60}}]}


@pytest.fixture
def relay() -> Iterator[StockRelay]:
    with StockRelay(recording()) as relay:
        yield relay


@pytest.fixture
def open_query(relay: StockRelay) -> Iterator[Callable[..., Query]]:
    with ExitStack() as opened:

        def open_(**options: str) -> Query:
            given = {"relays": relay.url, "sources": f"{PERSON},{CODE}", "layout": "structs"}
            query = Query(**{**given, "start": "earliest", "maxRowsPerTrigger": "20", **options})
            opened.callback(query.close)
            return query

        yield open_


def serves(relay: StockRelay, stream: str) -> None:
    """Make the relay one that holds events of one version, whatever is asked for."""
    held = recorded(stream)
    relay.recording = replace(relay.recording, streams={0: held, 2: held})


def rows_of(query: Query) -> list[dict[str, Any]]:
    return [row_of_record(record) for records in query.batches() for record in records]


@EVENT_VERSIONS
@pytest.mark.parametrize("fetch_bytes", ["4096", "4194304"])
def test_every_row_comes_once_and_in_order(
    relay: StockRelay, open_query: Callable[..., Query], stream: str, fetch_bytes: str
) -> None:
    serves(relay, stream)
    assert rows_of(open_query(fetchBytes=fetch_bytes)) == expected_rows()


@EVENT_VERSIONS
@pytest.mark.parametrize(
    ("wanted", "rule"),
    [(MOD, ModFilter(3, 0, 2)), (RANGE, RangeFilter(20, 60))],
    ids=["mod", "range"],
)
def test_the_relay_filters(
    relay: StockRelay,
    open_query: Callable[..., Query],
    stream: str,
    wanted: dict[str, Any],
    rule: ModFilter | RangeFilter,
) -> None:
    serves(relay, stream)
    query = open_query(sources=PERSON, filters=json.dumps({PERSON: wanted}))
    expected = [r for r in expected_rows() if r["src"] == PERSON and rule.matches(r["key"])]
    assert 0 < len(expected) < 172
    assert rows_of(query) == expected


def whole(to: Connection, body: bytes) -> bool:
    to.send_body(body)
    return True


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_an_answer_that_ends_early_is_asked_for_again_and_nothing_is_logged(
    relay: StockRelay, open_query: Callable[..., Query], end: Act, caplog: pytest.LogCaptureFixture
) -> None:
    # For the planner and for the first tasks.
    relay.script += [end, end, whole, end, end]
    with caplog.at_level(logging.INFO):
        assert rows_of(open_query()) == expected_rows()
    assert caplog.records == []
    assert not relay.script


def test_a_batch_that_was_planned_is_read_again_exactly_after_a_restart(
    open_query: Callable[..., Query],
) -> None:
    query = open_query()
    before = [query.wait_for_batch(), query.wait_for_batch()][1]
    query.restart()
    assert query.read(query.planned()) == before
    rest = rows_of(query)
    assert [row_of_record(record) for record in before] + rest == expected_rows()[
        -len(rest) - len(before) :
    ]


def test_tasks_read_their_windows_and_nothing_behind_them(
    open_query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("databus.client.spark.planning.partitions.LEAST_TASK_ROWS", 10)
    query = open_query(maxRowsPerTrigger="1000", shards="4")
    ranges = query.plan() or []
    assert len(ranges) >= 4
    for one in ranges:
        planned = json.loads(one)
        scns = {record["_databus"]["scn"] for record in query.read([one])}
        assert scns
        assert all(planned["from_scn"] < scn <= planned["to_scn"] for scn in scns)
    assert [row_of_record(r) for r in query.read(ranges)] == expected_rows()


def test_records_say_what_such_a_relay_tells(open_query: Callable[..., Query]) -> None:
    first = [r["_databus"] for r in open_query().wait_for_batch()]
    assert {(one["physical_source"], one["gtid"], one["op"]) for one in first} == {
        (STOCK_RELAY, None, "update"),
        (STOCK_RELAY, None, "delete"),
    }
    assert [one["index"] for one in first if one["scn"] == SCNS[0]] == [0, 1, 2]


def test_windows_that_are_gone_when_a_task_reads_them_are_an_error_that_names_them(
    relay: StockRelay, open_query: Callable[..., Query]
) -> None:
    query = open_query()
    ranges = query.plan() or []
    relay.gone_scn = SCNS[20]
    with pytest.raises(SettingsError, match=rf"from scn {SCNS[0] - 1} .*no relay holds") as refused:
        query.read(ranges)
    assert isinstance(refused.value.__cause__, ScnNotFoundError)


def test_a_query_that_slept_past_the_buffer_is_an_error_and_not_a_gap(
    relay: StockRelay, open_query: Callable[..., Query]
) -> None:
    query = open_query()
    query.wait_for_batch()
    query.restart()
    relay.gone_scn = SCNS[40]
    with pytest.raises(SettingsError, match="no relay holds the windows after"):
        query.plan()


def test_a_relay_that_lacks_the_end_of_a_batch_is_named(
    relay: StockRelay, open_query: Callable[..., Query]
) -> None:
    query = open_query(retrySeconds="0")
    other = LogRange(STOCK_RELAY, (PERSON, CODE), SCNS[0], SCNS[-1] + 5)
    with pytest.raises(NoAnswerError, match=rf"{relay.url}.*nothing after scn {SCNS[-1]}"):
        query.read([range_to_text(other)])
    gap = next(scn for scn in range(SCNS[0], SCNS[-1]) if scn not in SCNS)
    with pytest.raises(DatabusError, match=rf"{relay.url}.*no window of scn {gap}, up to which"):
        query.read([range_to_text(replace(other, to_scn=gap))])


def test_a_schema_that_is_never_listed_is_an_error_that_names_it(
    relay: StockRelay, open_query: Callable[..., Query]
) -> None:
    register = relay.recording.register.replace(b"Code_V1", b"Code_V0")
    relay.recording = replace(relay.recording, register=register)
    query = open_query()
    ranges = query.plan() or []
    with pytest.raises(SchemaNotFoundError, match=rf"{relay.url} sends rows of source id 102 with"):
        query.read(ranges)
    assert relay.paths().count("/register") < 5


def test_a_task_waits_for_a_relay_that_is_behind(
    relay: StockRelay, open_query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = open_query()
    ranges = query.plan() or []
    relay.held_scn = 0

    def hold(_: float) -> None:
        relay.held_scn = SCNS[-1]

    monkeypatch.setattr("databus.client.spark.source.stock_reader.time.sleep", hold)
    assert query.read(ranges)
    assert relay.held_scn == SCNS[-1]


def test_changes_between_two_scns(relay: StockRelay, open_query: Callable[..., Query]) -> None:
    query = open_query()
    given = {"relays": relay.url, "sources": PERSON, "retrySeconds": "1"}
    for until, last in (({"until": str(SCNS[30])}, SCNS[30]), ({}, SCNS[-1])):
        ranges = ranges_of_changes({**given, "after": str(SCNS[10]), **until})
        rows = [row_of_record(record) for record in query.read(ranges)]
        assert rows == [
            row for row in expected_rows() if row["src"] == PERSON and SCNS[10] < row["scn"] <= last
        ]
    assert parse_options(given).bootstrap_servers == ()


def test_a_comparison_with_a_database_names_the_relays_physical_source(relay: StockRelay) -> None:
    shape: Any = SimpleNamespace(source=PERSON)
    spark: Any = None
    changes = StreamChanges(spark, shape, "shop", [relay.url])
    with pytest.raises(SettingsError, match=r"Person in physical source shop, but in \*: name"):
        changes.between(0, 5, [])


def test_a_checkpoint_of_the_one_project_is_refused_by_a_relay_of_the_other(
    relay: StockRelay, open_query: Callable[..., Query], tmp_path: Any
) -> None:
    shop = Shop(tmp_path / "shop.db")
    place = shop.settings() | {"sources": [{"name": PERSON, "table": "orders"}]}
    try:
        with running(RunningRelay(tmp_path, place).start()) as ours:
            shop.insert(1)
            ours.wait_for_scn(1)
            stock = open_query(sources=PERSON, layout="columns")
            other = open_query(sources=PERSON, layout="columns", relays=ours.url)
            assert stock.wait_for_batch()
            assert other.wait_for_batch()
            stock.options["relays"], other.options["relays"] = ours.url, relay.url
            for query, problem in ((stock, "is of a LinkedIn relay"), (other, "shop, but reads a")):
                query.restart()
                with pytest.raises(CheckpointError, match=problem):
                    query.plan()
                with pytest.raises(CheckpointError, match=problem):
                    query.planned()
    finally:
        shop.close()
