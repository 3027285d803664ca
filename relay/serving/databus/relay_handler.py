"""What the handlers of a relay's commands share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from databus.conf.settings import HttpSettings
from databus.daemon.http.handlers import CommandHandler
from databus.relay.log.archive.away import SegmentAwayError
from databus.relay.relay import Relay
from databus.relay.serving.databus.parameters import StreamRequests

Answer = TypeVar("Answer")


class RelayHandler(CommandHandler):
    """Base class of the relay's handlers."""

    relay: Relay
    requests: StreamRequests

    def initialize(  # type: ignore[override]
        self, limits: HttpSettings, relay: Relay, requests: StreamRequests
    ) -> None:
        """Take the relay to serve."""
        super().initialize(limits)
        self.relay = relay
        self.requests = requests

    async def in_steps(self, step: Callable[[], Answer | None]) -> Answer:
        """Run all steps, queueing with other requests after each."""
        while True:
            began = time.perf_counter()
            try:
                answer = step()
            except SegmentAwayError as away:
                await away.until_here()
                continue
            self.fair_queue.spent(time.perf_counter() - began)
            if answer is not None:
                return answer
            await self.fair_queue.take()
