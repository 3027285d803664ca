"""A client's report on itself, shown by its own API and sent to the relay that it reads from.

Reports are for information only: a relay without them, or a client that cannot send one, works
as usual.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.daemon.http.openapi import ApiModel, Scn

MAX_ID = 64
PRODUCER_NAME = "bootstrap producer"  # begins the name of the client that fills a store
MAX_TEXT = 500
MAX_WAITED_FOR = 500


class WaitsFor(ApiModel):
    """A physical source that was read to the end, and whose capture delivers nothing."""

    physical_source: str
    state: str = Field(description="Of its capture, as the relay says")
    since: float | None


class RegistrationReport(ApiModel):
    """One registration: its sources, its position and its counters."""

    name: str = Field(max_length=200)
    sources: list[str] = Field(max_length=500)
    filters: str = Field(default="", max_length=MAX_TEXT)
    group: str = Field(
        default="", max_length=400, description="Its group, with which it shares the rows"
    )
    partitions: str = Field(
        default="",
        max_length=MAX_TEXT,
        description="Those of the group that it owns, and how many there are: `0-7, 9 of 32`",
    )
    mode: Literal["online", "snapshot", "catchup", "starting", "stopped"]
    connection: str = Field(max_length=50, description="State of the connection machine")
    server: str = Field(default="", max_length=300)
    scn: Scn | None = Field(description="Of the last window consumed")
    kept_scn: Scn | None = Field(
        default=None,
        description="Of the newest checkpoint written: after a crash it goes on after this window. "
        "None in a bootstrap, and before the first one",
    )
    snapshot_source: str = Field(default="", max_length=300)
    snapshot_rows: int = Field(default=0, ge=0, description="Rows of the snapshot consumed so far")
    events: int = Field(ge=0)
    windows: int = Field(ge=0)
    events_per_s: float = Field(ge=0)
    buffered_bytes: int = Field(ge=0)
    callback_p50_s: float | None = Field(default=None, ge=0)
    callback_p99_s: float | None = Field(default=None, ge=0)
    retries: int = Field(default=0, ge=0, description="Rollbacks of windows, and reconnections")
    bootstraps: int = Field(
        default=0, ge=0, description="How often it has gone to a bootstrap server"
    )
    problem: str = Field(default="", max_length=MAX_TEXT)


class SinkReport(ApiModel):
    """The sink that a client writes to."""

    kind: str = Field(max_length=200, description="`kafka`, `sql`, … or `module:Class`")
    state: str = Field(max_length=50)
    skipped: int = Field(ge=0, description="Rows that were skipped since its start")
    dead_letters: int | None = Field(ge=0, description="In its file; None = it cannot be read")


class ClientReport(ApiModel):
    """A client process, with all its registrations."""

    id: str = Field(pattern=rf"^[A-Za-z0-9_.:-]{{1,{MAX_ID}}}$")
    name: str = Field(max_length=200, description="Host and process id, unless settings name it")
    state: Literal["initial", "running", "paused", "suspended", "shut_down"]
    version: str = Field(max_length=50)
    url: str = Field(default="", max_length=300, description="Of its own API, where it has one")
    started_at: float
    every_s: float = Field(
        default=0.0, ge=0, description="It is sent so often; 0 = not said, or never"
    )
    keeps_checkpoints: bool = Field(
        default=True,
        description="False: it does not come back to where it was, like `databus tail`",
    )
    servers_problem: str = Field(
        default="",
        max_length=MAX_TEXT,
        description="Why the list of servers of its coordinator is not known now, or may be old",
    )
    registrations: list[RegistrationReport] = Field(max_length=100)
    sink: SinkReport | None = None
    waits_for: list[WaitsFor] = Field(
        default=[],
        max_length=MAX_WAITED_FOR,
        description="As long as there is any, how far it is behind is not known",
    )

    @property
    def problem(self) -> str:
        """What is wrong with the client now, or ""."""
        problems = (registration.problem for registration in self.registrations)
        return next(filter(None, problems), self.servers_problem)
