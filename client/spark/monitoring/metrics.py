"""Stats of a session's queries, from Spark's listener events, also as Prometheus metrics.

    stats = QueryStats()
    spark.streams.addListener(stats)

The values are those of the last batch: while a batch takes long, or there is nothing
to read, they do not change (`last_batch_timestamp_seconds` is their time). An SCN
above 2**53 loses its last digits, as Prometheus stores doubles.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from databus.client.spark.monitoring.progress import BatchStats, PlaceStats, batch_stats


@dataclass(frozen=True, slots=True)
class QueryState:
    """One query, over all its starts in this process; its id is that of its checkpoint.

    `rows` and `batches` are sums; a batch that failed and was repeated counts once.
    """

    query_id: str
    name: str  # the query's name, or else its id
    starts: int = 0
    failures: int = 0
    is_running: bool = False
    error: str = ""  # of its last end; "" if that was none
    rows: int = 0
    batches: int = 0
    last: BatchStats | None = None
    last_s: float = 0.0  # when Spark reported the last batch, Unix time

    def with_batch(self, batch: BatchStats, now_s: float) -> QueryState:
        """Return the state after a batch."""
        rows, batches = self.rows + batch.rows, self.batches + 1
        return replace(self, rows=rows, batches=batches, last=batch, last_s=now_s, is_running=True)


class QueryStats(StreamingQueryListener):
    """A listener that keeps the states of queries of format databus; thread-safe.

    `on_batch` is called with the state after each batch, on Spark's thread.
    """

    def __init__(
        self,
        on_batch: Callable[[QueryState], None] = lambda _: None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._states: dict[str, QueryState] = {}
        self._changed = threading.Condition()
        self._on_batch = on_batch
        self._wall_s = wall_s

    @property
    def queries(self) -> list[QueryState]:
        """All queries that were started or reported, sorted by name.

        A query of other formats is included until its first batch.
        """
        with self._changed:
            return sorted(self._states.values(), key=lambda state: (state.name, state.query_id))

    def wait_for_ends(self, running: Iterable[str], patience_s: float) -> bool:
        """Wait until all queries except `running` have ended; return whether they have.

        Spark reports an end with a delay.
        """
        others = set(running)

        def have_ended() -> bool:
            return not any(s.is_running and s.query_id not in others for s in self.queries)

        with self._changed:
            return self._changed.wait_for(have_ended, patience_s)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Record a start."""
        state = self._state(str(event.id), event.name)
        self._keep(replace(state, starts=state.starts + 1, is_running=True))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Record a batch."""
        query_id = str(event.progress.id)
        batch = batch_stats(json.loads(event.progress.json))
        if batch is None:
            with self._changed:
                # A query of another format: it was recorded when it started.
                self._states.pop(query_id, None)
            return
        state = self._state(query_id, event.progress.name)
        state = state.with_batch(batch, self._wall_s())
        self._keep(state)
        self._on_batch(state)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing: the state is unchanged."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's
        """Record an end, and whether it was a failure."""
        with self._changed:
            state = self._states.get(str(event.id))
        if state is None:
            return
        failures = state.failures + (event.exception is not None)
        error = event.exception or ""
        self._keep(replace(state, failures=failures, error=error, is_running=False))

    def _state(self, query_id: str, name: str | None) -> QueryState:
        with self._changed:
            return self._states.get(query_id) or QueryState(query_id, name or query_id)

    def _keep(self, state: QueryState) -> None:
        with self._changed:
            self._states[state.query_id] = state
            self._changed.notify_all()


_QUERY = ["query"]
_PLACE = ["query", "physical_source"]

_COUNTERS: tuple[tuple[str, str, Callable[[QueryState], float]], ...] = (
    ("starts", "Times the query was started in this process", lambda s: s.starts),
    ("failures", "Times the query ended with an error", lambda s: s.failures),
    ("batches", "Finished micro-batches", lambda s: s.batches),
    ("rows", "Rows read; a batch that is read twice counts twice", lambda s: s.rows),
)
_BATCH_GAUGES: tuple[tuple[str, str, Callable[[BatchStats], float | None]], ...] = (
    ("batch_id", "Number of the last batch", lambda b: b.batch_id),
    ("batch_rows", "Rows read in the last batch", lambda b: b.rows),
    (
        "batch_rows_out",
        "Rows that the sink counted in the last batch; foreachBatch does not count",
        lambda b: b.rows_out,
    ),
    ("batch_rows_per_second", "Rows read per second in the last batch", lambda b: b.rows_per_s),
    ("batch_seconds", "Duration of the last batch", lambda b: b.duration_s),
)
_PLACE_GAUGES: tuple[tuple[str, str, Callable[[PlaceStats], float | None]], ...] = (
    ("position_scn", "SCN up to which everything is read; absent in a snapshot", lambda p: p.scn),
    ("newest_scn", "SCN of the newest window that a relay has reported", lambda p: p.newest_scn),
    ("lag_scn", "Difference between newest_scn and position_scn", lambda p: p.lag_scn),
    (
        "lag_seconds",
        "From the last commit that is read to the newest commit; 0 when everything is read, "
        "absent while the newest is not known",
        lambda p: p.lag_s,
    ),
    (
        "source_stopped",
        "1 while the relay does not capture the source",
        lambda p: float(bool(p.stopped)),
    ),
    ("in_snapshot", "1 while the query reads a snapshot", lambda p: float(p.snapshot is not None)),
)


class QueryCollector(Collector):
    """Collects the stats of all queries."""

    def __init__(self, stats: QueryStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; unknown values are left out."""
        queries = self._stats.queries
        for name, text, count in _COUNTERS:
            counter = CounterMetricFamily(f"databus_spark_{name}", text, labels=_QUERY)
            for state in queries:
                counter.add_metric([state.name], count(state))
            yield counter
        running = (([s.name], float(s.is_running)) for s in queries)
        yield _gauge("running", "1 while the query runs", _QUERY, running)
        known = [(s.name, s.last_s, s.last) for s in queries if s.last is not None]
        yield _gauge(
            "last_batch_timestamp_seconds",
            "When the last batch was done",
            _QUERY,
            (([name], at_s) for name, at_s, _ in known),
        )
        yield from _of_batches([(name, batch) for name, _, batch in known])


def _of_batches(batches: list[tuple[str, BatchStats]]) -> Iterator[Metric]:
    for name, text, of_batch in _BATCH_GAUGES:
        yield _gauge(name, text, _QUERY, (([query], of_batch(b)) for query, b in batches))
    parts = (([query, part], s) for query, b in batches for part, s in b.parts_s.items())
    text = "Duration of each part of the last batch"
    yield _gauge("batch_part_seconds", text, [*_QUERY, "part"], parts)
    places = [(query, place) for query, batch in batches for place in batch.places]
    for name, text, of_place in _PLACE_GAUGES:
        samples = (([query, p.physical_source], of_place(p)) for query, p in places)
        yield _gauge(name, text, _PLACE, samples)
    rungs = (([query, p.physical_source, p.rung], 1.0) for query, p in places if p.rung)
    text = "Where the last batch was read from: relay, log or snapshot"
    yield _gauge("rung", text, [*_PLACE, "rung"], rungs)
    rows = (
        ([query, p.physical_source, p.snapshot.source], p.snapshot.row)
        for query, p in places
        if p.snapshot is not None
    )
    text = "Row of the store up to which the snapshot is read"
    yield _gauge("snapshot_row", text, [*_PLACE, "source"], rows)


def _gauge(
    name: str, text: str, labels: list[str], samples: Iterable[tuple[list[str], float | None]]
) -> Metric:
    gauge = GaugeMetricFamily(f"databus_spark_{name}", text, labels=labels)
    for values, figure in samples:
        if figure is not None:
            gauge.add_metric(values, figure)
    return gauge


def make_metrics(stats: QueryStats) -> CollectorRegistry:
    """Return a registry with the metrics of these stats."""
    metrics = CollectorRegistry()
    metrics.register(QueryCollector(stats))
    return metrics
