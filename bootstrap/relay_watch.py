"""How far the relays are, so that it can be said how far behind them a store is.

Asks for `/bufferInfo`, which every Databus relay has, now and then. Nothing
hangs on it: a relay that does not answer leaves the distance unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote

from databus.client.transport import Transport
from databus.schemas.errors import DatabusError, ServerError
from databus.schemas.scn import MAX_SCN

log = logging.getLogger(__name__)

EVERY_S = 2.0
TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 << 10
_TROUBLED = frozenset({"unreachable", "retrying", "error"})  # and not what somebody paused


class RelayPoint(NamedTuple):
    """The newest window of a physical source at a relay."""

    server: str
    scn: int
    timestamp_ns: int  # of its commit


class RelayWatch:
    """Looks at relays as one task. `newest` has, by physical source, what is known now.

    `troubles` has those of which the relay itself hears nothing, or does not capture: however
    near a store is to such a relay, nobody knows how far it is behind the database.
    """

    def __init__(
        self,
        relays: Sequence[str],
        names: Sequence[str],
        make_transport: Callable[[], Transport],
        every_s: float = EVERY_S,
    ) -> None:
        self.newest: Mapping[str, RelayPoint] = {}
        self.troubles: Mapping[str, str] = {}
        self._relays = relays
        self._names = names
        self._make_transport = make_transport
        self._every_s = every_s

    async def run(self) -> None:
        """Look until cancelled."""
        with closing(self._make_transport()) as transport:
            while True:
                found = [await self._look(transport, name) for name in self._names]
                pairs = zip(self._names, found, strict=True)
                self.newest = {name: point for name, point in pairs if point is not None}
                told = {name: await self._trouble(transport, name) for name in self.newest}
                self.troubles = {name: text for name, text in told.items() if text}
                await asyncio.sleep(self._every_s)

    async def _trouble(self, transport: Transport, name: str) -> str:
        """Return what the relay that answered says is wrong with its source; "" = nothing."""
        relay = self.newest[name].server
        try:
            answer = await transport.get(
                relay,
                "/controlSources/status",
                {"source": name},
                timeout_s=TIMEOUT_S,
                max_bytes=MAX_ANSWER_BYTES,
            )
            return read_trouble(relay, name, answer.body) if answer.status == 200 else ""
        except (DatabusError, OSError) as error:
            log.debug("%s does not say how its source %s is: %s", relay, name, error)
            return ""

    async def _look(self, transport: Transport, name: str) -> RelayPoint | None:
        """Return what the first relay says that knows the physical source."""
        for relay in self._relays:
            try:
                answer = await transport.get(
                    relay,
                    f"/bufferInfo/inbound/{quote(name, safe='')}/0",
                    {},
                    timeout_s=TIMEOUT_S,
                    max_bytes=MAX_ANSWER_BYTES,
                )
                if answer.status == 200:
                    return read_point(relay, answer.body)
            except (DatabusError, OSError) as error:
                log.debug("%s does not say how far %s is: %s", relay, name, error)
        return None


def read_point(server: str, body: bytes) -> RelayPoint | None:
    """Return what `/bufferInfo` says, None for an empty ring; raises ServerError."""
    try:
        value = json.loads(body)
        scn, timestamp_ms = int(value["maxScn"]), int(value["timestampLatestEvent"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ServerError(server, f"its /bufferInfo makes no sense: {error!r}") from error
    return RelayPoint(server, scn, timestamp_ms * 1_000_000) if 0 < scn <= MAX_SCN else None


def read_trouble(server: str, name: str, body: bytes) -> str:
    """Return what `/controlSources/status` says is wrong; "" when all is well, or it says nothing.

    Raises ServerError. A relay of another make says no state.
    """
    try:
        status = json.loads(body)[name]
        state, problem, since = status["state"], status.get("problem"), status.get("since")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ServerError(server, f"its source status makes no sense: {error!r}") from error
    if state not in _TROUBLED and not problem:
        return ""
    from_then = f" since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}" if since else ""
    return f"at the relay {server} its source is {state}{from_then}: {problem or 'no problem told'}"


def behind_s(point: RelayPoint, scn: int, timestamp_ns: int) -> float | None:
    """Return how far a store is behind, from commit to commit; None while it has nothing."""
    if scn < 0 or timestamp_ns <= 0:
        return None
    # The relay's time is in whole milliseconds.
    return 0.0 if scn >= point.scn else max(0.0, (point.timestamp_ns - timestamp_ns) / 1e9)
