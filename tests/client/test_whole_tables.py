"""Emptied tables, DDL and rows that lack columns, through a real relay to a consumer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, DdlEvent, Op
from databus.relay.sources.source import RowChange, TableDefined, TableEmptied
from databus.schemas.event.event import DDL_SRC_ID
from databus.schemas.event.metadata import Notes
from databus.schemas.filters import ModFilter, RangeFilter
from databus.schemas.stream import _row_cutter as row_cutter, row_reader
from databus.schemas.stream.stream_reader import walk
from tests.client.shop import wait_until
from tests.relay.fakes import ORDERS, PERSON, ServedRelay, get, insert, transaction

BOTH = (PERSON.source, ORDERS.source)
ALTERED = TableDefined((PERSON.source,), "shop", "ALTER TABLE person ADD age INT")
ELSEWHERE = TableDefined((ORDERS.source,), "shop", "DROP TABLE orders")
LACKING = RowChange(
    PERSON,
    Op.UPDATE,
    {"id": 3},
    {"id": 3},
    notes=Notes((1,), (1,), {"name": "0000-00-00"}),
)


@pytest.fixture(autouse=True, scope="module", params=["compiled", "python"])
def take_rows(request: pytest.FixtureRequest) -> Iterator[None]:
    """Read once with the compiled decoder going ahead and once without it."""
    ahead = row_cutter.take_rows if request.param == "compiled" else None
    with patch.object(row_reader, "take_rows", ahead):
        yield


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[ServedRelay]:
    served = ServedRelay(tmp_path)
    served.put(transaction(1, insert(1), ALTERED, TableEmptied(PERSON, "why"), insert(2)))
    served.put(transaction(2, insert(9, "tea", ORDERS), ELSEWHERE))
    served.put(transaction(3, LACKING))
    served.put(transaction(4, ALTERED))
    served.put(transaction(5, insert(4)))
    yield served
    served.close()


class Recorder(Consumer):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_start_source(self, source: str) -> None:
        self.calls.append(source)

    def on_data_event(self, event: DataEvent) -> None:
        self.calls.append((event.op, event.wire_key, event.index))

    def on_checkpoint(self, scn: int) -> None:
        self.calls.append(scn)


class DdlRecorder(Recorder):
    """Wants DDL, too."""

    def on_ddl(self, event: DdlEvent) -> None:
        self.calls.append(event)


def consume(relay: ServedRelay, consumer: Recorder, *sources: str, **options: Any) -> list[Any]:
    client = DatabusClient([relay.url], checkpoint_every_s=0)
    client.register(consumer, sources, **options)
    with client:
        client.start()
        wait_until(lambda: 5 in consumer.calls)
    return consumer.calls


def test_ddl_reaches_the_consumer_that_overrides_its_callback_in_its_place(
    relay: ServedRelay,
) -> None:
    altered = DdlEvent((PERSON.source,), "shop", ALTERED.statement, 1, 1_000_000_000)
    dropped = DdlEvent((ORDERS.source,), "shop", ELSEWHERE.statement, 2, 2_000_000_000)
    assert consume(relay, DdlRecorder(), *BOTH) == [
        PERSON.source,
        (Op.INSERT, 1, 0),
        altered,
        PERSON.source,
        (Op.TRUNCATE, b"", 1),
        (Op.INSERT, 2, 2),
        1,
        ORDERS.source,
        (Op.INSERT, 9, 0),
        dropped,
        2,
        PERSON.source,
        (Op.UPDATE, 3, 0),
        3,
        altered._replace(scn=4, timestamp_ns=4_000_000_000),
        4,
        PERSON.source,
        (Op.INSERT, 4, 0),
        5,
    ]


def test_ddl_on_other_tables_than_the_registrations_is_left_out(relay: ServedRelay) -> None:
    calls = consume(relay, DdlRecorder(), ORDERS.source)
    assert [call.statement for call in calls if isinstance(call, DdlEvent)] == [ELSEWHERE.statement]


def test_without_the_callback_nothing_of_ddl_is_seen(relay: ServedRelay) -> None:
    assert consume(relay, Recorder(), PERSON.source) == [
        PERSON.source,
        (Op.INSERT, 1, 0),
        (Op.TRUNCATE, b"", 1),
        (Op.INSERT, 2, 2),
        1,
        2,
        PERSON.source,
        (Op.UPDATE, 3, 0),
        3,
        4,
        PERSON.source,
        (Op.INSERT, 4, 0),
        5,
    ]


@pytest.mark.parametrize("wanted", [ModFilter(2, 1, 2), RangeFilter(1, 2)])
def test_that_a_table_was_emptied_passes_every_filter(
    relay: ServedRelay, wanted: ModFilter | RangeFilter
) -> None:
    calls = consume(relay, Recorder(), PERSON.source, filters={PERSON.source: wanted})
    assert calls[:4] == [PERSON.source, (Op.INSERT, 1, 0), (Op.TRUNCATE, b"", 1), 1]


def read_events(relay: ServedRelay) -> list[DataEvent]:
    with DatabusClient([relay.url]) as client:
        found: list[DataEvent] = []
        for window in client.windows(*BOTH):
            found += window.events
            if window.scn == 5:
                return found
    return found


def test_an_event_about_a_whole_table_has_no_row_and_says_so(relay: ServedRelay) -> None:
    _, emptied, *_ = read_events(relay)
    assert (emptied.source, emptied.row, emptied.before) == (PERSON.source, {}, None)
    assert (emptied.is_truncate, emptied.is_delete, emptied.schema_version) == (True, True, 0)
    assert (emptied.absent, emptied.raw) == ((), {})
    assert emptied.metadata is not None
    assert (emptied.metadata.comment, emptied.metadata.row_index) == ("why", 1)
    assert "truncate" in repr(emptied)


def test_a_column_that_was_not_logged_is_no_key_of_the_row(relay: ServedRelay) -> None:
    plain, _, _, _, lacking, _ = read_events(relay)
    assert (lacking.row, lacking.before) == ({"id": 3}, {"id": 3})
    assert lacking.absent == ("name",)
    assert lacking.raw == {"name": "0000-00-00"}
    assert (plain.row, plain.absent, plain.raw) == ({"id": 1, "name": "x"}, (), {})
    assert not plain.is_truncate


def test_who_does_not_ask_for_ddl_does_not_get_it(relay: ServedRelay) -> None:
    def src_ids(**asked: Any) -> list[int]:
        return [event.src_id for event in walk(relay.stream(**asked).body)]

    asked = src_ids(ddl="true")
    assert asked == [1, DDL_SRC_ID, 1, 1, -2, 2, DDL_SRC_ID, -2, 1, -2, DDL_SRC_ID, -2, 1, -2]
    without = [src_id for src_id in asked if src_id != DDL_SRC_ID]
    assert src_ids() == src_ids(ddl="false") == src_ids(maxev=0) == without
    of_orders = src_ids(sources="shop.orders", ddl="true")
    assert of_orders == [DDL_SRC_ID, -2, 2, DDL_SRC_ID, -2, -2, DDL_SRC_ID, -2, -2]


EVERY_KEY = {"numBuckets": 2, "bktRange": {"start": 0, "end": 2}}
FILTERS = json.dumps({"1": {"partitionType": "MOD", "filters": [EVERY_KEY]}})


@pytest.mark.parametrize("asked", [{}, {"filters": FILTERS}], ids=["copied", "walked"])
def test_who_does_not_ask_for_truncates_does_not_get_them(
    relay: ServedRelay, asked: dict[str, str]
) -> None:
    every = list(walk(relay.stream(ddl="true", **asked).body))
    others = [event for event in every if event.is_control or event.payload is not None]
    assert len(others) < len(every)
    for ddl in ("true", "false"):
        found = list(walk(relay.stream(ddl=ddl, truncate="false", **asked).body))
        assert found == [event for event in others if ddl == "true" or not event.is_ddl]
    of_version_1 = list(walk(relay.stream(ddl="true", truncate="false", maxev=0, **asked).body))
    assert [event.scn for event in of_version_1] == [event.scn for event in others]


def test_this_projects_older_clients_get_truncates_though_they_do_not_ask(
    relay: ServedRelay,
) -> None:
    every = relay.stream().body
    target = "/stream?sources=1,2&size=100000&maxev=2"
    assert get(relay.url, target, {"User-Agent": "databus/0.1.0"}).body == every
    for agent in ("curl/8", "mydatabus/1", ""):
        body = get(relay.url, target, {"User-Agent": agent}).body
        assert body == relay.stream(truncate="false").body != every


def test_the_offset_in_a_window_counts_ddl_that_is_left_out(relay: ServedRelay) -> None:
    cut = '{"consumption_mode":"ONLINE_CONSUMPTION","windowScn":1,"windowOffset":2}'
    first, second, *_ = walk(relay.stream(checkPoint=cut).body)
    assert (first.key, second.key) == (b"", 2)


def lines_of(relay: ServedRelay, **asked: Any) -> list[dict[str, Any]]:
    answer = relay.stream(output="json_plain_value", ddl="true", **asked)
    return [json.loads(line) for line in answer.body.splitlines()]


def test_plain_json_leaves_absent_columns_out_and_has_no_row_for_a_whole_table(
    relay: ServedRelay,
) -> None:
    first, ddl, emptied, *rest = lines_of(relay)
    assert first["value"] == {"id": 1, "name": "x"}
    assert "notes" not in first["metadata"]
    assert json.loads(ddl["value"])["statement"] == ALTERED.statement
    assert (emptied["opcode"], emptied["keyBytes"], emptied["value"]) == ("DELETE", "", None)
    assert emptied["metadata"]["op"] == "truncate"
    (lacking,) = (line for line in rest if line.get("key") == 3)
    assert lacking["value"] == lacking["before"] == {"id": 3}
    assert lacking["metadata"]["notes"] == {
        "absent": [1],
        "before_absent": [1],
        "raw": {"name": "0000-00-00"},
        "before_raw": {},
    }


@pytest.mark.parametrize("fetch_bytes", [1024, 1100, 1300])
def test_a_window_that_is_cut_anywhere_comes_once_with_its_ddl(
    tmp_path: Path, fetch_bytes: int
) -> None:
    changes = [change for n in range(40) for change in (insert(n), ALTERED)]
    served = ServedRelay(tmp_path)
    try:
        served.put(transaction(1, *changes), transaction(5, insert(99)))
        consumer = DdlRecorder()
        client = DatabusClient([served.url], fetch_bytes=fetch_bytes)
        client.register(consumer, [PERSON.source])
        with client:
            client.start()
            wait_until(lambda: 5 in consumer.calls)
        seen = consumer.calls[: consumer.calls.index(1)]
        shown: Callable[[Any], bool] = lambda call: not isinstance(call, str)  # noqa: E731
        kinds = [isinstance(call, DdlEvent) for call in filter(shown, seen)]
        assert kinds == [False, True] * 40
    finally:
        served.close()
