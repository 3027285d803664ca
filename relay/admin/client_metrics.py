"""What Prometheus is told of a relay's clients: by name, and only so many of them.

A label that strangers choose would otherwise grow what is stored without
bound. Beyond `MOST_NAMES` the rest are one, `other`: rates added up, distances
the worst of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from databus.relay.admin.client_status import client_view
from databus.relay.admin.models import ClientState, ClientView
from databus.relay.admin.source_status import ring_marks
from databus.relay.relay import Relay

MOST_NAMES = 200
OTHER = "other"


@dataclass(slots=True)
class _Figures:
    """The figures of all clients of one name."""

    bytes_per_s: float = 0.0
    served_bytes: int = 0
    behind_bytes: float | None = None
    behind_s: float | None = None
    edge_share: float | None = None
    states: set[ClientState] = field(default_factory=set)

    def add(self, view: ClientView) -> None:
        self.bytes_per_s += view.bytes_per_s
        self.served_bytes += view.served_bytes
        self.states.add(view.state)
        for place in view.positions:
            self.behind_bytes = _worst(max, self.behind_bytes, place.behind_bytes)
            self.behind_s = _worst(max, self.behind_s, place.behind_s)
            self.edge_share = _worst(min, self.edge_share, place.edge_share)


_Gauge = tuple[str, str, str]
_GAUGES: tuple[_Gauge, ...] = (
    ("client_bytes_per_second", "Bytes of events served in a second, of late", "bytes_per_s"),
    ("client_served_bytes", "Bytes of events served since it was first seen", "served_bytes"),
    ("client_behind_bytes", "Bytes of the ring that it has yet to read", "behind_bytes"),
    ("client_behind_seconds", "How much older is what it reads next than the newest", "behind_s"),
    ("client_edge_share", "Distance to the edge of the ring: 0 = it falls out", "edge_share"),
)


def client_metrics(relay: Relay) -> Iterator[Metric]:
    """Yield the figures of every client, as they are now."""
    figures, counts = _collect(relay)
    clients = GaugeMetricFamily("databus_relay_clients", "Clients, by state", labels=["state"])
    for state, count in counts.items():
        clients.add_metric([state.value], count)
    yield clients
    for name, text, attribute in _GAUGES:
        gauge = GaugeMetricFamily(f"databus_relay_{name}", text, labels=["client"])
        for client, found in figures.items():
            value = getattr(found, attribute)
            if value is not None:
                gauge.add_metric([client], value)
        yield gauge
    states = GaugeMetricFamily(
        "databus_relay_client_state", "1 for the state it is in", labels=["client", "state"]
    )
    for client, found in figures.items():
        for state in sorted(found.states):
            states.add_metric([client, state.value], 1)
    yield states


def _collect(relay: Relay) -> tuple[dict[str, _Figures], dict[ClientState, int]]:
    clock = relay.clock
    rings, now_s, at = ring_marks(relay), clock.monotonic_s(), clock.wall_ns() / 1e9
    figures: dict[str, _Figures] = {}
    counts = dict.fromkeys(ClientState, 0)
    # The first come: whoever is named once keeps his series.
    for client in sorted(relay.observed.clients, key=lambda client: client.first_seen_s):
        view = client_view(client, rings, lambda _key: (), now_s, at)
        counts[view.state] += 1
        name = view.name if view.name in figures or len(figures) < MOST_NAMES else OTHER
        figures.setdefault(name, _Figures()).add(view)
    return figures, counts


def _worst(
    choose: Callable[[float, float], float], before: float | None, value: float | None
) -> float | None:
    if value is None or before is None:
        return before if value is None else value
    return choose(before, value)
