"""The listener that users add to their sessions."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent

from databus.client.spark import register
from databus.client.spark.monitoring.listener import DatabusListener, Health, SourceProgress
from databus.client.spark.monitoring.metrics import make_metrics
from databus.client.spark.planning.offsets import AtScn
from tests.client.spark.monitoring.test_progress import (
    QUERY,
    RUN,
    SNAPSHOT,
    SOURCES,
    offset,
    relay,
    source,
    told,
)
from tests.client.spark.planning.test_capture_states import pause
from tests.promises.running import RunningRelay, wait_until

__all__ = ["relay"]


def end_of(error: str | None) -> QueryTerminatedEvent:
    end: dict[str, Any] = {"id": QUERY, "runId": RUN, "exception": error}
    return QueryTerminatedEvent.fromJson(end | {"errorClassOnException": error and "X"})


def test_it_says_position_newest_lag_rung_and_health_by_physical_source() -> None:
    heard: list[SourceProgress] = []
    listener = DatabusListener(heard.append)
    end = offset(billing=SNAPSHOT, shop=AtScn(100, 5_000))
    newest = offset(shop=AtScn(130, 12_500)) | {"rungs": {"billing": "snapshot", "shop": "log"}}
    listener.onQueryProgress(told(source(end, newest)))
    assert listener.sources == heard
    assert heard == [
        ("orders", "billing", None, None, None, "snapshot", "", Health.RUNNING),
        ("orders", "shop", 100, 130, 7.5, "log", "", Health.RUNNING),
    ]
    listener.onQueryTerminated(end_of(None))
    assert {one.health for one in listener.sources} == {Health.ENDED}
    listener.onQueryTerminated(end_of("gone"))
    assert {one.health for one in listener.sources} == {Health.FAILED}


def test_a_query_that_failed_and_then_ended_well_has_ended() -> None:
    listener = DatabusListener()
    listener.onQueryProgress(told(source(offset(shop=AtScn(100)))))
    listener.onQueryTerminated(end_of("gone"))
    listener.onQueryProgress(told(source(offset(shop=AtScn(130)))))
    assert [one.health for one in listener.sources] == [Health.RUNNING]
    listener.onQueryTerminated(end_of(None))
    assert [one.health for one in listener.sources] == [Health.ENDED]
    assert [(one.failures, one.error) for one in listener.queries] == [(1, "")]


def test_a_source_that_stops_and_one_that_goes_on_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = DatabusListener()
    end = offset(shop=AtScn(100, 5_000))
    with caplog.at_level(logging.WARNING):
        for stopped in ({}, {"shop": "error"}, {"shop": "error"}, {}):
            listener.onQueryProgress(told(source(end | ({"stopped": stopped} if stopped else {}))))
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith(
        "query orders: the relay does not capture shop, which is in state error"
    )
    assert last == "query orders: the relay captures shop again"


def test_the_metrics_say_the_rung() -> None:
    listener = DatabusListener()
    newest = offset(shop=AtScn(130)) | {"rungs": {"shop": "relay"}}
    listener.onQueryProgress(told(source(offset(shop=AtScn(100)), newest)))
    (rung,) = (one for one in make_metrics(listener).collect() if one.name == "databus_spark_rung")
    assert [sample.labels["rung"] for sample in rung.samples] == ["relay"]


def test_a_query_that_goes_on_is_heard_and_its_stopped_source_too(
    spark: SparkSession, relay: RunningRelay, tmp_path: Any
) -> None:
    register(spark)
    listener = DatabusListener()
    spark.streams.addListener(listener)
    given = {"relays": relay.url, "start": "earliest", "shards": "1"}
    changes = spark.readStream.format("databus").options(**given).load(SOURCES[0])
    writer = changes.writeStream.foreachBatch(lambda batch, _: print(batch.count()))
    query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").start()
    try:
        wait_until(lambda: [one.lag_s for one in listener.sources] == [0.0], "the rows")
        (one,) = listener.sources
        assert (one.position, one.newest, one.rung) == (relay.max_scn(), relay.max_scn(), "relay")
        pause(relay)
        wait_until(lambda: [one.stopped for one in listener.sources] == ["paused"], "the pause")
        assert [one.health for one in listener.sources] == [Health.STOPPED]
    finally:
        query.stop()
        spark.streams.removeListener(listener)
