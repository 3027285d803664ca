"""What a daemon does so that others find it. `databus/servers/announcer.py` does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Presence(Protocol):
    """A daemon among the servers that are found. For the thread of its loop."""

    problem: str
    is_listed: bool

    def enter(self, url: str, connections: Callable[[], int]) -> None:
        """Be found from now on; `connections` returns how many are open."""

    async def leave(self, timeout_s: float) -> None:
        """Be found no more; give up after `timeout_s`."""


class PresenceMetrics(Collector):
    """Whether a daemon is found, in Prometheus' form."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence

    def collect(self) -> Iterator[Metric]:
        """Yield whether it is listed."""
        text = "Whether clients find this server by its coordinator"
        listed = self._presence.is_listed and not self._presence.problem
        yield GaugeMetricFamily("databus_listed", text, float(listed))


def presence_details(presence: Presence | None) -> dict[str, Any]:
    """Return what `/health` and `/ready` say of a daemon that is to be found."""
    if presence is None:
        return {}
    return {"servers": {"isListed": presence.is_listed, "problem": presence.problem}}
