from __future__ import annotations

import asyncio

from databus.relay.capture.notifier import Notifier


def test_a_ring_wakes_who_listens() -> None:
    notifier = Notifier()

    async def subscribe() -> None:
        with notifier.subscribe() as news:
            notifier.notify()
            await asyncio.wait_for(news, 5)

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
            done, _ = await asyncio.wait([news], timeout=5)
            return bool(done)

    loop = asyncio.new_event_loop()
    task = loop.create_task(ring_and_end())
    loop.run_forever()
    loop.close()
    assert task.done()
    assert asyncio.run(subscribe())
