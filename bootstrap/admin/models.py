"""What the pair's API answers: the models behind `/api/v1`.

Every figure is of the running pair. Times are seconds since 1970, sizes bytes.
None = not known.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from databus.bootstrap.server.sessions import ServedPhase
from databus.bootstrap.store.values import SourceStatus
from databus.daemon.openapi import ApiModel, Scn


class PairProblem(ApiModel):
    """Something that is wrong, and where."""

    physical_source: str
    text: str


class PairView(ApiModel):
    """The pair as a whole: what this process fills and serves."""

    name: str = Field(description="Host and port that it was reached at")
    version: str
    process_id: int
    started_at: float
    is_healthy: bool
    is_ready: bool = Field(description="Whether every source that is listed is served")
    role: Literal["reader", "admin"] = Field(description="What the one who asked may do")
    problems: list[PairProblem]
    physical_sources: int
    sessions: int = Field(description="Clients that were heard of in the last hour")
    pages: int
    rows: int = Field(description="Served since the start")
    served_bytes: int
    refusals: dict[str, int] = Field(description="Requests refused, by the error's name")


class ProducerView(ApiModel):
    """What reads the relay into the store."""

    is_running: bool
    server: str = Field(description="The relay that it reads from, or tried last")
    windows: int = Field(description="Applied since the start")
    events: int
    fell_off: str = Field(description="What happened when it last fell off the relay")
    problem: str


class RelayView(ApiModel):
    """The newest window at the relay."""

    server: str
    scn: Scn
    at: float


class SeedView(ApiModel):
    """How far the reading of a table from the database is."""

    rows: int
    estimate: int | None = Field(description="The database's guess at the table's rows")
    percent: int | None
    rows_per_s: float | None = Field(description="Over the last few seconds")
    left_s: float | None = Field(description="If the guess is right and the rate stays")
    scn: Scn | None = Field(description="As of which rows are seeded")
    until_scn: Scn | None = Field(description="How far the log must come, once all are read")


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
    log_floor_scn: Scn | None = Field(description="The log has everything after it")
    tombstone_floor_scn: Scn | None = Field(description="Deleted rows are known from it on")
    seed: SeedView | None = Field(description="None unless it is being seeded")


class StoreView(ApiModel):
    """One physical source: its store, and what fills it."""

    name: str
    state: Literal["running", "paused", "absent"] = Field(
        description="Of its producer and seeder; absent: another process fills the store"
    )
    problems: list[str]
    scn: Scn | None = Field(description="The newest window in the store")
    at: float | None = Field(description="When that was committed")
    file_bytes: int | None
    relay: RelayView | None = Field(description="None while no relay says how far it is")
    behind_scn: Scn | None = Field(description="The relay's newest SCN less the store's")
    behind_s: float | None = Field(description="From the store's newest commit to the relay's")
    producer: ProducerView | None
    sources: list[StoredSourceView]


class Stores(ApiModel):
    """All physical sources."""

    physical_sources: list[StoreView]


class SessionView(ApiModel):
    """What one client was sent of some sources."""

    client: str = Field(description="Its id, as relays have it; else its address and program")
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
    """Everybody who was served in the last hour, the last one first."""

    sessions: list[SessionView]
