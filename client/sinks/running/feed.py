"""A sink over one physical source: its life, its state, and who is told of failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Change, Position
from databus.client.sinks.errors import SinkError
from databus.client.sinks.rules.alerts import Alert, Alerts
from databus.client.sinks.rules.failures import Then, is_of_a_row
from databus.client.sinks.rules.rate import Rate
from databus.client.sinks.running.dead_letters import DeadLetters
from databus.client.sinks.running.lane import Clock, Lane, Trouble
from databus.client.sinks.running.plan import SinkPlan
from databus.client.sinks.running.reading_trouble import ReadingTrouble
from databus.client.sinks.running.session import Ended, Session
from databus.client.sinks.running.stream import SinkStream
from databus.daemon.faults import is_transient
from databus.daemon.log_setup import about
from databus.schemas.errors import DatabusError

log = logging.getLogger(__name__)

_TICK_S = 0.05
STOP_S = 20.0
_PAUSE_S = 1.0
# The parts of a sink that are no lane: reading that an error has ended, and what it waits for.
_READING, _WAITING = "reading", "waiting"


class SinkState(StrEnum):
    """The state of a sink, or of one of its feeds."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    FAILING = "failing"  # it tries again by itself
    STOPPED = "stopped"  # by an error: it waits for a person
    DONE = "done"  # `until` is reached
    ENDED = "ended"

    @property
    def is_over(self) -> bool:
        """Whether it does nothing more, and nobody waits for that."""
        return self in (SinkState.DONE, SinkState.ENDED)


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """How a feed is."""

    sink: str
    source: str  # the physical source
    state: SinkState
    scn: int  # of the stored position, -1 = none
    rows: int  # written since the start
    skipped: int
    dead_letters: int
    held_rows: int  # read, and not written yet
    committed_ns: int  # commit time of the newest row that is written, 0 = none
    trouble: Trouble | None
    problem: str  # of reading, or of storing positions; "" without one
    rows_per_s: float | None = None  # written, over the last few seconds; None = not known yet
    held_windows: int = 0  # read, and not written yet
    held_since_ns: int = 0  # commit time of the oldest of them, 0 = not known, or none
    alert_s: float | None = None  # an alert tells that it has failed for so long


OnAlert = Callable[[str, Alert], None]


class Feed:
    """Starts sessions on a thread of its own. All methods are thread-safe."""

    def __init__(
        self,
        plan: SinkPlan,
        stream: SinkStream,
        clock: Clock = time.monotonic,
        on_alert: OnAlert | None = None,
    ) -> None:
        """Raises CheckpointError for a file of dead letters that cannot be read."""
        self._plan, self._stream, self._clock = plan, stream, clock
        self._dead_letters = DeadLetters(plan.dead_letters, plan.name, stream.source)
        self._on_alert = on_alert or _log_alert
        self.on_window: Callable[[DataWindow], None] = lambda _window: None
        failures = plan.settings.failures
        self._alerts = Alerts(failures.alert_after_s, failures.alert_every_s)
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._state = SinkState.STARTING
        self._troubles: dict[int, Trouble] = {}
        self._reading_error: Exception | None = None
        self._waits = ReadingTrouble()
        self._unstored = ""
        self._rows = self._skipped = self._letters = self._committed_ns = 0
        self._rate = Rate(clock())
        self._go = threading.Event()
        self._go.set()
        self._again = threading.Event()  # after an error of reading
        self._is_ending = False
        name = f"databus-sink-{plan.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ticker = threading.Thread(target=self._tick, name=f"{name}-tick", daemon=True)
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to read and write."""
        self._thread.start()
        self._ticker.start()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End, after a last attempt to write what is held; wait for the threads.

        A sink that calls it only asks for it. A sink that does not return is abandoned on its
        thread, and logged.
        """
        if self._is_this_thread:
            threading.Thread(target=self.stop, name="databus-stop").start()
            return
        self._is_ending = True
        self._go.set()
        self._again.set()
        end_s = time.monotonic() + timeout_s
        while self._thread.is_alive():
            if time.monotonic() > end_s:
                log.error("%s: the sink has not returned; it is abandoned", self._plan.name)
                break
            session = self._session
            if session is not None:
                session.stop(timeout_s / 2)  # again and again: an iteration may begin meanwhile
            self._thread.join(_TICK_S)
        self._ended.set()
        if self._ticker.is_alive():
            self._ticker.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done or has ended; return whether it has."""
        return self._ended.wait(timeout_s)

    def pause(self) -> None:
        """Write nothing and read nothing more until `resume`; the sinks are closed."""
        self._go.clear()
        for lane in self._lanes():
            lane.flush_soon()  # wakes one that waits for changes

    def resume(self) -> None:
        """Go on after `pause`."""
        self._go.set()
        for lane in self._lanes():
            lane.wake()

    def retry(self) -> None:
        """Try again now what has failed."""
        self._again.set()
        for lane in self._lanes():
            lane.retry()

    def skip_row(self, id: str = "") -> Change | None:
        """Drop the row that fails and is shown; None: it is not known, and is looked for now.

        With the `id` of a change it drops no other. Raises SinkError if nothing fails, or another
        row does.
        """
        with self._lock:
            troubles = list(self._troubles.values())
        session = self._session
        if not troubles or session is None:
            raise SinkError(f"{self._plan.name}: no row fails")
        failing = (one.lane for one in troubles if one.change is not None and one.change.id == id)
        return session.lanes[next(failing, troubles[0].lane)].skip_row(id)

    def find_row(self) -> None:
        """Write the rows one by one to find the one that fails, if it is not known; drop none.

        Raises SinkError if nothing fails, or no row is to blame.
        """
        with self._lock:
            troubles = list(self._troubles.values())
        session = self._session
        if not troubles or session is None:
            raise SinkError(f"{self._plan.name}: no row fails")
        if any(one.change is not None for one in troubles):
            return
        for one in troubles:
            if is_of_a_row(one.error) and one.rows:
                session.lanes[one.lane].find_row()
                return
        raise SinkError(f"{self._plan.name}: no row is to blame: {troubles[0].problem}")

    @property
    def state(self) -> SinkState:
        """Its state."""
        with self._lock:
            if self._state is not SinkState.RUNNING:
                return self._state
            error = self._reading_error
            is_final = error is not None and not is_transient(error)
            if is_final or any(one.is_final for one in self._troubles.values()):
                return SinkState.STOPPED
            if not self._go.is_set():
                return SinkState.PAUSED
            is_failing = error or self._troubles or self._waits.is_failure
            return SinkState.FAILING if is_failing else SinkState.RUNNING

    @property
    def reached(self) -> Position | None:
        """The newest position that was written, None if nothing was."""
        session = self._session
        return None if session is None else session.lanes[0].reached

    @property
    def session(self) -> Session | None:
        """The one that runs, or ran last."""
        return self._session

    @property
    def sources(self) -> Sequence[str]:
        """The sources that it reads."""
        return self._stream.sources

    @property
    def error(self) -> BaseException | None:
        """The error that has stopped it, None without one."""
        with self._lock:
            finals = (one.error for one in self._troubles.values() if one.is_final)
            return self._reading_error or next(finals, None)

    @property
    def status(self) -> FeedStatus:
        """How it is now."""
        session, state = self._session, self.state
        stored: Position | None = None if session is None else session.stored
        held_windows, held_since_ns = (0, 0) if session is None else session.held_windows
        now_s = self._clock()
        with self._lock:
            problem = "" if self._reading_error is None else str(self._reading_error)
            return FeedStatus(
                self._plan.name,
                self._stream.source,
                state,
                -1 if stored is None else stored.scn,
                self._rows,
                self._skipped,
                self._letters,
                0 if session is None else session.held_rows,
                self._committed_ns,
                next(iter(self._troubles.values()), None),
                problem or self._unstored or self._waits.problem,
                self._rate.per_s(self._rows, now_s),
                held_windows,
                held_since_ns,
                self._alerts.raised_s(now_s),
            )

    def _run(self) -> None:
        try:
            while not self._is_ending and self._run_session() is not Ended.DONE:
                pass
        finally:
            with self._lock:
                is_done = self._state is SinkState.DONE
                self._state = SinkState.DONE if is_done else SinkState.ENDED
            self._ended.set()

    def _run_session(self) -> Ended:
        session = self._session = Session(self._plan, self._stream, self._clock, self)
        self._state = SinkState.RUNNING
        try:
            ended = session.run()
        except Exception as error:
            self._take_error(error)
            return Ended.AGAIN
        finally:
            with self._lock:
                self._troubles.clear()
        if ended is Ended.DONE:
            self._state = SinkState.DONE
        if ended is Ended.STOPPED:
            self._is_ending = True
        return ended

    def _take_error(self, error: Exception) -> None:
        """Wait for a person, or a moment if the disk is full: else the client has tried enough."""
        if self._is_ending:
            return
        if not isinstance(error, DatabusError):
            log.exception("%s: reading failed", self._plan.name)
        else:
            log.error("%s: stopped by an error: %s", self._plan.name, error)
        with self._lock:
            self._reading_error = error
            self._alerts.failed(_READING, str(error), self._clock())
        self._again.wait(_PAUSE_S if is_transient(error) else None)
        self._again.clear()
        with self._lock:
            self._reading_error = None
            self._alerts.recovered(_READING)

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_S):
            session = self._session
            try:
                if session is not None:
                    session.tick()
                self._look_at_waits()
            except Exception:
                log.exception("%s: a position may not be stored", self._plan.name)
            self.raise_alert()

    def _look_at_waits(self) -> None:
        """Take note of whether target and servers answer; sink and client try again themselves."""
        waits = ReadingTrouble()
        if self._go.is_set():
            told = next((lane.waiting for lane in self._lanes() if lane.waiting), "")
            waits = ReadingTrouble(told, True) if told else self._stream.trouble
        with self._lock:
            self._waits = waits
            if waits.is_failure:
                self._alerts.failed(_WAITING, waits.problem, self._clock())
            else:
                self._alerts.recovered(_WAITING)

    def raise_alert(self) -> None:
        """Tell of a failure that lasts, or that it is over, if that is due."""
        with self._lock:
            now_s = self._clock()
            self._rate.sample(self._rows, now_s)
            alert = self._alerts.due(now_s)
        if alert is not None:
            with suppress(Exception):
                self._on_alert(self._plan.name, replace(alert, source=self._stream.source))

    def _lanes(self) -> Sequence[Lane]:
        session = self._session
        return [] if session is None else session.lanes

    @property
    def _is_this_thread(self) -> bool:
        own = (self._thread, self._ticker)
        return threading.current_thread() in own or any(one.is_this_thread for one in self._lanes())

    # As the watch of its sessions

    def is_held(self) -> bool:
        """Whether it is paused."""
        return not self._go.is_set()

    def wait_while_held(self) -> None:
        """Return when it is not paused."""
        self._go.wait()

    def coming(self, changes: Sequence[Change]) -> None:
        """Note what is newer than a dead letter; raise OSError."""
        self._dead_letters.coming(changes)

    def wrote(self, changes: Sequence[Change]) -> None:
        """Count changes that are durable."""
        with self._lock:
            self._rows += len(changes)
            self._committed_ns = max(self._committed_ns, changes[-1].timestamp_ns)

    def failing(self, trouble: Trouble) -> None:
        """Show a failure, and log it when it begins and when it becomes final."""
        with self._lock:
            before = self._troubles.get(trouble.lane)
            self._troubles[trouble.lane] = trouble
            self._alerts.failed(trouble.lane, trouble.problem, self._clock())
        if before is None or trouble.is_final is not before.is_final:
            level = logging.ERROR if trouble.is_final else logging.WARNING
            log.log(level, "%s: %s", self._plan.name, describe(trouble))

    def recovered(self, lane: int) -> None:
        """Forget a failure."""
        with self._lock:
            self._troubles.pop(lane, None)
            self._alerts.recovered(lane)

    def set_aside(self, change: Change, trouble: Trouble, then: Then) -> None:
        """Skip a row, or keep it as a dead letter; raise OSError."""
        is_kept = then is Then.DEAD_LETTER and self._dead_letters.keep(change, trouble)
        log.warning(
            "%s: %s %s %s (%s) is %s: %s",
            self._plan.name,
            change.op,
            change.source,
            dict(change.key),
            change.id,
            "a dead letter" if is_kept else "skipped",
            trouble.problem,
        )
        with self._lock:
            self._skipped += not is_kept
            self._letters += is_kept

    def passes(self, window: DataWindow) -> None:
        """Tell who listens that lanes are given a window now."""
        self.on_window(window)

    def cannot_store(self, problem: str) -> None:
        """Show why a position is not stored."""
        self._unstored = problem


def describe(trouble: Trouble) -> str:
    """Return a failure as one line."""
    change = trouble.change
    row = f"{trouble.rows} rows" if change is None else f"{change.source} at {change.id}"
    tries = f"{trouble.attempts} tries" if trouble.attempts > 1 else "the first try"
    what = "stopped" if trouble.is_final else "failing"
    return f"{what}: {row}: {trouble.problem} ({tries})"


def _log_alert(name: str, alert: Alert) -> None:
    # One that an application registers has the name of the sink for the physical source.
    where = f" in {alert.source}" if alert.source != name else ""
    about_it = about(physical_source=alert.source)
    if alert.is_well:
        text = "sink %s%s is well again after %.0f s"
        log.warning(text, name, where, alert.for_s, extra=about_it)
    else:
        text = "ALERT: sink %s%s has failed for %.0f s: %s"
        log.error(text, name, where, alert.for_s, alert.problem, extra=about_it)
