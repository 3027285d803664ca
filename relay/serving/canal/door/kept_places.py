"""Tells the relay where its clients of Canal would go on, also those that are away.

The relay's list of clients, a drain, and the log's `hold` then count what a client has
acknowledged, not what it was sent.
"""

from __future__ import annotations

import asyncio
import logging

from databus.relay.monitoring.clients import KeptKey, Stream
from databus.relay.relay import Relay
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.serving.canal.consuming.consumer import Consumer
from databus.relay.serving.canal.consuming.destinations import Destinations
from databus.schemas.errors import DatabusError

log = logging.getLogger(__name__)

EVERY_S = 5.0  # as often as clients of this project report
_A_TURN = 50  # clients between two turns of the loop


class KeptPlaces:
    """Notes the acknowledged places of all clients. On the loop."""

    def __init__(self, relay: Relay, destinations: Destinations) -> None:
        self._relay, self._destinations = relay, destinations
        self._noted: set[str] = set()
        self._problem = ""

    async def run(self) -> None:
        """Note them until it is cancelled."""
        while True:
            await self.note()
            await asyncio.sleep(EVERY_S)

    async def note(self) -> None:
        """Note them all once."""
        consumers: list[Consumer] = []
        for one in self._destinations.by_name.values():
            try:
                await one.open_kept()
            except (DatabusError, OSError) as error:
                self._warn(f"the clients of destination {one.name} are not known now: {error}")
            consumers += one.consumers.values()
        for number, consumer in enumerate(consumers):
            if number % _A_TURN == _A_TURN - 1:
                await asyncio.sleep(0)
            self._note(consumer)
        names = {consumer.caller.id for consumer in consumers}
        for gone in self._noted - names:
            self._relay.monitor.clients.keep_no_more(gone)
        self._noted = names

    def _note(self, consumer: Consumer) -> None:
        clients, now_s = self._relay.monitor.clients, self._relay.clock.monotonic_s()
        client = clients.keep(consumer.caller, now_s)
        before, client.kept = client.kept, {}
        for name, checkpoint in consumer.cursor.checkpoints.items():
            source = self._relay.physical_sources.get(name)
            key = KeptKey(name, "", ())
            stream = before.get(key) or Stream(is_kept=True)
            offset = WINDOW_DONE if checkpoint.is_whole_window else 0
            if source is not None and source.place_kept(stream, checkpoint.window_scn, offset):
                client.kept[key] = stream

    def _warn(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("canal: %s; trying again", problem)
