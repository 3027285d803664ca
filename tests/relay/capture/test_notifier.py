from __future__ import annotations

import asyncio

from databus.relay.capture.notifier import Bell


def test_a_ring_wakes_who_listens() -> None:
    bell = Bell()

    async def listen() -> None:
        with bell.listen() as news:
            bell.ring()
            await asyncio.wait_for(news, 5)

    asyncio.run(listen())
    assert bell.waiting == 0


def test_a_bell_that_rang_as_its_loop_ended_wakes_those_on_the_next_loop() -> None:
    bell = Bell()

    async def ring_and_end() -> None:
        with bell.listen():
            asyncio.get_running_loop().stop()  # after this turn: nothing rung now is heard
            bell.ring()

    async def listen() -> bool:
        with bell.listen() as news:
            bell.ring()
            done, _ = await asyncio.wait([news], timeout=5)
            return bool(done)

    loop = asyncio.new_event_loop()
    task = loop.create_task(ring_and_end())
    loop.run_forever()
    loop.close()
    assert task.done()
    assert asyncio.run(listen())
