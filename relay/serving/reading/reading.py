"""Reads windows for a request or a session, from whichever rung has them, and waits for more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from databus.daemon.fair_queue import FairQueue
from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.log.archive.away import SegmentAwayError, once_here
from databus.relay.relay import Relay
from databus.relay.serving.reading.request_tracker import RequestTracker
from databus.relay.serving.reading.stream import StreamJob
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError


class Read(Protocol):
    """What was read."""

    @property
    def is_caught_up(self) -> bool:
        """Whether there was nothing to read, so that windows to come may be waited for."""
        ...


Answer = TypeVar("Answer", bound=Read)
Stepped = TypeVar("Stepped")


class Reading:
    """Reads what jobs select, and makes new jobs where a rung has lost a place. On the loop."""

    def __init__(self, relay: Relay) -> None:
        self.is_disconnected = False  # nobody waits for what is read
        self.is_in_catch_up = False  # windows come from the source's own log
        self._relay = relay
        self._held: asyncio.Future[None] | None = None  # completes when there is something to do

    @property
    def is_held(self) -> bool:
        """Whether it waits for windows to come."""
        return self._held is not None

    def disconnect(self) -> None:
        """End a wait: the one who waits for it is gone."""
        self.is_disconnected = True
        if self._held is not None:
            _complete(self._held)

    async def read(
        self,
        make_jobs: Callable[[], Sequence[StreamJob]],
        read: Callable[[Sequence[StreamJob]], Awaitable[Answer]],
        wait_s: float,
    ) -> Answer:
        """Return what there is, or what comes within so many seconds; may raise any error.

        `make_jobs` chooses the rungs; `read` reads what there is, and must not wait for more.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        jobs = make_jobs()
        listed = self.listed(jobs)
        while True:
            self.is_in_catch_up = any(isinstance(job.reader, CatchUpReader) for job in jobs)
            # Before reading the ring, so that no window is missed in between.
            with self._subscribed(jobs) as news:
                try:
                    answer = await read(jobs)
                except ScnNotFoundError as error:
                    # Overwritten meanwhile, or damaged: another rung may have it.
                    if isinstance(error, DamagedWindowsError):
                        self._note_damage(error, jobs)
                    before, jobs = jobs, make_jobs()
                    if [job.reader for job in jobs] == [job.reader for job in before]:
                        raise
                    continue
                left_s = end - loop.time()
                if not answer.is_caught_up or left_s <= 0 or self._relay.is_closing:
                    return answer
                await self.hold(news, left_s)
                # The request is for the sources that were listed when it came.
                if self.is_disconnected or self.listed(jobs) != listed:
                    return answer

    def listed(self, jobs: Sequence[StreamJob]) -> list[tuple[str, ...] | None]:
        """Return the sources of the physical sources that jobs read, as they are listed now."""
        members = self._relay.catalog.members
        return [members.get(job.selection.physical_source) for job in jobs]

    async def hold(self, news: asyncio.Future[None], left_s: float) -> None:
        """Wait for news, at most `left_s`, and not once nobody waits for it."""
        if self.is_disconnected:
            return
        timer = asyncio.get_running_loop().call_later(left_s, _complete, news)
        self._held = news
        try:
            with self._relay.traffic.holding():
                await news
        finally:
            self._held = None
            timer.cancel()

    def _note_damage(self, error: DamagedWindowsError, jobs: Sequence[StreamJob]) -> None:
        for job in jobs:
            if job.selection.physical_source == error.physical_source:
                source = self._relay.physical_source(error.physical_source)
                source.note_damage(error, job.selection)

    @contextlib.contextmanager
    def _subscribed(self, jobs: Sequence[StreamJob]) -> Iterator[asyncio.Future[None]]:
        """Yield a future that completes when there are new windows for one of the jobs."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with contextlib.ExitStack() as subscribed:
            for job in jobs:
                source = self._relay.physical_source(job.selection.physical_source)
                read = job.reader if isinstance(job.reader, CatchUpReader) else source
                subscribed.enter_context(read.notifier.subscribe(news, job.selection.src_ids))
            yield news


async def in_steps(queue: FairQueue, step: Callable[[], Stepped | None]) -> Stepped:
    """Run all steps, queueing with other work of the loop after each; waits for the archive."""
    while True:
        began = time.perf_counter()
        try:
            answer = step()
        except SegmentAwayError as away:
            await away.until_here()
            continue
        queue.spent(time.perf_counter() - began)
        if answer is not None:
            return answer
        await queue.take()


async def start_job(
    queue: FairQueue, tracker: RequestTracker, jobs: Sequence[StreamJob], start: Callable[[], None]
) -> None:
    """Look up the places of jobs by `start`, queueing with other work; raise any error."""
    await queue.take()
    try:
        await once_here(start)
    finally:
        # Also if it raises: the client and its position are shown in any case.
        tracker.looks(jobs)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
