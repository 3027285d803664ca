"""The figures of queries: read from Spark's progress, shown, and served as metrics."""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.exposition import generate_latest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from rich.console import Console

from databus.client.spark import register
from databus.client.spark.monitoring.console import line_of, serving, table_of, watching
from databus.client.spark.monitoring.metrics import QueryStats, make_metrics
from databus.client.spark.monitoring.progress import BatchStats, batch_stats, offset_of
from databus.client.spark.planning.offsets import AtScn, InSnapshot, Place, QueryOffset, to_offset
from databus.demo.processes import free_port
from databus.schemas.errors import CheckpointError, SettingsError
from tests import PATIENCE_S
from tests.promises.running import RunningRelay, Shop, running

SOURCES = ("shop.orders",)
QUERY, RUN = "6a31b0c5-24ee-4f57-9c3a-b67f0e61b1b3", "0d6c1f0e-9c40-4a43-8f1d-5e6f1a0c5a11"
SNAPSHOT = InSnapshot(120, 0, "shop.orders", 4000, "http://store", "s1")


def offset(**places: Place) -> dict[str, Any]:
    return to_offset(QueryOffset(SOURCES, places))


def source(end: Any, latest: Any = None, rows: int = 10, **more: Any) -> dict[str, Any]:
    told = {"description": "databus", "startOffset": None, "endOffset": end}
    return {
        **told,
        "numInputRows": rows,
        "processedRowsPerSecond": 5.0,
        "latestOffset": latest,
    } | more


def progress(*sources: dict[str, Any], batch: int = 7, **more: Any) -> dict[str, Any]:
    told = {
        "id": QUERY,
        "runId": RUN,
        "name": "orders",
        "timestamp": "2026-11-21T10:00:00.000Z",
        "batchId": batch,
        "batchDuration": 2000,
        "durationMs": {"triggerExecution": 2000, "addBatch": 1500, "walCommit": 30},
        "stateOperators": [],
        "sources": [{"inputRowsPerSecond": 0.0, **one} for one in sources],
        "sink": {"description": "ForeachBatchSink", "numOutputRows": -1},
    }
    return told | more


def figures_of(*sources: dict[str, Any], **more: Any) -> BatchStats:
    found = batch_stats(progress(*sources, **more))
    assert found is not None
    return found


def test_a_batch_says_where_the_query_is_and_how_far_behind() -> None:
    end, newest = offset(shop=AtScn(100, 5_000)), offset(shop=AtScn(130, 12_500))
    found = figures_of(source(end, newest))
    (place,) = found.places
    assert (place.scn, place.newest_scn, place.lag_scn, place.lag_s) == (100, 130, 30, 7.5)
    assert place.snapshot is None
    assert (found.batch_id, found.rows, found.rows_per_s, found.duration_s) == (7, 10, 5.0, 2.0)
    assert found.parts_s == {"addBatch": 1.5, "walCommit": 0.03}
    assert found.rows_out is None


def test_nobody_who_commits_is_no_lag() -> None:
    long_ago = AtScn(100, 5_000)
    (place,) = figures_of(source(offset(shop=long_ago), offset(shop=long_ago))).places
    assert (place.lag_scn, place.lag_s) == (0, 0.0)


def test_a_place_beyond_what_relays_have_spoken_of_is_no_lag() -> None:
    (place,) = figures_of(source(offset(shop=AtScn(105)), offset(shop=AtScn(100, 1)))).places
    assert (place.lag_scn, place.lag_s) == (0, 0.0)


def test_after_a_snapshot_the_lag_is_known_in_scns_alone() -> None:
    (place,) = figures_of(source(offset(shop=AtScn(100)), offset(shop=AtScn(130, 9)))).places
    assert (place.lag_scn, place.lag_s) == (30, None)


def test_of_a_source_that_is_not_captured_no_lag_is_known() -> None:
    end = to_offset(QueryOffset(SOURCES, {"shop": AtScn(100, 5)}), {"shop": "error"})
    (place,) = figures_of(source(end, offset(shop=AtScn(100, 5)))).places
    assert (place.scn, place.newest_scn, place.lag_scn, place.lag_s) == (100, 100, None, None)
    figures = QueryStats()
    figures.onQueryProgress(told(source(end, offset(shop=AtScn(100, 5)))))
    (state,) = figures.queries
    assert line_of(state).endswith("shop at scn 100, the source is in error, lag not known")
    text = generate_latest(make_metrics(figures)).decode()
    assert 'databus_spark_source_stopped{physical_source="shop",query="orders"} 1.0' in text
    assert "lag_seconds{" not in text
    assert "lag_scn{" not in text


@pytest.mark.parametrize("latest", [None, "null", "None", "", {}, "{"])
def test_without_a_newest_offset_there_is_no_lag(latest: Any) -> None:
    (place,) = figures_of(source(offset(shop=AtScn(100, 5)), latest)).places
    assert (place.scn, place.newest_scn, place.lag_scn, place.lag_s) == (100, None, None, None)


def test_a_newest_offset_that_lacks_a_physical_source_says_nothing_of_it() -> None:
    end = offset(billing=AtScn(5, 1), shop=AtScn(100, 1))
    billing, shop = figures_of(source(end, offset(shop=AtScn(100, 1)))).places
    assert (billing.lag_scn, shop.lag_scn) == (None, 0)


def test_a_relay_without_a_window_has_no_newest() -> None:
    end = offset(shop=AtScn(-1))
    (place,) = figures_of(source(end, end)).places
    assert (place.scn, place.newest_scn, place.lag_s) == (None, None, None)


def test_offsets_may_be_texts_as_a_listener_has_them() -> None:
    end, newest = offset(shop=AtScn(1, 1)), offset(shop=AtScn(4, 2_001))
    (place,) = figures_of(source(json.dumps(end), json.dumps(newest))).places
    assert (place.lag_scn, place.lag_s) == (3, 2.0)


def test_in_a_snapshot_there_is_a_row_and_no_position() -> None:
    (place,) = figures_of(source(offset(shop=SNAPSHOT), "null")).places
    assert (place.scn, place.lag_scn) == (None, None)
    assert place.snapshot is not None
    assert (place.snapshot.source, place.snapshot.row, place.snapshot.at_scn) == (
        "shop.orders",
        4000,
        120,
    )


def test_of_a_physical_source_that_is_read_twice_the_place_farther_behind_counts() -> None:
    ahead, behind = offset(shop=AtScn(100, 1)), offset(shop=AtScn(90, 1))
    for one, other in ((ahead, behind), (behind, ahead)):
        found = figures_of(source(one), source(other))
        assert [place.scn for place in found.places] == [90]
        assert (found.rows, found.rows_per_s) == (20, 10.0)
    with_snapshot = figures_of(source(offset(shop=SNAPSHOT)), source(behind))
    assert [place.scn for place in with_snapshot.places] == [None]


def test_sources_of_other_formats_are_left_out() -> None:
    rate = source({"offset": 7}, {"offset": 8}, rows=99)
    assert batch_stats(progress(rate)) is None
    assert batch_stats(progress(source("41"))) is None
    assert batch_stats({"batchId": 1, "sources": []}) is None
    assert figures_of(rate, source(offset(shop=AtScn(1)))).rows == 10


def test_a_batch_that_took_no_time_has_no_speed() -> None:
    found = figures_of(source(offset(shop=AtScn(1)), processedRowsPerSecond=None))
    assert found.rows_per_s == 0


def test_a_sink_that_counts_is_believed() -> None:
    found = figures_of(source(offset(shop=AtScn(1))), sink={"numOutputRows": 12})
    assert found.rows_out == 12


def test_an_offset_of_ours_that_makes_no_sense_is_an_error() -> None:
    assert offset_of({"physical": {}, "sources": [], "v": 9}) is not None
    with pytest.raises(CheckpointError, match="malformed offset"):
        batch_stats(progress(source({"physical": {}, "sources": [], "v": 9})))


def told(*sources: dict[str, Any], **more: Any) -> QueryProgressEvent:
    event = StreamingQueryProgress.fromJson(progress(*sources, **more))
    return QueryProgressEvent(event)


def heard(*, name: str | None = "orders", error: str | None = None) -> QueryStats:
    """Return what is known after a start, a batch, and with `error` an end."""
    figures = QueryStats(wall_s=lambda: 1000.0)
    start: dict[str, Any] = {"id": QUERY, "runId": RUN, "name": name}
    start |= {"timestamp": "", "jobTags": []}
    figures.onQueryStarted(QueryStartedEvent.fromJson(start))
    end = offset(billing=SNAPSHOT, shop=AtScn(100, 5_000))
    figures.onQueryProgress(told(source(end, offset(shop=AtScn(130, 12_500)))))
    figures.onQueryIdle(QueryIdleEvent.fromJson({"id": QUERY, "runId": RUN, "timestamp": ""}))
    if error is not None:
        end_event = {"id": QUERY, "runId": RUN, "exception": error}
        end_event["errorClassOnException"] = "X"
        figures.onQueryTerminated(QueryTerminatedEvent.fromJson(end_event))
    return figures


def test_metrics_have_what_is_known_and_leave_out_the_rest() -> None:
    text = generate_latest(make_metrics(heard(error="gone"))).decode()
    for line in (
        'databus_spark_starts_total{query="orders"} 1.0',
        'databus_spark_failures_total{query="orders"} 1.0',
        'databus_spark_rows_total{query="orders"} 10.0',
        'databus_spark_running{query="orders"} 0.0',
        'databus_spark_last_batch_timestamp_seconds{query="orders"} 1000.0',
        'databus_spark_batch_id{query="orders"} 7.0',
        'databus_spark_batch_part_seconds{part="addBatch",query="orders"} 1.5',
        'databus_spark_lag_scn{physical_source="shop",query="orders"} 30.0',
        'databus_spark_lag_seconds{physical_source="shop",query="orders"} 7.5',
        'databus_spark_in_snapshot{physical_source="billing",query="orders"} 1.0',
        'databus_spark_snapshot_row{physical_source="billing",query="orders",'
        'source="shop.orders"} 4000.0',
    ):
        assert line in text.splitlines()
    assert 'position_scn{physical_source="billing"' not in text
    assert "batch_rows_out{" not in text


def test_a_query_that_is_started_again_is_the_same_query() -> None:
    figures = heard(error="gone")
    start = {"id": QUERY, "runId": QUERY, "name": "orders", "timestamp": "", "jobTags": []}
    figures.onQueryStarted(QueryStartedEvent.fromJson(start))
    figures.onQueryProgress(told(source(offset(shop=AtScn(130)), rows=5), batch=8))
    (state,) = figures.queries
    assert (state.starts, state.failures, state.batches, state.rows) == (2, 1, 2, 15)
    assert state.is_running


def test_a_query_of_other_sources_is_forgotten_with_its_first_batch() -> None:
    figures = QueryStats()
    start: dict[str, Any] = {"id": QUERY, "runId": RUN, "name": "rate", "timestamp": ""}
    figures.onQueryStarted(QueryStartedEvent.fromJson(start | {"jobTags": []}))
    assert [state.name for state in figures.queries] == ["rate"]
    figures.onQueryProgress(told(source({"offset": 8})))
    end = {"id": QUERY, "runId": RUN, "exception": None, "errorClassOnException": None}
    figures.onQueryTerminated(QueryTerminatedEvent.fromJson(end))
    assert figures.queries == []


def test_a_query_that_was_there_before_the_listener_is_known_with_its_next_batch() -> None:
    figures = QueryStats()
    figures.onQueryProgress(told(source(offset(shop=AtScn(1)))))
    (state,) = figures.queries
    assert (state.name, state.is_running, state.starts) == ("orders", True, 0)


def test_a_query_without_a_name_goes_by_its_id() -> None:
    assert [state.name for state in heard(name=None).queries] == [QUERY]


def test_the_end_of_a_query_is_waited_for_unless_it_goes_on() -> None:
    assert not heard().wait_for_ends([], 0.0)
    assert heard().wait_for_ends([QUERY], 0.0)
    assert heard(error="gone").wait_for_ends([], 0.0)


def test_a_table_and_a_line_say_where_each_source_is() -> None:
    figures = heard()
    out = io.StringIO()
    Console(file=out, width=160).print(table_of(figures.queries))
    assert "in the snapshot of shop.orders, row 4,000" in out.getvalue()
    assert "30 SCNs, 7.5 s behind" in out.getvalue()
    (state,) = figures.queries
    assert line_of(state) == (
        "orders: batch 7: 10 rows in 2.00 s, 5 rows/s; "
        "billing in the snapshot of shop.orders, row 4,000, lag not known; "
        "shop at scn 100, 30 SCNs, 7.5 s behind"
    )


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    metrics = make_metrics(QueryStats())
    with serving(metrics, 0) as url:
        port = int(url.split(":")[2].split("/")[0])
        with (
            pytest.raises(SettingsError, match=f"127.0.0.1:{port} .*another port"),
            serving(metrics, port),
        ):
            pass
    with pytest.raises(SettingsError, match="70000"), serving(metrics, 70_000):
        pass


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RunningRelay]:
    shop = Shop(tmp_path / "shop.db")
    with running(RunningRelay(tmp_path, shop.settings()).start()) as found:
        shop.insert(*range(1, 61), each=60)
        ((scn,),) = shop.connection.execute("SELECT max(id) FROM _databus_log").fetchall()
        found.wait_for_scn(scn)
        yield found
    shop.close()


def test_a_query_is_watched_while_it_runs(
    spark: SparkSession, relay: RunningRelay, tmp_path: Path
) -> None:
    register(spark)
    port, out = free_port(), io.StringIO()
    with watching(spark, Console(file=out), port) as figures:
        changes = (
            spark.readStream.format("databus")
            .options(relays=relay.url, start="earliest", shards="1")
            .load("shop.orders")
        )
        writer = changes.writeStream.foreachBatch(lambda batch, _: print(batch.count()))
        writer = writer.queryName("watched").option("checkpointLocation", f"{tmp_path}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        assert figures.wait_for_ends([], PATIENCE_S)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S
        ) as answer:
            metrics = answer.read().decode()
    (state,) = figures.queries
    assert (state.name, state.rows, state.is_running, state.failures) == ("watched", 60, False, 0)
    assert 'databus_spark_lag_scn{physical_source="shop",query="watched"} 0.0' in metrics
    lines = [line for line in out.getvalue().splitlines() if line.startswith("watched: batch")]
    assert len(lines) == state.batches
    assert f"shop at scn {relay.max_scn()}, all is read" in lines[-1]
