"""What is told of a physical source: its capture, its ring, its place in the database's log."""

from __future__ import annotations

import math
import re

from databus.relay.admin.client_status import RingMark
from databus.relay.admin.models import (
    AwaitedSource,
    DrainView,
    LogView,
    PhysicalSourceView,
    RingView,
    SourceName,
)
from databus.relay.capture.status import CaptureStatus, State
from databus.relay.monitoring.history import Sample, SourceHistory
from databus.relay.relay import PhysicalSource, Relay
from databus.relay.ring.reader import RingReader
from databus.relay.sources.log_status import Standing

_PASSWORD = re.compile(r"(//[^/@:]*):[^/@]*@")


def take_sample(source: PhysicalSource, at: float) -> Sample:
    """Return how a physical source is at this moment, in figures."""
    status, reader = source.capture.status, source.reader
    head, tail = reader.head, reader.tail
    return Sample(
        at,
        status.events,
        status.windows,
        status.size_bytes,
        tail,
        max(0, tail - head),
        status.known_delay_s,
        source.standing.behind_s,
    )


def ring_mark(source: PhysicalSource, history: SourceHistory, at: float) -> RingMark:
    """Return what a client's place in the ring is compared with."""
    reader = source.reader
    newest_scn, tail = reader.newest()
    return RingMark(
        tail,
        reader.capacity_bytes,
        newest_scn,
        reader.latest_timestamp_ns,
        history.rates(take_sample(source, at)).written_bytes,
        reader.timestamp_at,
        awaited(source.capture.status),
    )


def awaited(status: CaptureStatus) -> AwaitedSource | None:
    """Return what readers wait for; None while the database is heard of."""
    if status.is_connected:
        return None
    if status.state is State.RUNNING and status.heard_at is not None:
        return AwaitedSource(state="silent", since=status.heard_at)
    return AwaitedSource(state=status.state.value, since=status.since)


def ring_marks(relay: Relay) -> dict[str, RingMark]:
    """Return what clients' places are compared with, by physical source."""
    histories, at = relay.observed.histories, relay.clock.wall_ns() / 1e9
    return {
        name: ring_mark(source, histories[name], at)
        for name, source in relay.physical_sources.items()
    }


def physical_source_view(
    source: PhysicalSource,
    sources: list[SourceName],
    history: SourceHistory,
    drain: DrainView | None,
    problem: str,
    at: float,
) -> PhysicalSourceView:
    """Return all that is told of a physical source."""
    sample = take_sample(source, at)
    rates = history.rates(sample)
    status = source.capture.status
    return PhysicalSourceView(
        name=source.name,
        uri=without_password(source.settings.uri),
        state=status.state.value,
        problem=problem,
        since=status.since,
        next_try_at=status.next_try_at,
        is_connected=status.is_connected,
        heard_at=status.heard_at,
        warnings=list(status.warnings),
        sources=sources,
        ring=ring_view(source.reader, history.rate_of_minutes(sample)),
        log=log_view(source.standing),
        delay_s=status.known_delay_s,
        events=status.events,
        windows=status.windows,
        size_bytes=status.size_bytes,
        reconnects=status.reconnects,
        events_per_s=rates.events,
        windows_per_s=rates.windows,
        bytes_per_s=rates.size_bytes,
        drain=drain,
    )


def ring_view(reader: RingReader, written_bytes_per_s: float) -> RingView:
    """Return what a ring holds, and for how long at a rate of writing."""
    extent = reader.extent()
    capacity = reader.capacity_bytes
    return RingView(
        capacity_bytes=capacity,
        used_bytes=extent.tail - extent.head,
        min_scn=_scn(extent.min_scn),
        max_scn=_scn(reader.max_scn),
        prev_scn=_scn(extent.prev_scn),
        oldest_at=_seconds(reader.first_timestamp_ns),
        newest_at=_seconds(reader.latest_timestamp_ns),
        sleep_s=capacity / written_bytes_per_s if written_bytes_per_s > 0 else None,
    )


def log_view(standing: Standing) -> LogView:
    """Return what the last look at the database's log found."""
    hours_left = standing.hours_left
    return LogView(
        holding=standing.holding.value,
        behind_bytes=standing.behind_bytes,
        behind_s=standing.behind_s,
        # JSON has no infinity: a log that nothing purges has no hours left to count.
        hours_left=None if hours_left is None or math.isinf(hours_left) else hours_left,
        warning=standing.warning,
    )


def without_password(uri: str) -> str:
    """Return a URI as it may be shown: a password should not stand in it, but may."""
    return _PASSWORD.sub(r"\1@", uri)


def _scn(scn: int) -> int | None:
    return scn if scn >= 0 else None


def _seconds(timestamp_ns: int) -> float | None:
    return timestamp_ns / 1e9 if timestamp_ns > 0 else None
