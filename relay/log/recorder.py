"""Keep the log of one ring, on a thread of its own.

The thread copies new windows, syncs them every `sync_ms`, and opens the gate for the ring up to
there. What fails is tried again for ever: a full disk, a disk that is gone, a folder that
another relay has locked. Meanwhile capture waits at the gate once the ring is full, and the
status says why.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from databus.conf.settings import RelayLogSettings
from databus.daemon.faults import describe
from databus.daemon.log_setup import about
from databus.relay.clock import Clock
from databus.relay.log.archive.archiver import Archiver
from databus.relay.log.archive.manifest import Manifest, between
from databus.relay.log.follower import LogFollower
from databus.relay.log.gate import LogGate
from databus.relay.log.history import Join
from databus.relay.log.hold import Hold
from databus.relay.log.large_window import LargeWindow, LargeWindowWriter
from databus.relay.log.retention import Retention
from databus.relay.log.segment import Segment
from databus.relay.log.status import RelayLogStatus
from databus.relay.log.writer import LogWriter
from databus.relay.ring.reader import RingReader
from databus.schemas.errors import (
    DamagedWindowsError,
    DatabusError,
    ProtocolError,
    RelayLogDamagedError,
    RelayLogError,
)

log = logging.getLogger(__name__)


class Copy(NamedTuple):
    """The archived copy of a segment that is damaged on disk, and what to say of it."""

    segment: Segment
    text: str


class _Joined(NamedTuple):
    """The segments of a log, as made of those in the archive and on disk, and of the copies."""

    archived: tuple[Segment, ...]
    local: tuple[Segment, ...]
    copies: Mapping[Segment, Copy]
    segments: tuple[Segment, ...]


CLEAN_EVERY_S = 10.0
_STEP_BYTES = 8 << 20  # copied between two syncs: an eighth of a small ring
RETRY_S = 0.2
MOST_RETRY_S = 5.0


class LogRecorder:
    """Writes the log of one ring until it is stopped. All public methods are thread-safe."""

    def __init__(
        self,
        ring_path: Path,
        folder: Path,
        name: str,
        settings: RelayLogSettings,
        is_ended: Callable[[], bool],
        on_problem: Callable[[Exception], None],
        clock: Clock,
        archiver: Archiver | None = None,
    ) -> None:
        """`is_ended` says that capture is to stop or to pause; `on_problem` must not block."""
        self._ring_path, self._folder, self._name = ring_path, folder, name
        self._settings, self._clock, self._on_problem = settings, clock, on_problem
        self._archiver = archiver
        self._copies: dict[Segment, Copy] = {}  # of damaged segments on disk
        self._joined = _Joined((), (), self._copies, ())
        self.hold = Hold(settings.hold)
        self.gate = LogGate(is_ended, self._hurry, clock)
        self.large = LargeWindowWriter(folder, self.gate, self._submit)
        self._submitted: deque[LargeWindow] = deque()
        self.problem = ""
        self.join: Join | None = None
        self._reader: RingReader | None = None
        self._step_bytes = _STEP_BYTES
        self._writer: LogWriter | None = None
        self._follower: LogFollower | None = None
        self._retention: Retention | None = None
        self._reopenings = 0
        self._since: float | None = None
        self._errors, self._gap, self._unread = 0, "", ""
        self._retry_s = RETRY_S
        self._clean_at_s = float("-inf")
        self._cleaned: tuple[Segment, ...] = ()  # the newest segment at that time
        self._news = threading.Event()
        self._is_urgent = threading.Event()  # sync now
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of the log, oldest first, archived ones too; none while it is not open."""
        local = self.on_disk
        if self._archiver is None:
            return local
        archived, joined, copies = self._archiver.before(local), self._joined, self._copies
        given = archived, local, copies
        if any(ours is not theirs for ours, theirs in zip(joined, given, strict=False)):
            sound = (copies[one].segment if one in copies else one for one in local)
            joined = self._joined = _Joined(*given, (*archived, *sound))
        return joined.segments

    @property
    def on_disk(self) -> tuple[Segment, ...]:
        """The segments of the log that are not deleted here, oldest first."""
        writer = self._writer
        return () if writer is None else writer.segments

    @property
    def is_complete(self) -> bool:
        """Whether it is known which segments there are: the archive was listed."""
        return self._archiver is None or self._archiver.is_known

    def archived_between(self, from_scn: int, to_scn: int) -> tuple[Manifest, ...]:
        """Return the log's archived segments with windows after an SCN, up to another one."""
        if self._archiver is None:
            return ()
        return between(self._archiver.manifests(self.on_disk), from_scn, to_scn)

    @property
    def openings(self) -> int:
        """Changes when the log begins anew, or is opened again."""
        writer = self._writer
        return self._reopenings + (0 if writer is None else writer.openings)

    @property
    def status(self) -> RelayLogStatus:
        """Current status."""
        segments, gate = self.on_disk, self.gate
        first, last = (segments[0], segments[-1]) if segments else (None, None)
        oldest_ns = 0 if first is None else first.header.first_timestamp_ns
        size_bytes = 0 if self._retention is None else self._retention.size_bytes
        return RelayLogStatus(
            str(self._folder),
            min_scn=-1 if first is None else first.header.first_scn,
            prev_scn=-1 if first is None else first.header.prev_scn,
            durable_scn=-1 if last is None else last.end.scn,
            oldest_ns=oldest_ns,
            newest_ns=0 if last is None else last.end.timestamp_ns,
            segments=len(segments),
            size_bytes=size_bytes,
            share=self._share(size_bytes, first),
            is_joined=self.join is not None,
            problem=self.problem,
            since=self._since,
            errors=self._errors,
            gap=self._gap,
            waiting_s=gate.waiting_s,
            waited_s=gate.waited_s,
            held_after_scn=self.hold.after_scn,
            read_from_archive=tuple(one.text for s, one in self._copies.items() if s in segments),
            unread=self._unread,
            large_bytes=self.large.size_bytes,
            archive=None if self._archiver is None else self._archiver.status(segments),
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"log-{self._name}", daemon=True)
        self._thread.start()
        if self._archiver is not None:
            self._archiver.start()

    def note_damage(self, error: DamagedWindowsError | RelayLogDamagedError) -> bool:
        """Take note of windows, or of an index of GTIDs, that a reader could not read.

        Return whether `segments` has another copy of those windows now.
        """
        if isinstance(error, DamagedWindowsError) and self._has_copy(error):
            return True
        if self._gap != str(error):
            self._gap = str(error)
            log.error("%s: %s", self._name, self._gap, extra=self._about())
            self._on_problem(error)
        return False

    def _has_copy(self, error: DamagedWindowsError) -> bool:
        """Return whether a damaged segment on disk is read from the archive from now on."""
        archiver = self._archiver
        found = [one for one in self.on_disk if str(one.path) == error.path and one.is_sealed]
        if archiver is None or not found:
            return False
        if found[0] not in self._copies:
            copy = archiver.copy_of(found[0], error.at)
            if copy is None:
                return False
            text = (
                f"{error.path} is damaged at byte {error.at}: its windows are read from the "
                "archive. `databus log verify` checks both. To mend it, stop the relay, copy "
                f"{archiver.shown_place(copy.manifest)} over it, and start the relay again"
            )
            on_disk = {s: one for s, one in self._copies.items() if s in self.on_disk}
            self._copies = {**on_disk, found[0]: Copy(copy, text)}
            log.warning("%s: %s", self._name, text, extra=self._about())
            self._on_problem(error)
        return True

    def notify(self) -> None:
        """Say that the ring has new windows; never blocks."""
        if not self._news.is_set():
            self._news.set()

    def stop(self, timeout_s: float) -> bool:
        """Write what the ring has, and end the thread; return whether it ended in time."""
        end_s = time.monotonic() + timeout_s
        self._stopped.set()
        self._hurry()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        is_over = thread is None or not thread.is_alive()
        if self._archiver is not None:
            is_over &= self._archiver.stop(max(0.0, end_s - time.monotonic()))
        return is_over

    def close(self) -> None:
        """Close all files; the threads have ended."""
        self._close_log()
        self.large.discard()
        while self._submitted:
            self._submitted.popleft().close()
        if self._archiver is not None:
            self._archiver.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def open(self) -> None:
        """Open the log, and find out whether it is the ring's; note a problem, if any."""
        self._try(self._open)

    def _try(self, step: Callable[[], None]) -> None:
        """Do something; note its problem, or that there is none any more."""
        try:
            step()
        except Exception as error:  # whatever it is, it is tried again: nothing may be left out
            self._note_problem(error)
            self._put_back()
        else:
            if self.problem and self._since is not None:
                log.info("the log of %s is written again", self._name, extra=self._about())
            self.problem, self._since, self._retry_s = "", None, RETRY_S

    def _run(self) -> None:
        sync_s = self._settings.sync_ms / 1e3
        while True:
            self._news.wait(CLEAN_EVERY_S)
            self._is_urgent.wait(sync_s)
            # Both before the round: what comes meanwhile is found by the next one.
            self._news.clear()
            self._is_urgent.clear()
            is_last = self._stopped.is_set()
            self._try(self._round)
            if is_last and not self._is_behind:
                return
            if self.problem:
                self._await_retry()

    @property
    def _is_behind(self) -> bool:
        """Whether the ring has windows that the last round left to the next one."""
        return not self.problem and self._follower is not None and self._follower.behind_bytes > 0

    def _hurry(self) -> None:
        self._is_urgent.set()
        self._news.set()

    def _await_retry(self) -> None:
        """Wait for the next try; a relay that stops does not."""
        wait_s, self._retry_s = self._retry_s, min(MOST_RETRY_S, 2 * self._retry_s)
        self._stopped.wait(wait_s)
        self._hurry()

    def _round(self) -> None:
        """Copy and sync what the ring has; delete what is too old, also if that fails."""
        try:
            if self._writer is not None and not self._writer.is_in_place:
                self._close_log()
                self._gap = f"the log begins anew: {self._folder} was deleted or replaced"
                log.error("%s: %s", self._name, self._gap, extra=self._about())
            if self._follower is None:
                self._open()
            follower = self._follower
            assert follower is not None
            # Before the ring is copied: it has all windows that come before this one.
            large = self._submitted[0] if self._submitted else None
            follower.copy(is_all=True, most_bytes=self._step_bytes)
            is_behind = follower.behind_bytes >= self._step_bytes
            if is_behind:  # the next step is copied meanwhile
                follower.begin_sync()
            else:
                follower.sync()
            self._take_note(follower)
            if large is not None:
                self._add_large(follower, large)
            if is_behind:
                self._hurry()
            elif follower.behind_bytes > 0:
                self._news.set()
        finally:
            self._clean_when_due()

    def _submit(self, window: LargeWindow) -> None:
        self._submitted.append(window)
        self._hurry()

    def _add_large(self, follower: LogFollower, window: LargeWindow) -> None:
        """Write a window that the ring has no room for, and make it durable."""
        try:
            if not window.is_cancelled:
                if not follower.add_large(window):
                    return  # after the next copy
                follower.sync()
                window.is_durable = True
        except ProtocolError as error:  # the source is to send it again
            follower.roll_back()
            window.error = error
        self._submitted.popleft().close()
        self._take_note(follower)

    def _clean_when_due(self) -> None:
        """Delete what is too old: every few seconds, and when a segment began."""
        now_s, newest = self._clock.monotonic_s(), self.on_disk[-1:]
        is_due = newest != self._cleaned or now_s - self._clean_at_s >= CLEAN_EVERY_S
        if self._retention is not None and is_due:
            self._clean_at_s, self._cleaned = now_s, newest
            self._retention.clean(self._clock.wall_ns())
            if self._retention.unread != self._unread:
                self._unread = self._retention.unread
                log.warning("the log of %s: %s", self._name, self._unread, extra=self._about())
                self._on_problem(RelayLogError(f"the log of {self._name}: {self._unread}"))

    def _open(self) -> None:
        """Open ring and log; raise RingError, RelayLogError or OSError."""
        if self._reader is None:
            self._reader = RingReader.open(self._ring_path, follows=True)
            self._step_bytes = min(_STEP_BYTES, self._reader.capacity_bytes // 8)
        settings = self._settings
        writer = LogWriter(
            self._folder,
            self._name,
            segment_bytes=settings.segment_bytes,
            segment_s=settings.segment_s,
            is_compressed=settings.compression == "zstd",
            wall_ns=self._clock.wall_ns,
        )
        for damage in writer.unreadable:
            log.warning("%s; it is kept aside", damage, extra=self._about())
            self._on_problem(damage)
        if writer.lost:
            self._gap = writer.lost
            log.warning("%s: %s", self._name, writer.lost, extra=self._about())
        self._writer = writer
        limits = settings.retention_bytes, settings.retention_hours
        held = self.hold, settings.hold_bytes
        self._retention = Retention(writer, *limits, *held, self._archiver)
        self._follower = LogFollower(self._reader, writer)
        self._follower.place()
        self._take_note(self._follower)

    def _take_note(self, follower: LogFollower) -> None:
        """Publish how far the log is durable, and how it continues the ring."""
        assert self._reader is not None
        shift = follower.shift
        join = None if shift is None else Join(self._reader.ring_id, self.openings, shift)
        self.join = join
        self.gate.open_to(follower.durable_position)
        if self._archiver is not None:
            self._archiver.follow(self.on_disk)
        if follower.gap and follower.gap != self._gap:
            self._gap = follower.gap
            log.warning("%s: %s", self._name, follower.gap, extra=self._about())

    def _note_problem(self, error: Exception) -> None:
        is_known = isinstance(error, DatabusError | OSError)
        text = describe(error) if is_known else f"internal error: {error!r}; see the log"
        self._errors += 1
        if self._since is None:
            self._since = self._clock.wall_ns() / 1e9
        if text == self.problem:
            return
        self.problem = text
        words = "the log of %s cannot be written, it is tried again: %s"
        trace = None if is_known else error
        log.warning(words, self._name, text, exc_info=trace, extra=self._about())
        self._on_problem(error)

    def _put_back(self) -> None:
        """Forget what was not synced, or open the log again if even that fails."""
        if self._follower is None:
            return
        try:
            self._follower.roll_back()
        except Exception:  # the file is not what was expected: read it again
            self._close_log()

    def _close_log(self) -> None:
        """Close the log; nobody reads it before it is open again."""
        self.join = None
        writer, self._follower, self._retention = self._writer, None, None
        if writer is not None:
            self._reopenings += writer.openings + 1
            self._writer = None
            with contextlib.suppress(OSError):
                writer.close()

    def _share(self, size_bytes: int, oldest: Segment | None) -> float:
        settings, sealed_ns = self._settings, 0 if oldest is None else oldest.sealed_ns
        age_hours = (self._clock.wall_ns() - sealed_ns) / 3.6e12 if sealed_ns else 0.0
        return max(size_bytes / settings.retention_bytes, age_hours / settings.retention_hours)

    def _about(self) -> dict[str, Any]:
        return about(physical_source=self._name)
