"""The capture loop: one thread per physical source, from its log into its ring.

open → read → append → MaxSCN → notify. The source encodes its windows with the encoder that
it is given. A transient problem, such as an unreachable source or a full disk
(`daemon.faults` decides), is retried for ever with back-off, and the state shows it. Any
other error that occurs twice (`repeated_errors` explains why) puts this one source into the error
state, with advice in its text; the rest of the relay is unaffected. `start` tries again. An
error that concerns some of the tables stops only those: that is saved, and the log is read again
from the ring's newest window, without their rows (`captured_spans`). The state is running only
after the connection was proved (`log_place`).

The ring decides what is new. Capture begins after the older of the ring's newest SCN and
MaxSCN and drops the windows that the ring has already, so a restart neither loses nor
duplicates a window. Both store log marks, the identity of the source's log at some SCN
(`schemas/log_mark.py`); before it yields anything, the source proves that its log is still
the same.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.faults import describe, is_of_this_machine, is_transient
from databus.daemon.log_setup import about
from databus.relay.capture.capture_ring import CaptureRing, newest_of, stored_marks
from databus.relay.capture.heartbeat import Heartbeat
from databus.relay.capture.log_place import LogPlace
from databus.relay.capture.max_scn import MaxScnStore
from databus.relay.capture.notifier import Coalescing
from databus.relay.capture.repeated_errors import RepeatedErrors, as_first_occurrence
from databus.relay.capture.servers import Servers
from databus.relay.capture.status import RESTING, TROUBLED, CaptureStatus, State
from databus.relay.capture.table_stops import NO_STOPS, TableStops, stop_tables
from databus.relay.capture.window_encoder import WindowEncoder, encode_empty
from databus.relay.clock import SYSTEM_CLOCK, Clock
from databus.relay.monitoring.large_rows import LargeRows
from databus.relay.ring.room import WaitEndedError
from databus.relay.sources.epochs import ServerRefusedError, longest_wait_s
from databus.relay.sources.source import Captured, LogSearch, Source
from databus.schemas.errors import DatabusError
from databus.schemas.log_mark import LogMark
from databus.schemas.windows import EmptyWindow, WindowBatch, WindowEnd, WindowPiece

log = logging.getLogger(__name__)

JITTER = 0.2  # of the wait for the next try, which it only shortens
# Sources are read, and servers send a sign of life, every second.
HEARD_WITHIN_S = 4.0


class Capture:
    """Reads one physical source into one ring, on its own thread.

    On that thread, `on_append` is called after each append, `on_problem` with each error, `on_stop`
    when a table is stopped alone; they must not block. The public methods are thread-safe.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        open_source: Callable[[PhysicalSourceSettings], Source],
        ring: CaptureRing,
        encoder: WindowEncoder,
        max_scn: MaxScnStore,
        on_append: Callable[[], None],
        flush_s: float = 1.0,
        clock: Clock = SYSTEM_CLOCK,
        on_problem: Callable[[Exception], None] = lambda _problem: None,
        large_rows: LargeRows | None = None,
        stops: TableStops | None = None,
        on_stop: Callable[[], None] = lambda: None,
        servers: Servers | None = None,
    ) -> None:
        self._settings, self._open_source, self._ring = settings, open_source, ring
        self.servers = Servers(settings) if servers is None else servers
        self._encoder, self._max_scn = encoder, max_scn
        self._on_append, self._flush_s, self._clock = on_append, flush_s, clock
        self._on_problem, self._large_rows = on_problem, large_rows
        self._stops, self._on_stop = NO_STOPS if stops is None else stops, on_stop
        self._changed = threading.Condition(threading.RLock())
        self._wanted = State.RUNNING
        self._state, self._problem = State.STOPPED, ""
        self._since: float | None = None
        self._next_try_at: float | None = None
        self._heard_at_s: float | None = None
        self.place = LogPlace(settings.name, ring)
        self._errors, self._heartbeat = RepeatedErrors(), Heartbeat()
        self._windows = self._events = self._size_bytes = self._reconnects = 0
        self._wait_s = settings.reconnect_min_s
        self._warnings: tuple[str, ...] = ()
        self._search: LogSearch | None = None  # for which the source waits
        self._was_opened = self._is_unfinished = self._is_next_try = False
        self._thread: threading.Thread | None = None
        self._coalescing = Coalescing(settings.coalesce_ms / 1000)
        self._unsaved = ""  # why the last save of MaxSCN failed
        self._mark: LogMark | None = None  # the newest log mark given to the ring
        self._saved_scn, self._saved_at_s = -1, float("-inf")

    @property
    def status(self) -> CaptureStatus:
        """Current status."""
        heard_at_s, wall_s, search = self._heard_at_s, self._wall_s(), self._search
        silence_s = None if heard_at_s is None else self._clock.monotonic_s() - heard_at_s
        return CaptureStatus(
            self._state,
            self._problem,
            self._ring.max_scn,
            self._ring.newest_timestamp_ns,
            self.place.delay_s,
            self._windows,
            self._events,
            self._size_bytes,
            self._reconnects,
            self._current_warnings(search),
            self._was_opened,
            self.place.is_proved and silence_s is not None and silence_s <= HEARD_WITHIN_S,
            self._since,
            self._next_try_at,
            None if silence_s is None else wall_s - silence_s,
            None if search is None else search.total_bytes - search.done_bytes,
        )

    def _current_warnings(self, search: LogSearch | None) -> tuple[str, ...]:
        large_rows = self._large_rows.warnings if self._large_rows else ()
        return (*self._warnings, *large_rows, *([] if search is None else [str(search)]))

    def start(self) -> None:
        """Start capturing, or continue after `stop`, `pause` or an error. Idempotent."""
        with self._changed:
            self._wanted = State.RUNNING
            if self._thread is not None:
                self._changed.notify_all()
                return
            self._note(State.STARTING)
            name = f"capture-{self._settings.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def pause(self, wait_s: float = 0.0) -> None:
        """Stop reading and close the source until `start`; wait up to `wait_s` for that."""
        with self._changed:
            if self._wanted is not State.STOPPED:
                self._wanted = State.PAUSED
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._state in RESTING, wait_s)

    def stop(self, timeout_s: float | None = None) -> bool:
        """Save MaxSCN and end the thread; return whether it ended in time."""
        with self._changed:
            self._wanted = State.STOPPED
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def try_now(self) -> None:
        """Wait no longer for the next try: there is something else to read. Thread-safe."""
        with self._changed:
            self._is_next_try, self._wait_s = True, self._settings.reconnect_min_s
            self._changed.notify_all()

    @property
    def is_to_rest(self) -> bool:
        """Whether it is to stop or to pause, and must not wait for anything else."""
        return self._wanted is not State.RUNNING

    def save_soon(self) -> None:
        """Save MaxSCN after the next read, whether it is due or not."""
        self._saved_at_s = float("-inf")

    def wait_for(self, state: State, timeout_s: float) -> bool:
        """Wait for a state; return whether it was reached in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state is state, timeout_s)

    def _run(self) -> None:
        while not self._is_over():
            try:
                if self._wanted is State.RUNNING:
                    if self._state not in TROUBLED:  # those last until the log is proved
                        # After `start` an earlier error is shown until then, too.
                        state = State.RETRYING if self._problem else State.STARTING
                        self._note(state, self._problem)
                    self._capture()
                else:
                    self._rest(State.PAUSED)
            except WaitEndedError:
                continue  # another state is wanted, or another source
            except Exception as error:
                self.place.failed()
                self._handle(error)

    def _handle(self, error: Exception) -> None:
        """Retry after an error, stop the tables that it concerns, or give up."""
        error = self.servers.failed(error)
        if isinstance(error, ServerRefusedError):
            self._give_up(error)
        elif is_transient(error):
            self._back_off(error)
        elif not self._errors.is_repeated(error, self._ring.max_scn):
            self._back_off(as_first_occurrence(error))
        elif not self._stop_tables(error):
            self._give_up(error)

    def _stop_tables(self, error: Exception) -> bool:
        """Stop the tables of an error alone; return False if that is not possible."""
        try:
            if not stop_tables(error, self.servers.listed, self._stops, self._ring, self._wall_s()):
                return False
            self._on_problem(error)
            self._on_stop()
        except DatabusError as unsaved:
            self._handle(unsaved)
        return True

    def _give_up(self, error: Exception) -> None:
        """Enter the error state and wait for `start` or `stop`."""
        name, text = self._settings.name, str(error)
        if isinstance(error, DatabusError):
            log.error("capture of %s stopped: %s", name, error, extra=self._about(error))
        else:
            log.error("capture of %s failed", name, exc_info=error, extra=self._about())
            text = f"internal error: {error!r}; see the log"
        self._on_problem(error)
        self._rest(State.ERROR, text)

    def _is_over(self) -> bool:
        with self._changed:
            if self._wanted is not State.STOPPED:
                return False
            self.place.rest()
            self._thread = None  # under the lock: a later `start` makes a new thread
            self._note(State.STOPPED)
            return True

    def _capture(self) -> None:
        """Read until another state is wanted; then close the source and save MaxSCN."""
        self._errors.connecting()
        self.place.connecting()
        source = self._open_source(self.servers.choose(lambda: self.is_to_rest))
        for reader in (source, self._encoder):
            reader.leave_out(self.servers.tables_of(self._stops.stops))
        source.write_with(self._encoder)
        source.tell_searches(self._note_search)
        source.write_into(self._ring)
        try:
            begin = self.servers.begin(source, self._ring, self._max_scn.load())
            # Before `open`, which compares the log with these marks.
            self._expect_log(source)
            self.place.begin(begin, max(self._ring.max_scn, self._max_scn.load() or -1))
            self._is_unfinished = False
            self._saved_scn = -1  # the ring may have been emptied and restarted at an older SCN
            self.servers.open(source, begin, newest_of(self._ring))
            self._note_findings(source)
            self._encoder.publish_first(source.tables(), self._ring.max_scn)
            self._errors.opened()
            self._heard_at_s = self._clock.monotonic_s()
            while self._wanted is State.RUNNING:
                captured = self.servers.read(source)
                self._heard_at_s = self._clock.monotonic_s() - source.silence_s
                with self.servers.taking(source, captured, self._ring.max_scn):
                    self._take(captured)
                self.place.check_doubt()
                self._note_mark(source)
                self._save_when_due(source)
                self._note_proof(is_at_end=not captured and source.is_at_end)
                self._coalescing.took(self._size_bytes)
        finally:
            # From here on the state of the database is unknown again.
            self.place.is_proved = False
            self._search = None
            self.servers.note(source, self.place.scn, self._ring.max_scn)
            try:
                source.close()
            finally:
                self._save_max_scn()

    def _note_search(self, search: LogSearch | None) -> None:
        """Show the progress of a search of the log; end the search if another state is wanted."""
        self._heard_at_s, self._search = self._clock.monotonic_s(), search
        if search is not None and self._wanted is not State.RUNNING:
            raise WaitEndedError

    def _note_proof(self, *, is_at_end: bool) -> None:
        """Enter the running state at the first read that proves the connection."""
        if self.place.prove(is_at_end=is_at_end):
            self._was_opened = True
            self.servers.proved()
            self._wait_s = self._settings.reconnect_min_s
            self._note_taken()

    def _note_taken(self) -> None:
        """Set the state of a proved connection, which depends on whether MaxSCN is saved."""
        if self._unsaved:
            self._note(State.RETRYING, self._unsaved, self._flush_s)
        else:
            self._note(State.RUNNING)

    def _expect_log(self, source: Source) -> None:
        """Pass the stored log marks to the source, the newest last."""
        marks = self.servers.marks(stored_marks(self._ring, self._max_scn.mark()))
        self._mark = marks[-1] if marks else None
        source.expect(marks)

    def _note_mark(self, source: Source) -> None:
        """Store the log mark of the ring's newest window, if the source provides one."""
        mark = source.mark_of(self._ring.max_scn)
        if mark is not None and mark != self._mark:
            self._ring.note_mark(mark)
            self._mark = mark

    def _note_findings(self, source: Source) -> None:
        """Log the source's findings at its open; warnings once, not at each reconnection."""
        findings = source.findings
        if findings.summary:
            log.info("%s: %s", self._settings.name, findings.summary, extra=self._about())
        for warning in findings.warnings:
            if warning not in self._warnings:
                log.warning("%s: %s", self._settings.name, warning, extra=self._about())
        self._warnings = findings.warnings

    def _take(self, captured: Sequence[Captured]) -> None:
        for item in captured:
            self._is_unfinished = isinstance(item, WindowPiece)
            if isinstance(item, WindowPiece):
                self._take_piece(item)
            elif isinstance(item, WindowEnd):
                self._take_end(item)
            elif isinstance(item, WindowBatch):
                self._take_batch(item)
            else:
                self._take_empty(item)
        self._append_heartbeat()

    def _take_batch(self, batch: WindowBatch) -> None:
        if not batch.window_count:
            return
        self.place.move_to(batch.first_scn)
        self.place.scn = batch.last_scn
        if batch.is_placed and batch.first_scn <= self._ring.max_scn:
            batch = self._ring.lift(batch)
        new = batch.after(self._ring.max_scn)
        if new.window_count:
            try:
                with self._notifying():
                    self._ring.append_batch(new)
            finally:
                # Windows before one that is too large for the ring are appended.
                self._note_appended(new.until(self._ring.max_scn))

    def _note_appended(self, batch: WindowBatch) -> None:
        if batch.window_count:
            rows, size_bytes = batch.row_count, batch.size_bytes
            self._count(batch.window_count, rows, size_bytes, batch.last_timestamp_ns)
            if self._large_rows is not None and self._large_rows.may_be_in(size_bytes):
                whole = self._ring.lift(batch) if batch.is_placed else batch
                self._warn_of_large_rows(whole.data)

    def _take_piece(self, piece: WindowPiece) -> None:
        # A window that the ring has already would evict others.
        if piece.begin_scn >= self._ring.max_scn:
            self._ring.extend(piece.at, piece.data)
            self.place.piece_end = piece.at + len(piece.data)
            self._warn_of_large_rows(piece.data)

    def _take_end(self, end: WindowEnd) -> None:
        self.place.move_to(end.scn)
        if end.scn > self._ring.max_scn:
            with self._notifying():
                self._ring.finish(end.length, end.scn, end.timestamp_ns)
            self._count(1, end.rows, end.length, end.timestamp_ns)
        self.place.piece_end = 0

    def _take_empty(self, window: EmptyWindow) -> None:
        if window.scn == self.place.scn:
            return
        self.place.move_to(window.scn)
        if window.scn > self._ring.max_scn:
            self.place.idle = window

    def _save_when_due(self, source: Source) -> None:
        if self._clock.monotonic_s() - self._saved_at_s >= self._flush_s:
            self.servers.note(source, self.place.scn, self._ring.max_scn)
            self._save_max_scn()

    def _append_heartbeat(self) -> None:
        idle = self.place.idle
        now_s = self._clock.monotonic_s()
        # An empty window must not be written into an unfinished one.
        if idle is None or self._is_unfinished or not self._heartbeat.is_due(now_s):
            return
        self.place.idle = None
        if idle.scn > self._ring.max_scn:
            with self._notifying():
                self._ring.append([encode_empty(idle)])
            self._heartbeat.empty_appended(now_s)

    def _warn_of_large_rows(self, data: bytes) -> None:
        for warning in self._large_rows.check(data) if self._large_rows else ():
            log.warning("%s: %s", self._settings.name, warning, extra=self._about())

    @contextmanager
    def _notifying(self) -> Iterator[None]:
        """Call `on_append` after an append, also if a window in the middle was too large."""
        before = self._ring.max_scn
        try:
            yield
        finally:
            if self._ring.max_scn != before:
                self._on_append()

    def _count(self, windows: int, events: int, size_bytes: int, timestamp_ns: int) -> None:
        self._heartbeat.data_appended(self._clock.monotonic_s())
        self._windows += windows
        self._events += events
        self._size_bytes += size_bytes
        self.place.delay_s = max(0, self._clock.wall_ns() - timestamp_ns) / 1e9

    def _save_max_scn(self) -> None:
        """Save MaxSCN if it rose; after a transient error reading continues, and it is retried."""
        scn = self._ring.max_scn
        if scn > self._saved_scn:
            try:
                self.servers.save()  # first: it must not be older than MaxSCN
                self._max_scn.save(scn, self._ring.newest_timestamp_ns, self._mark)
            except Exception as error:
                if not is_transient(error):
                    raise
                self._tell_unsaved(error)
            else:
                self._saved_scn = scn
                was_unsaved, self._unsaved = self._unsaved, ""
                if was_unsaved and self.place.is_proved:
                    self._note_taken()
        self._saved_at_s = self._clock.monotonic_s()

    def _tell_unsaved(self, error: Exception) -> None:
        """Report that MaxSCN is not saved; the windows in the ring are safe, and readable."""
        text = describe(error)
        if not self._unsaved:
            log.warning("%s: %s; retrying", self._settings.name, text, extra=self._about())
            self._on_problem(error)
        self._unsaved = text
        if self.place.is_proved:
            self._note_taken()

    def _wall_s(self) -> float:
        return self._clock.wall_ns() / 1e9

    def _about(self, error: DatabusError | None = None) -> dict[str, Any]:
        """Return the context of a log record: the position of an error, or the newest window."""
        return about(physical_source=self._settings.name, scn=self._ring.max_scn, error=error)

    def _note(self, state: State, problem: str = "", wait_s: float | None = None) -> None:
        """Enter a state; `wait_s` is the time until the next try.

        A series of retries counts as one state since its first failure, even if the causes
        differ.
        """
        with self._changed:
            now = self._wall_s()
            is_same = state is self._state or {state, self._state} <= TROUBLED
            if not is_same or self._since is None:
                self._since = now
            self._state, self._problem = state, problem
            self._next_try_at = None if wait_s is None else now + wait_s
            self._changed.notify_all()

    def _rest(self, state: State, problem: str = "") -> None:
        """Enter a state and wait for `start` or `stop`."""
        with self._changed:
            if state is State.ERROR and self._wanted is State.RUNNING:
                self._wanted = State.ERROR
            elif state is State.PAUSED:
                self.place.rest()
            self._note(state, problem)
            self._changed.wait_for(lambda: self._wanted in (State.RUNNING, State.STOPPED))

    def _back_off(self, error: Exception) -> None:
        """Report a transient error and wait for the next try."""
        text = describe(error)
        wait_s = longest_wait_s(error, self._wait_s) * (1 - JITTER * random.random())
        is_away = is_transient(error) and not is_of_this_machine(error)
        name, what = self._settings.name, "is not available" if is_away else "could not continue"
        log.warning("%s %s, next try in %.1f s: %s", name, what, wait_s, text, extra=self._about())
        self._reconnects += 1
        self._on_problem(error)
        self._note(State.UNREACHABLE if is_away else State.RETRYING, text, wait_s)
        self._wait_s = min(self._settings.reconnect_max_s, 2 * self._wait_s)
        with self._changed:
            self._changed.wait_for(lambda: self.is_to_rest or self._is_next_try, wait_s)
            self._is_next_try = False
