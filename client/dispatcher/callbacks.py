"""The order of callbacks and the handling of their results. No threads, files or clock of its own.

A window succeeds when every consumer of the registration has taken all of it. A window that
fails is rolled back for all of them and delivered again from its start. So redelivery is
limited to one window while the process lives, and to one checkpoint when it dies.

Callbacks run on the dispatcher's own thread: passing each event to another thread would
cost more than the event. So a callback that overruns its budget cannot be interrupted. It
counts as ERROR when it returns; `overdue` detects one that never returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from databus.client.consumer import Consumer, Result
from databus.client.dispatcher.data_window import Group, add_ddl, group_events
from databus.client.dispatcher.schema_changes import SchemaChange, SchemaWatch
from databus.client.events.data_event import DataEvent, DdlEvent
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ConsumerError

Clock = Callable[[], float]
Callback = Callable[..., Result | None]

_SUCCESS = Result.SUCCESS
_NO_WINDOW = -1

# The watchdog gives a callback up after this many budgets. A callback that returns a little
# late only causes a replay.
GRACE = 1.5


class Failure(NamedTuple):
    """Why a window failed."""

    problem: str
    is_fatal: bool = False
    cause: BaseException | None = None


class Outcome(NamedTuple):
    """How one delivery of a window ended; its checkpoint depends on `result`."""

    result: Result
    failure: Failure | None = None


_SUCCEEDED = Outcome(_SUCCESS)


class _Callbacks(NamedTuple):
    """One consumer's callbacks for a window, or for a page.

    None = not overridden, so never called.
    """

    on_start_data_event_sequence: Callback | None
    on_start_source: Callback | None
    on_data_event: Callback | None
    on_end_source: Callback | None
    on_end_data_event_sequence: Callback | None
    on_checkpoint: Callback | None
    on_ddl: Callback | None
    on_schema_change: Callback | None
    on_data_events: Callback | None


class _FailedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.problem)
        self.failure = failure


class Dispatch:
    """Makes the callbacks of one registration and counts consecutive failures."""

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
        # The watchdog reads these on another thread. `_since_s` is written last and cleared
        # first, so that one callback is never blamed for the time of another.
        self._since_s: float | None = None
        self._callback: Callback | None = None
        self._scn = _NO_WINDOW

    def deliver(self, read: ReadWindow) -> Outcome:
        """Make all callbacks of a window once."""
        return self._deliver(read, self._callbacks)

    def deliver_page(self, page: BootstrapPage) -> Outcome:
        """Make all callbacks of a bootstrap page once."""
        return self._deliver(page, self._page_callbacks)

    def _deliver(
        self, read: ReadWindow | BootstrapPage, consumers: Sequence[_Callbacks]
    ) -> Outcome:
        self._scn = read.window.scn
        try:
            # Once for all consumers, so that a row is decoded at most once.
            groups, scn = group_events(read), read.window.scn
            with_ddl = add_ddl(groups, read) if read.window.ddl else groups
            changes = self.watch.due(read) if self._is_watching else ()
            result = _SUCCESS
            for one in consumers:
                with_its = with_ddl if one.on_ddl else groups
                found = self._deliver_to(one, scn, with_its, changes)
                if found is not _SUCCESS:
                    result = _strongest((result, found))
            if self._is_watching:
                self.watch.take()
        except _FailedError as failed:
            return Outcome(Result.ERROR, failed.failure)
        finally:
            self._since_s = None
        self._failures = 0
        return _SUCCEEDED if result is _SUCCESS else Outcome(result)

    def roll_back(self, scn: int) -> Outcome:
        """Tell every consumer that all windows after `scn` are delivered again."""
        return self._notify("on_rollback", scn)

    def roll_back_bootstrap(self, scn: int) -> Outcome:
        """Tell every consumer that a page, or the whole bootstrap, is delivered again."""
        return self._notify("on_bootstrap_rollback", scn)

    def start_bootstrap(self) -> Outcome:
        """Tell every consumer that a bootstrap starts."""
        return self._notify("on_start_bootstrap")

    def stop_bootstrap(self) -> Outcome:
        """Tell every consumer that the bootstrap has ended."""
        return self._notify("on_stop_bootstrap")

    def start(self) -> Outcome:
        """Tell every consumer that consumption starts."""
        return self._notify("on_start_consumption")

    def stop(self) -> Outcome:
        """Tell every consumer that consumption has ended."""
        return self._notify("on_stop_consumption")

    def report(self, error: BaseException) -> Outcome:
        """Tell every consumer the error that stops the client."""
        return self._notify("on_error", error)

    def judge(self, failure: Failure) -> ConsumerError | None:
        """Return the error to stop with, or None to replay the window."""
        self._failures += 1
        if not failure.is_fatal and self._failures <= self._retries:
            return None
        tries = f" ({self._failures} tries)" if self._failures > 1 else ""
        error = ConsumerError(self._scn, failure.problem + tries)
        error.__cause__ = failure.cause
        self._failures = 0
        return error

    def overdue(self) -> ConsumerError | None:
        """Return the error to stop with when a callback does not return. Thread-safe."""
        since_s, callback, scn = self._since_s, self._callback, self._scn
        if since_s is None or self._clock() - since_s <= GRACE * self._budget_s:
            return None
        return ConsumerError(
            scn,
            f"{_name(callback)} has not returned for {self._clock() - since_s:.1f} s; "
            f"callback_budget_s = {self._budget_s:g}",
        )

    def _deliver_to(
        self,
        callbacks: _Callbacks,
        scn: int,
        groups: Sequence[Group],
        changes: Sequence[SchemaChange] = (),
    ) -> Result:
        # fmt: off
        (start, start_source, on_event, end_source, end, on_checkpoint,
         on_ddl, on_change, on_events) = callbacks
        # fmt: on
        call: Callable[..., Result] = self._call
        results: list[Result] = []
        if on_change is not None:
            results += [
                call(on_change, name, step.before, step.after, step.needs_reload)
                for name, step in changes
            ]
        # An empty window has no start and no end; it only moves the checkpoint.
        if groups:
            if start is not None:
                results.append(call(start, scn))
            for source, events in groups:
                if source is None:
                    results.append(self._call_events(on_ddl, events))  # type: ignore[arg-type]
                    continue
                if start_source is not None:
                    results.append(call(start_source, source))
                if on_events is not None:
                    results.append(call(on_events, tuple(events)))
                elif on_event is not None:
                    results.append(self._call_events(on_event, events))
                if end_source is not None:
                    results.append(call(end_source, source))
            if end is not None:
                results.append(call(end, scn))
        if on_checkpoint is not None:
            results.append(call(on_checkpoint, scn))
        return _strongest(results) if results else _SUCCESS

    def _call_events(self, callback: Callback, events: Sequence[DataEvent | DdlEvent]) -> Result:
        """Make the callback of each event. Hot path, so `_call` is inlined."""
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
        """Make a callback; raise _FailedError if it fails."""
        self._callback = callback
        try:
            since_s = self._since_s = self._clock()
            returned = callback(*arguments)
            took_s = self._clock() - since_s
            if took_s > self._budget_s:
                raise _late(took_s, self._budget_s)
            return _SUCCESS if returned is None else _checked(returned)
        except Exception as error:
            shown = ", ".join(map(_shown, arguments))
            raise _FailedError(_failure_of(error, f"{_name(callback)}({shown})")) from error

    def _notify(self, name: str, *arguments: object) -> Outcome:
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
    """Decides when a checkpoint is written: at a window's end, at most every `every_s`.

    The checkpoint of a window with SKIP_CHECKPOINT is never written; that of the window
    before it still may be.
    """

    def __init__(self, every_s: float, clock: Clock) -> None:
        self._every_s = every_s
        self._clock = clock
        self._waiting: Callable[[], Checkpoint] | None = None
        self._due_s = clock() + every_s

    @property
    def due_in_s(self) -> float | None:
        """Seconds until the pending checkpoint is due; None without one."""
        if self._waiting is None:
            return None
        return max(0.0, self._due_s - self._clock())

    def after_window(
        self, checkpoint: Callable[[], Checkpoint], result: Result
    ) -> Checkpoint | None:
        """Handle a window's result; return the checkpoint to write now, if any.

        `checkpoint` creates it: most are never written, so most are never created.
        """
        if result is Result.SKIP_CHECKPOINT:
            return None
        self._waiting = checkpoint
        if result is _SUCCESS and self._clock() < self._due_s:
            return None
        return self.take(is_forced=True)

    def take(self, is_forced: bool = False) -> Checkpoint | None:
        """Return the pending checkpoint if it is due or `is_forced`, else None."""
        waiting, now_s = self._waiting, self._clock()
        if waiting is None or (now_s < self._due_s and not is_forced):
            return None
        self._waiting = None
        self._due_s = now_s + self._every_s
        return waiting()


# The strongest result of the callbacks is the window's: while one consumer's data is not
# safe, another one's request for a checkpoint cannot make it so.
_STRENGTH = {Result.SUCCESS: 0, Result.CHECKPOINT: 1, Result.SKIP_CHECKPOINT: 2}


def _strongest(results: Iterable[Result]) -> Result:
    strongest = _SUCCESS
    for result in results:
        # Nearly all results are SUCCESS, and hashing an enum is slow.
        if result is not _SUCCESS and _STRENGTH[result] > _STRENGTH[strongest]:
            strongest = result
    return strongest


def _checked(returned: object) -> Result:
    """Return a successful result; raise _FailedError for any other."""
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
    "on_ddl",  # never called: pages have no DDL
    "on_schema_change",
    "on_bootstrap_events",
)


def _page_callbacks_of(consumer: Consumer, live: _Callbacks) -> _Callbacks:
    """Return the callbacks of a page; the window's replace those not overridden."""
    # A consumer that takes a page's events one by one does so whatever it does with a window's.
    if _overridden(consumer, "on_bootstrap_event"):
        live = live._replace(on_data_events=None)
    names = zip(_OF_A_PAGE, live, strict=True)
    return _Callbacks(*(_overridden(consumer, name) or of_window for name, of_window in names))


def _shown(argument: object) -> str:
    """Return an argument of a callback as an error shows it: of a batch, its size."""
    return f"{len(argument)} events" if isinstance(argument, tuple) else repr(argument)


def _overridden(consumer: Consumer, name: str) -> Callback | None:
    callback: Callback = getattr(consumer, name)
    is_ours = getattr(callback, "__func__", None) is getattr(Consumer, name)
    return None if is_ours else callback


def _name(callback: Callback | None) -> str:
    return getattr(callback, "__qualname__", None) or repr(callback)
