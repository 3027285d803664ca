"""How far the relays are, so that it can be said how far behind them a store is.

Asks for `/bufferInfo`, which every Databus relay has, now and then. Nothing
hangs on it: a relay that does not answer leaves the distance unknown, and that is told.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from databus.client.puller.transport import Answer, Transport
from databus.schemas.errors import DatabusError, ServerError
from databus.schemas.scn import MAX_SCN

log = logging.getLogger(__name__)

EVERY_S = 1.0
TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 << 10
# What reading an answer raises that is not what it should be.
_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_TROUBLED = frozenset(
    {"starting", "unreachable", "retrying", "error"}
)  # and not what somebody paused
_MOST_SAID = 3  # relays
NOT_ASKED_YET = "no relay has been asked yet how its source is"
_T = TypeVar("_T")


class RelayPoint(NamedTuple):
    """The newest window of a physical source at a relay."""

    server: str
    scn: int
    timestamp_ns: int  # of its commit


class RelayWatch:
    """Looks at relays as one task. `newest` has, by physical source, what is known now.

    `troubles` has those of which the relay itself hears nothing, or does not capture, or of
    which no relay says anything: however near a store is to such a relay, nobody knows how
    far it is behind the database.
    """

    def __init__(
        self,
        relays: Sequence[str],
        names: Sequence[str],
        make_transport: Callable[[], Transport],
        every_s: float = EVERY_S,
    ) -> None:
        self.newest: Mapping[str, RelayPoint] = {}
        self.troubles: Mapping[str, str] = dict.fromkeys(names, NOT_ASKED_YET)
        self._relays = relays
        self._names = names
        self._make_transport = make_transport
        self._every_s = every_s

    async def run(self) -> None:
        """Look until cancelled."""
        with closing(self._make_transport()) as transport:
            while True:
                for name in self._names:
                    point, trouble = await self._look(transport, name)
                    self.newest = _with(self.newest, name, point)
                    self.troubles = _with(self.troubles, name, trouble or None)
                await asyncio.sleep(self._every_s)

    async def _look(self, transport: Transport, name: str) -> tuple[RelayPoint | None, str]:
        """Return what the first relay says that knows the physical source, and what is wrong."""
        failures: list[str] = []
        for relay in self._relays:
            try:
                path = f"/bufferInfo/inbound/{quote(name, safe='')}/0"
                answer = await _get(transport, relay, path, {})
                if answer.status == 200:
                    point = read_point(relay, answer.body)
                    return point, await self._trouble(transport, relay, name)
                failures.append(f"{relay} answers {answer.status} when it is asked for {name}")
            except (DatabusError, OSError) as error:
                log.debug("%s does not say how far %s is: %s", relay, name, error)
                failures.append(str(error))
        return None, f"no relay says how its source is: {'; '.join(failures[:_MOST_SAID])}"

    async def _trouble(self, transport: Transport, relay: str, name: str) -> str:
        """Return what the relay that answered says is wrong with its source; "" = nothing."""
        try:
            answer = await _get(transport, relay, "/controlSources/status", {"source": name})
            return read_trouble(relay, name, answer.body) if answer.status == 200 else ""
        except (DatabusError, OSError) as error:
            log.debug("%s does not say how its source %s is: %s", relay, name, error)
            return ""


async def _get(
    transport: Transport, relay: str, path: str, parameters: Mapping[str, str]
) -> Answer:
    return await transport.get(
        relay, path, parameters, timeout_s=TIMEOUT_S, max_bytes=MAX_ANSWER_BYTES
    )


def _with(known: Mapping[str, _T], name: str, value: _T | None) -> dict[str, _T]:
    others = {other: one for other, one in known.items() if other != name}
    return others if value is None else others | {name: value}


def read_point(server: str, body: bytes) -> RelayPoint | None:
    """Return what `/bufferInfo` says, None for an empty ring; raises ServerError."""
    try:
        value = json.loads(body)
        scn, timestamp_ms = int(value["maxScn"]), int(value["timestampLatestEvent"])
    except _NONSENSE as error:
        raise ServerError(server, f"its /bufferInfo makes no sense: {error!r}") from error
    return RelayPoint(server, scn, timestamp_ms * 1_000_000) if 0 < scn <= MAX_SCN else None


def read_trouble(server: str, name: str, body: bytes) -> str:
    """Return what `/controlSources/status` says is wrong; "" when all is well, or it says nothing.

    Raises ServerError. A relay of another make says no state.
    """
    try:
        status = json.loads(body)[name]
        state, problem, since = status["state"], status.get("problem"), status.get("since")
        if state not in _TROUBLED and not problem:
            return ""
        from_then = f" since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}" if since else ""
    except _NONSENSE as error:
        raise ServerError(server, f"its source status makes no sense: {error!r}") from error
    why = f": {problem}" if problem else ""
    return f"at the relay {server} its source is {state}{from_then}{why}"


def behind_s(point: RelayPoint, scn: int, timestamp_ns: int) -> float | None:
    """Return how far a store is behind, from commit to commit; None while it has nothing."""
    if scn < 0 or timestamp_ns <= 0:
        return None
    # The relay's time is in whole milliseconds.
    return 0.0 if scn >= point.scn else max(0.0, (point.timestamp_ns - timestamp_ns) / 1e9)
