"""Services in one process and on one event loop: the second reads the first, a third both.

The second starts once the first is ready, and ends before it. If one cannot start, or a thread
or a task of either dies, both end and the process exits with an error: never does half of it go
on alone. The second is stopped and made again, on its port, whenever it is out of date.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from databus.daemon.http.server import BoundedServer
from databus.daemon.service import (
    WHOLE_S,
    Service,
    end_within,
    log_death,
    renew_or_say_why,
    run_for_life,
    serve,
    settle,
    watch_tasks,
)
from databus.schemas.errors import DatabusError

log = logging.getLogger(__name__)

BOTH_S = 2 * WHOLE_S - 1.0  # from the signal to the end: less than the 10 s that Docker waits
READY_S = 5.0  # then the second starts though the first has, say, no database yet
_LOOK_S = 0.02
RENEW_LOOK_S = 1.0  # from one look at whether the second is out of date to the next
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Serving:
    """A service that serves at a URL."""

    service: Service
    server: BoundedServer
    url: str


def run_together(
    first: Service,
    make_second: Callable[[str], Service],
    started: Callable[[str, str], object],
    make_third: Callable[[str, str], Service] | None = None,
    is_outdated: Callable[[], bool] = lambda: False,
) -> None:
    """Run two services in this process until SIGTERM or SIGINT; a second signal kills.

    `make_second` gets the URL of the first, and `started` both URLs. A third one, which reads both,
    starts last and ends first. When `is_outdated` says so, `make_second` is called again, and its
    service takes the place of the second one. SIGHUP reads tokens and
    certificates again, unless stdin is a terminal. Raises SettingsError if a port cannot be bound,
    and SystemExit(1) when a thread or a task has died.
    """
    asyncio.run(_run(first, make_second, started, make_third, is_outdated))


async def _run(
    first: Service,
    make_second: Callable[[str], Service],
    started: Callable[[str, str], object],
    make_third: Callable[[str, str], Service] | None,
    is_outdated: Callable[[], bool],
) -> None:
    ended, dead = asyncio.Event(), list[str]()
    _end_at_signals(ended)

    loop = asyncio.get_running_loop()

    def died(name: str, error: BaseException | None) -> None:
        log_death(name, error)
        dead.append(name)
        end_within(BOTH_S, 1)
        loop.call_soon_threadsafe(ended.set)

    watch_tasks(died)
    with _watched_threads(died):
        async with _served(first) as one:
            await _until_ready(first, ended)
            served = [one]
            second = _renewed(lambda: make_second(one.url), served, is_outdated)
            async with second as two, AsyncExitStack() as more:
                if make_third is not None:
                    third = make_third(one.url, two.url)
                    served.append(await more.enter_async_context(_served(third)))
                _renew_at_signal(served)
                settle()
                started(one.url, two.url)
                await ended.wait()
    if dead:
        sys.exit(1)


@asynccontextmanager
async def _served(service: Service) -> AsyncIterator[Serving]:
    """Serve until the end of the block; raises what the service raises at its start."""
    until = asyncio.Event()
    serving: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()

    def listening(url: str, server: BoundedServer) -> None:
        serving.set_result(Serving(service, server, url))

    task = asyncio.create_task(serve(service, until, listening))
    try:
        await asyncio.wait((task, serving), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield serving.result()
    finally:
        until.set()
        await task


@asynccontextmanager
async def _renewed(
    make: Callable[[], Service], served: list[Serving], is_outdated: Callable[[], bool]
) -> AsyncIterator[Serving]:
    """Serve until the end of the block; in `served` is the service that serves now."""
    async with AsyncExitStack() as block:
        now = await block.enter_async_context(AsyncExitStack())
        place = len(served)
        served.append(await now.enter_async_context(_served(make())))
        over, is_gone = asyncio.Event(), asyncio.Event()

        async def renew() -> None:
            while not over.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), RENEW_LOOK_S)
                if not over.is_set() and (is_gone.is_set() or is_outdated()):
                    await now.aclose()
                    is_gone.set()
                    try:
                        served[place] = await now.enter_async_context(_served(make()))
                    except DatabusError as error:
                        log.error("it cannot start again, and is tried again: %s", error)
                    else:
                        is_gone.clear()

        # Another error ends the process, as that of any task for life does.
        task = run_for_life(renew(), "the renewal of the second service")
        try:
            yield served[place]
        finally:
            # Not cancelled: that would cut off the stop of a service in the middle.
            over.set()
            await asyncio.wait((task,))


def _end_at_signals(ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        ended.set()
        end_within(BOTH_S)
        for number in _SIGNALS:  # the next signal ends the process at once
            loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, end)


@contextmanager
def _watched_threads(died: Callable[[str, BaseException | None], None]) -> Iterator[None]:
    """Inside the block, a thread that dies of an error calls `died`."""

    def tell(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "a thread"
        died(name, args.exc_value)

    before, threading.excepthook = threading.excepthook, tell
    try:
        yield
    finally:
        threading.excepthook = before


async def _until_ready(service: Service, ended: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + READY_S
    while service.ready is not None and not service.ready().is_ok:
        if ended.is_set() or loop.time() > end_s:
            return
        await asyncio.sleep(_LOOK_S)


def _renew_at_signal(served: Sequence[Serving]) -> None:
    def renew() -> None:
        for one in served:
            renew_or_say_why(one.server, one.service)

    if sys.stdin is None or not sys.stdin.isatty():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, renew)
