"""Tells an application that iterates over the windows of a group which partitions come and go.

With callbacks, a consumer is told by its dispatcher. An application that iterates may give a
`PartitionListener`. It is called on the thread that iterates; in asyncio in the event loop, where
its methods may be coroutine functions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Protocol

from databus.client.consumer import Consumer
from databus.client.dispatcher.callbacks import Dispatch, Outcome
from databus.client.dispatcher.calls import Clock
from databus.conf.settings import ClientSettings

log = logging.getLogger(__name__)

Call = Callable[..., Any]


class PartitionListener(Protocol):
    """What an application may implement; every `Consumer` does. What it returns is not used."""

    def on_add_partition(self, partition: int, scn: int) -> Any:
        """This process has a partition now: its rows after window `scn` follow.

        -1: those from the `start` setting on. An exception ends the iteration.
        """

    def on_drop_partition(self, partition: int) -> Any:
        """The partition goes to another process: make safe what was delivered of it.

        There are `group_finish_s` for it. An exception is logged. It is not called for a partition
        that was lost.
        """


class ListenerCalls:
    """Makes the calls of a listener, as a dispatcher makes those of consumers."""

    def __init__(self, listener: PartitionListener, settings: ClientSettings, clock: Clock) -> None:
        """A call may take `callback_budget_s`."""
        self._budget_s = settings.callback_budget_s
        self._loop: asyncio.AbstractEventLoop | None = None
        consumer = _Listening(listener, self._make)
        self.dispatch = Dispatch([consumer], self._budget_s, 0, clock)
        """What makes the calls."""

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the calls in an event loop from now on, from another thread than the loop's."""
        self._loop = loop

    def log(self, outcome: Outcome) -> None:
        """Log a call that failed."""
        if outcome.failure is not None:
            log.error("%s", outcome.failure.problem, exc_info=outcome.failure.cause)

    def _make(self, call: Call, *arguments: object) -> None:
        if self._loop is None:
            if inspect.isawaitable(returned := call(*arguments)):
                close = getattr(returned, "close", lambda: None)
                close()
                raise TypeError("a coroutine function is called in asyncio only: `windows_async`")
            return
        made = asyncio.run_coroutine_threadsafe(_awaited(call, *arguments), self._loop)
        try:
            made.result(self._budget_s)
        finally:
            made.cancel()


class _Listening(Consumer):
    """A consumer of nothing but partitions."""

    def __init__(self, listener: PartitionListener, make: Callable[..., None]) -> None:
        self._listener, self._make = listener, make

    def on_add_partition(self, partition: int, scn: int) -> None:
        self._make(self._listener.on_add_partition, partition, scn)

    def on_drop_partition(self, partition: int) -> None:
        self._make(self._listener.on_drop_partition, partition)


async def _awaited(call: Call, *arguments: object) -> None:
    returned = call(*arguments)
    if inspect.isawaitable(returned):
        await returned
