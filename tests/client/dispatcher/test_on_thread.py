"""A generator that blocks, read in an asyncio task."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator

import pytest

from databus.client.dispatcher.on_thread import on_thread


class Blocks:
    """Yields 1 and 2, then waits until it is interrupted, and yields 3."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.asked = 0
        self.threads: set[int] = set()
        self.is_closed = False

    def items(self) -> Generator[int, None, None]:
        try:
            for number in (1, 2, 3):
                self.asked += 1
                self.threads.add(threading.get_ident())
                if number == 3:
                    self.interrupted.wait()
                yield number
        finally:
            self.is_closed = True
            self.threads.add(threading.get_ident())


def test_items_come_one_by_one_from_one_other_thread() -> None:
    blocks = Blocks()
    blocks.interrupted.set()

    async def run() -> list[int]:
        found = []
        async for item in on_thread(blocks.items(), blocks.interrupted.set, "test"):
            assert blocks.asked == item, "the next one is not asked for yet"
            found.append(item)
        return found

    assert asyncio.run(run()) == [1, 2, 3]
    assert blocks.is_closed
    assert len(blocks.threads - {threading.get_ident()}) == len(blocks.threads) == 1


def test_a_task_that_is_cancelled_while_it_waits_closes_the_generator_on_its_thread() -> None:
    blocks, found = Blocks(), []

    async def read() -> None:
        async for item in on_thread(blocks.items(), blocks.interrupted.set, "test"):
            found.append(item)  # noqa: PERF401 - all that came before the end

    async def run() -> None:
        reading = asyncio.create_task(read())
        while blocks.asked < 3:  # for that one it waits
            await asyncio.sleep(0.005)
        reading.cancel()
        await reading

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert found == [1, 2]
    assert blocks.is_closed
    assert len(blocks.threads) == 1


def test_an_error_of_the_generator_is_raised() -> None:
    def broken() -> Generator[int, None, None]:
        yield 1
        raise OSError("no disk")

    async def run() -> list[int]:
        return [item async for item in on_thread(broken(), lambda: None, "test")]

    with pytest.raises(OSError, match="no disk"):
        asyncio.run(run())


def test_a_loop_that_ends_in_the_middle_closes_the_generator() -> None:
    blocks = Blocks()

    async def run() -> None:
        items = on_thread(blocks.items(), blocks.interrupted.set, "test")
        assert await anext(items) == 1
        await items.aclose()
        assert blocks.is_closed

    asyncio.run(run())
    assert blocks.asked == 1
