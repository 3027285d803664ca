from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from databus.client.checkpoints.store import MemoryCheckpoints
from databus.client.machines.server_set import Servers
from databus.client.puller.loop_thread import LoopThread
from databus.client.registration import ClientContext, Registration
from databus.client.subscription import Subscription
from databus.conf.settings import ClientSettings


class FailingLoop(LoopThread):
    """A loop on which every coroutine fails before `spawn` is back."""

    def __init__(self) -> None:
        super().__init__("failing")
        self.spawned = 0

    def spawn(
        self, run: Callable[[], Any], on_failure: Callable[[BaseException], None]
    ) -> Callable[[], None]:
        self.spawned += 1
        on_failure(RuntimeError("at once"))
        return lambda: None


def test_reading_that_failed_at_once_is_begun_again_when_told() -> None:
    loop = FailingLoop()
    context = ClientContext(
        ClientSettings(relays=("http://127.0.0.1:1",)),
        MemoryCheckpoints(),
        loop,
        Random(1),
        time.monotonic,
        lambda registration, error: None,
    )
    subscription = Subscription(("shop.orders",), "default", {}, {})
    registration = Registration(subscription, (), Servers(("http://127.0.0.1:1",)), context)
    registration.start()
    registration.retry()
    assert loop.spawned == 2
