"""What is served to Ptubes' clients, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from databus.relay.serving.ptubes.door import PtubesDoor


class PtubesMetrics(Collector):
    """Reads what a door counts anyway."""

    def __init__(self, door: PtubesDoor) -> None:
        self._door = door

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        sessions, connections = self._door.sessions, self._door.connections
        yield GaugeMetricFamily(
            "databus_ptubes_sessions", "Subscriptions of Ptubes' clients", len(sessions)
        )
        yield GaugeMetricFamily(
            "databus_ptubes_connections", "Open connections", len(connections.open)
        )
        yield GaugeMetricFamily(
            "databus_ptubes_held_bytes",
            "Bytes of windows held for the clients' next fetches",
            sessions.held_bytes,
        )
        for name, text, value in (
            ("requests", "Requests of Ptubes' clients", connections.requests),
            ("bad_requests", "What was no request", connections.bad_requests),
            ("refused_connections", "Connections above the most", connections.refused),
            (
                "events",
                "Events sent, those to every partition counted for each",
                sessions.events_sent,
            ),
            ("sent_bytes", "Bytes of answers to fetches", sessions.bytes_sent),
        ):
            yield CounterMetricFamily(f"databus_ptubes_{name}", text, value)
        failures = CounterMetricFamily(
            "databus_ptubes_failures", "Requests that failed", labels=["request", "error"]
        )
        for (request, error), count in sessions.failures.items():
            failures.add_metric([request, error], count)
        yield failures
