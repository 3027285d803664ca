"""The API view of a physical source: its capture, its ring, its relay log and its log status."""

from __future__ import annotations

from databus.conf.addresses import without_password
from databus.relay.admin.client_status import RingMark
from databus.relay.admin.models import (
    ArchiveView,
    AwaitedSource,
    CatchUpView,
    DrainView,
    LogView,
    PhysicalSourceView,
    RelayLogView,
    RingView,
    RoleView,
    SourceName,
    StoppedTable,
)
from databus.relay.capture.standby.role import RoleStatus
from databus.relay.capture.status import RESTING, CaptureStatus, State
from databus.relay.catch_up.status import CatchUpStatus
from databus.relay.log.archive.status import ArchiveStatus
from databus.relay.log.status import RelayLogStatus
from databus.relay.monitoring.clients import ClientTable
from databus.relay.monitoring.history import SourceHistory
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.source_status import RingStatus, SourceStatus, finite
from databus.relay.sources.log_status import LogStatus
from databus.relay.sources.upstream.identity import RELAY_ID


def ring_mark(
    source: PhysicalSource, status: SourceStatus, history: SourceHistory, now_s: float
) -> RingMark:
    """Return the state of ring and log that clients' positions are compared with."""
    reader = source.history
    newest_scn, tail = reader.newest()
    capacity_bytes = source.reader.capacity_bytes
    if status.relay_log is not None:
        # What the log will hold once it begins to delete, if it goes on as so far.
        held_bytes = (tail - reader.head) / min(1.0, max(status.relay_log.share, 1e-6))
        capacity_bytes = max(capacity_bytes, int(held_bytes))
    return RingMark(
        tail,
        capacity_bytes,
        newest_scn,
        reader.latest_timestamp_ns,
        lambda size_bytes: history.writing.lasts_s(size_bytes, now_s, status.ring.tail),
        reader.timestamp_at,
        awaited(status.capture),
        status.ring.head,
    )


def awaited(status: CaptureStatus) -> AwaitedSource | None:
    """Return the source that readers wait for; None while it is connected."""
    if status.is_connected:
        return None
    if status.state is State.RUNNING and status.heard_at is not None:
        return AwaitedSource(state="silent", since=status.heard_at)
    return AwaitedSource(state=status.state.value, since=status.since)


def ring_marks(relay: Relay) -> dict[str, RingMark]:
    """Return the state of all rings, by physical source."""
    histories, now_s = relay.monitor.histories, relay.clock.monotonic_s()
    return {
        name: ring_mark(source, relay.status_of(name), histories[name], now_s)
        for name, source in relay.physical_sources.items()
    }


def physical_source_view(relay: Relay, name: str) -> PhysicalSourceView:
    """Return the view of a physical source. On the loop's thread."""
    status, servers = relay.status_of(name), relay.physical_sources[name].capture.servers
    history, clock = relay.monitor.histories[name], relay.clock
    sample = status.sample(clock.wall_ns() / 1e9)
    rates = history.rates(sample)
    capture = status.capture
    return PhysicalSourceView(
        name=name,
        uri=without_password(servers.settings.uri),
        uris=[without_password(uri) for uri in servers.all_uris],
        relays=[RELAY_ID, *servers.relays],
        epoch=servers.epoch,
        state=capture.state.value,
        problem=status.problem,
        since=capture.since,
        next_try_at=capture.next_try_at,
        is_connected=capture.is_connected,
        heard_at=capture.heard_at,
        warnings=status.warning_texts,
        sources=_source_names(relay, name),
        stopped_tables=[
            StoppedTable(source=s.source, after_scn=s.scn, since=s.since, problem=s.problem)
            for s in status.stops
        ],
        ring=ring_view(status.ring, _sleep_s(status.ring, history, clock.monotonic_s())),
        relay_log=None if status.relay_log is None else relay_log_view(status.relay_log),
        catch_ups=[catch_up_view(one, catch_up_readers(relay, name)) for one in status.catch_ups],
        log=log_view(status.log),
        role=None if status.role is None else role_view(status.role),
        delay_s=capture.known_delay_s,
        events=capture.events,
        windows=capture.windows,
        size_bytes=capture.size_bytes,
        reconnects=capture.reconnects,
        events_per_s=rates.events,
        windows_per_s=rates.windows,
        bytes_per_s=rates.size_bytes,
        drain=_drain_view(status, relay.monitor.clients, clock.monotonic_s()),
    )


def _source_names(relay: Relay, physical: str) -> list[SourceName]:
    names = relay.physical_sources[physical].settings.names
    ids = relay.catalog.src_ids_of(physical)
    return [
        SourceName(name=name, id=src_id, table=names.table_of(name)) for name, src_id in ids.items()
    ]


def _drain_view(status: SourceStatus, clients: ClientTable, now_s: float) -> DrainView | None:
    """Return the progress of a drain; None without one."""
    if not status.is_draining:
        return None
    # Capture is paused, so the newest window does not change during a drain.
    scn = status.ring.max_scn
    waiting = clients.waiting_for(status.name, scn, status.ring.tail, now_s)
    is_done = status.capture.state in RESTING and not waiting
    return DrainView(until_scn=max(scn, 0), waiting_for=waiting, is_done=is_done)


def _sleep_s(ring: RingStatus, history: SourceHistory, now_s: float) -> float | None:
    return history.writing.lasts_s(ring.capacity_bytes, now_s, ring.tail)


def ring_view(ring: RingStatus, sleep_s: float | None) -> RingView:
    """Return the content of a ring, and how long it lasts."""
    return RingView(
        capacity_bytes=ring.capacity_bytes,
        used_bytes=ring.used_bytes,
        min_scn=_scn(ring.min_scn),
        max_scn=_scn(ring.max_scn),
        prev_scn=_scn(ring.prev_scn),
        oldest_at=_seconds(ring.oldest_ns),
        newest_at=_seconds(ring.newest_ns),
        sleep_s=sleep_s,
    )


def relay_log_view(log: RelayLogStatus) -> RelayLogView:
    """Return what a relay log holds, and its problem."""
    return RelayLogView(
        folder=log.folder,
        min_scn=_scn(log.min_scn),
        prev_scn=_scn(log.prev_scn),
        durable_scn=_scn(log.durable_scn),
        oldest_at=_seconds(log.oldest_ns),
        newest_at=_seconds(log.newest_ns),
        segments=log.segments,
        size_bytes=log.size_bytes,
        retention_share=log.share,
        problem=log.problem,
        since=log.since,
        began_anew=log.gap,
        held_after_scn=None if log.held_after_scn is None else max(log.held_after_scn, 0),
        unread=log.unread,
        capture_waits_s=log.waiting_s,
        archive=None if log.archive is None else archive_view(log.archive),
    )


def catch_up_readers(relay: Relay, name: str) -> list[str]:
    """Return the names of recent clients that are served from a source's catch-ups."""
    now_s = relay.clock.monotonic_s()
    return sorted(
        client.name
        for client in relay.monitor.clients
        if client.is_heard(now_s)
        and any(
            key.physical_source == name and stream.is_in_catch_up
            for key, stream in client.streams.items()
        )
    )


def catch_up_view(one: CatchUpStatus, readers: list[str]) -> CatchUpView:
    """Return what a catch-up has read, and for whom."""
    return CatchUpView(
        state=one.state.value,
        asked_scn=one.asked_scn,
        begin_scn=_scn(one.begin_scn),
        scn=_scn(one.scn),
        at=_seconds(one.timestamp_ns),
        until_scn=_scn(one.until_scn),
        size_bytes=one.size_bytes,
        windows=one.windows,
        read_bytes=one.read_bytes,
        readers=readers,
        idle_s=one.idle_s,
        problem=one.problem,
    )


def archive_view(archive: ArchiveStatus) -> ArchiveView:
    """Return what an archive holds, and its problem."""
    return ArchiveView(
        uri=archive.uri,
        is_known=archive.is_known,
        min_scn=_scn(archive.min_scn),
        max_scn=_scn(archive.max_scn),
        oldest_at=_seconds(archive.oldest_ns),
        segments=archive.segments,
        size_bytes=archive.size_bytes,
        waiting_segments=archive.waiting,
        problem=archive.problem,
        since=archive.since,
    )


def role_view(role: RoleStatus) -> RoleView:
    """Return which relay captures."""
    return RoleView(
        is_active=role.is_active,
        owner=role.owner or None,
        term=role.term,
        ttl_s=role.ttl_s,
        problem=role.problem,
    )


def log_view(log: LogStatus) -> LogView:
    """Return the log status found by the last probe."""
    return LogView(
        holding=log.holding.value,
        behind_bytes=log.behind_bytes,
        behind_s=log.behind_s,
        hours_left=finite(log.hours_left),
        warning=log.warning,
    )


def _scn(scn: int) -> int | None:
    return scn if scn >= 0 else None


def _seconds(timestamp_ns: int) -> float | None:
    return timestamp_ns / 1e9 if timestamp_ns > 0 else None
