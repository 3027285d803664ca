"""The status of a physical source at one moment, as API, metrics, health, page and `top` show it.

Pure. `Relay.status_of` creates it; every report on a source takes its values from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from databus.relay.capture.standby.role import RoleStatus
from databus.relay.capture.status import RESTING, CaptureStatus, State
from databus.relay.catch_up.status import CatchUpState, CatchUpStatus
from databus.relay.log.archive.status import ArchiveStatus
from databus.relay.log.status import RelayLogStatus
from databus.relay.monitoring.history import Sample
from databus.relay.sources.log_status import LogStatus
from databus.relay.span import TableStop
from databus.relay.unlogged_rows import UnloggedRows

_MOST_WAITING = 10  # consumers named in one text
_LONG_WAIT_S = 5.0  # for the relay log, of one window
_NOT_PROVED_YET = "its log is being opened; the state of the database is not known yet"
_WORST_FIRST = (
    State.ERROR,
    State.RETRYING,
    State.UNREACHABLE,
    State.STARTING,
    State.PAUSED,
    State.STOPPED,
)


class Part(StrEnum):
    """The part of a physical source that has a problem."""

    DATABASE = "database"
    CAPTURE = "capture"
    TABLE = "table"  # one is stopped alone
    RING = "ring"
    RELAY_LOG = "relay_log"
    LEASE = "lease"
    CATCH_UP = "catch_up"
    FILES = "files"  # they cannot be opened


@dataclass(frozen=True, slots=True)
class Trouble:
    """One problem of a physical source; times are seconds since 1970."""

    physical_source: str
    part: Part
    state: State
    text: str
    since: float | None = None
    next_try_at: float | None = None  # None = a person must act

    @property
    def badness(self) -> int:
        """Rank of its state; 0 is the worst."""
        return _WORST_FIRST.index(self.state)


@dataclass(frozen=True, slots=True)
class RingStatus:
    """Content of a ring. Missing SCNs are -1, missing times 0.

    `head` and `tail` are logical positions: window `max_scn` ends at `tail`. `damage`
    describes damaged windows.
    """

    capacity_bytes: int
    head: int
    tail: int
    min_scn: int
    max_scn: int
    prev_scn: int
    oldest_ns: int
    newest_ns: int
    damage: str

    @property
    def used_bytes(self) -> int:
        """Size of the windows held."""
        return max(0, self.tail - self.head)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The status of one physical source."""

    name: str
    capture: CaptureStatus
    ring: RingStatus
    log: LogStatus
    relay_log: RelayLogStatus | None  # None without one
    held_requests: int
    waiting_consumers: tuple[str, ...]  # that cannot continue until an error is fixed
    is_draining: bool
    stops: tuple[TableStop, ...] = ()  # of tables that are stopped alone
    catch_ups: tuple[CatchUpStatus, ...] = ()  # the queued ones last
    catch_up_failures: tuple[str, ...] = ()  # of the last minute
    peer_warnings: tuple[str, ...] = ()  # about other relays of the source
    role: RoleStatus | None = None  # None without `capture_lease_s`
    unlogged: tuple[UnloggedRows, ...] = ()  # sources with statements without rows

    @property
    def capture_problem(self) -> str:
        """The problem of capture and the consumers that wait for it; "" without one."""
        names = self.waiting_consumers
        if not names:
            return self.capture.problem
        more = [f"{len(names) - _MOST_WAITING} more"] if len(names) > _MOST_WAITING else []
        waiting = ", ".join([*names[:_MOST_WAITING], *more])
        return f"{self.capture.problem}; these consumers wait: {waiting}"

    @property
    def problem(self) -> str:
        """The problem of capture, or else of the ring or the relay log; "" without one."""
        return self.capture_problem or self.ring.damage or self.relay_log_problem

    @property
    def relay_log_problem(self) -> str:
        """The problem of the relay log, and whether capture waits for it; "" without one."""
        found = self.relay_log
        if found is None:
            return ""
        if not found.problem:
            if found.large_bytes:
                return ""  # so large a transaction takes its time
            waits_s = found.waiting_s or 0.0
            slow = f"capture has waited {waits_s:.0f} s for the relay log: its disk is too slow"
            return slow if waits_s >= _LONG_WAIT_S else ""
        waits = "" if found.waiting_s is None else "capture waits, because "
        return f"{waits}the relay log cannot be written: {found.problem}"

    @property
    def warnings(self) -> int:
        """Number of warnings about the database and its log."""
        return len(self.warning_texts) + bool(self.log.warning)

    @property
    def warning_texts(self) -> list[str]:
        """The warnings about the database, about what is lost or away, and about other relays."""
        log = self.relay_log
        archive = None if log is None else log.archive
        gap, away = "" if log is None else log.gap, "" if archive is None else archive.warning
        damaged = () if log is None else log.read_from_archive
        lost = filter(None, [gap, *damaged, away])
        found = [*self.capture.warnings, *lost, *self.catch_up_failures, *self.peer_warnings]
        return [*found, *(one.warning for one in self.unlogged if self._may_be_read(one.scn))]

    def _may_be_read(self, scn: int) -> bool:
        """Return whether consumers may have a window still before them."""
        log = self.relay_log
        oldest = [self.ring.min_scn, *([] if log is None else [log.min_scn])]
        return scn >= min(held for held in oldest if held >= 0) if max(oldest) >= 0 else True

    def troubles(self) -> Iterator[Trouble]:
        """Yield the problems of capture, of its tables, of the ring, the log and catch-ups."""
        capture = self.capture
        # A paused or stopped source is no trouble.
        if not capture.is_well:
            text = self.capture_problem or _NOT_PROVED_YET
            is_away = capture.state in (State.UNREACHABLE, State.STARTING)
            part = Part.DATABASE if is_away else Part.CAPTURE
            yield Trouble(self.name, part, capture.state, text, capture.since, capture.next_try_at)
        role = self.role
        if role is not None and role.problem:
            text = f"no other relay can take over, or give way: {role.problem}"
            yield Trouble(self.name, Part.LEASE, State.RETRYING, text)
        elif role is not None and not role.owner and capture.state not in RESTING:
            text = "no relay is known to capture: nobody has the lease now"
            yield Trouble(self.name, Part.LEASE, State.RETRYING, text)
        for stop in self.stops:
            yield Trouble(self.name, Part.TABLE, State.ERROR, str(stop.error()), stop.since)
        if self.ring.damage:
            yield Trouble(self.name, Part.RING, State.ERROR, self.ring.damage)
        if self.relay_log is not None and self.relay_log_problem:
            text, since = self.relay_log_problem, self.relay_log.since
            yield Trouble(self.name, Part.RELAY_LOG, State.RETRYING, text, since)
        for one in self.catch_ups:
            # What has failed for good is told to its consumers.
            if one.problem and one.state is not CatchUpState.FAILED:
                text = f"the catch-up after scn {one.asked_scn} cannot go on: {one.problem}"
                yield Trouble(self.name, Part.CATCH_UP, State.RETRYING, text)

    def sample(self, at: float) -> Sample:
        """Return a sample for the history; `at` is in seconds since 1970."""
        capture, ring = self.capture, self.ring
        return Sample(
            at,
            capture.events,
            capture.windows,
            capture.size_bytes,
            ring.tail,
            ring.used_bytes,
            capture.known_delay_s,
            self.log.behind_s,
        )


def status_json(status: SourceStatus) -> dict[str, Any]:
    """Return a status as `/controlSources/status` and `/health` send it."""
    capture, ring, delay_s = status.capture, status.ring, status.capture.known_delay_s
    return {
        "state": capture.state.value,
        "problem": status.problem,
        "connected": capture.is_connected,
        "since": capture.since,
        "nextTryAt": capture.next_try_at,
        "heardAt": capture.heard_at,
        "scn": capture.scn,
        "timestampNs": capture.timestamp_ns,
        "delaySeconds": None if delay_s is None else round(delay_s, 6),
        "windows": capture.windows,
        "events": capture.events,
        "bytes": capture.size_bytes,
        "reconnects": capture.reconnects,
        "minScn": ring.min_scn,
        "prevScn": ring.prev_scn,
        "log": _log_json(status.log),
        "relayLog": _relay_log_json(status.relay_log),
        "warnings": status.warning_texts,
        "stoppedTables": [
            {"source": s.source, "afterScn": s.scn, "since": s.since, "problem": s.problem}
            for s in status.stops
        ],
        "catchUps": [_catch_up_json(one) for one in status.catch_ups],
        "role": _role_json(status.role),
        "unloggedStatements": [
            {"source": one.source, "windows": one.windows, "lastScn": one.scn}
            for one in status.unlogged
        ],
    }


def _role_json(role: RoleStatus | None) -> dict[str, Any] | None:
    if role is None:
        return None
    return {
        "isActive": role.is_active,
        "owner": role.owner or None,
        "term": role.term,
        "ttlSeconds": role.ttl_s,
        "problem": role.problem,
    }


def _catch_up_json(one: CatchUpStatus) -> dict[str, Any]:
    return {
        "state": one.state.value,
        "askedScn": one.asked_scn,
        "beginScn": one.begin_scn,
        "scn": one.scn,
        "timestampNs": one.timestamp_ns,
        "untilScn": one.until_scn,
        "bytes": one.size_bytes,
        "windows": one.windows,
        "readBytes": one.read_bytes,
        "idleSeconds": round(one.idle_s, 3),
        "problem": one.problem,
    }


def _log_json(log: LogStatus) -> dict[str, Any]:
    return {
        "holding": log.holding.value,
        "behindBytes": log.behind_bytes,
        "behindSeconds": log.behind_s,
        "hoursLeft": finite(log.hours_left),
        "warning": log.warning,
    }


def _relay_log_json(log: RelayLogStatus | None) -> dict[str, Any] | None:
    if log is None:
        return None
    return {
        "folder": log.folder,
        "minScn": log.min_scn,
        "prevScn": log.prev_scn,
        "durableScn": log.durable_scn,
        "oldestTimestampNs": log.oldest_ns,
        "newestTimestampNs": log.newest_ns,
        "segments": log.segments,
        "bytes": log.size_bytes,
        "problem": log.problem,
        "since": log.since,
        "beganAnew": log.gap,
        "heldAfterScn": log.held_after_scn,
        "unread": log.unread,
        "waitingSeconds": log.waiting_s,
        "largeTransactionBytes": log.large_bytes,
        "archive": _archive_json(log.archive),
    }


def _archive_json(archive: ArchiveStatus | None) -> dict[str, Any] | None:
    if archive is None:
        return None
    return {
        "uri": archive.uri,
        "isKnown": archive.is_known,
        "minScn": archive.min_scn,
        "maxScn": archive.max_scn,
        "oldestTimestampNs": archive.oldest_ns,
        "segments": archive.segments,
        "bytes": archive.size_bytes,
        "waitingSegments": archive.waiting,
        "problem": archive.problem,
        "since": archive.since,
    }


def finite(hours: float | None) -> float | None:
    """Return hours for JSON: None for infinity, a log that is never purged."""
    return None if hours is None or math.isinf(hours) else hours
