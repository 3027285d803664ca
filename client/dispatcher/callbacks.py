"""The order of callbacks and the handling of their results. No threads, files or clock of its own.

A window succeeds when every consumer of the registration has taken all of it. A window that
fails is rolled back for all of them and delivered again from its start. So redelivery is
limited to one window while the process lives, and to one checkpoint when it dies.

Callbacks run on the dispatcher's own thread: passing each event to another thread would
cost more than the event. So a callback that overruns its budget cannot be interrupted. It
counts as ERROR when it returns; `overdue` detects one that never returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from databus.client.consumer import Consumer, OnFailure, Result
from databus.client.dispatcher.calls import (
    Callback,
    Callbacks,
    Clock,
    FailedError,
    Failure,
    name_of,
    strongest,
)
from databus.client.dispatcher.data_window import Group, add_statements, group_events
from databus.client.dispatcher.failing_events import FailingEvents
from databus.client.dispatcher.schema_changes import SchemaChange, SchemaWatch
from databus.client.events.data_event import track_kept
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import ConsumerError

try:
    from databus.client.dispatcher._calls import Caller
except ImportError:  # not built
    from databus.client.dispatcher.calls import PythonCaller as Caller

_SUCCESS = Result.SUCCESS
_NO_WINDOW = -1
_REST = 9  # times as long as the last checkpoint took, before the next one

# The watchdog gives a callback up after this many budgets. A callback that returns a little
# late only causes a replay.
GRACE = 1.5


class Outcome(NamedTuple):
    """How one delivery of a window ended; its checkpoint depends on `result`."""

    result: Result
    failure: Failure | None = None


_SUCCEEDED = Outcome(_SUCCESS)


class Dispatch:
    """Makes the callbacks of one registration and counts consecutive failures."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        budget_s: float,
        retries: int,
        clock: Clock,
        on_failure: OnFailure = "stop",
    ) -> None:
        """Allow each callback `budget_s`, and each window `retries` replays.

        `on_failure` says what then becomes of the event that failed.
        """
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
        self._caller = Caller(budget_s, clock)
        self._failures = 0
        self.failing = FailingEvents(on_failure)
        self._scn = _NO_WINDOW  # the watchdog reads it on another thread

    def deliver(self, read: ReadWindow) -> Outcome:
        """Make all callbacks of a window once."""
        return self._deliver(read, self._callbacks)

    def deliver_page(self, page: BootstrapPage) -> Outcome:
        """Make all callbacks of a bootstrap page once."""
        return self._deliver(page, self._page_callbacks)

    def _deliver(self, read: ReadWindow | BootstrapPage, consumers: Sequence[Callbacks]) -> Outcome:
        scn = self._scn = read.window.scn
        # Once for all consumers, so that a row is decoded at most once.
        one = consumers[0] if len(consumers) == 1 else None
        # The events of one consumer's callbacks need not exist all at once.
        is_each = one is not None and one.on_data_events is None and not read.window.statements
        is_whole = not self.failing.is_active
        is_each = is_each and is_whole
        groups = group_events(read, are_tracked_later=True, are_one_by_one=is_each)
        try:
            changes = self.watch.due(read) if self._is_watching else ()
            result = _SUCCESS
            for each in consumers:
                with_its = groups
                if read.window.statements:
                    with_its = add_statements(groups, read, each.statement_kinds)
                if not is_whole:
                    with_its = self.failing.left(with_its)
                found = self._deliver_to(each, scn, with_its, changes)
                if found is not _SUCCESS:
                    result = strongest((result, found))
            if self._is_watching:
                self.watch.take()
        except FailedError as failed:
            return Outcome(Result.ERROR, failed.failure)
        finally:
            self._caller.end()
            track_kept(groups)
        self._failures = 0
        if not is_whole:
            self.failing.forget()
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

    def add_partition(self, partition: int, scn: int) -> Outcome:
        """Tell every consumer that the rows of a partition follow, those after window `scn`."""
        return self._notify("on_add_partition", partition, scn)

    def drop_partition(self, partition: int) -> Outcome:
        """Tell every consumer that another process is to have a partition."""
        return self._notify("on_drop_partition", partition)

    def report(self, error: BaseException) -> Outcome:
        """Tell every consumer the error that stops the client."""
        return self._notify("on_error", error)

    def judge(self, failure: Failure) -> ConsumerError | None:
        """Return the error to stop with, or None to replay the window, or what is left of it."""
        self._failures += 1
        if not failure.is_fatal and self._failures <= self._retries:
            return None
        tries = f" ({self._failures} tries)" if self._failures > 1 else ""
        error = ConsumerError(self._scn, failure.problem + tries)
        error.__cause__ = failure.cause
        self._failures = 0
        return self.failing.settle(failure, error)

    def overdue(self) -> ConsumerError | None:
        """Return the error to stop with when a callback does not return. Thread-safe."""
        running, scn = self._caller.running(), self._scn
        if running is None or running[1] <= GRACE * self._budget_s:
            return None
        callback, for_s = running
        return ConsumerError(
            scn,
            f"{name_of(callback)} has not returned for {for_s:.1f} s; "
            f"callback_budget_s = {self._budget_s:g}",
        )

    def _deliver_to(
        self,
        callbacks: Callbacks,
        scn: int,
        groups: Sequence[Group],
        changes: Sequence[SchemaChange],
    ) -> Result:
        told = _SUCCESS
        if changes and (on_change := callbacks.on_schema_change) is not None:
            call = self._caller.call
            told = strongest(
                [
                    call(on_change, name, step.before, step.after, step.needs_reload)
                    for name, step in changes
                ]
            )
        result = self._caller.deliver(callbacks, scn, groups)
        return result if told is _SUCCESS else strongest((told, result))

    def _notify(self, name: str, *arguments: object) -> Outcome:
        """Make one callback of every consumer; the first failure counts."""
        failure = None
        for consumer in self.consumers:
            try:
                self._caller.call(getattr(consumer, name), *arguments)
            except FailedError as failed:
                failure = failure or failed.failure
            finally:
                self._caller.end()
        return Outcome(Result.ERROR if failure else _SUCCESS, failure)


class CheckpointRule:
    """Decides when a checkpoint is written: at a window's end, at most every `every_s`.

    Writing takes a tenth of the time at most: a group writes one for each of its partitions, and
    the store may be slow. With `every_s` 0 each window's is written, whatever that takes.

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

    def wrote(self, took_s: float) -> None:
        """Take note of how long a checkpoint took to be written."""
        if self._every_s:
            self._due_s = max(self._due_s, self._clock() + _REST * took_s)

    def take(self, is_forced: bool = False) -> Checkpoint | None:
        """Return the pending checkpoint if it is due or `is_forced`, else None."""
        waiting, now_s = self._waiting, self._clock()
        if waiting is None or (now_s < self._due_s and not is_forced):
            return None
        self._waiting = None
        self._due_s = now_s + self._every_s
        return waiting()


def _callbacks_of(consumer: Consumer) -> Callbacks:
    return Callbacks(*(_overridden(consumer, name) for name in Callbacks._fields))


# The callbacks of a page, in the order of `Callbacks`.
_OF_A_PAGE = (
    "on_start_bootstrap_sequence",
    "on_start_bootstrap_source",
    "on_bootstrap_event",
    "on_end_bootstrap_source",
    "on_end_bootstrap_sequence",
    "on_bootstrap_checkpoint",
    "on_ddl",  # never called: pages have no statements
    "on_schema_change",
    "on_bootstrap_events",
    "on_statement",
)


def _page_callbacks_of(consumer: Consumer, live: Callbacks) -> Callbacks:
    """Return the callbacks of a page; the window's replace those not overridden."""
    # A consumer that takes a page's events one by one does so whatever it does with a window's.
    if _overridden(consumer, "on_bootstrap_event"):
        live = live._replace(on_data_events=None)
    names = zip(_OF_A_PAGE, live, strict=True)
    return Callbacks(*(_overridden(consumer, name) or of_window for name, of_window in names))


def _overridden(consumer: Consumer, name: str) -> Callback | None:
    callback: Callback = getattr(consumer, name)
    is_ours = getattr(callback, "__func__", None) is getattr(Consumer, name)
    return None if is_ours else callback
