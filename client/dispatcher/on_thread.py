"""Runs a generator that blocks on a thread of its own, for an asyncio task.

For the windows of a group: between two of them it may wait for leases, and it writes a checkpoint
for each partition.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")


async def on_thread(
    items: Generator[Item, None, None], interrupt: Callable[[], None], name: str
) -> AsyncGenerator[Item, None]:
    """Yield what a generator yields; it goes on only when the next item is asked for.

    However this ends, the generator is closed on its thread. `interrupt` makes it end when it
    waits; it is called by the event loop, so it must not wait.
    """
    wanted: SimpleQueue[Future[list[Item]] | None] = SimpleQueue()
    closed: Future[None] = Future()
    # A daemon: the application may end without closing this.
    threading.Thread(
        target=_run, args=(items, wanted, closed), name=f"databus-{name}", daemon=True
    ).start()
    try:
        while True:
            answer: Future[list[Item]] = Future()
            wanted.put(answer)
            found = await asyncio.wrap_future(answer)
            if not found:
                return
            yield found[0]
    finally:
        interrupt()
        wanted.put(None)
        # A task that is cancelled again must not leave it half done: the thread goes on.
        await asyncio.shield(asyncio.wrap_future(closed))


def _run(
    items: Generator[Item, None, None],
    wanted: SimpleQueue[Future[list[Item]] | None],
    closed: Future[None],
) -> None:
    while (answer := wanted.get()) is not None:
        if answer.set_running_or_notify_cancel():
            _answer(answer, lambda: _next(items))
    closed.set_running_or_notify_cancel()
    _answer(closed, items.close)


def _next(items: Generator[Item, None, None]) -> list[Item]:
    # Not StopIteration, which a future cannot have as its exception.
    for item in items:
        return [item]
    return []


def _answer(future: Future[Item], call: Callable[[], Item]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
