"""The thread that makes one registration's callbacks.

Takes windows out of the buffer, lets `Dispatch` make the callbacks, writes the
checkpoints that `CheckpointRule` says. When something needs somebody it says
so and stays where it is, the window in its hand, until it is told to try
again or to stop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from databus.client.back_off import BackOff
from databus.client.buffer import Buffer, BufferClosedError
from databus.client.checkpoints import CheckpointStore, save_in
from databus.client.dispatch import CheckpointRule, Dispatch, Failure
from databus.client.intake import BufferItem, ReadWindow, RolledBack
from databus.client.position import Position
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError, ConsumerError, DatabusError


class _StoppedError(Exception):
    """The thread is to end. Never leaves this file."""


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
    ) -> None:
        """Deliver what comes into `buffer`; `position` is where the consumers are."""
        self.dispatch = dispatch
        self.scn = position.scn  # of the last window that succeeded
        self._subscription = subscription
        self._rule = rule
        self._store = store
        self._buffer = buffer
        self._back_off = BackOff(settings.back_off, rng)
        self._on_error = on_error
        self._stopping = threading.Event()
        self._released = threading.Event()
        self._released.set()
        self._is_interrupted = False  # held or stopping: one look a window instead of two
        self._thread = threading.Thread(
            target=self._run, name=f"databus-dispatcher-{subscription.name}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hold(self) -> None:
        """Make no callbacks after those of the window in hand."""
        self._is_interrupted = True
        self._released.clear()

    def release(self) -> None:
        """Make callbacks again; after an error, those of the failed window first."""
        self._is_interrupted = self._stopping.is_set()
        self._released.set()

    def stop(self) -> None:
        """Ask the thread to end after the window in hand."""
        self._stopping.set()
        self._is_interrupted = True
        self._released.set()
        self._buffer.close()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False when a callback does not come back in time.

        From within a callback it does not wait: that would be for itself.
        """
        if self.is_this_thread or self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_this_thread(self) -> bool:
        """Whether it is one of its callbacks that asks."""
        return self._thread is threading.current_thread()

    def _run(self) -> None:
        try:
            self._until_success(lambda: self.dispatch.start().failure, rolls_back=False)
            while True:
                item = self._buffer.take() or self._buffer.get(self._rule.due_in_s)
                if self._is_interrupted:
                    self._wait_for_release()
                if item is None:
                    self._write(self._rule.take())
                    continue
                self._take(item)
                self._buffer.done(item)
        except (_StoppedError, BufferClosedError):
            self._end()
        except Exception as error:  # a defect of ours or of the store: never a silent end
            self._on_error(_internal(self.scn, error))

    def _take(self, item: BufferItem) -> None:
        if isinstance(item, ReadWindow):
            if (failure := self._deliver(item)) is not None:
                self._recover(failure, lambda: self._deliver(item))
            self.scn = item.window.scn
        elif isinstance(item, RolledBack):
            self.scn = item.scn
            self._until_success(lambda: self.dispatch.roll_back(item.scn).failure)
        elif not item.is_retried:
            self._suspend(item.error)

    def _deliver(self, item: ReadWindow) -> Failure | None:
        result, failure = self.dispatch.deliver(item)
        if failure is None:
            checkpoint = self._rule.after_window(item.checkpoint, result)
            if checkpoint is not None:
                self._write(checkpoint)
        return failure

    def _until_success(
        self, attempt: Callable[[], Failure | None], rolls_back: bool = True
    ) -> None:
        if (failure := attempt()) is not None:
            self._recover(failure, attempt, rolls_back)

    def _recover(
        self, failed: Failure, attempt: Callable[[], Failure | None], rolls_back: bool = True
    ) -> None:
        """Roll back and attempt again, as often as the settings allow."""
        failure: Failure | None = failed
        while failure is not None:
            error = self.dispatch.judge(failure)
            if error is None:
                self._stopping.wait(self._back_off.next_s())
            else:
                self._suspend(error)
            if self._stopping.is_set():
                raise _StoppedError
            failure = (rolls_back and self.dispatch.roll_back(self.scn).failure) or attempt()
        self._back_off.reset()

    def _write(self, checkpoint: Checkpoint | None) -> None:
        while checkpoint is not None:
            try:
                self._save(checkpoint)
                return
            except CheckpointError as error:
                self._suspend(error)

    def _save(self, checkpoint: Checkpoint) -> None:
        save_in(self._store, self._subscription.name, self._subscription.sources, checkpoint)

    def _suspend(self, error: DatabusError) -> None:
        """Say what is wrong, and wait until somebody has seen to it."""
        self.hold()
        self.dispatch.report(error)
        self._on_error(error)
        self._wait_for_release()

    def _wait_for_release(self) -> None:
        self._released.wait()
        if self._stopping.is_set():
            raise _StoppedError

    def _end(self) -> None:
        try:
            checkpoint = self._rule.take(is_forced=True)
            if checkpoint is not None:
                self._save(checkpoint)
            self.dispatch.stop()
        except Exception as error:
            self._on_error(_internal(self.scn, error))


def _internal(scn: int, error: Exception) -> DatabusError:
    if isinstance(error, DatabusError):
        return error
    wrapped = ConsumerError(scn, f"the dispatcher ended: {error!r}")
    wrapped.__cause__ = error
    return wrapped
