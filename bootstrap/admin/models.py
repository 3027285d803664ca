"""The models of the pair's JSON API, `/api/v1`.

All values are of the running pair. Times are in seconds since 1970, sizes in bytes.
None = not known.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.bootstrap.server.sessions import ServedPhase
from databus.bootstrap.store.values import SourceStatus
from databus.daemon.http.openapi import ApiModel, Scn


class PairProblem(ApiModel):
    """One problem, and the physical source that has it."""

    physical_source: str
    text: str


class PairView(ApiModel):
    """The pair as a whole: the physical sources that this process fills and serves."""

    name: str = Field(description="Host and port that the request was sent to")
    version: str
    process_id: int
    started_at: float
    is_healthy: bool
    is_ready: bool = Field(description="Whether every source in the settings is served")
    role: Literal["reader", "admin"] = Field(description="The role of the caller's token")
    problems: list[PairProblem]
    physical_sources: int
    sessions: int = Field(description="Clients that made a request in the last hour")
    pages: int
    rows: int = Field(description="Served since the start")
    served_bytes: int
    refusals: dict[str, int] = Field(description="Requests refused, by the error's name")


class ProducerView(ApiModel):
    """The producer: it reads the relay and writes the store."""

    is_running: bool
    server: str = Field(description="The relay that it reads from, or the last one tried")
    windows: int = Field(description="Applied since the start")
    events: int
    fell_off: str = Field(description="What happened when it last lagged out of the relay's ring")
    problem: str


class LeaseView(ApiModel):
    """The lease of a store that several processes may fill."""

    role: Literal["active", "taking over", "standby"] = Field(
        description="Whether this process fills the store; `taking over`: it has the lease, and "
        "waits for the store"
    )
    owner: str = Field(description='Host and process that has the lease; "" when it is free')
    term: int = Field(description="The term of that owner: greater than those of all before it")
    problem: str


class RelayView(ApiModel):
    """The newest window at the relay."""

    server: str
    scn: Scn
    at: float


class SeedView(ApiModel):
    """The progress of seeding one table."""

    rows: int
    estimate: int | None = Field(description="The database's estimate of the table's rows")
    percent: int | None
    rows_per_s: float | None = Field(description="Over the last few seconds")
    left_s: float | None = Field(description="If the estimate is right and the rate stays the same")
    scn: Scn | None = Field(description="The SCN as of which rows are seeded")
    until_scn: Scn | None = Field(description="The SCN that the log must reach, once all are read")


class StoredSourceView(ApiModel):
    """One source of a store."""

    name: str
    id: int
    status: SourceStatus
    problem: str
    rows: int | None
    tombstones: int | None = Field(description="Deleted rows that are remembered")
    log_rows: int | None
    log_bytes: int | None
    floor_scn: Scn | None = Field(description="Start SCNs below it are refused")
    log_floor_scn: Scn | None = Field(description="The log holds every window after it")
    tombstone_floor_scn: Scn | None = Field(description="Deleted rows are known from it on")
    seed: SeedView | None = Field(description="null unless it is being seeded")


class StoreView(ApiModel):
    """One physical source: its store, producer and seeder."""

    name: str
    state: Literal["running", "paused", "absent"] = Field(
        description="State of producer and seeder; `absent` when another process fills the store"
    )
    lease: LeaseView | None = Field(description="null unless `fill_lease_s` is set")
    problems: list[str]
    scn: Scn | None = Field(description="The newest window in the store")
    at: float | None = Field(description="When that was committed")
    file_bytes: int | None
    packed_bytes: int | None = Field(description="Of its rows that are packed as columns")
    relay: RelayView | None = Field(description="null while no relay reports its newest window")
    behind_scn: Scn | None = Field(description="The relay's newest SCN minus the store's")
    behind_s: float | None = Field(description="From the store's newest commit to the relay's")
    producer: ProducerView | None
    sources: list[StoredSourceView]


class Stores(ApiModel):
    """All physical sources."""

    physical_sources: list[StoreView]


class SessionView(ApiModel):
    """One client's bootstrap of some sources: what it was sent."""

    client: str = Field(description="The client's id, as on relays; otherwise address and program")
    address: str
    agent: str
    sources: list[str]
    phase: ServedPhase
    snapshot_source: str
    start_scn: Scn | None
    target_scn: Scn | None
    pages: int
    rows: int
    size_bytes: int
    first_seen_at: float
    last_seen_at: float
    problem: str = Field(description="Why its last request was refused")


class SessionsView(ApiModel):
    """The clients that were served in the last hour, the most recent first."""

    sessions: list[SessionView]
