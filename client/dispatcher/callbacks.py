"""The order of callbacks, and what follows from their results. No thread, no file, no clock
of its own.

A window succeeds when every consumer of the registration has taken all of it.
One that fails is rolled back for all of them and delivered again from its
start: redelivery lies within one window while the process lives, and within
one checkpoint when it does not.

Callbacks run in line: there is no other thread to hand an event to, for that
would cost more than the event. So a callback that overruns its budget cannot
be interrupted; it counts as ERROR when it comes back, and one that does not
come back at all is what `overdue` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from databus.client.consumer import Consumer, DataEvent, DdlEvent, Result
from databus.client.dispatcher.schema_changes import SchemaChange, SchemaWatch
from databus.client.puller.buffer_items import BootstrapPage, Phase
from databus.client.puller.window_decoder import ReadWindow
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ConsumerError
from databus.schemas.stream.row_reader import SRC_ID

Clock = Callable[[], float]
Callback = Callable[..., Result | None]

_SUCCESS = Result.SUCCESS
# A run of one source's events and its name; or, without a name, a DDL statement.
_Group = tuple[str | None, Sequence[Any]]
_SRC_ID = itemgetter(SRC_ID)
_NO_WINDOW = -1

# A callback may take so many budgets before the watchdog gives it up: coming
# back late is dealt with more gently, by a replay.
GRACE = 1.5


class Failure(NamedTuple):
    """Why a window did not succeed."""

    problem: str
    is_fatal: bool = False
    cause: BaseException | None = None


class Outcome(NamedTuple):
    """How one attempt at a window ended; `result` is what its checkpoint depends on."""

    result: Result
    failure: Failure | None = None


_SUCCEEDED = Outcome(_SUCCESS)


class _Callbacks(NamedTuple):
    """One consumer's callbacks of a window, or the same ones of a page.

    None = not overridden, so not called at all.
    """

    on_start_data_event_sequence: Callback | None
    on_start_source: Callback | None
    on_data_event: Callback | None
    on_end_source: Callback | None
    on_end_data_event_sequence: Callback | None
    on_checkpoint: Callback | None
    on_ddl: Callback | None
    on_schema_change: Callback | None


class _FailedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.problem)
        self.failure = failure


class Dispatch:
    """Makes the callbacks of one registration, and counts its failures."""

    def __init__(
        self, consumers: Sequence[Consumer], budget_s: float, retries: int, clock: Clock
    ) -> None:
        """Allow each callback `budget_s`, and each window `retries` replays."""
        self.consumers = list(consumers)
        self._callbacks = [_callbacks_of(consumer) for consumer in self.consumers]
        self._page_callbacks = [
            _page_callbacks_of(consumer, live)
            for consumer, live in zip(self.consumers, self._callbacks, strict=True)
        ]
        self.watch = SchemaWatch()
        self._is_watching = any(c.on_schema_change for c in self._callbacks)
        self._budget_s = budget_s
        self._retries = retries
        self._clock = clock
        self._failures = 0
        # For the watchdog, which reads them on another thread. `_since_s` is
        # written last and cleared first: a callback is never blamed for another's time.
        self._since_s: float | None = None
        self._callback: Callback | None = None
        self._scn = _NO_WINDOW

    def deliver(self, read: ReadWindow) -> Outcome:
        """Make all callbacks of a window, once."""
        return self._deliver(read, self._callbacks)

    def deliver_page(self, page: BootstrapPage) -> Outcome:
        """Make all callbacks of a bootstrap's page, once."""
        return self._deliver(page, self._page_callbacks)

    def _deliver(
        self, read: ReadWindow | BootstrapPage, consumers: Sequence[_Callbacks]
    ) -> Outcome:
        self._scn = read.window.scn
        try:
            groups, scn = group_events(read), read.window.scn
            with_ddl = add_ddl(groups, read) if read.window.ddl else groups
            changes = self.watch.due(read) if self._is_watching else ()
            result = _strongest(
                [
                    self._deliver_to(c, scn, with_ddl if c.on_ddl else groups, changes)
                    for c in consumers
                ]
            )
            self.watch.take()
        except _FailedError as failed:
            return Outcome(Result.ERROR, failed.failure)
        finally:
            self._since_s = None
        self._failures = 0
        return _SUCCEEDED if result is _SUCCESS else Outcome(result)

    def roll_back(self, scn: int) -> Outcome:
        """Tell every consumer that all after `scn` comes again."""
        return self._tell("on_rollback", scn)

    def roll_back_bootstrap(self, scn: int) -> Outcome:
        """Tell every consumer that a page, or all of the bootstrap, comes again."""
        return self._tell("on_bootstrap_rollback", scn)

    def start_bootstrap(self) -> Outcome:
        """Tell every consumer that rows as they stand follow."""
        return self._tell("on_start_bootstrap")

    def stop_bootstrap(self) -> Outcome:
        """Tell every consumer that changes follow again."""
        return self._tell("on_stop_bootstrap")

    def start(self) -> Outcome:
        """Tell every consumer that it begins."""
        return self._tell("on_start_consumption")

    def stop(self) -> Outcome:
        """Tell every consumer that it is over."""
        return self._tell("on_stop_consumption")

    def report(self, error: BaseException) -> Outcome:
        """Tell every consumer of the error that stops the client."""
        return self._tell("on_error", error)

    def judge(self, failure: Failure) -> ConsumerError | None:
        """Return the error to stop with, or None when the window is to be replayed."""
        self._failures += 1
        if not failure.is_fatal and self._failures <= self._retries:
            return None
        tries = f" ({self._failures} tries)" if self._failures > 1 else ""
        error = ConsumerError(self._scn, failure.problem + tries)
        error.__cause__ = failure.cause
        self._failures = 0
        return error

    def overdue(self) -> ConsumerError | None:
        """Return the error to stop with when a callback does not come back; any thread."""
        since_s, callback, scn = self._since_s, self._callback, self._scn
        if since_s is None or self._clock() - since_s <= GRACE * self._budget_s:
            return None
        return ConsumerError(
            scn,
            f"{_name(callback)} has not come back for {self._clock() - since_s:.1f} s; "
            f"callback_budget_s = {self._budget_s:g}",
        )

    def _deliver_to(
        self,
        callbacks: _Callbacks,
        scn: int,
        groups: Sequence[_Group],
        changes: Sequence[SchemaChange] = (),
    ) -> Result:
        start, start_source, on_event, end_source, end, on_checkpoint, on_ddl, on_change = callbacks
        call, results = self._call, []
        if on_change is not None:
            results += [
                call(on_change, name, step.before, step.after, step.needs_reload)
                for name, step in changes
            ]
        if groups:
            if start is not None:
                results.append(call(start, scn))
            for source, events in groups:
                if source is None:
                    results.append(self._call_events(on_ddl, events))  # type: ignore[arg-type]
                    continue
                if start_source is not None:
                    results.append(call(start_source, source))
                if on_event is not None:
                    results.append(self._call_events(on_event, events))
                if end_source is not None:
                    results.append(call(end_source, source))
            if end is not None:
                results.append(call(end, scn))
        if on_checkpoint is not None:
            results.append(call(on_checkpoint, scn))
        return _strongest(results)

    def _call_events(self, callback: Callback, events: Sequence[DataEvent | DdlEvent]) -> Result:
        """Make the callback of each event: the hot path, hence `_call` written out in it."""
        clock, budget_s, result = self._clock, self._budget_s, _SUCCESS
        self._callback = callback
        event = events[0]
        try:
            since_s = self._since_s = clock()
            for event in events:
                returned = callback(event)
                now_s = clock()
                if now_s - since_s > budget_s:
                    raise _late(now_s - since_s, budget_s)
                self._since_s = since_s = now_s
                if returned is not None and returned is not _SUCCESS:
                    result = _strongest((result, _checked(returned)))
        except Exception as error:
            raise _FailedError(_failure_of(error, f"{_name(callback)}({event!r})")) from error
        return result

    def _call(self, callback: Callback, *arguments: object) -> Result:
        """Make a callback; raises _FailedError."""
        self._callback = callback
        try:
            since_s = self._since_s = self._clock()
            returned = callback(*arguments)
            took_s = self._clock() - since_s
            if took_s > self._budget_s:
                raise _late(took_s, self._budget_s)
            return _SUCCESS if returned is None else _checked(returned)
        except Exception as error:
            shown = ", ".join(map(repr, arguments))
            raise _FailedError(_failure_of(error, f"{_name(callback)}({shown})")) from error

    def _tell(self, name: str, *arguments: object) -> Outcome:
        """Make one callback of every consumer; the first failure counts."""
        failure = None
        for consumer in self.consumers:
            try:
                self._call(getattr(consumer, name), *arguments)
            except _FailedError as failed:
                failure = failure or failed.failure
            finally:
                self._since_s = None
        return Outcome(Result.ERROR if failure else _SUCCESS, failure)


class CheckpointRule:
    """When a checkpoint is written: at window ends, not more often than need be.

    A window that was skipped (SKIP_CHECKPOINT) is never the one written; the
    one before it still may be.
    """

    def __init__(self, every_s: float, clock: Clock) -> None:
        self._every_s = every_s
        self._clock = clock
        self._waiting: Callable[[], Checkpoint] | None = None
        self._due_s = clock() + every_s

    @property
    def due_in_s(self) -> float | None:
        """How long the one that waits may still wait; None when none does."""
        if self._waiting is None:
            return None
        return max(0.0, self._due_s - self._clock())

    def after_window(
        self, checkpoint: Callable[[], Checkpoint], result: Result
    ) -> Checkpoint | None:
        """Take a window's result; return the checkpoint to write now, if any.

        `checkpoint` makes it: most are never written, so most are never made.
        """
        if result is Result.SKIP_CHECKPOINT:
            return None
        self._waiting = checkpoint
        if result is _SUCCESS and self._clock() < self._due_s:
            return None
        return self.take(is_forced=True)

    def take(self, is_forced: bool = False) -> Checkpoint | None:
        """Return the checkpoint that waits when it is due, or in any case."""
        waiting, now_s = self._waiting, self._clock()
        if waiting is None or (now_s < self._due_s and not is_forced):
            return None
        self._waiting = None
        self._due_s = now_s + self._every_s
        return waiting()


@dataclass(frozen=True, slots=True)
class DataWindow:
    """A whole window as a consumer sees it: `for window in client.windows(…)`.

    Or, where `phase` is not LIVE, a page of a bootstrap, which is no
    transaction. `begins_bootstrap`: what pages brought before this one comes
    again from the beginning, rows deleted meanwhile as deletes.
    """

    scn: int
    timestamp_ns: int
    events: tuple[DataEvent, ...]
    phase: Phase = Phase.LIVE
    begins_bootstrap: bool = False


def group_events(read: ReadWindow | BootstrapPage) -> list[_Group]:
    """Return the events in order, by runs of one source."""
    window, bindings = read.window, read.bindings
    groups: list[_Group] = []
    begin = 0
    for src_id, run in groupby(window.events, _SRC_ID):
        source = bindings[src_id]
        events = [DataEvent(event, source, index) for index, event in enumerate(run, begin)]
        begin += len(events)
        groups.append((source.name, events))
    return groups


def add_ddl(groups: Iterable[_Group], read: ReadWindow | BootstrapPage) -> list[_Group]:
    """Return the groups with the DDL statements on the registration's sources in between."""
    window = read.window
    names = {source.name for source in read.bindings.values()}
    waiting = [
        (place, DdlEvent(*told[:3], window.scn, window.timestamp_ns))
        for place, told in window.ddl
        if not names.isdisjoint(told.sources)
    ]
    found: list[_Group] = []
    begin = 0
    for source, events in groups:
        end = begin + len(events)
        while waiting and waiting[0][0] < end:
            place, ddl = waiting.pop(0)
            if place > begin:
                found.append((source, events[: place - begin]))
                events, begin = events[place - begin :], place
            found.append((None, [ddl]))
        found.append((source, events))
        begin = end
    return found + [(None, [ddl]) for _, ddl in waiting]


def data_window(read: ReadWindow | BootstrapPage, begins_bootstrap: bool = False) -> DataWindow:
    """Return a window or page for those who iterate."""
    events = tuple(event for _, group in group_events(read) for event in group)
    phase = read.phase if isinstance(read, BootstrapPage) else Phase.LIVE
    window = read.window
    return DataWindow(window.scn, window.timestamp_ns, events, phase, begins_bootstrap)


# Of the callbacks' results the strongest is the window's: once one consumer's
# data is not safe, another's wish for a checkpoint cannot make it so.
_STRENGTH = {Result.SUCCESS: 0, Result.CHECKPOINT: 1, Result.SKIP_CHECKPOINT: 2}


def _strongest(results: Iterable[Result]) -> Result:
    strongest = _SUCCESS
    for result in results:
        # Nearly all are: an enum's hash is slow.
        if result is not _SUCCESS and _STRENGTH[result] > _STRENGTH[strongest]:
            strongest = result
    return strongest


def _checked(returned: object) -> Result:
    """Return a result that is not a failure; raises the others."""
    if returned is Result.ERROR_FATAL:
        raise _FailedError(Failure("returned ERROR_FATAL", is_fatal=True))
    if returned is Result.ERROR:
        raise _FailedError(Failure("returned ERROR"))
    if not isinstance(returned, Result):
        problem = f"returned {returned!r}, which is neither a Result nor None"
        raise _FailedError(Failure(problem, is_fatal=True))
    return returned


def _late(took_s: float, budget_s: float) -> _FailedError:
    return _FailedError(Failure(f"took {took_s:.3f} s; callback_budget_s = {budget_s:g}"))


def _failure_of(error: Exception, call: str) -> Failure:
    if isinstance(error, _FailedError):
        problem, is_fatal, cause = error.failure
        return Failure(f"{call} {problem}", is_fatal, cause)
    return Failure(f"{call} raised {error!r}", cause=error)


def _callbacks_of(consumer: Consumer) -> _Callbacks:
    return _Callbacks(*(_overridden(consumer, name) for name in _Callbacks._fields))


# The callbacks of a page, in the order of `_Callbacks`.
_OF_A_PAGE = (
    "on_start_bootstrap_sequence",
    "on_start_bootstrap_source",
    "on_bootstrap_event",
    "on_end_bootstrap_source",
    "on_end_bootstrap_sequence",
    "on_bootstrap_checkpoint",
    "on_ddl",  # which no page has
    "on_schema_change",
)


def _page_callbacks_of(consumer: Consumer, live: _Callbacks) -> _Callbacks:
    """Return the callbacks of a page: one that is not overridden is the window's."""
    names = zip(_OF_A_PAGE, live, strict=True)
    return _Callbacks(*(_overridden(consumer, name) or of_window for name, of_window in names))


def _overridden(consumer: Consumer, name: str) -> Callback | None:
    callback: Callback = getattr(consumer, name)
    is_ours = getattr(callback, "__func__", None) is getattr(Consumer, name)
    return None if is_ours else callback


def _name(callback: Callback | None) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
