"""The background thread that does all network I/O of a client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class LoopThread:
    """An asyncio loop on its own thread. All methods are thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread and wait until the loop runs."""
        running = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(running)), name=self._name, daemon=True
        )
        self._thread.start()
        running.wait()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Schedule a call on the loop; do nothing if the loop has ended."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                if not loop.is_closed():
                    raise

    def spawn(
        self,
        run: Callable[[], Coroutine[Any, Any, None]],
        on_failure: Callable[[BaseException], None],
    ) -> Callable[[], None]:
        """Run a coroutine as a task; return a function that cancels it.

        `on_failure` is called with its exception.
        """
        tasks: list[asyncio.Task[None]] = []

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(run())
            tasks.append(task)
            self._tasks.add(task)
            task.add_done_callback(end)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                on_failure(error)

        def cancel() -> None:
            # Calls run in the order in which they are made, so the task exists by then.
            self.call(lambda: [task.cancel() for task in tasks])

        self.call(begin)
        return cancel

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop; None before the start."""
        return self._loop

    def result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and return its result; the caller's thread waits."""
        assert self._loop is not None, "it was started"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def stop(self) -> None:
        """Cancel all tasks, end the loop and join the thread."""
        self.call(lambda: self._stopping.set())
        thread = self._thread  # another thread may stop it at the same moment
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            self._thread = None

    async def _main(self, running: threading.Event) -> None:
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        running.set()
        await self._stopping.wait()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
