"""A client's metrics in Prometheus format, collected on each scrape.

The collector counts nothing itself: it reads what the client keeps anyway. An SCN above
2**53 loses its last digits, like every number in Prometheus; `/api/v1/client` is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from databus.client.machines.states import Connection, Lifecycle
from databus.client.monitoring.watched import WatchedClient
from databus.client.puller.buffer_items import Phase
from databus.client.puller.stats import BUCKETS_S, RegistrationStats
from databus.client.registration import Registration
from databus.daemon.process_metrics import add_process_metrics

_LABELS = ["registration", "sources"]
_BOUNDS = [*map(floatToGoString, BUCKETS_S), "+Inf"]

_COUNTERS: tuple[tuple[str, str, Callable[[RegistrationStats], float]], ...] = (
    ("events", "Row changes consumed, those of bootstraps too", lambda f: f.events),
    ("windows", "Windows with events consumed", lambda f: f.windows),
    ("retries", "Rollbacks, and requests that failed", lambda f: f.retries),
    ("rollbacks", "Windows and pages delivered again", lambda f: f.rollbacks),
    ("failed_requests", "Requests that failed and were retried", lambda f: f.failed_requests),
    (
        "failed_events",
        "Events that failed after all retries and were skipped, or kept by `on_failure`",
        lambda f: f.failed_events,
    ),
    ("bootstraps", "Bootstraps started", lambda f: f.bootstraps),
)


class ClientCollector(Collector):
    """Collects one client's metrics."""

    def __init__(self, client: WatchedClient, wall_s: Callable[[], float] = time.time) -> None:
        self._client = client
        self._wall_s = wall_s

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        found = self._client.registrations
        yield _state("state", "of the client", Lifecycle, [], [([], self._client.shown_state)])
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"databus_client_{name}", text, labels=_LABELS)
            for one in found:
                counter.add_metric(_names(one), value(one.stats))
            yield counter
        yield from self._places(found)
        yield from self._bootstraps(found)
        yield self._callbacks(found)
        yield from self._behind()

    def _places(self, found: Iterable[Registration]) -> Iterator[Metric]:
        """Yield the position and speed of each registration."""
        statuses = [(one, one.status) for one in found]
        yield _gauge(
            "events_per_second",
            "Row changes consumed, over the last few seconds",
            ((_names(one), one.stats.events_per_s) for one, _ in statuses),
        )
        yield _gauge(
            "scn",
            "SCN of the last window consumed",
            ((_names(one), status.scn) for one, status in statuses if status.scn >= 0),
        )
        yield _gauge(
            "owned_partitions",
            "Partitions of its group that this process owns",
            ((_names(one), len(one.partitions)) for one, _ in statuses if one.group),
        )
        yield _gauge(
            "buffered_bytes",
            "Bytes of events that wait for callbacks",
            ((_names(one), status.buffered_bytes) for one, status in statuses),
        )
        # The lag is unknown while the relay cannot reach its source, or the client no relay.
        client = self._client
        known = [
            (one, status)
            for one, status in statuses
            if not client.report_answer.waits_for and client.silence_of(one) is None
        ]
        lags = [
            (_names(one), one.stats.lag_s(self._wall_s(), status.buffered_bytes > 0))
            for one, status in known
        ]
        yield _gauge(
            "lag_seconds",
            "From its commit until the newest window was consumed, or until now while more waits; "
            "0 when no more comes",
            ((names, lag_s) for names, lag_s in lags if lag_s is not None),
        )
        connections = [(_names(one), one.connection) for one in found]
        yield _state("connection_state", "of the connection", Connection, _LABELS, connections)

    def _bootstraps(self, found: Iterable[Registration]) -> Iterator[Metric]:
        phases = [(_names(one), one.stats.phase) for one in found]
        yield _state("phase", "of what is consumed", Phase, _LABELS, phases)
        rows = GaugeMetricFamily(
            "databus_client_bootstrap_rows",
            "Rows consumed in the current bootstrap, or in the last one",
            labels=[*_LABELS, "phase"],
        )
        for one in found:
            rows.add_metric([*_names(one), Phase.SNAPSHOT], one.stats.snapshot_rows)
            rows.add_metric([*_names(one), Phase.CATCH_UP], one.stats.catch_up_rows)
        yield rows

    def _callbacks(self, found: Iterable[Registration]) -> Metric:
        histogram = HistogramMetricFamily(
            "databus_client_callback_seconds",
            "Time of the callbacks of a window, or of a page of a bootstrap",
            labels=_LABELS,
        )
        for one in found:
            sums = accumulate(one.stats.callbacks)
            buckets = list(zip(_BOUNDS, map(float, sums), strict=True))
            histogram.add_metric(_names(one), buckets, one.stats.callback_s)
        return histogram

    def _behind(self) -> Iterator[Metric]:
        """Yield the lag in the relay's answer to the last report, if it had one."""
        behind = self._client.report_answer.behind
        if behind is None:
            return
        for name, text, value in (
            ("behind_seconds", "Lag in seconds of commit time", behind.seconds),
            ("behind_bytes", "Lag in bytes of the ring", behind.size_bytes),
        ):
            if value is not None:
                reported = f"{text}, as last reported by the relay"
                yield GaugeMetricFamily(f"databus_client_{name}", reported, value=value)


def make_metrics(client: WatchedClient) -> CollectorRegistry:
    """Return the registry of one client; several in a process stay separate."""
    metrics = CollectorRegistry()
    metrics.register(ClientCollector(client))
    add_process_metrics(metrics)
    return metrics


def _names(registration: Registration) -> list[str]:
    subscription = registration.subscription
    return [subscription.name, ",".join(subscription.sources)]


def _gauge(name: str, text: str, samples: Iterable[tuple[list[str], float]]) -> Metric:
    gauge = GaugeMetricFamily(f"databus_client_{name}", text, labels=_LABELS)
    for values, number in samples:
        gauge.add_metric(values, number)
    return gauge


def _state(
    name: str,
    of_what: str,
    states: Iterable[str],
    labels: list[str],
    samples: Iterable[tuple[list[str], str]],
) -> Metric:
    """Return a gauge with one series per state: 1 for the current one, else 0."""
    text = f"1 for the current {name.replace('_', ' ')} {of_what}, else 0"
    gauge = GaugeMetricFamily(f"databus_client_{name}", text, labels=[*labels, "state"])
    for values, now in samples:
        for state in states:
            gauge.add_metric([*values, str(state)], float(state == now))
    return gauge
