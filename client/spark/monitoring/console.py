"""Watch a session's queries: a live table or a line per batch, and metrics on a port.

with watching(spark, Console(), metrics_port=9400):
    changes.writeStream.foreachBatch(consume).start().awaitTermination()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import click
from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live
from rich.table import Table

from databus.client.spark.consuming.restart_policy import SPARK_FAILURES
from databus.client.spark.monitoring.metrics import QueryState, QueryStats, make_metrics
from databus.client.spark.monitoring.progress import BatchStats, PlaceStats
from databus.schemas.errors import SettingsError

HOST = "127.0.0.1"
REFRESH_PER_S = 4
END_PATIENCE_S = 5.0  # Spark reports a query's last batch and its end with a delay

metrics_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve the query's metrics to Prometheus on this loopback port; 0 = any.",
)


@contextmanager
def watching(
    spark: SparkSession, console: Console | None = None, metrics_port: int | None = None
) -> Iterator[QueryStats]:
    """Collect the stats of the session's queries during a `with`.

    On a terminal `console` shows a table of them, elsewhere a line per batch; None
    shows nothing. `metrics_port`: a loopback port, 0 = any, None = no metrics. Raises
    SettingsError for a port that is in use.
    """
    is_table = console is not None and console.is_terminal

    def say(state: QueryState) -> None:
        if console is not None and not is_table:
            line = line_of(state)
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    stats = QueryStats(on_batch=say)
    with ExitStack() as stack:
        if metrics_port is not None:
            url = stack.enter_context(serving(make_metrics(stats), metrics_port))
            shown_on = console or Console(stderr=True)
            shown_on.print(f"metrics on {url}", highlight=False, soft_wrap=True)
        if is_table:
            live = Live(
                console=console,
                refresh_per_second=REFRESH_PER_S,
                get_renderable=lambda: table_of(stats.queries),
            )
            stack.enter_context(live)
        spark.streams.addListener(stats)
        try:
            yield stats
        except BaseException:
            # Spark's own process may have ended: its error must not hide this one.
            with suppress(*SPARK_FAILURES):
                spark.streams.removeListener(stats)
            raise
        stack.callback(spark.streams.removeListener, stats)
        # Queries that still run are not waited for; the last events of the others come late.
        active = [str(query.id) for query in spark.streams.active]
        stats.wait_for_ends(active, END_PATIENCE_S)


@contextmanager
def serving(metrics: CollectorRegistry, port: int) -> Iterator[str]:
    """Serve `/metrics` on a loopback port during a `with`; yields its URL.

    Raises SettingsError for a port that is not available.
    """
    try:
        server, thread = start_http_server(port, HOST, metrics)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"{HOST}:{port} is not available for metrics: {error}; choose another port, or 0 = any"
        ) from error
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def table_of(queries: list[QueryState]) -> Table:
    """Return a table with a row for each physical source of each query."""
    table = Table("query", "batch", "rows", "rows/s", "batch takes", "source", "at", "behind")
    for state in queries:
        batch = state.last
        if batch is None:
            table.add_row(state.name, _standing(state))
            continue
        rate, took = f"{batch.rows_per_s:,.0f}", f"{batch.duration_s:.2f} s"
        cells = [state.name, f"{batch.batch_id}", f"{state.rows:,}", rate, took]
        for place in batch.places:
            table.add_row(*cells, place.physical_source, at_words(place), behind_words(place))
            # The batch's own values stand in its first line only.
            cells = [""] * len(cells)
        if not state.is_running:
            table.add_row("", _standing(state))
    return table


def line_of(state: QueryState) -> str:
    """Return a query's state in one line."""
    batch = state.last
    if batch is None:
        return f"{state.name}: {_standing(state)}"
    return f"{state.name}: {batch_words(batch)}"


def batch_words(batch: BatchStats) -> str:
    """Return a batch's rows and speed, and the query's places after it."""
    places = (f"{p.physical_source} {at_words(p)}, {behind_words(p)}" for p in batch.places)
    speed = f"{batch.rows:,} rows in {batch.duration_s:.2f} s, {batch.rows_per_s:,.0f} rows/s"
    return "; ".join([f"batch {batch.batch_id}: {speed}", *places])


def at_words(place: PlaceStats) -> str:
    """Return a query's place in a physical source in words."""
    if place.snapshot is not None:
        what = "snapshot" if place.snapshot.since_scn <= 0 else "snapshot of changed rows"
        return f"in the {what} of {place.snapshot.source}, row {place.snapshot.row:,}"
    return "before the first window" if place.scn is None else f"at scn {place.scn}"


def behind_words(place: PlaceStats) -> str:
    """Return the lag behind the newest window in words."""
    if place.stopped:
        return f"the source is {state_words(place.stopped)}, lag not known"
    if place.lag_scn is None:
        return "lag not known"
    if place.lag_scn == 0:
        return "all is read"
    seconds = "" if place.lag_s is None else f", {place.lag_s:.1f} s"
    return f"{place.lag_scn} SCNs{seconds} behind"


def state_words(state: str) -> str:
    """Return a source's state in the form that follows "is"."""
    return "in error" if state == "error" else state


def _standing(state: QueryState) -> str:
    if state.is_running:
        return "waiting for the first batch"
    return "failed" if state.error else "ended"
