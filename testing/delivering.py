"""Makes the callbacks of a consumer as the client does, without a relay, threads or waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from databus.client.consumer import Consumer, OnFailure, Result
from databus.client.dispatcher.callbacks import Dispatch, Outcome
from databus.client.dispatcher.coroutines import Coroutines
from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.puller.buffer_items import BootstrapPage, ReadWindow
from databus.client.registering import FunctionConsumer

Attempt = Callable[[], Outcome]


@dataclass
class Delivery:
    """What the client would have done."""

    checkpoints: list[int] = field(default_factory=list)
    """SCNs at which it would have written a checkpoint; after a crash it goes on behind one."""
    rollbacks: list[int] = field(default_factory=list)
    """SCNs to which it rolled back, once for each retry."""


def deliver(
    consumer: Consumer | Callable[..., Any],
    *windows: DataWindow,
    batch_rows: int = 0,
    callback_retries: int = 3,
    callback_budget_s: float = 300.0,
    on_failure: OnFailure = "stop",
) -> Delivery:
    """Deliver windows to a consumer, or to a function as `client.on` registers it.

    All callbacks are made, from `on_start_consumption` to `on_stop_consumption`, coroutine
    functions too. A window that fails is rolled back and delivered again, at once. With
    `batch_rows` a function gets the events of a run; windows are not joined. Raises ConsumerError
    where the client would stop, after `on_error`.
    """
    coroutines = Coroutines()
    plain = (
        consumer
        if isinstance(consumer, Consumer)
        else FunctionConsumer(consumer, takes_runs=batch_rows > 0)
    )
    keep = coroutines.plain_function(on_failure) if callable(on_failure) else on_failure
    dispatch = Dispatch(
        [coroutines.plain(plain)], callback_budget_s, callback_retries, time.monotonic, keep
    )
    delivering = _Delivering(dispatch)
    try:
        return delivering.deliver(windows)
    finally:
        coroutines.stop()


class _Delivering:
    """One call of `deliver`."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._found = Delivery()

    def deliver(self, windows: Sequence[DataWindow]) -> Delivery:
        self._until_success(self._dispatch.start)
        is_bootstrapping = False
        for window in windows:
            read = read_of(window)
            is_page = isinstance(read, BootstrapPage)
            if is_page and not is_bootstrapping:
                self._until_success(self._dispatch.start_bootstrap)
            if is_bootstrapping and not is_page:
                self._until_success(self._dispatch.stop_bootstrap)
            is_bootstrapping = is_page
            if self._take(read) is not Result.SKIP_CHECKPOINT:
                self._found.checkpoints.append(window.scn)
        if is_bootstrapping:
            self._until_success(self._dispatch.stop_bootstrap)
        self._dispatch.stop()
        return self._found

    def _take(self, read: ReadWindow | BootstrapPage) -> Result:
        dispatch = self._dispatch
        if isinstance(read, BootstrapPage):
            return self._until_success(
                partial(dispatch.deliver_page, read),
                partial(self._roll_back, dispatch.roll_back_bootstrap, read.since_scn),
            )
        return self._until_success(
            partial(dispatch.deliver, read),
            partial(self._roll_back, dispatch.roll_back, read.window.scn - 1),
        )

    def _roll_back(self, make: Callable[[int], Outcome], scn: int) -> Outcome:
        self._found.rollbacks.append(scn)
        return make(scn)

    def _until_success(self, attempt: Attempt, roll_back: Attempt | None = None) -> Result:
        """Repeat an attempt until it succeeds; raise the error that stops the client."""
        result, failure = attempt()
        while failure is not None:
            error = self._dispatch.judge(failure)
            if error is not None:
                self._dispatch.report(error)
                raise error
            # A rollback that fails is retried like the attempt itself.
            failure = None if roll_back is None else roll_back().failure
            if failure is None:
                result, failure = attempt()
        return result
