"""Reading that has to wait for a segment of the archive: it goes on once that is here.

What reads a log raises SegmentAwayError and changes nothing. Who called it waits for the segment,
never in the loop's thread, and calls again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from databus.relay.log.archive.manifest import ArchiveDamagedError
from databus.schemas.errors import DamagedWindowsError, RelayLogError

Answer = TypeVar("Answer")


class SegmentAwayError(RelayLogError):
    """A segment is to be read from the archive. It is fetched for those who wait for it.

    `damage` makes the error of the segment on disk, if it is read here for that reason.
    """

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Future[None]],
        damage: Callable[[], DamagedWindowsError] | None = None,
    ) -> None:
        """`fetch` begins to fetch it, unless that has begun."""
        super().__init__(f"relay log: {name} must be fetched from the archive; ask again")
        self.name, self._fetch, self._damage = name, fetch, damage

    def instead_of(self, damage: Callable[[], DamagedWindowsError]) -> SegmentAwayError:
        """Return the same for a segment that is damaged on disk."""
        return SegmentAwayError(self.name, self._fetch, damage)

    def wait(self, timeout_s: float) -> None:
        """Wait a while for it, on a thread that may wait.

        Raises ArchiveError, and DamagedWindowsError if disk and archive both are damaged.
        """
        with suppress(TimeoutError), self._unless_damaged():
            self._fetch().result(timeout_s)

    async def until_here(self) -> None:
        """Return once the segment is here; raise as `wait`."""
        # Others may wait for it, too: it is fetched even if this one waits no longer.
        with self._unless_damaged():
            await asyncio.shield(asyncio.wrap_future(self._fetch()))

    @contextmanager
    def _unless_damaged(self) -> Iterator[None]:
        """Raise the damage on disk where the archive has no sound copy: another rung may."""
        try:
            yield
        except ArchiveDamagedError as error:
            if self._damage is None:
                raise
            raise self._damage() from error


def here() -> Future[None]:
    """Return a fetch that is over: who waits for it calls again at once."""
    fetch: Future[None] = Future()
    fetch.set_result(None)
    return fetch


# A part of a generator's work that returns something, perhaps after segments that are away.
Away = Generator[SegmentAwayError | None, None, Answer]


async def once_here(read: Callable[[], Answer]) -> Answer:
    """Return what a function reads, once the segments that it needs are here; ArchiveError."""
    while True:
        try:
            return read()
        except SegmentAwayError as away:
            await away.until_here()


class Steps(Generic[Answer]):
    """Runs a generator step by step, also across segments that are away.

    The generator may yield a SegmentAwayError, and is continued behind it. One that it raises
    ends it: the next step begins anew.
    """

    def __init__(self, run: Callable[[], Iterator[Answer | SegmentAwayError | None]]) -> None:
        self._run = run
        self._steps = run()

    def step(self) -> Answer | None:
        """Run one step; None while there is more to do."""
        try:
            found = next(self._steps)
        except SegmentAwayError:
            self._steps = self._run()
            raise
        if isinstance(found, SegmentAwayError):
            raise found
        return found
