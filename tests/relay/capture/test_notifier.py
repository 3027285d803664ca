from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest

from databus.relay.capture.notifier import FEW_BYTES, Coalescing, Notifier
from tests import PATIENCE_S


def test_a_ring_wakes_who_listens() -> None:
    notifier = Notifier()

    async def subscribe() -> None:
        with notifier.subscribe() as news:
            notifier.notify()
            await asyncio.wait_for(news, PATIENCE_S)

    asyncio.run(subscribe())
    assert notifier.waiting == 0


def test_a_bell_that_rang_as_its_loop_ended_wakes_those_on_the_next_loop() -> None:
    notifier = Notifier()

    async def ring_and_end() -> None:
        with notifier.subscribe():
            asyncio.get_running_loop().stop()  # after this turn: nothing rung now is heard
            notifier.notify()

    async def subscribe() -> bool:
        with notifier.subscribe() as news:
            notifier.notify()
            done, _ = await asyncio.wait([news], timeout=PATIENCE_S)
            return bool(done)

    loop = asyncio.new_event_loop()
    task = loop.create_task(ring_and_end())
    loop.run_forever()
    loop.close()
    assert task.done()
    assert asyncio.run(subscribe())


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Appended:
    """What windows have rows of, as a test says."""

    def __init__(self) -> None:
        self.src_ids: frozenset[int] | None = frozenset()
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def take(self) -> frozenset[int] | None:
        return self.src_ids


async def woken(notifier: Notifier, futures: Sequence[asyncio.Future[None]]) -> list[int]:
    """Notify; return which futures are completed by it."""
    notifier.notify()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return [number for number, future in enumerate(futures) if future.done()]


@on_a_loop
async def test_a_commit_wakes_only_those_who_wait_for_its_tables() -> None:
    appended = Appended()
    notifier = Notifier(appended)
    ids = [frozenset({1}), frozenset({2}), frozenset({1, 2}), None]
    futures = [notifier.add(src_ids=one) for one in ids]
    appended.src_ids = frozenset({1})
    assert await woken(notifier, futures) == [0, 2, 3]
    assert notifier.waiting == 1
    appended.src_ids = None  # of any table
    assert await woken(notifier, futures) == [0, 1, 2, 3]
    assert notifier.waiting == 0
    assert appended.begun == 1


@on_a_loop
async def test_a_commit_costs_nothing_for_those_whom_it_does_not_concern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    appended = Appended()
    notifier = Notifier(appended)
    completed: list[int] = []
    complete = notifier._complete

    def counted(futures: list[asyncio.Future[None]]) -> None:
        completed.append(len(futures))
        complete(futures)

    monkeypatch.setattr(notifier, "_complete", counted)
    waiting = [notifier.add(src_ids=frozenset({2})) for _ in range(1000)]
    appended.src_ids = frozenset({1})
    for _ in range(5):
        await woken(notifier, [notifier.add(src_ids=frozenset({1}))])
    assert sum(completed) == 5
    for future in waiting:
        notifier.remove(future)
    assert notifier.waiting == 0


@on_a_loop
async def test_those_whom_no_commit_concerns_are_woken_together_a_little_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("databus.relay.capture.notifier.OTHERS_EVERY_S", 0.01)
    notifier = Notifier(Appended())
    futures = [notifier.add(src_ids=frozenset({2})) for _ in range(3)]
    assert await woken(notifier, futures) == []
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*futures)
    assert notifier.waiting == 0


@on_a_loop
async def test_all_are_woken_when_the_relay_lets_go() -> None:
    notifier = Notifier(Appended())
    future = notifier.add(src_ids=frozenset({2}))
    notifier.notify_all()
    async with asyncio.timeout(PATIENCE_S):
        await future


@on_a_loop
async def test_a_subscriber_that_does_its_work_at_once_stays_until_it_cannot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("databus.relay.capture.notifier.AT_ONCE_S", 60.0)
    answers = [True, True, False]
    notifier = Notifier()
    futures = [notifier.add(at_once=lambda: answers.pop(0))]
    for is_left in (2, 1):
        assert await woken(notifier, futures) == []
        assert len(answers) == is_left
    assert await woken(notifier, futures) == [0]
    assert notifier.waiting == 0


@on_a_loop
async def test_work_at_once_has_an_end_in_each_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("databus.relay.capture.notifier.AT_ONCE_S", 0.0)
    notifier = Notifier()
    futures = [notifier.add(at_once=lambda: True) for _ in range(3)]
    assert await woken(notifier, futures) == [0, 1, 2]


@on_a_loop
async def test_who_works_at_once_is_woken_when_the_relay_lets_go() -> None:
    notifier = Notifier()
    futures = [notifier.add(at_once=lambda: True)]
    notifier.notify_all()
    assert await woken(notifier, futures) == [0]


def test_capture_rests_after_a_few_bytes_and_neither_after_none_nor_after_many() -> None:
    rests: list[float] = []
    coalescing = Coalescing(0.005, rests.append)
    coalescing.took(0)
    assert rests == []
    coalescing.took(100)
    coalescing.took(100)
    assert rests == [0.005]
    coalescing.took(100 + FEW_BYTES)
    assert rests == [0.005] * 2
    coalescing.took(101 + 2 * FEW_BYTES)
    assert rests == [0.005] * 2


def test_without_the_setting_capture_never_rests() -> None:
    rests: list[float] = []
    Coalescing(0.0, rests.append).took(100)
    assert rests == []
