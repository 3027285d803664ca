"""The relays' newest windows, from which the lag of each store is computed.

Polls `/bufferInfo`, which every Databus relay has. The result is for status only: when no
relay answers, the lag is unknown and reported as such.
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
from databus.schemas.protocol import Parameter
from databus.schemas.scn import MAX_SCN

log = logging.getLogger(__name__)

EVERY_S = 1.0
TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 << 10
# The errors that reading a malformed answer raises.
_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
# "paused" is not among them: an operator did that.
_TROUBLED = frozenset({"starting", "unreachable", "retrying", "error"})
_MOST_REPORTED = 3  # relays
NOT_ASKED_YET = "no relay has been asked for the status of its source yet"
_NO_STATUS = "no relay reports the status of its source"
_T = TypeVar("_T")


class RelayPoint(NamedTuple):
    """The newest window of a physical source at a relay."""

    server: str
    scn: int
    timestamp_ns: int  # of its commit


class RelayMonitor:
    """Polls the relays in one task. `newest` has each physical source's newest known window.

    `troubles` has the physical sources whose lag behind the database is unknown, with the
    reason: their relay does not capture, it has lost its database, or no relay answers.
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
        """Poll until cancelled."""
        with closing(self._make_transport()) as transport:
            while True:
                for name in self._names:
                    point, trouble = await self._look(transport, name)
                    self.newest = _with(self.newest, name, point)
                    self.troubles = _with(self.troubles, name, trouble or None)
                await asyncio.sleep(self._every_s)

    async def _look(self, transport: Transport, name: str) -> tuple[RelayPoint | None, str]:
        """Ask relays until one knows the physical source; return its newest window and problem."""
        failures: list[str] = []
        for relay in self._relays:
            try:
                path = f"/bufferInfo/inbound/{quote(name, safe='')}/0"
                answer = await _get(transport, relay, path, {})
                if answer.status == 200:
                    point = read_point(relay, answer.body)
                    return point, await self._trouble(transport, relay, name)
                failures.append(f"{relay} answers {answer.status} to a request for {name}")
            except (DatabusError, OSError) as error:
                log.debug("%s does not report the newest window of %s: %s", relay, name, error)
                failures.append(str(error))
        return None, f"{_NO_STATUS}: {'; '.join(failures[:_MOST_REPORTED])}"

    async def _trouble(self, transport: Transport, relay: str, name: str) -> str:
        """Return the problem that a relay reports for its source, or ""."""
        try:
            answer = await _get(
                transport, relay, "/controlSources/status", {Parameter.SOURCE: name}
            )
            return read_trouble(relay, name, answer.body) if answer.status == 200 else ""
        except (DatabusError, OSError) as error:
            log.debug("%s does not report the status of its source %s: %s", relay, name, error)
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
    """Parse an answer of `/bufferInfo`; None for an empty ring. Raises ServerError."""
    try:
        value = json.loads(body)
        scn, timestamp_ms = int(value["maxScn"]), int(value["timestampLatestEvent"])
    except _NONSENSE as error:
        raise ServerError(server, f"its /bufferInfo makes no sense: {error!r}") from error
    return RelayPoint(server, scn, timestamp_ms * 1_000_000) if 0 < scn <= MAX_SCN else None


def read_trouble(server: str, name: str, body: bytes) -> str:
    """Parse an answer of `/controlSources/status`; return the source's problem, or "".

    Raises ServerError. Relays of other vendors report no state.
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
    """Return a store's lag in seconds of commit time; None while it is empty."""
    if scn < 0 or timestamp_ns <= 0:
        return None
    # The relay reports whole milliseconds, so the difference may be negative.
    return 0.0 if scn >= point.scn else max(0.0, (point.timestamp_ns - timestamp_ns) / 1e9)
