"""The metrics of running sinks in Prometheus' format, collected on each scrape.

An SCN above 2**53 loses its last digits, like every number in Prometheus; the API is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from databus.client.sinks.isolated.ends import EndReason
from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.views import FeedView, SinkView, sinks_view
from databus.daemon.process_metrics import add_process_metrics

_LABELS = ["sink", "physical_source"]
_COUNTERS: tuple[tuple[str, str, Callable[[FeedView], float]], ...] = (
    ("rows", "Rows written", lambda one: one.rows),
    ("skipped_rows", "Rows that failed and were skipped", lambda one: one.skipped),
)
_GAUGES: tuple[tuple[str, str, Callable[[FeedView], float | None]], ...] = (
    ("scn", "SCN of the stored position", lambda one: one.scn),
    ("lag_seconds", "Since the commit of the oldest row that is not written", lambda o: o.lag_s),
    ("held_rows", "Rows that are read and not written", lambda one: one.held_rows),
    (
        "failing_attempts",
        "Attempts to write what fails now; 0 = nothing does",
        lambda one: 0 if one.failure is None else one.failure.attempts,
    ),
)


class SinkCollector(Collector):
    """Collects the metrics of one process."""

    def __init__(self, process: SinkProcess) -> None:
        self._process = process

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        sinks = sinks_view(self._process).sinks
        feeds = [
            ([sink.name, one.physical_source], one)
            for sink in sinks
            for one in sink.physical_sources
        ]
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"databus_sink_{name}", text, labels=_LABELS)
            for labels, one in feeds:
                counter.add_metric(labels, value(one))
            yield counter
        for name, text, found in _GAUGES:
            gauge = GaugeMetricFamily(f"databus_sink_{name}", text, labels=_LABELS)
            for labels, one in feeds:
                if (number := found(one)) is not None:
                    gauge.add_metric(labels, number)
            yield gauge
        text = "1 for the current state of the sink, else 0"
        states = GaugeMetricFamily("databus_sink_state", text, labels=["sink", "state"])
        letters = GaugeMetricFamily(
            "databus_sink_dead_letters", "Dead letters in its file", labels=["sink"]
        )
        for sink in sinks:
            for state in SinkState:
                states.add_metric([sink.name, state], float(state == sink.state))
            if sink.dead_letters is not None:
                letters.add_metric([sink.name], sink.dead_letters)
        yield states
        yield letters
        yield _ends(sinks)


def _ends(sinks: Sequence[SinkView]) -> Metric:
    ends = CounterMetricFamily(
        "databus_sink_process_ends",
        "Processes of isolated sinks that ended though they should not",
        labels=["sink", "reason"],
    )
    for sink in sinks:
        if sink.isolation is not None:
            for reason in EndReason:
                ends.add_metric([sink.name, reason], sink.isolation.ends.get(reason, 0))
    return ends


def make_metrics(process: SinkProcess) -> CollectorRegistry:
    """Return the registry of one process."""
    metrics = CollectorRegistry()
    metrics.register(SinkCollector(process))
    add_process_metrics(metrics)
    return metrics
