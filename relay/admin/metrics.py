"""A relay's metrics in Prometheus format, collected on each scrape.

The collector counts nothing itself and adds nothing to the data path: it reads what the
relay keeps anyway. An SCN above 2**53 loses its last digits, like every number in
Prometheus; `/controlSources/status` is exact.

Clients choose their own names, and labels chosen by strangers would grow the metrics
without bound. Above `MOST_NAMES` the rest are combined as `other`: sums of the rates, the
worst of the distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from databus.daemon.process_metrics import add_process_metrics
from databus.relay.admin.client_status import client_view
from databus.relay.admin.models import ClientState, ClientView
from databus.relay.admin.source_status import ring_marks
from databus.relay.capture.status import State
from databus.relay.catch_up.status import Catching
from databus.relay.cluster.cluster import Cluster
from databus.relay.cluster.metrics import cluster_metrics
from databus.relay.log.archive.status import ArchiveStatus
from databus.relay.log.status import RelayLogStatus
from databus.relay.relay import Relay
from databus.relay.source_status import SourceStatus

Part = TypeVar("Part")

_LABELS = ["physical_source"]

Value = Callable[[SourceStatus], float]

_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("events", "Row changes captured", lambda s: s.capture.events),
    ("windows", "Windows with data captured", lambda s: s.capture.windows),
    ("captured_bytes", "Bytes of windows captured", lambda s: s.capture.size_bytes),
    (
        "unlogged_statements",
        "Windows with DML statements that the log has without their rows",
        lambda s: sum(one.windows for one in s.unlogged),
    ),
    ("reconnects", "Times the source could not be reached", lambda s: s.capture.reconnects),
)
_GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("last_scn", "SCN of the newest window", lambda s: s.capture.scn),
    ("ring_min_scn", "SCN of the oldest window held", lambda s: s.ring.min_scn),
    ("ring_max_scn", "SCN of the newest window held", lambda s: s.ring.max_scn),
    ("ring_prev_scn", "Newest SCN no longer held", lambda s: s.ring.prev_scn),
    ("ring_used_bytes", "Bytes of windows held", lambda s: s.ring.used_bytes),
    ("ring_capacity_bytes", "Bytes the ring can hold", lambda s: s.ring.capacity_bytes),
    ("held_requests", "Requests held until there are new windows", lambda s: s.held_requests),
    ("stopped_tables", "Tables stopped alone; see /health", lambda s: len(s.stops)),
    ("source_warnings", "Warnings about the database and its log", lambda s: s.warnings),
    (
        "connected",
        "1 while the database is heard from; otherwise the lag of the ring is unknown",
        lambda s: s.capture.is_connected,
    ),
)
# Without a sample while unknown: an unknown lag is not 0.
_KNOWN_GAUGES: tuple[tuple[str, str, Callable[[SourceStatus], float | None]], ...] = (
    (
        "captures",
        "1 if this relay captures the source under its lease, 0 if it stands by",
        lambda s: None if s.role is None else s.role.is_active,
    ),
    (
        "lease_term",
        "Term of the lease under which a relay captures the source",
        lambda s: None if s.role is None else s.role.term,
    ),
    (
        "lag_seconds",
        "From commit to ring, of the newest window; 0 when all is captured",
        lambda s: s.capture.known_delay_s,
    ),
    (
        "heard_seconds",
        "Unix time at which the database was last heard from",
        lambda s: s.capture.heard_at,
    ),
    (
        "log_search_left_bytes",
        "Bytes of the log that a search has yet to read before capture continues",
        lambda s: s.capture.search_left_bytes,
    ),
    # From the last probe of the database's log, once a minute.
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
        "Hours until the database may purge the next part to read; +Inf = never",
        lambda s: s.log.hours_left,
    ),
)


# Of physical sources that have a relay log. Without a sample while the value is unknown.
_RELAY_LOG_GAUGES: tuple[tuple[str, str, Callable[[RelayLogStatus], float | None]], ...] = (
    ("min_scn", "SCN of the oldest window of the relay log", lambda s: _known(s.min_scn)),
    ("durable_scn", "SCN of the newest window on disk", lambda s: _known(s.durable_scn)),
    (
        "oldest_seconds",
        "Unix time of the oldest window of the relay log",
        lambda s: s.oldest_ns / 1e9 or None,
    ),
    ("segments", "Segments of the relay log", lambda s: s.segments),
    ("used_bytes", "Bytes of the relay log on disk", lambda s: s.size_bytes),
    (
        "retention_share",
        "Share of what the retention allows that is used, by bytes or by age",
        lambda s: s.share,
    ),
    (
        "is_failing",
        "1 if the relay log cannot be written; capture waits once the ring is full",
        lambda s: bool(s.problem),
    ),
    (
        "capture_waits_seconds",
        "For how long capture has been waiting for the relay log; 0 = it is not waiting",
        lambda s: s.waiting_s or 0.0,
    ),
)
_RELAY_LOG_COUNTERS: tuple[tuple[str, str, Callable[[RelayLogStatus], float]], ...] = (
    ("errors", "Failed attempts to write the relay log", lambda s: s.errors),
    ("read_bytes", "Bytes of events read from the relay log", lambda s: s.read_bytes),
    ("waited_seconds", "Time that capture has waited for the relay log", lambda s: s.waited_s),
)

# Of physical sources whose log can be read a second time.
_CATCH_UP_GAUGES: tuple[tuple[str, str, Callable[[Catching], float | None]], ...] = (
    ("running", "Catch-ups that read the source's log a second time", lambda s: s.running),
    ("queued", "Catch-ups that wait until others are dropped", lambda s: s.queued),
    ("used_bytes", "Bytes of catch-ups on disk", lambda s: s.size_bytes),
    (
        "scn",
        "SCN of the newest window of the catch-up that is furthest behind",
        lambda s: _known(s.scn),
    ),
)
_CATCH_UP_COUNTERS: tuple[tuple[str, str, Callable[[Catching], float]], ...] = (
    ("opened", "Catch-ups begun", lambda s: s.opened),
    ("failed", "Catch-ups that ended with an error", lambda s: s.failed),
    ("read_bytes", "Bytes of events that consumers have read from catch-ups", lambda s: s.read),
)

# Of relay logs that have an archive.
_ARCHIVE_GAUGES: tuple[tuple[str, str, Callable[[ArchiveStatus], float | None]], ...] = (
    ("min_scn", "SCN of the oldest archived window", lambda s: _known(s.min_scn)),
    ("max_scn", "SCN of the newest archived window", lambda s: _known(s.max_scn)),
    (
        "oldest_seconds",
        "Unix time of the oldest archived window",
        lambda s: s.oldest_ns / 1e9 or None,
    ),
    ("segments", "Segments of the relay log in the archive", lambda s: s.segments),
    ("used_bytes", "Bytes of the relay log in the archive", lambda s: s.size_bytes),
    ("waiting_segments", "Sealed segments that are not in the archive yet", lambda s: s.waiting),
    (
        "is_failing",
        "1 if the archive cannot be read or written; what is not archived is kept on disk",
        lambda s: bool(s.problem),
    ),
)
_ARCHIVE_COUNTERS: tuple[tuple[str, str, Callable[[ArchiveStatus], float]], ...] = (
    ("errors", "Failed attempts to read or write the archive", lambda s: s.errors),
    ("written_bytes", "Bytes of segments written to the archive", lambda s: s.written_bytes),
    ("fetched_bytes", "Bytes of segments fetched from the archive", lambda s: s.fetched_bytes),
)


class RelayCollector(Collector):
    """Collects one relay's metrics."""

    def __init__(self, relay: Relay, cluster: Cluster) -> None:
        self._relay, self._cluster = relay, cluster

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        statuses = self._relay.statuses()
        for name, text, value_of in _COUNTERS:
            counter = CounterMetricFamily(f"databus_relay_{name}", text, labels=_LABELS)
            for status in statuses:
                counter.add_metric([status.name], value_of(status))
            yield counter
        for name, text, known in (*_GAUGES, *_KNOWN_GAUGES):
            gauge = GaugeMetricFamily(f"databus_relay_{name}", text, labels=_LABELS)
            for status in statuses:
                value = known(status)
                if value is not None:
                    gauge.add_metric([status.name], value)
            yield gauge
        yield from _relay_logs(statuses)
        yield from _archives(statuses)
        yield from _catch_ups(self._relay)
        yield from self._of_late(statuses)
        yield from self._checked(statuses)
        yield self._states(statuses)
        yield from self._traffic()
        yield from client_metrics(self._relay)
        yield from cluster_metrics(self._cluster)

    def _of_late(self, statuses: Sequence[SourceStatus]) -> Iterator[Metric]:
        """Yield the rates of the last seconds and the age of the oldest window."""
        relay = self._relay
        at = relay.clock.wall_ns() / 1e9
        rates = GaugeMetricFamily(
            "databus_relay_captured_bytes_per_second",
            "Bytes of windows captured per second, over the last few seconds",
            labels=_LABELS,
        )
        ages = GaugeMetricFamily(
            "databus_relay_ring_oldest_age_seconds",
            "Age of the oldest window held, which is the largest possible lag of a consumer",
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
        """Yield the results of the background check of the ring files."""
        relay, watched = self._relay, self._relay.ring_watch.watched
        counter = CounterMetricFamily(
            "databus_relay_ring_checked_bytes",
            "Bytes of rings checked in the background",
            labels=_LABELS,
        )
        ages = GaugeMetricFamily(
            "databus_relay_ring_checked_age_seconds",
            "Time since the last complete check of the ring's file",
            labels=_LABELS,
        )
        damaged = GaugeMetricFamily(
            "databus_relay_ring_is_damaged", "1 if some windows cannot be read", labels=_LABELS
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
            "databus_relay_source_state", "1 for the current state", labels=[*_LABELS, "state"]
        )
        now = {status.name: status.capture.state for status in statuses}
        # Unusable sources have no status but must still be alerted on.
        for name, is_in in (now | dict.fromkeys(self._relay.unusable, State.ERROR)).items():
            for state in State:
                states.add_metric([name, state.value], float(state is is_in))
        return states

    def _traffic(self) -> Iterator[Metric]:
        traffic = self._relay.traffic
        for name, text, value in (
            ("stream_requests", "Stream requests answered", traffic.stream_requests),
            ("stream_bytes", "Bytes of events served, uncompressed", traffic.stream_bytes),
            ("scn_not_found", "Stream requests for overwritten windows", traffic.scn_not_found),
        ):
            yield CounterMetricFamily(f"databus_relay_{name}", text, value=value)


def _relay_logs(statuses: Sequence[SourceStatus]) -> Iterator[Metric]:
    """Yield the metrics of the relay logs, if there are any."""
    logs = {status.name: status.relay_log for status in statuses if status.relay_log is not None}
    yield from _metrics_of("relay_log", logs, _RELAY_LOG_GAUGES, _RELAY_LOG_COUNTERS)


def _archives(statuses: Sequence[SourceStatus]) -> Iterator[Metric]:
    """Yield the metrics of the relay logs' archives, if there are any."""
    logs = {status.name: status.relay_log for status in statuses}
    found = {n: log.archive for n, log in logs.items() if log is not None and log.archive}
    yield from _metrics_of("archive", found, _ARCHIVE_GAUGES, _ARCHIVE_COUNTERS)


def _catch_ups(relay: Relay) -> Iterator[Metric]:
    """Yield the metrics of catch-ups, of the sources that can have any."""
    found = {
        name: source.catch_ups.summary()
        for name, source in relay.physical_sources.items()
        if source.catch_ups is not None
    }
    yield from _metrics_of("catch_up", found, _CATCH_UP_GAUGES, _CATCH_UP_COUNTERS)


def _metrics_of(
    prefix: str,
    statuses: Mapping[str, Part],
    gauges: Sequence[tuple[str, str, Callable[[Part], float | None]]],
    counters: Sequence[tuple[str, str, Callable[[Part], float]]],
) -> Iterator[Metric]:
    """Yield the metrics of one part of the physical sources that have it."""
    if not statuses:
        return
    for name, text, known in gauges:
        gauge = GaugeMetricFamily(f"databus_relay_{prefix}_{name}", text, labels=_LABELS)
        for source, status in statuses.items():
            value = known(status)
            if value is not None:
                gauge.add_metric([source], value)
        yield gauge
    for name, text, value_of in counters:
        counter = CounterMetricFamily(f"databus_relay_{prefix}_{name}", text, labels=_LABELS)
        for source, status in statuses.items():
            counter.add_metric([source], value_of(status))
        yield counter


def _known(scn: int) -> int | None:
    return None if scn < 0 else scn


def make_metrics(relay: Relay, cluster: Cluster | None = None) -> CollectorRegistry:
    """Return the registry of one relay; several in a process stay separate."""
    metrics = CollectorRegistry()
    metrics.register(RelayCollector(relay, cluster or Cluster(relay)))
    add_process_metrics(metrics)
    return metrics


MOST_NAMES = 200
OTHER = "other"


@dataclass(slots=True)
class _ClientStats:
    """The combined values of all clients of one name."""

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
    (
        "client_bytes_per_second",
        "Bytes of events served per second, over the last few seconds",
        "bytes_per_s",
    ),
    ("client_served_bytes", "Bytes of events served since it was first seen", "served_bytes"),
    ("client_behind_bytes", "Bytes of the ring after its checkpoint", "behind_bytes"),
    (
        "client_behind_seconds",
        "Age of the next window after its checkpoint, relative to the newest",
        "behind_s",
    ),
    (
        "client_edge_share",
        "Share of the ring left until its checkpoint is overwritten; 0 = lagged out",
        "edge_share",
    ),
)


def client_metrics(relay: Relay) -> Iterator[Metric]:
    """Yield the metrics of all clients."""
    stats, counts = _collect(relay)
    clients = GaugeMetricFamily("databus_relay_clients", "Clients, by state", labels=["state"])
    for state, count in counts.items():
        clients.add_metric([state.value], count)
    yield clients
    for name, text, attribute in _CLIENT_GAUGES:
        gauge = GaugeMetricFamily(f"databus_relay_{name}", text, labels=["client"])
        for client, found in stats.items():
            value = getattr(found, attribute)
            if value is not None:
                gauge.add_metric([client], value)
        yield gauge
    states = GaugeMetricFamily(
        "databus_relay_client_state", "1 for the current state", labels=["client", "state"]
    )
    for client, found in stats.items():
        for state in sorted(found.states):
            states.add_metric([client, state.value], 1)
    yield states


def _collect(relay: Relay) -> tuple[dict[str, _ClientStats], dict[ClientState, int]]:
    clock = relay.clock
    rings, now_s, at = ring_marks(relay), clock.monotonic_s(), clock.wall_ns() / 1e9
    stats: dict[str, _ClientStats] = {}
    counts = dict.fromkeys(ClientState, 0)
    # By age, so that a client with its own series keeps it.
    for client in sorted(relay.monitor.clients, key=lambda client: client.first_seen_s):
        view = client_view(client, rings, lambda _key: (), now_s, at)
        counts[view.state] += 1
        name = view.name if view.name in stats or len(stats) < MOST_NAMES else OTHER
        stats.setdefault(name, _ClientStats()).add(view)
    return stats, counts


def _worst(
    choose: Callable[[float, float], float], before: float | None, value: float | None
) -> float | None:
    # An unknown value must not hide a known one.
    if value is None or before is None:
        return before if value is None else value
    return choose(before, value)
