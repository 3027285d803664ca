"""A pair's metrics for Prometheus, from the newest status of its stores.

An SCN above 2**53 loses its last digits here, because Prometheus stores numbers as
floats; `/bootstrapStatus` has all digits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from databus.bootstrap.admin.status import StoreStatus
from databus.bootstrap.pair import Pair
from databus.bootstrap.producer.producer import Producer, ProducerStatus
from databus.bootstrap.producer.relay_monitor import behind_s
from databus.bootstrap.server.sessions import ServedPhase
from databus.bootstrap.store.values import SourceSizes, SourceStatus
from databus.daemon.process_metrics import add_process_metrics

Stores = Iterable[tuple[str, StoreStatus]]
Samples = Iterable[tuple[list[str], float]]

_PHYSICAL = ["physical_source"]
_SOURCE_LABELS = ["physical_source", "source"]
_PRODUCED: tuple[tuple[str, str, Callable[[ProducerStatus], int]], ...] = (
    ("producer_windows", "Windows applied to the store", lambda s: s.windows),
    ("producer_events", "Row changes applied to the store", lambda s: s.events),
)

_SIZES: tuple[tuple[str, str, Callable[[SourceSizes], int]], ...] = (
    ("rows", "Rows of the snapshot", lambda s: s.rows),
    ("tombstones", "Deleted rows that are remembered", lambda s: s.tombstones),
    ("log_rows", "Changes in the log", lambda s: s.log_rows),
    ("log_bytes", "Bytes of the changes in the log", lambda s: s.log_bytes),
)


class PairCollector(Collector):
    """Collects the metrics of one pair."""

    def __init__(self, pair: Pair, wall_s: Callable[[], float] = time.time) -> None:
        self._pair = pair
        self._wall_s = wall_s

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        stores = self._pair.stores
        yield from self._positions(stores.items())
        for name, text, figure in _SIZES:
            yield _gauge(name, text, _SOURCE_LABELS, _sizes(stores.items(), figure))
        yield _gauge(
            "source_status",
            "1 for the current status",
            [*_SOURCE_LABELS, "status"],
            _statuses(stores.items()),
        )
        yield from self._relays(stores.items())
        yield from self._producers()
        yield from self._leases()
        yield from self._seeding(stores.items())
        yield from self._traffic()
        yield self._sessions()

    def _positions(self, stores: Stores) -> Iterator[Metric]:
        now_s = self._wall_s()
        one = ["physical_source"]
        found = [(name, store) for name, store in stores if store.scn >= 0]
        yield _gauge(
            "position_scn", "SCN of the newest window", one, (([n], s.scn) for n, s in found)
        )
        yield _gauge(
            "lag_seconds",
            "Time since the commit of the newest window; it grows while nothing is committed",
            one,
            (([n], max(0.0, now_s - s.timestamp_ns / 1e9)) for n, s in found if s.timestamp_ns),
        )
        yield _gauge(
            "store_bytes",
            "Size of the store's file",
            one,
            (([n], s.sizes.file_bytes) for n, s in found if s.sizes),
        )
        yield _gauge(
            "store_packed_bytes",
            "Bytes of the store's rows that are packed as columns",
            one,
            (([n], s.sizes.packed_bytes) for n, s in found if s.sizes),
        )
        watched = self._pair.store_watch.watched
        yield _gauge(
            "store_checked_bytes",
            "Bytes of rows in the store's file that were checked since the start",
            one,
            (([name], one_of.checked_bytes) for name, one_of in watched.items()),
        )
        yield _gauge(
            "store_checked_age_seconds",
            "Seconds since the last complete check of the store's file",
            one,
            (
                ([name], time.monotonic() - one_of.round_at_s)
                for name, one_of in watched.items()
                if one_of.round_at_s is not None
            ),
        )
        problems = self._pair.problems()
        yield _gauge(
            "problems",
            "Number of problems; /health has the texts",
            one,
            (([n], len(problems.get(n, ()))) for n, _ in stores),
        )

    def _relays(self, stores: Stores) -> Iterator[Metric]:
        """Yield the newest window of each relay, and the lag of each store behind it."""
        newest = self._pair.relays.newest
        yield _gauge(
            "relay_scn",
            "SCN of the newest window at the relay",
            _PHYSICAL,
            (([name], point.scn) for name, point in newest.items()),
        )
        found = [
            ([name], behind_s(newest[name], store.scn, store.timestamp_ns))
            for name, store in stores
            # While the relay has trouble with its source, the lag is unknown.
            if name in newest and name not in self._pair.relays.troubles
        ]
        yield _gauge(
            "behind_relay_seconds",
            "Commit time of the relay's newest window minus that of the store's; 0 = up to date",
            _PHYSICAL,
            ((labels, value) for labels, value in found if value is not None),
        )

    def _producers(self) -> Iterator[Metric]:
        pair = self._pair
        producers = [
            ([name], one.status())
            for name, one in pair.producers.items()
            if isinstance(one, Producer)
        ]
        for name, text, figure in _PRODUCED:
            counter = CounterMetricFamily(f"databus_bootstrap_{name}", text, labels=_PHYSICAL)
            for labels, status in producers:
                counter.add_metric(labels, figure(status))
            yield counter
        paused = [([name], pair.is_paused(name)) for name in pair.paths]
        yield _gauge(
            "paused",
            "1 while the producer and the seeder of the store are paused",
            _PHYSICAL,
            ((labels, value) for labels, value in paused if value is not None),
        )

    def _leases(self) -> Iterator[Metric]:
        """Yield the leases of stores that several processes may fill."""
        leases = [([name], self._pair.ownership(name)) for name in self._pair.paths]
        held = [(labels, lease) for labels, lease in leases if lease is not None]
        yield _gauge(
            "is_active",
            "1 when this process fills the store, 0 when it stands by or takes over",
            _PHYSICAL,
            ((labels, float(lease.role == "active")) for labels, lease in held),
        )
        yield _gauge(
            "lease_term",
            "Term of the store's lease, as this process knows it",
            _PHYSICAL,
            ((labels, lease.term) for labels, lease in held),
        )

    def _seeding(self, stores: Stores) -> Iterator[Metric]:
        seeded = [
            ([name, source.name], source)
            for name, store in stores
            for source in store.sources
            if source.status is SourceStatus.SEEDING
        ]
        yield _gauge(
            "seeded_rows",
            "Rows read from the table that is being seeded",
            _SOURCE_LABELS,
            ((labels, source.seed_rows) for labels, source in seeded),
        )
        yield _gauge(
            "seed_estimate_rows",
            "The database's estimate of that table's rows",
            _SOURCE_LABELS,
            ((labels, s.seed_estimate) for labels, s in seeded if s.seed_estimate > 0),
        )
        rates = [(labels, self._pair.seed_rates.rows_per_s(*labels)) for labels, _ in seeded]
        yield _gauge(
            "seed_rows_per_second",
            "Rows read from that table per second, over the last few seconds",
            _SOURCE_LABELS,
            ((labels, rate) for labels, rate in rates if rate is not None),
        )

    def _sessions(self) -> Metric:
        phases = Counter(session.phase for session in self._pair.sessions.look())
        return _gauge(
            "sessions",
            "Clients served in the last hour, by phase",
            ["phase"],
            # Every phase, so that no series vanishes at 0.
            (([phase.value], phases[phase]) for phase in ServedPhase),
        )

    def _traffic(self) -> Iterator[Metric]:
        traffic = self._pair.traffic
        for name, text, value in (
            ("pages", "Pages served", traffic.pages),
            ("page_rows", "Rows served", traffic.rows),
            ("page_bytes", "Bytes of pages served, uncompressed", traffic.size_bytes),
        ):
            yield CounterMetricFamily(f"databus_bootstrap_{name}", text, value=value)
        refusals = CounterMetricFamily(
            "databus_bootstrap_refusals", "Requests refused", labels=["error"]
        )
        for error, count in list(traffic.refusals.items()):
            refusals.add_metric([error], count)
        yield refusals


def make_metrics(pair: Pair) -> CollectorRegistry:
    """Return a new registry for one pair, so that two pairs in a process do not mix."""
    metrics = CollectorRegistry()
    metrics.register(PairCollector(pair))
    add_process_metrics(metrics)
    return metrics


def _gauge(name: str, text: str, labels: list[str], samples: Samples) -> Metric:
    gauge = GaugeMetricFamily(f"databus_bootstrap_{name}", text, labels=labels)
    for values, figure in samples:
        gauge.add_metric(values, figure)
    return gauge


def _sizes(stores: Stores, figure: Callable[[SourceSizes], int]) -> Samples:
    for name, store in stores:
        for source, sizes in store.sizes.sources.items() if store.sizes else ():
            yield [name, source], figure(sizes)


def _statuses(stores: Stores) -> Samples:
    for name, store in stores:
        for source in store.sources:
            for status in SourceStatus:
                yield [name, source.name, status.value], float(status is source.status)
