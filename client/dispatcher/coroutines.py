"""Makes callbacks that are coroutine functions, for a dispatcher, which makes plain calls.

A coroutine runs in the event loop of the application that used `async with client`, otherwise in
one on a thread of its own. The dispatcher's thread waits for it: callbacks of one registration
never overlap.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from databus.client.consumer import Consumer
from databus.client.puller.loop_thread import LoopThread

_dispatching: ContextVar[threading.Thread | None] = ContextVar("dispatching", default=None)


def calling_thread() -> threading.Thread:
    """Return the thread whose callback this is, also in a coroutine that runs in an event loop."""
    return _dispatching.get() or threading.current_thread()


class Coroutines:
    """Where the coroutines of one client run. Thread-safe."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._own: LoopThread | None = None
        self._lock = threading.Lock()

    def use(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run them in this event loop from now on."""
        self._loop = loop

    @property
    def is_in_loop(self) -> bool:
        """Whether the caller is in an event loop that they need."""
        own = self._own
        needed = (self._loop, None if own is None else own.loop)
        try:
            return asyncio.get_running_loop() in needed
        except RuntimeError:
            return False

    def plain(self, consumer: Consumer) -> Consumer:
        """Return a consumer whose callbacks are plain functions; itself if they are."""
        names = [name for name in dir(Consumer) if name.startswith("on_")]
        if not any(inspect.iscoroutinefunction(getattr(consumer, name)) for name in names):
            return consumer
        found = Consumer()
        for name in names:
            callback = getattr(consumer, name)
            if getattr(callback, "__func__", None) is not getattr(Consumer, name):
                setattr(found, name, self.plain_function(callback))
        return found

    def plain_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that waits for the coroutine; the function itself if it is plain."""
        if not inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        def wait(*arguments: Any) -> Any:
            try:
                return self._run(_dispatched(function, arguments, threading.current_thread()))
            except _ExitError as left:
                raise left.error from None

        return wait

    def stop(self) -> None:
        """End the own thread, if there is one."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.stop()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is not None:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        with self._lock:
            if self._own is None:
                self._own = LoopThread("databus-callbacks")
                self._own.start()
            own = self._own
        return own.result_of(coroutine)


class _ExitError(Exception):
    """A coroutine has raised what ends a program. Never leaves this file."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


async def _dispatched(
    function: Callable[..., Any], arguments: tuple[Any, ...], thread: threading.Thread
) -> Any:
    _dispatching.set(thread)
    try:
        return await function(*arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        # Out of a task it would end the event loop, and the dispatcher would wait for ever.
        raise _ExitError(error) from error
