"""One lane of a sink: a thread with a sink object of its own, which writes what it is given.

It collects whole transactions, writes them at once, and flushes. After an error it closes the
object and opens another; what was not flushed is written again, as the rules of failures say. To
find the row that fails, the rows are written one by one.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from databus.client.machines.backoff import BackOff
from databus.client.sinks.contract import Abortable, Change, Opening, Position, Sink, TellsWaits
from databus.client.sinks.errors import SinkError, SinkRefusedError
from databus.client.sinks.rules.compaction import compacted
from databus.client.sinks.rules.failures import Failures, Then, Verdict
from databus.client.sinks.rules.flushing import FlushRule
from databus.client.sinks.running.plan import SinkPlan

log = logging.getLogger(__name__)

SLOW_CALL_S = 30.0  # a call that takes longer is shown

Clock = Callable[[], float]


@dataclass(slots=True)
class Piece:
    """What a lane gets of a transaction: the number of its entry in the ring, and changes."""

    number: int
    changes: Sequence[Change]
    position: Position | None = None  # behind the transaction, if this is all of it


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a lane does not get on, for people. `change` is the row that fails, None = not known."""

    lane: int
    problem: str
    attempts: int
    rows: int
    change: Change | None = None
    is_final: bool = False  # it waits for a person
    error: BaseException | None = field(default=None, repr=False)


class LaneOwner(Protocol):
    """Who has the lanes. Called on their threads."""

    def is_held(self) -> bool:
        """Whether the sink is paused."""
        ...

    def opening(self) -> Opening:
        """Return what a sink is opened for, with the position up to which everything is durable."""
        ...

    def opened(self, sink: Sink) -> None:
        """Take note that the sink is open for the first time."""

    def coming(self, changes: Sequence[Change]) -> None:
        """Take note of changes that are written next; may raise."""

    def wrote(self, changes: Sequence[Change]) -> None:
        """Take note of changes that are durable."""

    def done(self, numbers: Sequence[int]) -> None:
        """Take note that entries of the ring are durable."""

    def failing(self, trouble: Trouble) -> None:
        """Take note of a failure."""

    def recovered(self, lane: int) -> None:
        """Take note of a success after failures."""

    def set_aside(self, change: Change, trouble: Trouble, then: Then) -> None:
        """Skip a row, or keep it as a dead letter; may raise."""

    def go_back(self, position: Position) -> None:
        """Read again from an earlier position: the target has lost what it had."""


class _GoneBackError(Exception):
    """The lane ends, because reading begins again at an earlier position."""


class Lane:
    """Writes on its own thread."""

    def __init__(self, number: int, plan: SinkPlan, owner: LaneOwner, clock: Clock) -> None:
        self.number = number
        settings = plan.settings
        self._plan, self._owner, self._clock = plan, owner, clock
        self._given: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()  # None: flush, or wake
        self._pieces: list[Piece] = []
        self._rule = FlushRule(settings.flush.rows, settings.flush.seconds)
        given = settings.failures
        waits = BackOff(given.back_off, Random())
        self._failures = Failures(plan.failure_rules, given.fast_retries, waits)
        self._sink: Sink | None = None
        self._called_s: float | None = None  # when it was called, while it has not returned
        self._opening: Sink | None = None
        self._opened = threading.Event()
        self.own: Position | None = None  # the target's, when the lane began
        self.reached: Position | None = None  # up to which this lane has made everything durable
        self._is_compact = settings.flush.compact
        self._is_alone = False  # rows are written one by one
        self._takes_over = False  # a person has asked for the next try
        self._to_skip: Change | None = None
        self._shown: Trouble | None = None
        self._woken = threading.Event()
        self._stopping, self._must_finish = False, False
        name = f"databus-sink-{plan.name}-{number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin: open the sink."""
        self._thread.start()

    def wait_until_open(self) -> Position | None:
        """Return the target's own position once the sink is open, or None when the lane ends."""
        self._opened.wait()
        return self.own

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is its sink."""
        return threading.current_thread() is self._thread

    @property
    def waiting(self) -> str:
        """Why its sink waits within a call; "" = it does not."""
        sink, since_s = self._sink, self._called_s
        told = sink.waiting if isinstance(sink, TellsWaits) else ""
        for_s = 0.0 if since_s is None else self._clock() - since_s
        if told or for_s < SLOW_CALL_S:
            return told
        return f"the target has not answered for {for_s:.0f} s: a call of the sink does not return"

    def put(self, piece: Piece) -> None:
        """Give changes to write."""
        self._given.put(piece)

    def flush_soon(self) -> None:
        """Write what the lane holds without waiting for more."""
        self._given.put(None)

    def retry(self) -> None:
        """Try again now, also after the last retry, and where another process has taken over."""
        self._failures.reset()
        self._takes_over = True
        self._woken.set()

    def skip_row(self, id: str = "") -> Change | None:
        """Drop the row that fails, if it has this `id`; None: it is not known, and is looked for.

        Raises SinkError if nothing fails, or another row.
        """
        shown = self._shown
        if shown is None:
            raise SinkError("no row fails")
        if id and (shown.change is None or shown.change.id != id):
            raise SinkError(f"{id} is not the row that fails now: look again")
        self._to_skip = shown.change
        self.find_row()
        return shown.change

    def find_row(self) -> None:
        """Write the rows one by one from now on, until all are written; drop none."""
        self._is_alone = True
        self.retry()

    def stop(self) -> None:
        """Ask the thread to end, after a last attempt to write what it holds."""
        self._stopping = self._must_finish = True
        self._given.put(None)
        self._woken.set()

    def abort(self) -> None:
        """End the call that the sink makes now, where it can be ended. Thread-safe."""
        sink = self._sink or self._opening
        if sink is not None and isinstance(sink, Abortable):
            log.warning("%s: the sink has not returned; it is ended", self._plan.name)
            sink.abort()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread; return whether it has ended."""
        if self._thread.ident is None:
            return True  # it was never started
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._until_done(self._ensure_open)
            while not self._stopping:
                self._rest()
                self._take()
            self._take_rest()
            if self._must_finish and self._pieces and self._shown is None:
                self._until_done(self._write_all)
        except BaseException as error:
            log.exception("%s: lane %d ended", self._plan.name, self.number)
            self._owner.failing(replace(self._trouble(error), is_final=True))
        finally:
            self._close()
            self._opened.set()

    def _take(self) -> None:
        """Wait for changes, or for the time to flush, and flush."""
        try:
            piece = self._given.get(timeout=self._rule.due_in_s(self._clock()))
        except queue.Empty:
            piece = None
        if piece is not None:
            self._pieces.append(piece)
            self._rule.took(len(piece.changes), self._clock())
        if self._pieces and (piece is None or self._rule.due_in_s(self._clock()) == 0):
            self._until_done(self._write_all)

    def _take_rest(self) -> None:
        """Take what was given before the end."""
        with contextlib.suppress(queue.Empty):
            while True:
                piece = self._given.get_nowait()
                if piece is not None:
                    self._pieces.append(piece)

    def _until_done(self, act: Callable[[], None]) -> None:
        """Repeat until it succeeds, or the lane ends."""
        while not self._stopping or self._must_finish:
            self._rest()
            try:
                self._skip_shown()
                act()
            except _GoneBackError:
                return
            except BaseException as error:  # sys.exit() would only end this thread
                self._fail(error)
                if self._stopping:
                    return
            else:
                self._well()
                return

    def _rest(self) -> None:
        """While the sink is paused: close it, and wait."""
        while self._owner.is_held() and not self._stopping:
            self._close()
            self._wait(None)

    def _write_all(self) -> None:
        while self._pieces:
            self._ensure_open()
            if not self._pieces:
                break  # the target had them
            if self._is_alone:
                self._write(self._pieces[0].changes[:1])
                self._drop_first()
                continue
            held = [change for piece in self._pieces for change in piece.changes]
            self._check(self._write(compacted(held) if self._is_compact else held))
            self._pass(len(self._pieces))
        self._is_alone = False
        self._rule.flushed()

    def _write(self, changes: Sequence[Change]) -> Position | None:
        assert self._sink is not None
        self._owner.coming(changes)
        with self._calling():
            self._sink.write(changes)
            durable = self._sink.flush()
        self._failures.reset()
        self._owner.wrote(changes)
        return durable

    def _check(self, durable: Position | None) -> None:
        """Raise SinkError if the sink says that another position is durable than was written."""
        reached = _reached(self._pieces)
        if None not in (durable, reached) and durable != reached:
            raise SinkError(
                f"flush returned the position with SCN {durable and durable.scn}, and what was "
                f"written reaches {reached and reached.scn}"
            )

    def _pass(self, count: int) -> None:
        """Take note that the oldest pieces are durable."""
        done, self._pieces = self._pieces[:count], self._pieces[count:]
        self.reached = _reached(done) or self.reached
        self._owner.done([piece.number for piece in done])

    def _drop_first(self) -> None:
        """Forget the first row, which was written, and its piece if it was the last."""
        piece = self._pieces[0]
        piece.changes = piece.changes[1:]
        if not piece.changes:
            self._pass(1)

    def _ensure_open(self) -> None:
        if self._sink is not None:
            return
        opening = replace(self._owner.opening(), takes_over=self._takes_over)
        sink = self._opening = self._plan.make()
        try:
            with self._calling():
                own = sink.open(opening)
        except BaseException:
            with contextlib.suppress(Exception):
                sink.close()
            raise
        finally:
            self._opening = None
        self._sink, self._takes_over = sink, False
        if not self._opened.is_set():
            self._owner.opened(sink)
            self.reached = self.own = own
            self._opened.set()
        elif own is not None and self._plan.settings.lanes == 1:
            self._compare(own)

    def _compare(self, own: Position) -> None:
        """Drop what the target has, where a flush failed after it had worked."""
        places = [at for at, piece in enumerate(self._pieces) if piece.position == own]
        if places:
            self._pass(places[0] + 1)
        elif own != self.reached:
            self._stopping, self._must_finish = True, False
            self._owner.go_back(own)
            raise _GoneBackError

    def _fail(self, error: BaseException) -> None:
        """Close the sink, and do what follows a failure."""
        verdict, trouble = self._failures.failed(error), self._trouble(error)
        if verdict.wait_s is not None:
            self._show(trouble)  # before the sink is closed, which may take long
        self._close()
        self._settle(verdict, trouble)

    def _settle(self, verdict: Verdict, trouble: Trouble) -> None:
        """Wait, set a row aside, look for it, or wait for a person."""
        if verdict.wait_s is not None:
            self._wait(verdict.wait_s)
        elif verdict.then is Then.STOP or not self._pieces:
            self._show(replace(trouble, is_final=True))
            self._wait(None)
        elif trouble.change is None:
            self._is_alone = True
            self._failures.reset()
            self._show(trouble)
        else:
            self._set_aside(trouble, verdict.then)

    def _skip_shown(self) -> None:
        """Drop the row that an operator wants to be skipped."""
        change, self._to_skip = self._to_skip, None
        if change is not None and self._shown is not None:
            self._set_aside(replace(self._shown, change=change), Then.SKIP)

    def _set_aside(self, trouble: Trouble, then: Then) -> None:
        change = trouble.change
        assert change is not None
        try:
            self._owner.set_aside(change, trouble, then)
        except Exception as error:
            # The row is not lost for want of a place to keep it.
            log.exception("%s: the row cannot be set aside", self._plan.name)
            self._show(replace(trouble, problem=f"{trouble.problem}; and: {error}", is_final=True))
            self._wait(None)
            return
        self._failures.reset()
        for piece in self._pieces:
            if any(one is change for one in piece.changes):
                piece.changes = _without(piece.changes, change)
        # The target gets nothing of a piece without changes, and so not its position.
        empty = [piece.number for piece in self._pieces if not piece.changes]
        self._pieces = [piece for piece in self._pieces if piece.changes]
        if empty:
            self._owner.done(empty)

    def _trouble(self, error: BaseException) -> Trouble:
        rows = sum(len(piece.changes) for piece in self._pieces)
        change = self._named(error)
        if change is None and (self._is_alone or rows == 1) and rows:
            change = next(one for piece in self._pieces for one in piece.changes)
        problem = f"{type(error).__name__}: {error}"
        return Trouble(self.number, problem, self._failures.attempts, rows, change, error=error)

    def _named(self, error: BaseException) -> Change | None:
        """Return the row that an error names, if it is one that the lane holds."""
        named = error.change if isinstance(error, SinkRefusedError) else None
        held = (one for piece in self._pieces for one in piece.changes)
        return next((one for one in held if one is named), None) if named is not None else None

    def _show(self, trouble: Trouble) -> None:
        self._shown = trouble
        self._owner.failing(trouble)

    def _well(self) -> None:
        if self._shown is not None:
            self._shown = None
            self._owner.recovered(self.number)

    def _wait(self, seconds: float | None) -> None:
        """Wait, until somebody wakes the lane; None = until then."""
        if self._stopping:
            return
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """End a wait: the sink was paused and goes on."""
        self._woken.set()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Note the time of a call of the sink while it has not returned."""
        self._called_s = self._clock()
        try:
            yield
        finally:
            self._called_s = None

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                with self._calling():
                    sink.close()
            except BaseException as error:
                log.warning("%s: closing the sink failed: %s", self._plan.name, error)


def _reached(pieces: Sequence[Piece]) -> Position | None:
    """Return the newest position of pieces; rows of a reload move none."""
    return next((one.position for one in reversed(pieces) if one.position is not None), None)


def _without(changes: Sequence[Change], change: Change) -> list[Change]:
    """Return changes without one; its position, if it has one, goes to the change before it."""
    left = [one for one in changes if one is not change]
    if change.position is not None and left:
        left[-1] = replace(left[-1], position=change.position)
    return left
