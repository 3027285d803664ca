"""A sink writes the batches of a query: the same changes in the same order, and each once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from databus.client.sinks.contract import Change, Position
from databus.client.spark import register
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    SCHEMAS,
    arrow_schema,
    changes_schema,
    row_schema,
)
from databus.client.spark.consuming.sink_batch import sink_batch
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import SettingsError
from databus.testing.recorder import Recorder
from tests.client.sinks.changes import mysql_schema
from tests.client.sinks.serving.test_killed import archived
from tests.client.spark.changing_source import change
from tests.client.spark.source.stream_job import StreamJob
from tests.promises.running import RunningRelay, Shop, running

TYPES = {"price": "decimal(65,2)", "long": "time", "at": "timestamp", "bin": "blob"}
AT = datetime(2026, 11, 29, 1, 2, 3, tzinfo=UTC)
ROW = {
    "id": 1,
    "price": Decimal("1.50"),
    "long": timedelta(hours=30),
    "at": AT,
    "bin": b"\x00\xff",
}
IN_SPARK = {**ROW, "price": "1.50", "long": 30 * 3600 * 10**6}
ORDERS = mysql_schema("shop.orders", **TYPES)
PEOPLE = mysql_schema("shop.people", name="text")


def frame(spark: SparkSession, changes: list[Any], *schemas: WriterSchema) -> DataFrame:
    """Return changes as a query has them, with the schemas of their sources."""
    rows = {one.source: row_schema([one]) for one in schemas}
    schema = changes_schema(rows)
    schema[CHANGE_COLUMN].metadata[SCHEMAS] = {one.source: {"1": one.text} for one in schemas}
    for one in changes:
        meta = one[CHANGE_COLUMN]
        meta |= {"schema_version": 1, "time": AT, "gtid": "0-1-5"}
        meta["source"] = meta["source"].replace("shop.person", schemas[0].source)
    table = pa.Table.from_pylist(changes, arrow_schema(schema))
    return spark.createDataFrame(table, schema)


def written(recorder: Recorder, batch: DataFrame) -> list[Change]:
    sink_batch(recorder.sink)(batch, 0)
    return recorder.changes


def test_a_change_has_the_types_of_a_client_and_its_place(spark: SparkSession) -> None:
    (one,) = written(Recorder(), frame(spark, [change("insert", 5, IN_SPARK)], ORDERS))
    assert (one.op, one.source, one.key, one.after) == ("insert", "shop.orders", {"id": 1}, ROW)
    assert (one.scn, one.index, one.transaction.gtid) == (5, 0, "0-1-5")
    assert one.timestamp_ns == int(AT.timestamp()) * 10**9
    assert one.schema is not None
    assert one.schema.source == "shop.orders"
    assert one.position is not None
    assert (one.position.source, one.position.scn) == ("shop", 5)


def test_transactions_come_whole_and_in_order_whatever_the_order_of_the_batch(
    spark: SparkSession,
) -> None:
    changes = [
        change("update", 7, {"id": 2, "name": "b"}, index=1, before={"id": 1, "name": "a"}),
        change("delete", 8, {"id": 2, "name": "b"}),
        change("insert", 7, {"id": 1, "name": "a"}),
        change("truncate", 9),
        change("snapshot_end", 9, index=1),
    ]
    found = written(Recorder(), frame(spark, changes, PEOPLE))
    told = [(one.op, one.scn, dict(one.key), one.after) for one in found]
    assert told == [
        ("insert", 7, {"id": 1}, {"id": 1, "name": "a"}),
        ("delete", 7, {"id": 1}, None),
        ("insert", 7, {"id": 2}, {"id": 2, "name": "b"}),
        ("delete", 8, {"id": 2}, None),
        ("truncate", 9, {}, None),
    ]
    assert [one.position is not None for one in found] == [False, False, True, True, True]
    assert found[3].before == {"id": 2, "name": "b"}


def test_rows_of_several_sources_are_those_of_their_tables(spark: SparkSession) -> None:
    order, person = change("insert", 3, source="shop.orders"), change("insert", 3, index=1)
    order["shop.orders"] = IN_SPARK
    person["shop.people"] = {"id": 7, "name": "Ann"}
    person[CHANGE_COLUMN]["source"] = "shop.people"
    found = written(Recorder(), frame(spark, [person, order], ORDERS, PEOPLE))
    assert [(one.source, one.after) for one in found] == [
        ("shop.orders", ROW),
        ("shop.people", {"id": 7, "name": "Ann"}),
    ]


def test_a_target_with_a_position_is_not_given_what_it_has(spark: SparkSession) -> None:
    recorder = Recorder(keeps_position=True)
    people = [change("insert", scn, {"id": scn, "name": "x"}) for scn in (4, 5)]
    batch = frame(spark, people, PEOPLE)
    write = sink_batch(recorder.sink)
    write(batch, 0)
    write(batch, 0)  # again, by the same query
    sink_batch(recorder.sink)(batch, 0)  # and by one that was started again
    assert [one.scn for one in recorder.changes] == [4, 5]


def test_a_source_that_joins_behind_the_others_loses_no_change_and_sets_no_lower_position(
    spark: SparkSession,
) -> None:
    def person(op: str, scn: int, **more: Any) -> Any:
        return one("shop.people", change(op, scn, **more), {"id": scn, "name": "x"})

    def order(scn: int) -> Any:
        return one("shop.orders", change("insert", scn), IN_SPARK)

    def one(source: str, told: Any, row: Mapping[str, Any]) -> Any:
        told[CHANGE_COLUMN]["source"] = source
        return {**told, source: row}

    batches = [
        [order(100)],
        # It joins by its rows as of 125; one of them has the SCN of a change of the others.
        [order(120), person("snapshot", 90, as_of=125), person("snapshot", 120, as_of=125)],
        [order(130)],
        [person("insert", 126), person("delete", 128), order(140)],
        [person("insert", 141)],
    ]
    recorder = Recorder(keeps_position=True)
    write = sink_batch(recorder.sink, flush_rows=1)
    positions = []
    for number, rows in enumerate(batches):
        batch = frame(spark, rows, ORDERS, PEOPLE)
        write(batch, number)
        write(batch, number)  # it is repeated
        assert recorder.position is not None
        positions.append(recorder.position.scn)
    live = [
        (one.source[5:], one.scn) for one in recorder.changes if one.transaction.phase == "live"
    ]
    assert live == [
        ("orders", 100),
        ("orders", 120),
        ("orders", 130),
        ("people", 126),
        ("people", 128),
        ("orders", 140),
        ("people", 141),
    ]
    assert positions == [100, 120, 130, 140, 141]


def test_deleted_rows_of_a_snapshot_are_no_transactions_and_come_in_whatever_order(
    spark: SparkSession,
) -> None:
    recorder = Recorder(keeps_position=True)
    write = sink_batch(recorder.sink)
    held = [change("insert", scn, {"id": scn, "name": "x"}) for scn in (97, 98, 100)]
    write(frame(spark, held, PEOPLE), 0)
    for number, (scn, key) in enumerate(((190, 97), (150, 98)), 1):
        gone = change("delete", scn, {"id": key, "name": "x"}, as_of=200)
        write(frame(spark, [gone], PEOPLE), number)
    assert recorder.rows("shop.people") == [{"id": 100, "name": "x"}]
    assert [one.transaction.phase for one in recorder.changes[3:]] == ["snapshot", "snapshot"]
    assert recorder.position is not None
    assert recorder.position.scn == 100


def test_changes_that_another_query_has_brought_are_left_out_and_it_says_so(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(keeps_position=True, position=Position("shop", Checkpoint.at(5)))
    people = [change("insert", scn, {"id": scn, "name": "x"}) for scn in (4, 5, 6)]
    sink_batch(recorder.sink)(frame(spark, people, PEOPLE), 0)
    assert [one.scn for one in recorder.changes] == [6]
    assert "shop.people: changes up to scn 5 are not written to the sink again" in caplog.text


def test_a_selection_without_the_key_is_refused_and_one_with_it_has_a_schema_of_its_own(
    spark: SparkSession,
) -> None:
    batch = frame(spark, [change("insert", 5, IN_SPARK)], ORDERS)
    with pytest.raises(SettingsError, match="id is of the primary key: select it, too"):
        written(Recorder(), batch.select("price", CHANGE_COLUMN))
    (one,) = written(Recorder(), batch.select("id", "bin", CHANGE_COLUMN))
    assert one.after == {"id": 1, "bin": b"\x00\xff"}
    assert one.schema is not None
    assert [field["name"] for field in json.loads(one.schema.text)["fields"]] == ["id", "bin"]


class Archive(StreamJob):
    """A query that writes to the sink `files`, and may fail after that."""

    def __init__(self, session: SparkSession, folder: Path, **options: str) -> None:
        super().__init__(session, folder, start="earliest", retrySeconds="1", **options)
        self._write = sink_batch("files", {"folder": str(folder / "archive")}, flush_rows=7)

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        self._write(batch, batch_id)
        self.fail(batch_id)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    one = Shop(tmp_path / "shop.db")
    yield one
    one.close()


def test_a_query_that_failed_behind_its_sink_goes_on_and_the_archive_has_each_change_once(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    def fail(batch_id: int) -> None:
        raise ValueError(f"the power is gone behind batch {batch_id}")

    def rows() -> Mapping[Any, Any]:
        return {("shop.orders", key): row for key, row in shop.rows().items()}

    register(spark)
    with running(RunningRelay(tmp_path / "relay", shop.settings()).start()) as relay:
        shop.insert(*range(1, 101), each=5)
        relay.wait_for_scn(100)
        options = {"relays": relay.url, "sources": "shop.orders", "maxRowsPerTrigger": "20"}
        job = Archive(spark, tmp_path, **options)
        job.fail = fail
        with pytest.raises(StreamingQueryException, match="the power is gone"):
            job.run()
        again = Archive(spark, tmp_path, **options)
        again.run()
    found, ids = archived(tmp_path / "archive")
    assert found == rows()
    assert len(ids) == len(set(ids)) == 100
