"""What the API and the metrics say of the door for clients of Canal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Call, Endpoint, Scn
from databus.relay.relay import Relay
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming.consumer import Consumer
from databus.relay.serving.canal.consuming.destinations import Destination
from databus.relay.serving.canal.door.door import CanalDoor

MOST_SHOWN = 100  # consumers of a destination; clients choose their ids
_LABELS = ["destination", "client_id"]


class CanalPlaceView(ApiModel):
    """How far a client has acknowledged one physical source."""

    physical_source: str
    acked_scn: Scn | None = Field(
        description="Everything up to there is acknowledged; None = not known"
    )
    newest_scn: Scn | None = Field(description="Of the newest window here")
    behind_s: float | None = Field(description="Between their commits; None = not known")
    problem: str = Field(description="Why nothing comes now, or what comes may be late")


class CanalConsumerView(ApiModel):
    """A client id that has subscribed to a destination, and was heard of since the start."""

    client_id: int
    filter: str = Field(description="Empty = that of the destination")
    address: str = Field(description="Where its last request came from")
    outstanding: int = Field(description="Batches that it has not acknowledged")
    batches: int
    entries: int
    served_bytes: int
    rollbacks: int
    sent_at: float | None = Field(description="When it was sent a batch last")
    acked_at: float | None = Field(description="When it acknowledged one last")
    places: list[CanalPlaceView]
    problem: str = Field(description="Why it could not be served the last time")


class CanalDestinationView(ApiModel):
    """A destination."""

    name: str
    physical_sources: list[str]
    is_active: bool = Field(description="Whether this relay serves it now")
    elsewhere: str = Field(description="Address of the relay that serves it, if known")
    consumers: list[CanalConsumerView]
    left_out: int = Field(description="Consumers that are not shown, because there are too many")


class CanalView(ApiModel):
    """The door for clients of Canal."""

    address: str = Field(description="As clients are given it; empty = there is no such door")
    connections: int
    refused_logins: int
    refused_connections: int
    bad_frames: int
    problem: str = Field(description="Why cursors or places in ZooKeeper cannot be written now")
    destinations: list[CanalDestinationView]


class CanalStatus:
    """The status of a relay's door for clients of Canal; without a door it is empty."""

    def __init__(self, relay: Relay, door: CanalDoor | None) -> None:
        self._relay, self._door = relay, door

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return the endpoints below a path."""
        return (
            Endpoint(
                "GET",
                f"{root}/canal",
                "The door for clients of Canal: destinations, clients, cursors",
                CanalView,
                self.view,
            ),
        )

    async def view(self, _call: Call) -> CanalView:
        """Return the door's status."""
        door = self._door
        if door is None:
            return CanalView(
                address="",
                connections=0,
                refused_logins=0,
                refused_connections=0,
                bad_frames=0,
                problem="",
                destinations=[],
            )
        return CanalView(
            address=door.address,
            connections=len(door.connections),
            refused_logins=door.refused_logins,
            refused_connections=door.refused_connections,
            bad_frames=door.bad_frames,
            problem=door.problem,
            destinations=[self._destination(one) for one in door.destinations.by_name.values()],
        )

    def _destination(self, destination: Destination) -> CanalDestinationView:
        consumers = list(destination.consumers.values())
        return CanalDestinationView(
            name=destination.name,
            physical_sources=list(destination.settings.physical_sources),
            is_active=destination.is_active,
            elsewhere=destination.elsewhere,
            consumers=[self._consumer(destination, one) for one in consumers[:MOST_SHOWN]],
            left_out=max(0, len(consumers) - MOST_SHOWN),
        )

    def _consumer(self, destination: Destination, consumer: Consumer) -> CanalConsumerView:
        counts = consumer.counts
        return CanalConsumerView(
            client_id=consumer.client_id,
            filter=consumer.filter_text,
            address=consumer.address,
            outstanding=consumer.batches.outstanding,
            batches=counts.batches,
            entries=counts.entries,
            served_bytes=counts.size_bytes,
            rollbacks=counts.rollbacks,
            sent_at=counts.sent_at,
            acked_at=counts.acked_at,
            places=[
                self._place(consumer, source) for source in destination.settings.physical_sources
            ],
            problem=counts.problem,
        )

    def _place(self, consumer: Consumer, source: str) -> CanalPlaceView:
        place = consumer.batches.acked.get(source)
        scn, offset = (-1, WINDOW_DONE) if place is None else place.settled
        scn = scn if offset == WINDOW_DONE else scn - 1
        found = self._relay.physical_sources.get(source)
        newest, behind_s, problem = -1, None, ""
        if found is not None:
            newest, capture = found.reader.max_scn, found.capture.status
            problem = capture.problem
            if consumer.is_ahead_of(source):
                problem = (
                    f"its cursor, scn {scn}, is ahead of scn {newest}, the newest here: this relay "
                    "is late, or its log is another one; to begin anew, unsubscribe"
                )
            elif not capture.is_connected:
                pass  # what was committed since is not known
            elif scn >= newest >= 0:
                behind_s = 0.0
            elif scn >= 0 and (held := found.reader.window_at(scn)) is not None:
                behind_s = max(0.0, (found.reader.latest_timestamp_ns - held[1]) / 1e9)
        return CanalPlaceView(
            physical_source=source,
            acked_scn=scn if scn >= 0 else None,
            newest_scn=newest if newest >= 0 else None,
            behind_s=behind_s,
            problem=problem,
        )


class CanalCollector(Collector):
    """The door's metrics."""

    def __init__(self, door: CanalDoor) -> None:
        self._door = door

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; nothing is counted here."""
        door = self._door
        yield GaugeMetricFamily(
            "databus_canal_connections", "Open connections of clients", len(door.connections)
        )
        yield CounterMetricFamily(
            "databus_canal_refused_logins", "Logins that were refused", door.refused_logins
        )
        yield CounterMetricFamily(
            "databus_canal_bad_frames", "Frames that were malformed", door.bad_frames
        )
        yield GaugeMetricFamily(
            "databus_canal_problem", "1 while cursors cannot be written", bool(door.problem)
        )
        yield from self._of_consumers()

    def _of_consumers(self) -> Iterator[Metric]:
        outstanding = GaugeMetricFamily(
            "databus_canal_outstanding_batches", "Batches not acknowledged", labels=_LABELS
        )
        entries = CounterMetricFamily("databus_canal_entries", "Entries sent", labels=_LABELS)
        sent = CounterMetricFamily("databus_canal_bytes", "Bytes of entries sent", labels=_LABELS)
        active = GaugeMetricFamily(
            "databus_canal_active", "1 if this relay serves it", labels=["destination"]
        )
        for destination in self._door.destinations.by_name.values():
            active.add_metric([destination.name], destination.is_active)
            for one in list(destination.consumers.values())[:MOST_SHOWN]:
                names = [destination.name, str(one.client_id)]
                outstanding.add_metric(names, one.batches.outstanding)
                entries.add_metric(names, one.counts.entries)
                sent.add_metric(names, one.counts.size_bytes)
        yield from (active, outstanding, entries, sent)
