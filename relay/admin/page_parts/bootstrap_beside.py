"""What a relay knows of the bootstrap pairs that read it: `GET /api/v1/bootstrap`.

Of a pair in its own process (`databus run`) it knows each table; of a producer elsewhere only what
that reports as a client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import Field

from databus.daemon.client_report import PRODUCER_NAME, ClientReport
from databus.daemon.http.openapi import ApiModel, Call, Endpoint, Scn
from databus.relay.monitoring.clients import Client
from databus.relay.relay import Relay

PairedState = Literal[
    "waiting", "seeding", "catching_up", "serving", "behind", "stopped", "paused", "silent"
]


class PairedTable(ApiModel):
    """One table of a pair in this process."""

    source: str
    state: PairedState
    rows: int | None = Field(description="In the snapshot, or read for it so far; None = unknown")
    estimate: int | None = Field(description="The database's estimate, while it is seeded")
    percent: int | None = Field(description="While it is seeded, by the estimate")
    left_s: float | None = Field(description="Of the seeding, at the rate of the last seconds")
    problem: str


class PairedSource(ApiModel):
    """A physical source in a pair: the worst state of its tables."""

    physical_source: str
    where: str = Field(description='"this process", or the producer\'s name and address')
    state: PairedState
    scn: Scn | None = Field(description="The newest window that it has stored")
    behind_s: float | None = Field(description="Its newest commit to the relay's; None = unknown")
    problems: list[str]
    tables: list[PairedTable] | None = Field(description="None: not known of a pair elsewhere")


class Pairs(ApiModel):
    """The bootstrap pairs that are known; none is an empty list."""

    url: str = Field(default="", description="Of the bootstrap server in this process")
    sources: list[PairedSource]


class BootstrapBeside:
    """The endpoint; `in_process` is set by a process that runs a pair beside the relay."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.in_process: Callable[[], Pairs] | None = None

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return its endpoint."""
        text = "The bootstrap pairs that read this relay, as far as it knows them"
        return (Endpoint("GET", f"{root}/bootstrap", text, Pairs, self.pairs),)

    async def pairs(self, _call: Call) -> Pairs:
        """Return the pair of this process, or else the producers that report to this relay."""
        if self.in_process is not None:
            return self.in_process()
        now_s = self._relay.clock.monotonic_s()
        producers = (c for c in self._relay.monitor.clients if c.name.startswith(PRODUCER_NAME))
        return Pairs(sources=[one for client in producers for one in _elsewhere(client, now_s)])


def _elsewhere(client: Client, now_s: float) -> list[PairedSource]:
    """Return what a producer's report says, by physical source."""
    report, is_fresh = client.report, client.has_fresh_report(now_s)
    return [
        PairedSource(
            physical_source=name,
            where=f"{client.name}, {client.caller.address}",
            state=_state_of(report) if is_fresh else "silent",
            scn=None if stream.scn is None or stream.scn < 0 else stream.scn,
            behind_s=None,
            problems=[r.problem for r in report.registrations if r.problem] if report else [],
            tables=None,
        )
        for name, stream in client.places(now_s).items()
    ]


def _state_of(report: ClientReport | None) -> PairedState:
    if report is None:
        return "silent"
    if report.state == "paused":
        return "paused"
    return "serving" if report.state == "running" else "stopped"
