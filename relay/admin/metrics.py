"""A relay's figures in Prometheus' form, read at the moment they are asked for.

Nothing is counted twice and nothing is updated on the data path: the collector
looks at what the relay knows anyway. An SCN beyond 2**53 loses its last digits
here, as every number in Prometheus does; `/controlSources/status` has them all.

Clients are named by themselves, and a label that strangers choose would grow what
is stored without bound. Beyond `MOST_NAMES` the rest are one, `other`: rates added
up, distances the worst of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from databus.daemon.process_metrics import add_process_metrics
from databus.relay.admin.client_status import client_view
from databus.relay.admin.models import ClientState, ClientView
from databus.relay.admin.source_status import ring_marks
from databus.relay.capture.status import State
from databus.relay.relay import Relay
from databus.relay.source_status import SourceStatus

_LABELS = ["physical_source"]

Figure = Callable[[SourceStatus], float]

_COUNTERS: tuple[tuple[str, str, Figure], ...] = (
    ("events", "Row changes captured", lambda s: s.capture.events),
    ("windows", "Windows with data captured", lambda s: s.capture.windows),
    ("captured_bytes", "Bytes of windows captured", lambda s: s.capture.size_bytes),
    ("reconnects", "Times the source could not be reached", lambda s: s.capture.reconnects),
)
_GAUGES: tuple[tuple[str, str, Figure], ...] = (
    ("last_scn", "SCN of the newest window", lambda s: s.capture.scn),
    ("ring_min_scn", "SCN of the oldest window held", lambda s: s.ring.min_scn),
    ("ring_max_scn", "SCN of the newest window held", lambda s: s.ring.max_scn),
    ("ring_prev_scn", "Newest SCN no longer held", lambda s: s.ring.prev_scn),
    ("ring_used_bytes", "Bytes of windows held", lambda s: s.ring.used_bytes),
    ("ring_capacity_bytes", "Bytes the ring can hold", lambda s: s.ring.capacity_bytes),
    ("held_requests", "Requests waiting for news", lambda s: s.held_requests),
    ("source_warnings", "Warnings of the last look at the database", lambda s: s.warnings),
    (
        "connected",
        "1 while the database is heard of: without it nobody knows how far behind the ring is",
        lambda s: s.capture.is_connected,
    ),
)
# Left out when not known: a lag that nobody knows is not 0.
_KNOWN_GAUGES: tuple[tuple[str, str, Callable[[SourceStatus], float | None]], ...] = (
    ("lag_seconds", "From commit to ring, of the newest window", lambda s: s.capture.known_delay_s),
    (
        "heard_seconds",
        "Unix time at which the database was last heard of",
        lambda s: s.capture.heard_at,
    ),
    # Of the last look at the database's log, once a minute.
    (
        "log_behind_bytes",
        "Bytes of the database's log not in the ring",
        lambda s: s.log.behind_bytes,
    ),
    (
        "log_behind_seconds",
        "How far the newest window is behind the end of the database's log; 0 at its end",
        lambda s: s.log.behind_s,
    ),
    (
        "log_hours_left",
        "Hours until the database may purge what is to be read next; +Inf = it does not",
        lambda s: s.log.hours_left,
    ),
)


class RelayCollector(Collector):
    """Collects one relay's figures."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        """Yield every figure as it is now."""
        statuses = self._relay.statuses()
        for name, text, figure in _COUNTERS:
            counter = CounterMetricFamily(f"databus_relay_{name}", text, labels=_LABELS)
            for status in statuses:
                counter.add_metric([status.name], figure(status))
            yield counter
        for name, text, known in (*_GAUGES, *_KNOWN_GAUGES):
            gauge = GaugeMetricFamily(f"databus_relay_{name}", text, labels=_LABELS)
            for status in statuses:
                value = known(status)
                if value is not None:
                    gauge.add_metric([status.name], value)
            yield gauge
        yield from self._of_late(statuses)
        yield from self._checked(statuses)
        yield self._states(statuses)
        yield from self._traffic()
        yield from client_metrics(self._relay)

    def _of_late(self, statuses: Sequence[SourceStatus]) -> Iterator[Metric]:
        """Yield what depends on the time: rates over the last seconds, and the oldest's age."""
        relay = self._relay
        at = relay.clock.wall_ns() / 1e9
        rates = GaugeMetricFamily(
            "databus_relay_captured_bytes_per_second",
            "Bytes of windows captured in a second, of late",
            labels=_LABELS,
        )
        ages = GaugeMetricFamily(
            "databus_relay_ring_oldest_age_seconds",
            "How old the oldest window held is: so far back a consumer may be",
            labels=_LABELS,
        )
        for status in statuses:
            of_late = relay.monitor.histories[status.name].rates(status.sample(at))
            rates.add_metric([status.name], of_late.size_bytes)
            if status.ring.oldest_ns > 0:
                ages.add_metric([status.name], max(0.0, at - status.ring.oldest_ns / 1e9))
        yield rates
        yield ages

    def _checked(self, statuses: Sequence[SourceStatus]) -> Iterator[Metric]:
        """Yield what the slow look at the rings' files has found."""
        relay, watched = self._relay, self._relay.ring_watch.watched
        counter = CounterMetricFamily(
            "databus_relay_ring_checked_bytes", "Bytes of rings looked at again", labels=_LABELS
        )
        ages = GaugeMetricFamily(
            "databus_relay_ring_checked_age_seconds",
            "Time of the last complete check of the ring's file",
            labels=_LABELS,
        )
        damaged = GaugeMetricFamily(
            "databus_relay_ring_is_damaged", "1: windows cannot be read", labels=_LABELS
        )
        for status in statuses:
            name = status.name
            counter.add_metric([name], watched[name].checked_bytes)
            round_at_s = watched[name].round_at_s
            if round_at_s is not None:
                ages.add_metric([name], relay.clock.monotonic_s() - round_at_s)
            damaged.add_metric([name], float(bool(status.ring.damage)))
        yield from (counter, ages, damaged)

    def _states(self, statuses: Sequence[SourceStatus]) -> Metric:
        states = GaugeMetricFamily(
            "databus_relay_source_state", "1 for the state it is in", labels=[*_LABELS, "state"]
        )
        now = {status.name: status.capture.state for status in statuses}
        for name, is_in in (now | dict.fromkeys(self._relay.unusable, State.ERROR)).items():
            for state in State:
                states.add_metric([name, state.value], float(state is is_in))
        return states

    def _traffic(self) -> Iterator[Metric]:
        traffic = self._relay.traffic
        for name, text, value in (
            ("stream_requests", "Stream requests answered", traffic.stream_requests),
            ("stream_bytes", "Bytes of events served, uncompressed", traffic.stream_bytes),
            ("scn_not_found", "Stream requests for what is gone", traffic.scn_not_found),
        ):
            yield CounterMetricFamily(f"databus_relay_{name}", text, value=value)


def make_metrics(relay: Relay) -> CollectorRegistry:
    """Return a registry of its own for one relay: two in a process do not mix."""
    metrics = CollectorRegistry()
    metrics.register(RelayCollector(relay))
    add_process_metrics(metrics)
    return metrics


MOST_NAMES = 200
OTHER = "other"


@dataclass(slots=True)
class _ClientStats:
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
_CLIENT_GAUGES: tuple[_Gauge, ...] = (
    ("client_bytes_per_second", "Bytes of events served in a second, of late", "bytes_per_s"),
    ("client_served_bytes", "Bytes of events served since it was first seen", "served_bytes"),
    ("client_behind_bytes", "Bytes of the ring after its checkpoint", "behind_bytes"),
    (
        "client_behind_seconds",
        "How much older is what follows its checkpoint than the newest",
        "behind_s",
    ),
    (
        "client_edge_share",
        "Distance of its checkpoint to the edge of the ring: 0 = a restart needs a bootstrap",
        "edge_share",
    ),
)


def client_metrics(relay: Relay) -> Iterator[Metric]:
    """Yield the figures of every client, as they are now."""
    figures, counts = _collect(relay)
    clients = GaugeMetricFamily("databus_relay_clients", "Clients, by state", labels=["state"])
    for state, count in counts.items():
        clients.add_metric([state.value], count)
    yield clients
    for name, text, attribute in _CLIENT_GAUGES:
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


def _collect(relay: Relay) -> tuple[dict[str, _ClientStats], dict[ClientState, int]]:
    clock = relay.clock
    rings, now_s, at = ring_marks(relay), clock.monotonic_s(), clock.wall_ns() / 1e9
    figures: dict[str, _ClientStats] = {}
    counts = dict.fromkeys(ClientState, 0)
    # The first come: whoever is named once keeps his series.
    for client in sorted(relay.monitor.clients, key=lambda client: client.first_seen_s):
        view = client_view(client, rings, lambda _key: (), now_s, at)
        counts[view.state] += 1
        name = view.name if view.name in figures or len(figures) < MOST_NAMES else OTHER
        figures.setdefault(name, _ClientStats()).add(view)
    return figures, counts


def _worst(
    choose: Callable[[float, float], float], before: float | None, value: float | None
) -> float | None:
    if value is None or before is None:
        return before if value is None else value
    return choose(before, value)
