"""The loop is shared: much work at once is spread over its turns, in the order in which it came."""

from __future__ import annotations

import asyncio
from functools import partial

from databus.daemon.fair_queue import FairQueue


async def rounds_of(queue: FairQueue, count: int) -> list[int]:
    """Let so many take a turn at once; return in which turn of the loop each had it."""
    now = 0
    found: list[int] = []

    async def work() -> None:
        await queue.take()
        found.append(now)

    async def count_turns() -> None:
        nonlocal now
        while len(found) < count:
            await asyncio.sleep(0)
            now += 1

    await asyncio.gather(*(work() for _ in range(count)), count_turns())
    return found


def test_little_work_is_done_at_once() -> None:
    assert asyncio.run(rounds_of(FairQueue(), 3)) == [0, 0, 0]


def test_much_work_is_spread_over_turns() -> None:
    queue = FairQueue(budget_s=0.004)
    for _ in range(200):
        queue.spent(0.0017)
    assert queue.most == 2
    found = asyncio.run(rounds_of(queue, 20))
    assert found == sorted(found)
    assert max(found.count(turn) for turn in found) == 2
    assert queue.waiting == 0


def test_work_longer_than_a_turn_is_done_one_by_one() -> None:
    queue = FairQueue()
    for _ in range(200):
        queue.spent(1.0)
    found = asyncio.run(rounds_of(queue, 5))
    assert len(set(found)) == 5


def test_whoever_leaves_while_he_waits_takes_nobodys_turn() -> None:
    async def leave() -> int:
        queue = FairQueue()
        for _ in range(200):
            queue.spent(1.0)
        tasks = [asyncio.create_task(queue.take()) for _ in range(5)]
        await asyncio.sleep(0)
        for task in tasks[1:4]:
            task.cancel()
        await asyncio.wait(tasks)
        return sum(not task.cancelled() for task in tasks)

    assert asyncio.run(leave()) == 2


def test_functions_and_tasks_are_admitted_in_the_order_in_which_they_came() -> None:
    queue = FairQueue(budget_s=0)
    found: list[int] = []

    async def take(number: int) -> None:
        await queue.take()
        found.append(number)

    async def run() -> None:
        tasks = []
        for number in range(0, 10, 2):
            queue.call(partial(found.append, number))
            tasks.append(asyncio.create_task(take(number + 1)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert found == list(range(10))


def test_an_error_of_a_function_does_not_stop_the_queue() -> None:
    queue = FairQueue(budget_s=0)
    found: list[int] = []
    errors: list[object] = []

    def fail() -> None:
        raise ValueError

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        queue.call(partial(found.append, 1))
        queue.call(fail)
        queue.call(partial(found.append, 2))
        while len(found) < 2:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert found == [1, 2]
    assert [type(error) for error in errors] == [ValueError]
