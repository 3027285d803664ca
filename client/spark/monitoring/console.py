"""Watch a session's queries: a live table, or a line a batch, and metrics on a port.

with watching(spark, Console(), metrics_port=9400):
    changes.writeStream.foreachBatch(consume).start().awaitTermination()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import click
from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live
from rich.table import Table

from databus.client.spark.monitoring.metrics import QueryFigures, QueryState, make_metrics
from databus.client.spark.monitoring.progress import BatchFigures, PlaceFigures
from databus.schemas.errors import SettingsError

HOST = "127.0.0.1"
REFRESH_PER_S = 4
END_PATIENCE_S = 5.0  # Spark tells of a query's last batch and its end a moment later

metrics_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve the query's figures to Prometheus on this port of loopback; 0 = any.",
)


@contextmanager
def watching(
    spark: SparkSession, console: Console | None = None, metrics_port: int | None = None
) -> Iterator[QueryFigures]:
    """Give the figures of the session's queries while the block runs.

    On a terminal `console` shows a table of them, elsewhere a line for each
    batch; without one they are not shown. `metrics_port`: of loopback, 0 = any; no
    port when None. Raises SettingsError for a port that is in use.
    """
    is_table = console is not None and console.is_terminal

    def say(state: QueryState) -> None:
        if console is not None and not is_table:
            line = line_of(state)
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    figures = QueryFigures(on_batch=say)
    with ExitStack() as stack:
        if metrics_port is not None:
            url = stack.enter_context(serving(make_metrics(figures), metrics_port))
            told = console or Console(stderr=True)
            told.print(f"metrics on {url}", highlight=False, soft_wrap=True)
        if is_table:
            live = Live(
                console=console,
                refresh_per_second=REFRESH_PER_S,
                get_renderable=lambda: table_of(figures.queries),
            )
            stack.enter_context(live)
        spark.streams.addListener(figures)
        stack.callback(spark.streams.removeListener, figures)
        yield figures
        active = [str(query.id) for query in spark.streams.active]
        figures.wait_for_ends(active, END_PATIENCE_S)


@contextmanager
def serving(metrics: CollectorRegistry, port: int) -> Iterator[str]:
    """Answer `/metrics` on a loopback port while the block runs; gives its URL.

    Raises SettingsError for a port that cannot be had.
    """
    try:
        server, thread = start_http_server(port, HOST, metrics)
    except (OSError, OverflowError) as error:
        raise SettingsError(
            f"{HOST}:{port} cannot be had for metrics: {error}; choose another port, or 0 for any"
        ) from error
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def table_of(queries: list[QueryState]) -> Table:
    """Return a line for each physical source of each query."""
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
            cells = [""] * len(cells)
        if not state.is_running:
            table.add_row("", _standing(state))
    return table


def line_of(state: QueryState) -> str:
    """Say how a query is, in one line."""
    batch = state.last
    if batch is None:
        return f"{state.name}: {_standing(state)}"
    return f"{state.name}: {batch_words(batch)}"


def batch_words(batch: BatchFigures) -> str:
    """Say what a batch had and where the query is after it."""
    places = (f"{p.physical_source} {at_words(p)}, {behind_words(p)}" for p in batch.places)
    speed = f"{batch.rows:,} rows in {batch.duration_s:.2f} s, {batch.rows_per_s:,.0f} rows/s"
    return "; ".join([f"batch {batch.batch_id}: {speed}", *places])


def at_words(place: PlaceFigures) -> str:
    """Say where a query is in a physical source."""
    if place.snapshot is not None:
        what = "snapshot" if place.snapshot.since_scn <= 0 else "snapshot of what changed"
        return f"in the {what} of {place.snapshot.source}, row {place.snapshot.row:,}"
    return "before the first window" if place.scn is None else f"at scn {place.scn}"


def behind_words(place: PlaceFigures) -> str:
    """Say how far behind the newest window it is."""
    if place.stopped:
        return f"the source is {state_words(place.stopped)}, lag not known"
    if place.lag_scn is None:
        return "lag not known"
    if place.lag_scn == 0:
        return "all is read"
    seconds = "" if place.lag_s is None else f", {place.lag_s:.1f} s"
    return f"{place.lag_scn} SCNs{seconds} behind"


def state_words(state: str) -> str:
    """Say a source's state after "is"."""
    return "in error" if state == "error" else state


def _standing(state: QueryState) -> str:
    if state.is_running:
        return "waiting for the first batch"
    return "failed" if state.error else "ended"
