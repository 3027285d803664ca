"""Reports the client's status to its relays periodically. Failures have no effect on reading.

It runs on the client's loop with its own connections, so that no event request waits for a
report. Failed reports are logged at debug level only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from databus.client.machines.reachability import Silence
from databus.client.machines.states import BOOTSTRAPPING, Connection
from databus.client.puller.buffer_items import Phase
from databus.client.puller.stats import RegistrationStats
from databus.client.puller.transport import Transport
from databus.client.registration import Registration
from databus.client.subscription import Subscription
from databus.daemon.client_report import (
    MAX_TEXT,
    MAX_WAITED_FOR,
    ClientReport,
    RegistrationReport,
    WaitsFor,
)
from databus.schemas.errors import DatabusError
from databus.schemas.filters import filters_to_json

log = logging.getLogger(__name__)

TIMEOUT_S = 2.0  # of one report, connecting included
GOODBYE_S = 0.5  # of the last one: nobody waits longer for it
REFUSED_S = 60.0  # a relay that does not accept reports gets none for this time
FIRST_S = 0.5  # the first report comes this soon, so that a new client is visible
MAX_ANSWER_BYTES = 1 << 20
_NO_SUCH_PATH = (404, 405)
_WARNINGS = {
    "falling": "the relay's ring is about to overwrite the windows after its checkpoint: find out "
    "why the client is slow or stopped, or raise `ring_bytes`",
    "fallen": "the relay's ring has overwritten the windows after its checkpoint: it can still "
    "consume its buffer, but a restart needs a bootstrap server",
}

Clock = Callable[[], float]


class ReportedLag(NamedTuple):
    """ReportedLag of the client in its worst physical source, as reported by a relay."""

    size_bytes: int | None
    seconds: float | None


class ReportAnswer(NamedTuple):
    """The relays' answers to a report. While a source is unreachable the lag is unknown."""

    behind: ReportedLag | None = None
    waits_for: tuple[WaitsFor, ...] = ()
    silence: Silence | None = None  # since the start of the last report, if no relay answered it
    state: str = ""  # the client's state as a relay sees it; "" if unknown


class ReportOrder:
    """Selects the relays to report to. Pure: the clock is passed in."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused_until_s: dict[str, float] = {}

    def split(self, used: Iterable[str], relays: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the relays that get each report, and those of which one gets it as a fallback.

        `used` are the relays being read, or read last; `relays` are all relays.
        """
        known = list(dict.fromkeys(relays))
        first = [relay for relay in dict.fromkeys(used) if relay in known]
        others = [relay for relay in known if relay not in first]
        return [r for r in first if self._takes(r)], [r for r in others if self._takes(r)]

    def refused(self, relay: str) -> None:
        """Record that a relay does not accept reports."""
        self._refused_until_s[relay] = self._clock() + REFUSED_S

    def _takes(self, relay: str) -> bool:
        return self._clock() >= self._refused_until_s.get(relay, -math.inf)


class Reporter:
    """Posts reports as one task. `answer` merges the relays' answers to the last one.

    If no relay answers, the sources waited for stay listed.
    """

    def __init__(
        self,
        every_s: float,
        path: str,
        report: Callable[[], bytes],
        used: Callable[[], Sequence[str]],
        relays: Callable[[], Sequence[str]],
        make_transport: Callable[[], Transport],
        clock: Clock,
    ) -> None:
        """Post `report()` to `path` of the relays in `used()`, or of one in `relays()`."""
        self.answer = ReportAnswer()
        self._clock = clock
        self._every_s = every_s
        self._path = path
        self._report = report
        self._used = used
        self._relays = relays
        self._make_transport = make_transport
        self._order = ReportOrder(clock)
        self._transports: dict[str, Transport] = {}
        self._accepting: dict[str, None] = {}  # relays that have taken a report
        self._failures: list[str] = []  # of the current report
        self._is_heard = False  # a relay answered the current report

    async def run(self) -> None:
        """Report until cancelled."""
        try:
            # Not at once: the first requests show which relays are in use.
            await asyncio.sleep(min(FIRST_S, self._every_s))
            while True:
                await self._report_once()
                await asyncio.sleep(self._every_s)
        except asyncio.CancelledError:
            await self._say_goodbye()
            raise
        finally:
            for transport in self._transports.values():
                transport.close()

    async def _report_once(self) -> None:
        began_s = self._clock()
        self._failures, self._is_heard = [], False
        first, others = self._order.split(self._used(), self._relays())
        answers = [answer for relay in first if (answer := await self._post_to(relay))]
        # If no relay in use answers, the others are tried in turn until one does.
        for relay in others:
            if not answers and (answer := await self._post_to(relay)):
                answers.append(answer)
        if answers:
            before, self.answer = self.answer.state, _merged(answers)
            if self.answer.state != before:
                _warn(self.answer.state)
        else:
            self.answer = ReportAnswer(None, self.answer.waits_for, self._silence(began_s))

    async def _say_goodbye(self) -> None:
        """Tell the relays that know this client that it is ending; see `state` of the report."""
        first, _ = self._order.split([*self._used(), *self._accepting], self._relays())
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.gather(*map(self._post_to, first))

    def _silence(self, began_s: float) -> Silence | None:
        if self._is_heard or not self._failures:
            return None  # a relay that refuses reports is reachable
        return Silence(began_s, self._failures[0])

    async def _post_to(self, relay: str) -> ReportAnswer | None:
        """Return the relay's answer; None if it did not accept the report."""
        # Kept open between reports: a TLS handshake every few seconds would cost more.
        if relay not in self._transports:
            self._transports[relay] = self._make_transport()
        try:
            answer = await self._transports[relay].post(
                relay,
                self._path,
                self._report(),
                timeout_s=TIMEOUT_S,
                max_bytes=MAX_ANSWER_BYTES,
            )
        except (DatabusError, OSError) as error:
            log.debug("no report to %s: %s", relay, error)
            self._failures.append(str(error))
            return None
        self._is_heard = True
        # A relay of another project or an older version has no such path.
        if answer.status in _NO_SUCH_PATH:
            self._order.refused(relay)
        if answer.status != 200:
            log.debug("%s did not accept a report: status %d", relay, answer.status)
            return None
        self._accepting[relay] = None
        return read_answer(answer.body)


def _warn(state: str) -> None:
    """Log a warning if the client's windows are, or will soon be, overwritten."""
    if state in _WARNINGS:
        log.warning("this client is %s: %s", state, _WARNINGS[state])


def read_answer(body: bytes) -> ReportAnswer:
    """Return the content of a relay's answer to a report; empty if it is malformed."""
    try:
        answer = json.loads(body)
        positions, state = answer["positions"], str(answer.get("state") or "")
        found = [(p["behindBytes"], p["behindS"]) for p in positions]
        waits_for = tuple(_waits_for(p) for p in positions if p.get("waitsFor") is not None)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ReportAnswer()
    if not found:
        return ReportAnswer(state=state)
    if waits_for:
        # A source that is waited for has commits that nobody has seen, so the lag is unknown.
        return ReportAnswer(ReportedLag(None, None), waits_for, state=state)
    behind = ReportedLag(_worst(each for each, _ in found), _worst(each for _, each in found))
    return ReportAnswer(behind, state=state)


def _waits_for(position: Any) -> WaitsFor:
    source = position["waitsFor"]
    return WaitsFor(
        physical_source=position["physicalSource"], state=source["state"], since=source["since"]
    )


def _merged(answers: Sequence[ReportAnswer]) -> ReportAnswer:
    """Return the first known lag, and all sources that are waited for."""
    waits_for = tuple(one for answer in answers for one in answer.waits_for)
    behind = next((one.behind for one in answers if one.behind is not None), None)
    state = next((one.state for one in answers if one.state), "")
    known = ReportedLag(None, None) if waits_for else behind
    return ReportAnswer(known, waits_for[:MAX_WAITED_FOR], state=state)


def _worst(values: Iterable[Any]) -> Any:
    """Return the largest value; None if one is unknown, as it may be the largest."""
    known = list(values)
    is_known = all(isinstance(value, int | float) and value >= 0 for value in known)
    return max(known) if is_known else None


MAX_REGISTRATIONS = 100
_MAX_SOURCES = 500
_MAX_NAME = 200
_MAX_GROUP = 400
_MAX_PLACE = 300

Mode = Literal["online", "snapshot", "catchup", "starting", "stopped"]


def new_client_id() -> str:
    """Return a new, short, unique client id."""
    return secrets.token_hex(5)


def report_of(registration: Registration) -> RegistrationReport:
    """Return the report of a registration, with long texts cut. Thread-safe."""
    stats, status = registration.stats, registration.status
    subscription = registration.subscription
    return RegistrationReport(
        name=subscription.name[:_MAX_NAME],
        sources=list(subscription.sources[:_MAX_SOURCES]),
        filters=filters_text(subscription)[:MAX_TEXT],
        group=registration.group[:_MAX_GROUP],
        partitions=partitions_text(registration)[:MAX_TEXT],
        mode=mode_of(registration.connection, stats, has_read=registration.relay is not None),
        connection=status.state,
        server=(status.server or "")[:_MAX_PLACE],
        scn=status.scn if status.scn >= 0 else None,
        kept_scn=registration.kept_scn,
        snapshot_source=stats.snapshot_source[:_MAX_PLACE],
        snapshot_rows=stats.snapshot_rows,
        events=stats.events,
        windows=stats.windows,
        events_per_s=round(stats.events_per_s, 1),
        buffered_bytes=max(0, status.buffered_bytes),
        callback_p50_s=stats.quantile_s(0.5),
        callback_p99_s=stats.quantile_s(0.99),
        retries=stats.retries,
        bootstraps=stats.bootstraps,
        problem=registration.problem[:MAX_TEXT],
    )


def text_for_relays(report: ClientReport) -> bytes:
    """Return a report as JSON, without members that come from relays."""
    return report.model_dump_json(by_alias=True, exclude={"waits_for"}).encode()


def mode_of(connection: Connection, stats: RegistrationStats, *, has_read: bool) -> Mode:
    """Return the mode of consumption; reading may be further ahead.

    `has_read`: whether a relay has ever answered an event request.
    """
    if connection is Connection.CLOSED:
        return "stopped"
    if stats.phase is not Phase.LIVE:
        return "snapshot" if stats.phase is Phase.SNAPSHOT else "catchup"
    if connection in BOOTSTRAPPING:
        return "snapshot"
    return "online" if has_read else "starting"


def filters_text(subscription: Subscription) -> str:
    """Return the filters by source as JSON; empty without any."""
    if not subscription.filters:
        return ""
    by_source = {
        source: json.loads(filters_to_json({0: one}))["0"]
        for source, one in subscription.filters.items()
    }
    return json.dumps(by_source)


def partitions_text(registration: Registration) -> str:
    """Return the partitions that a process owns, as `0-7, 9 of 32`; empty without a group."""
    if not registration.group:
        return ""
    ranges: list[list[int]] = []
    for partition in sorted(registration.partitions):
        if ranges and ranges[-1][-1] == partition - 1:
            ranges[-1][1:] = [partition]
        else:
            ranges.append([partition])
    shown = ", ".join("-".join(map(str, one)) for one in ranges) or "none"
    return f"{shown} of {registration.partition_count}"


def report_died(error: BaseException) -> None:
    """Log a defect in reporting; reading continues."""
    log.error("no more reports to relays: %r", error, exc_info=error)
