"""Makes a consumer's callbacks, measures them and checks their results.

`_calls` is the same, compiled, and takes its functions for failures from here. Hot path: a call
for each event of each window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from databus.client.consumer import Result
from databus.client.dispatcher.data_window import Group
from databus.client.events.data_event import DataEvent, DdlEvent, StatementEvent

Clock = Callable[[], float]
Callback = Callable[..., Result | None]

_SUCCESS = Result.SUCCESS


class Failure(NamedTuple):
    """Why a window failed."""

    problem: str
    is_fatal: bool = False
    cause: BaseException | None = None
    events: tuple[DataEvent, ...] = ()  # that the failed callback was given


class FailedError(Exception):
    """A callback has failed. Never leaves this package."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.problem)
        self.failure = failure


class Callbacks(NamedTuple):
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
    on_statement: Callback | None

    @property
    def statement_kinds(self) -> tuple[type, ...]:
        """The kinds of statements for which it has a callback."""
        kinds = ((DdlEvent, self.on_ddl), (StatementEvent, self.on_statement))
        return tuple(kind for kind, callback in kinds if callback is not None)


class PythonCaller:
    """Makes callbacks on one thread; `running` may be called from any."""

    def __init__(self, budget_s: float, clock: Clock) -> None:
        """Fail a callback that takes longer than `budget_s`."""
        self._budget_s = budget_s
        self._clock = clock
        # `_since_s` is written last and cleared first, so that one callback is never blamed for
        # the time of another.
        self._since_s: float | None = None
        self._callback: Callback | None = None

    def running(self) -> tuple[Callback | None, float] | None:
        """Return the callback that has not returned, and for how long it runs; None without one."""
        since_s, callback = self._since_s, self._callback
        return None if since_s is None else (callback, self._clock() - since_s)

    def end(self) -> None:
        """Say that no callback runs."""
        self._since_s = None

    def _begin(self, callback: Callback) -> None:
        # The watchdog must not see the last callback's time beside this one's name.
        self._since_s = None
        self._callback = callback

    def call(self, callback: Callback, *arguments: object) -> Result:
        """Make a callback; raise FailedError if it fails."""
        self._begin(callback)
        try:
            since_s = self._since_s = self._clock()
            returned = callback(*arguments)
            took_s = self._clock() - since_s
            if took_s > self._budget_s:
                raise late(took_s, self._budget_s)
            return _SUCCESS if returned is None else checked(returned)
        except BaseException as error:
            raise FailedError(failure_of_call(error, callback, arguments)) from error

    def call_each(self, callback: Callback, events: Sequence[Any]) -> Result:
        """Make the callback of each event; `call` is inlined."""
        clock, budget_s, result = self._clock, self._budget_s, _SUCCESS
        self._begin(callback)
        event = None
        try:
            since_s = self._since_s = clock()
            for event in events:
                returned = callback(event)
                now_s = clock()
                if now_s - since_s > budget_s:
                    raise late(now_s - since_s, budget_s)
                self._since_s = since_s = now_s
                if returned is not None and returned is not _SUCCESS:
                    result = strongest((result, checked(returned)))
        except BaseException as error:
            raise FailedError(failure_of_call(error, callback, (event,))) from error
        return result

    def deliver(self, callbacks: Callbacks, scn: int, groups: Sequence[Group]) -> Result:
        """Make the callbacks of a window or page; raise FailedError at the first that fails."""
        # fmt: off
        (start, start_source, on_event, end_source, end, on_checkpoint,
         on_ddl, _, on_events, on_statement) = callbacks
        # fmt: on
        call = self.call
        results: list[Result] = []
        # An empty window has no start and no end; it only moves the checkpoint.
        if groups:
            if start is not None:
                results.append(call(start, scn))
            for source, events in groups:
                if source is None:
                    told = on_statement if isinstance(events[0], StatementEvent) else on_ddl
                    results.append(self.call_each(told, events))  # type: ignore[arg-type]
                    continue
                if start_source is not None:
                    results.append(call(start_source, source))
                if on_events is not None:
                    results.append(call(on_events, tuple(events)))
                elif on_event is not None:
                    results.append(self.call_each(on_event, events))
                if end_source is not None:
                    results.append(call(end_source, source))
            if end is not None:
                results.append(call(end, scn))
        if on_checkpoint is not None:
            results.append(call(on_checkpoint, scn))
        return strongest(results)


# The strongest result of the callbacks is the window's: while one consumer's data is not
# safe, another one's request for a checkpoint cannot make it so.
_STRENGTH = {Result.SUCCESS: 0, Result.CHECKPOINT: 1, Result.SKIP_CHECKPOINT: 2}


def strongest(results: Iterable[Result]) -> Result:
    """Return the strongest of successful results; SUCCESS without any."""
    found = _SUCCESS
    for result in results:
        # Nearly all results are SUCCESS, and hashing an enum is slow.
        if result is not _SUCCESS and _STRENGTH[result] > _STRENGTH[found]:
            found = result
    return found


def checked(returned: object) -> Result:
    """Return a successful result; raise FailedError for any other."""
    if returned is Result.ERROR_FATAL:
        raise FailedError(Failure("returned ERROR_FATAL", is_fatal=True))
    if returned is Result.ERROR:
        raise FailedError(Failure("returned ERROR"))
    if not isinstance(returned, Result):
        problem = f"returned {returned!r}, which is neither a Result nor None"
        raise FailedError(Failure(problem, is_fatal=True))
    return returned


def late(took_s: float, budget_s: float) -> FailedError:
    """Return the error of a callback that took too long."""
    return FailedError(Failure(f"took {took_s:.3f} s; callback_budget_s = {budget_s:g}"))


def failure_of_call(
    error: BaseException, callback: Callback | None, arguments: tuple[object, ...]
) -> Failure:
    """Return why a call failed, with the call's text.

    What would end a program, such as `sys.exit()`, would only end the thread here: it is fatal.
    """
    call = f"{name_of(callback)}({', '.join(map(_shown, arguments))})"
    events = _events_of(arguments)
    if isinstance(error, FailedError):
        problem, is_fatal, cause, _ = error.failure
        return Failure(f"{call} {problem}", is_fatal, cause, events)
    is_fatal = not isinstance(error, (Exception, asyncio.CancelledError))
    return Failure(f"{call} raised {error!r}", is_fatal, error, events)


def name_of(callback: Callback | None) -> str:
    """Return a callback's name, as errors show it."""
    return getattr(callback, "__qualname__", None) or repr(callback)


def _events_of(arguments: tuple[object, ...]) -> tuple[DataEvent, ...]:
    """Return the events that a callback was given: one, or those of a run."""
    first = arguments[0] if arguments else None
    given = first if isinstance(first, tuple) else (first,)
    return tuple(one for one in given if isinstance(one, DataEvent))


def _shown(argument: object) -> str:
    """Return an argument of a callback as an error shows it: of several events, their number."""
    return f"{len(argument)} events" if type(argument) is tuple else repr(argument)
