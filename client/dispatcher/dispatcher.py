"""The thread that makes one registration's callbacks.

It takes windows out of the buffer, lets `Dispatch` make the callbacks, and writes the
checkpoints that `CheckpointRule` asks for. On an unrecoverable error it reports and waits,
holding the current window, until it is told to retry or to stop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import TypeVar

from databus.client.checkpoints.keeper import CheckpointKeeper, soonest
from databus.client.checkpoints.store import CheckpointStore
from databus.client.consumer import Result
from databus.client.dispatcher.batch import join_waiting
from databus.client.dispatcher.callbacks import CheckpointRule, Dispatch, Outcome
from databus.client.dispatcher.calls import Failure
from databus.client.dispatcher.coroutines import calling_thread
from databus.client.dispatcher.schema_changes import SchemaWatch, with_seen
from databus.client.dispatcher.session import Session, row_conditions, wanted
from databus.client.machines.backoff import BackOff
from databus.client.machines.position import Position
from databus.client.puller.buffer import Buffer, BufferClosedError
from databus.client.puller.buffer_items import (
    BootstrapBegun,
    BootstrapEnded,
    BootstrapPage,
    BufferItem,
    ReadingFailed,
    ReadWindow,
    RolledBack,
)
from databus.client.puller.stats import RegistrationStats
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.daemon.faults import trace_of
from databus.daemon.log_setup import about
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ConsumerError, DatabusError

log = logging.getLogger(__name__)

Attempt = Callable[[], Failure | None]
Admitted = TypeVar("Admitted", ReadWindow, BootstrapPage)
_Other = RolledBack | ReadingFailed | BootstrapPage | BootstrapBegun | BootstrapEnded


class _StoppedError(Exception):
    """The thread must end. Never leaves this file."""


class Dispatcher:
    """One thread; its methods may be called from any other."""

    def __init__(
        self,
        subscription: Subscription,
        dispatch: Dispatch,
        rule: CheckpointRule,
        store: CheckpointStore,
        buffer: Buffer[BufferItem],
        settings: ClientSettings,
        position: Position,
        rng: Random,
        on_error: Callable[[DatabusError], None],
        on_end: Callable[[], None] = lambda: None,
        stats: RegistrationStats | None = None,
        session: Session | None = None,
    ) -> None:
        """Deliver the items of `buffer`; `position` is the consumers' position.

        `on_end` is called on the thread, as its last act. `stats` counts deliveries. A `session`
        makes the first and the last callbacks, and says what is delivered.
        """
        self.dispatch = dispatch
        # Of the last delivered window; a bootstrap moves it at its end.
        self.scn = position.scn
        at = position.checkpoint
        dispatch.watch = SchemaWatch.of(at)
        self._subscription = subscription
        self._batch_rows = subscription.batch_rows
        self._conditions = row_conditions(subscription.conditions)
        self._rule = rule
        self._buffer = buffer
        self._back_off = BackOff(settings.back_off, rng)
        self._on_error = on_error
        self._on_end = on_end
        self._session = session
        self._stats = stats = stats or RegistrationStats(time.monotonic)
        self.keeper = CheckpointKeeper(
            store, subscription, settings.back_off, rng, stats.now_s, at, rule.wrote
        )
        self._in_hand: BufferItem | None = None
        self._has_started = False
        self._is_bootstrapping = False
        self._stopping = threading.Event()
        self._released = threading.Event()
        self._released.set()
        # Held or stopping: one flag to check per window instead of two events.
        self._is_interrupted = False
        self._thread = threading.Thread(
            target=self.run, name=f"databus-dispatcher-{subscription.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hold(self) -> None:
        """Make no callbacks after those of the current window."""
        self._is_interrupted = True
        self._released.clear()

    def release(self) -> None:
        """Make callbacks again; after an error, start with the failed window."""
        self._is_interrupted = self._stopping.is_set()
        self._released.set()

    def stop(self) -> None:
        """Ask the thread to end after the current window."""
        self._stopping.set()
        self._is_interrupted = True
        self._released.set()
        self._buffer.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end; return False if a callback does not return in time.

        A callback that calls this does not wait: it would wait for itself.
        """
        if self.is_this_thread or not self.has_begun:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def has_begun(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    @property
    def is_this_thread(self) -> bool:
        """Whether the caller is one of its callbacks."""
        return self._thread is calling_thread()

    def run(self) -> None:
        """Deliver until `stop`, on the caller's thread."""
        self._thread = threading.current_thread()
        try:
            while True:
                try:
                    self._work()
                except (_StoppedError, BufferClosedError):
                    raise
                # A defect here or in the store must not end the thread silently.
                except BaseException as error:
                    self._suspend(_internal(self.scn, error))
        except (_StoppedError, BufferClosedError):
            self._end()
        finally:
            self._on_end()

    def _work(self) -> None:
        """Deliver items; after a defect, start with the current one."""
        if not self._has_started:
            self._until_success(self._begin)
            self._has_started = True
        # After a defect the item may have been delivered in part.
        self._until_success(lambda: self._roll_back_item(self._in_hand))
        while True:
            # `take` needs no lock; `get` waits, at most until a checkpoint is due.
            item = self._in_hand or self._buffer.take() or self._buffer.get(self._due_in_s)
            self._in_hand = item
            if isinstance(item, ReadWindow):
                self._stats.holds(item)
            if self._is_interrupted:
                self._wait_for_release()
            if item is None:
                self._write(self._rule.take())
                continue
            if isinstance(item, ReadWindow):
                if self._batch_rows and item.transactions == 1:
                    item = join_waiting(item, self._buffer, self._batch_rows)
                    self._in_hand = item
                if self._session is not None:
                    item = self._in_hand = self._admitted(self._session.admit_window(item))
                if self._conditions:
                    item = self._in_hand = self._wanted(item)
                self._take_window(item)
            else:
                self._take(item)
            self._in_hand = None
            self._buffer.done(item)

    def _begin(self) -> Failure | None:
        session = self._session
        return self.dispatch.start().failure if session is None else session.begin()

    def _admitted(self, item: Admitted | None) -> Admitted:
        if item is None:
            raise _StoppedError
        return item

    def _wanted(self, item: Admitted) -> Admitted:
        while True:
            try:
                return wanted(item, self._conditions)
            except DatabusError as error:  # the condition does not fit the rows
                self._suspend(error)

    def _take_window(self, item: ReadWindow) -> None:
        # Hot path: the functions that a failure needs are made elsewhere.
        if (failure := self._deliver(item)) is not None:
            self._recover_window(item, failure)
        self.scn = item.window.scn

    def _recover_window(self, item: ReadWindow, failure: Failure) -> None:
        self._recover(failure, lambda: self._deliver(item), self._roll_back_window)

    def _take(self, item: _Other) -> None:
        if isinstance(item, BootstrapPage):
            if self._session is not None:
                item = self._in_hand = self._admitted(self._session.admit_page(item))
            if self._conditions:
                item = self._in_hand = self._wanted(item)
            self._until_success(
                lambda: self._deliver_page(item), lambda: self._roll_back_item(item)
            )
        elif isinstance(item, BootstrapBegun):
            self._begin_bootstrap(item)
        elif isinstance(item, BootstrapEnded):
            self._end_bootstrap(item)
        elif isinstance(item, RolledBack):
            self.scn = item.scn
            self._stats.rolled_back()
            self._until_success(self._roll_back_window)
        # Otherwise `retry` has resumed reading before this item was reached.
        elif not item.is_retried:
            self._suspend(item.error)

    def _deliver(self, item: ReadWindow) -> Failure | None:
        began_s = self._stats.now_s()
        return self._settle(item, self.dispatch.deliver(item), began_s)

    def _deliver_page(self, item: BootstrapPage) -> Failure | None:
        began_s = self._stats.now_s()
        result, failure = self.dispatch.deliver_page(item)
        # The last page of a phase: a restart must begin with the next phase.
        if item.must_be_kept and result is Result.SUCCESS:
            result = Result.CHECKPOINT
        return self._settle(item, Outcome(result, failure), began_s)

    def _settle(
        self, item: ReadWindow | BootstrapPage, outcome: Outcome, began_s: float
    ) -> Failure | None:
        """Count a successful attempt and write the checkpoint that is due after it."""
        result, failure = outcome
        if failure is None:
            self._stats.took(item, began_s)
            seen = self.dispatch.watch.seen
            # The schema versions seen so far, even if it is written later.
            made = partial(_checkpoint_with, item, seen) if seen else item.checkpoint
            checkpoint = self._rule.after_window(made, result)
            if checkpoint is not None:
                self._write(checkpoint)
        return failure

    def _begin_bootstrap(self, item: BootstrapBegun) -> None:
        self._stats.begin_bootstrap(item.is_beginning)
        # Consumers start with empty tables, so they have seen no schema version.
        if item.is_beginning and item.since_scn < 0:
            self.dispatch.watch.forget()
        if not self._is_bootstrapping:
            self._until_success(lambda: self.dispatch.start_bootstrap().failure)
            self._is_bootstrapping = True
        elif item.is_beginning:
            scn = item.since_scn
            self._until_success(lambda: self.dispatch.roll_back_bootstrap(scn).failure)
        self._keep(item.checkpoint)

    def _end_bootstrap(self, item: BootstrapEnded) -> None:
        self._until_success(lambda: self.dispatch.stop_bootstrap().failure)
        self._is_bootstrapping = False
        self._stats.end_bootstrap()
        self.scn = item.checkpoint.window_scn
        self._keep(item.checkpoint)
        if self._session is not None:
            self._session.end_bootstrap()

    def _keep(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint now: a restart must not repeat the previous phase."""
        kept = with_seen(checkpoint, self.dispatch.watch.seen)
        self._write(self._rule.after_window(lambda: kept, Result.CHECKPOINT))

    def _roll_back_window(self) -> Failure | None:
        return self.dispatch.roll_back(self.scn).failure

    def _roll_back_item(self, item: BufferItem | None) -> Failure | None:
        """Roll the consumers back to before the item: it will be delivered again."""
        if isinstance(item, ReadWindow):
            return self._roll_back_window()
        if isinstance(item, BootstrapPage):
            return self.dispatch.roll_back_bootstrap(item.since_scn).failure
        return None

    def _until_success(self, attempt: Attempt, roll_back: Attempt | None = None) -> None:
        if (failure := attempt()) is not None:
            self._recover(failure, attempt, roll_back)

    def _recover(self, failed: Failure, attempt: Attempt, roll_back: Attempt | None = None) -> None:
        """Roll back and retry, as often as the settings allow."""
        failure: Failure | None = failed
        while failure is not None:
            aside = self.dispatch.failing.count
            error = self.dispatch.judge(failure)
            self._stats.failed_events += self.dispatch.failing.count - aside
            if error is None:
                self._stopping.wait(self._back_off.next_s())
            else:
                self._suspend(error)
            if self._stopping.is_set():
                raise _StoppedError
            self._stats.rolled_back()
            # A rollback that fails is retried like the attempt itself.
            failure = (roll_back and roll_back()) or attempt()
        self._back_off.reset()

    @property
    def _due_in_s(self) -> float | None:
        return soonest(self._rule.due_in_s, self.keeper.due_in_s)

    def _write(self, checkpoint: Checkpoint | None) -> None:
        while True:
            try:
                self.keeper.save(checkpoint)
                return
            except CheckpointError as error:
                self._suspend(error)

    def _suspend(self, error: DatabusError) -> None:
        """Report the error and wait for `release` or `stop`."""
        self.hold()
        self.log(self.dispatch.report(error))
        self._on_error(error)
        self._wait_for_release()

    def _wait_for_release(self) -> None:
        # `hold` may have come after `stop`, which then releases nothing any more.
        if not self._stopping.is_set():
            self._released.wait()
        if self._stopping.is_set():
            raise _StoppedError

    def _end(self) -> None:
        try:
            if self._session is not None:
                self._session.end()
            self.keeper.save(self._rule.take(is_forced=True), is_last=True)
            if self._session is None:
                self.log(self.dispatch.stop())
        except BaseException as error:
            self._on_error(_internal(self.scn, error))

    def log(self, outcome: Outcome) -> None:
        """Log the failure of a callback that is not retried."""
        failure = outcome.failure
        if failure is not None:
            name, listed = self._subscription.name, ",".join(self._subscription.sources)
            known, cause = about(source=listed, scn=self.scn), failure.cause
            # An exception of the consumer's own code is always logged with its traceback.
            trace = trace_of(cause) if isinstance(cause, DatabusError) else cause
            log.error("%s: %s", name, failure.problem, exc_info=trace, extra=known)


def _checkpoint_with(item: ReadWindow | BootstrapPage, seen: Mapping[str, str]) -> Checkpoint:
    return with_seen(item.checkpoint(), seen)


def _internal(scn: int, error: BaseException) -> DatabusError:
    if isinstance(error, DatabusError):
        return error
    wrapped = ConsumerError(scn, f"a defect in the dispatcher: {error!r}")
    wrapped.__cause__ = error
    return wrapped
