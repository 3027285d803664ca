"""Windows for an application that iterates: the loop body takes the place of the callback.

Requesting the next window marks the previous one as consumed; only then may its checkpoint
be written. Empty windows advance the checkpoint and are not yielded.

Without `auto_commit` a window that was yielded counts as consumed only when `commit` says so, on
any thread. `Commits` knows what that means for the windows that the application does not see.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from random import Random

from databus.client.checkpoints.keeper import CheckpointKeeper, soonest
from databus.client.checkpoints.store import CheckpointStore
from databus.client.consumer import Result
from databus.client.dispatcher.batch import join_waiting
from databus.client.dispatcher.callbacks import CheckpointRule
from databus.client.dispatcher.commits import Commits
from databus.client.dispatcher.data_window import DataWindow, has_unlogged_rows
from databus.client.dispatcher.session import Session, row_conditions, wanted
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
from databus.conf.settings import BackOffSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ConsumerError


class WindowIterator:
    """Yields the windows of one registration, once."""

    def __init__(
        self,
        subscription: Subscription,
        rule: CheckpointRule,
        store: CheckpointStore,
        buffer: Buffer[BufferItem],
        position: Position,
        on_end: Callable[[], None],
        stats: RegistrationStats | None = None,
        back_off: BackOffSettings | None = None,
        session: Session | None = None,
    ) -> None:
        """Yield the items of `buffer`; `on_end` is called when the iteration ends.

        `stats` counts consumed windows; `back_off` delays retries of checkpoint writes. A `session`
        says what is yielded, by `windows` only.
        """
        # Of the last consumed window; a bootstrap moves it at its end.
        self.scn = position.scn
        self._name = subscription.name
        self._batch_rows = subscription.batch_rows
        self._conditions = row_conditions(subscription.conditions)
        self._rule = rule
        self._buffer = buffer
        self._on_end = on_end
        self._session = session
        self._begins_bootstrap = False
        self._in_hand: ReadWindow | BootstrapPage | None = None
        self._stats = stats or RegistrationStats(time.monotonic)
        self.keeper = CheckpointKeeper(
            store,
            subscription,
            back_off or BackOffSettings(),
            Random(),
            self._stats.now_s,
            position.checkpoint,
            rule.wrote,
        )
        self._given_at_s = 0.0  # when the current window was yielded
        self._commit = self.commit  # bound once, for each window
        self._commits = Commits(is_automatic=subscription.auto_commit)
        self._is_over = False
        # `commit` may be called on another thread than the one that iterates.
        self._writing = threading.Lock()

    def stop(self) -> None:
        """End the iteration. Thread-safe."""
        self._buffer.close()

    def commit(self, number: int | None = None) -> None:
        """Write the checkpoint of a window that was yielded, by its number; None: the newest.

        Raises CheckpointError if it cannot be written now, or if the iteration has ended: another
        reader may have continued.
        """
        with self._writing:
            if self._is_over:
                raise CheckpointError(
                    f"{self._name}: its iteration has ended, so nothing more can be committed; "
                    "windows that were not committed are delivered again"
                )
            self._save(self._commits.commit(number), Result.CHECKPOINT)
            if self.keeper.problem:
                raise CheckpointError(f"{self._name}: {self.keeper.problem}")

    def windows(self) -> Iterator[DataWindow]:
        """Yield windows; raise the error that ends reading."""
        try:
            self._begin()
            while (window := self._next(None)) is not None:
                yield window
        finally:
            self._end()

    async def windows_async(self) -> AsyncGenerator[DataWindow, None]:
        """Yield windows without blocking the event loop."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        # The buffer calls this on the network thread, which must not touch our event directly.
        self._buffer.on_item = lambda: _set_soon(loop, arrived)
        try:
            while True:
                # Cleared before the poll, so that an item that arrives after it ends the wait.
                arrived.clear()
                is_late, window = self._poll()
                if window is not None:
                    yield window
                elif is_late:
                    return
                else:
                    await _wait(arrived, self._due_in_s)
        finally:
            self._buffer.on_item = lambda: None
            self._end()

    def _next(self, timeout_s: float | None) -> DataWindow | None:
        """Return the next window that is not empty; None at the end. Raises TimeoutError."""
        while True:
            self._finish_window()
            try:
                # `take` needs no lock; `get` waits, at most until a checkpoint is due.
                item = self._buffer.take() or self._buffer.get(
                    self._due_in_s if timeout_s is None else timeout_s
                )
            except BufferClosedError:
                return None
            if item is None and timeout_s is not None:
                raise TimeoutError
            if item is not None and (window := self._take(item)) is not None:
                return window

    def _take(self, item: BufferItem) -> DataWindow | None:
        """Handle an item; return its window if it has events, or a statement without them."""
        if isinstance(item, ReadWindow):
            if self._batch_rows:
                item = join_waiting(item, self._buffer, self._batch_rows)
            self._stats.holds(item)
        if isinstance(item, ReadWindow | BootstrapPage):
            return self._hand_out(item)
        # The windows before it in the buffer have been yielded by now.
        if isinstance(item, ReadingFailed):
            raise item.error
        self._buffer.done(item)
        if isinstance(item, RolledBack):
            self.scn = item.scn
            self._stats.rolled_back()
        elif isinstance(item, BootstrapEnded):
            self.scn = item.checkpoint.window_scn
            self._stats.end_bootstrap()
        elif isinstance(item, BootstrapBegun):
            self._stats.begin_bootstrap(item.is_beginning)
        if isinstance(item, BootstrapBegun | BootstrapEnded):
            self._begins_bootstrap = isinstance(item, BootstrapBegun) and item.is_beginning
            checkpoint = item.checkpoint
            with self._writing:
                self._save(self._commits.passed(lambda: checkpoint), Result.CHECKPOINT)
        if isinstance(item, BootstrapEnded) and self._session is not None:
            self._session.end_bootstrap()
        return None

    def _hand_out(self, item: ReadWindow | BootstrapPage) -> DataWindow | None:
        if self._session is not None:
            admitted = (
                self._session.admit_window(item)
                if isinstance(item, ReadWindow)
                else self._session.admit_page(item)
            )
            if admitted is None:
                self._buffer.close()  # it ends the iteration
                return None
            item = admitted
        if self._conditions:
            item = wanted(item, self._conditions)
        self._in_hand = item
        self._given_at_s = self._stats.now_s()
        # An application must see that there are rows that it does not get.
        if not item.window.events and not has_unlogged_rows(item):
            return None
        begins, self._begins_bootstrap = self._begins_bootstrap, False
        number = self._commits.yielded(item.checkpoint_later())
        return DataWindow(item, begins, self._commit, number)

    def _poll(self) -> tuple[bool, DataWindow | None]:
        """Return (whether the iteration has ended, the next window if there is one now)."""
        try:
            window = self._next(0)
        except TimeoutError:
            return False, None
        return window is None, window

    def _finish_window(self) -> None:
        """Mark the current window as consumed, and write a checkpoint if one is due."""
        item, self._in_hand = self._in_hand, None
        if item is None:
            with self._writing:
                self.keeper.save(self._rule.take())
            return
        self._buffer.done(item)
        self._stats.took(item, self._given_at_s)
        result = Result.SUCCESS
        if isinstance(item, ReadWindow):
            self.scn = item.window.scn
        elif item.must_be_kept:
            # The end of a phase of a bootstrap must not be repeated after a restart.
            result = Result.CHECKPOINT
        made = self._commits.passed(item.checkpoint)
        with self._writing:  # hot path: `_save`, inlined
            due = None if made is None else self._rule.after_window(made, result)
            if due is not None or self.keeper.problem:
                self.keeper.save(due)

    def _save(self, made: Callable[[], Checkpoint] | None, result: Result) -> None:
        """Write a checkpoint if it is due; None = there is no new one."""
        due = None if made is None else self._rule.after_window(made, result)
        if due is not None or self.keeper.problem:
            self.keeper.save(due)

    def _begin(self) -> None:
        failure = None if self._session is None else self._session.begin()
        if failure is not None:
            raise ConsumerError(self.scn, failure.problem) from failure.cause

    def _end(self) -> None:
        """Write the last checkpoint, without the current window: its loop body did not finish."""
        self._buffer.close()
        try:
            if self._session is not None:
                self._session.end()
            with self._writing:
                self._is_over = True
                self.keeper.save(self._rule.take(is_forced=True), is_last=True)
        finally:
            self._on_end()

    @property
    def _due_in_s(self) -> float | None:
        return soonest(self._rule.due_in_s, self.keeper.due_in_s)


def _set_soon(loop: asyncio.AbstractEventLoop, arrived: asyncio.Event) -> None:
    # The application may have closed its loop without ending the iteration.
    if not loop.is_closed():
        loop.call_soon_threadsafe(arrived.set)


async def _wait(arrived: asyncio.Event, timeout_s: float | None) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await arrived.wait()
    except TimeoutError:
        return
