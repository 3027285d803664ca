"""Metrics of groups, and of the leases that this process holds.

A group has the names that its processes give it, so at most `MOST_GROUPS` have series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from databus.leases.holding import held_here
from databus.relay.cluster.cluster import Cluster
from databus.relay.cluster.models import GroupSummary

MOST_GROUPS = 100

_GAUGES: tuple[tuple[str, str, Callable[[GroupSummary], float | None]], ...] = (
    ("partitions", "Partitions of a group", lambda g: g.partitions),
    ("owned", "Partitions whose owner is not known to have gone", lambda g: g.owned),
    ("members", "Processes of a group", lambda g: g.members),
    (
        "behind_seconds",
        "Greatest lag of a group's partitions; none while one is unknown",
        lambda g: g.behind_s,
    ),
    (
        "unknown_lags",
        "Partitions whose lag is unknown: not begun, in a bootstrap, or no newest window",
        lambda g: g.unknown_lags,
    ),
    ("halted", "1 while a command keeps a group from reading", lambda g: bool(g.halted)),
)


def cluster_metrics(cluster: Cluster) -> Iterator[Metric]:
    """Yield the metrics of groups, while the coordinator answers, and of leases."""
    cluster.watch.ask()
    coordinator = cluster.coordinator()
    if coordinator is not None:
        well = coordinator.seen_at is not None and not coordinator.problem
        text = "1 while the coordinator could be looked at the last time"
        yield GaugeMetricFamily("databus_coordinator_answers", text, float(well))
        # What was seen before it went away is not true any more: no samples are better.
        yield from _groups(cluster.groups().groups[:MOST_GROUPS] if well else [])
    terms = GaugeMetricFamily(
        "databus_lease_term", "Term of each lease that this process holds", labels=["lease"]
    )
    for name, term in held_here().items():
        terms.add_metric([name], term)
    yield terms


def _groups(groups: list[GroupSummary]) -> Iterator[Metric]:
    for name, text, value_of in _GAUGES:
        gauge = GaugeMetricFamily(f"databus_group_{name}", text, labels=["group"])
        for group in groups:
            value = value_of(group)
            if value is not None and not group.problem:
                gauge.add_metric([group.name], value)
        yield gauge
    moves = CounterMetricFamily(
        "databus_group_moves", "Partitions that went from one process to another", labels=["group"]
    )
    for group in groups:
        moves.add_metric([group.name], group.all_moves)
    yield moves
