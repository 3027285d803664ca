"""What a serving process says of its readers, and how the capturing process takes it over.

Both clocks are the machine's monotonic one, so times need no translation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from databus.daemon.http.server import Connections
from databus.relay.monitoring.clients import Client, ClientNews
from databus.relay.relay import Relay
from databus.relay.serving_processes.messages import Report
from databus.relay.serving_processes.served_relay import ServedRelay


class Reporter:
    """Makes the reports of one serving process."""

    def __init__(self, relay: ServedRelay, server: Connections) -> None:
        self._relay, self._server = relay, server
        self._before: dict[str, tuple[int, int]] = {}  # requests and bytes told, by client
        self._told_s = 0.0
        self._asked = self._served = 0

    def report(self, now_s: float) -> Report:
        """Return what has happened since the last report."""
        traffic = self._relay.traffic
        asked, served = traffic.stream_requests, traffic.stream_bytes
        found = [news for one in self._relay.monitor.clients if (news := self._news(one))]
        report = Report(
            open_connections=self._server.open_connections,
            turned_away=dict(self._server.turned_away),
            stream_requests=asked - self._asked,
            stream_bytes=served - self._served,
            held_requests=traffic.held_requests,
            waiting=self._relay.waiting,
            clients=tuple(found),
        )
        self._asked, self._served, self._told_s = asked, served, now_s
        return report

    def _news(self, client: Client) -> ClientNews | None:
        if client.open_requests == 0 and client.last_seen_s < self._told_s:
            return None
        requests = client.requests - self._relay.passed_on[client.caller.id]
        told = self._before.get(client.caller.id, (0, 0))
        self._before[client.caller.id] = requests, client.served_bytes
        return ClientNews(
            client.caller,
            requests - told[0],
            client.open_requests,
            client.served_bytes - told[1],
            client.last_seen_s,
            {k: one for k, one in client.streams.items() if one.asked_s >= self._told_s},
        )


class ReadersElsewhere:
    """The readers of one serving process, as the capturing process counts them."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._open: Counter[str] = Counter()  # requests, by client
        self.last = Report()

    def take(self, report: Report) -> None:
        """Take over a report."""
        traffic, clients = self._relay.traffic, self._relay.monitor.clients
        traffic.stream_requests += report.stream_requests
        traffic.stream_bytes += report.stream_bytes
        traffic.held_requests += report.held_requests - self.last.held_requests
        for name, source in self._relay.physical_sources.items():
            change = report.waiting.get(name, 0) - self.last.waiting.get(name, 0)
            source.notifier.waiting_elsewhere += change
        for one in report.clients:
            change = one.open_requests - self._open[one.caller.id]
            self._open[one.caller.id] = one.open_requests
            clients.add(one, change)
        self.last = report

    def forget(self) -> None:
        """Count nothing as open any more: the process has ended."""
        now_s = self._relay.clock.monotonic_s()
        gone = tuple(
            ClientNews(client.caller, 0, 0, 0, now_s, {})
            for client_id, count in self._open.items()
            if count and (client := self._relay.monitor.clients.get(client_id)) is not None
        )
        turned_away: Mapping[str, int] = self.last.turned_away
        self.take(Report(turned_away=turned_away, clients=gone))
        self._open.clear()
