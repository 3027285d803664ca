"""What the relay's API answers: the models behind `/api/v1`, which the page and `databus top` read.

Every figure is of the running relay. Times are seconds since 1970, ages and
lags seconds, sizes bytes, rates per second over the last few seconds. None =
not known.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from databus.daemon.client_report import ClientReport
from databus.daemon.openapi import ApiModel, Scn

CaptureState = Literal[
    "starting", "running", "unreachable", "retrying", "paused", "stopped", "error"
]


class Trouble(ApiModel):
    """What is wrong with a physical source, and what becomes of it."""

    physical_source: str
    state: CaptureState
    text: str
    since: float | None
    next_try_at: float | None = Field(description="None: it waits for somebody")


class RelayView(ApiModel):
    """The relay as a whole."""

    name: str = Field(description="Host and port that it was reached at")
    version: str
    process_id: int
    started_at: float
    is_healthy: bool
    is_ready: bool
    troubles: list[Trouble] = Field(description="What is wrong, the worst first")
    role: Literal["reader", "admin"] = Field(description="What the one who asked may do")
    clients: int
    held_requests: int
    stream_requests: int
    served_bytes: int
    served_bytes_per_s: float


class SourceName(ApiModel):
    """A source and its id."""

    name: str
    id: int


class RingView(ApiModel):
    """What a ring holds."""

    capacity_bytes: int
    used_bytes: int
    min_scn: Scn | None
    max_scn: Scn | None
    prev_scn: Scn | None = Field(description="The newest window that it does not hold any more")
    oldest_at: float | None = Field(description="Commit time of the oldest window")
    newest_at: float | None
    sleep_s: float | None = Field(
        description="So long may a consumer that has everything sleep before it falls out: the "
        "ring's capacity at the rate of the last minutes; None while nothing comes"
    )


class LogView(ApiModel):
    """Where the database's own log stands."""

    holding: str
    behind_bytes: int | None
    behind_s: float | None
    hours_left: float | None
    warning: str


class PhysicalSourceView(ApiModel):
    """One physical source: its capture and its ring."""

    name: str
    uri: str = Field(description="Without a password")
    state: CaptureState
    problem: str
    since: float | None = Field(description="When this state began")
    next_try_at: float | None = Field(description="Of what is tried again")
    is_connected: bool = Field(
        description="The database was heard of a moment ago; otherwise lags are not known"
    )
    heard_at: float | None = Field(description="When the database was last heard of")
    warnings: list[str]
    sources: list[SourceName]
    ring: RingView
    log: LogView
    delay_s: float | None = Field(
        description="From commit to ring, of the newest window with rows; None = not connected"
    )
    events: int
    windows: int
    size_bytes: int
    reconnects: int
    events_per_s: float
    windows_per_s: float
    bytes_per_s: float
    drain: DrainView | None = Field(description="None unless it is being drained")


class DrainView(ApiModel):
    """How far a drain is: capture rests, and clients read what there is."""

    until_scn: Scn
    waiting_for: list[str] = Field(description="Names of the clients that are not there yet")
    is_done: bool


class PhysicalSources(ApiModel):
    """All physical sources."""

    physical_sources: list[PhysicalSourceView]


class History(ApiModel):
    """Figures over time, the oldest first; all lists are of one length. None = not known then."""

    physical_source: str
    step_s: float
    at: list[float]
    events_per_s: list[float | None]
    bytes_per_s: list[float | None]
    delay_s: list[float | None]
    behind_s: list[float | None]
    used_bytes: list[int | None]
    capacity_bytes: int


class RowView(ApiModel):
    """One row as it passed."""

    scn: Scn
    index: int
    at: float
    source: str
    op: str
    schema_version: int | None
    row: dict[str, object]
    before: dict[str, object] | None


class Rows(ApiModel):
    """The newest rows of a source in the ring, the newest last."""

    rows: list[RowView]


class ColumnChange(ApiModel):
    """What a schema version did to a column."""

    kind: Literal["added", "removed", "changed", "renamed", "key"]
    column: str
    text: str = Field(description="In words: `price int`, `int → bigint`")


class SchemaVersionView(ApiModel):
    """One version of a source's schema."""

    version: int
    schema_id: str
    since_scn: Scn | None = Field(description="The first window written with it, where known")
    is_compatible: bool = Field(description="Whether who knows the version before can read it")
    changes: list[ColumnChange]
    schema_text: str = Field(description="Avro, as JSON")


class SourceSchemas(ApiModel):
    """All versions of a source, the oldest first."""

    source: str
    id: int
    physical_source: str
    versions: list[SchemaVersionView]


class Schemas(ApiModel):
    """The schemas of all sources."""

    sources: list[SourceSchemas]


class ClientState(StrEnum):
    """Where a client is, as seen from here."""

    LIVE = "live"  # at the newest window, or a moment behind it
    WAITING = "waiting"  # at the newest window, and nothing is heard of the source
    BEHIND = "behind"
    FALLING = "falling"  # near the edge of the ring
    FALLEN = "fallen"  # would go on, or has asked to, after what the ring does not hold any more
    SUSPENDED = "suspended"  # stopped by an error, as it says
    PAUSED = "paused"  # by somebody, as it says
    BOOTSTRAPPING = "bootstrapping"
    SILENT = "silent"  # has not been heard of for a while


class AwaitedSource(ApiModel):
    """A source of which nothing is heard: the state of its capture, and since when."""

    state: CaptureState | Literal["silent"]
    since: float | None


class ClientPosition(ApiModel):
    """How far a client is in one physical source."""

    physical_source: str
    by: Literal["kept", "asked"] = Field(
        default="asked",
        description="What the place is: `kept` = where it would go on after a crash, after the "
        "newest checkpoint in its report; `asked` = where its last request began, as it reports "
        "no checkpoint: what lies in its buffer counts as done",
    )
    is_gone: bool = Field(
        default=False,
        description="The ring does not hold what follows any more: a start from there needs a "
        "bootstrap server",
    )
    scn: Scn | None = Field(
        description="Of the checkpoint, or asked for; None: it has none yet, or wants the oldest"
    )
    behind_bytes: int | None = Field(description="Of the ring; None when it is not in it")
    behind_s: float | None = Field(
        description="How much older is what follows its place than the newest; None = not known, "
        "as of a silent client"
    )
    waits_for: AwaitedSource | None = Field(
        default=None,
        description="It has nearly all of the ring, and nothing is heard of the source",
    )
    edge_share: float | None = Field(
        description="Distance to the edge of the ring: 1 = at the newest window, 0 = falls out"
    )
    falls_in_s: float | None = Field(description="At the rates of now; None if it does not")


class ClientView(ApiModel):
    """Somebody who reads from this relay."""

    id: str
    name: str
    address: str
    agent: str
    state: ClientState
    sources: list[str]
    filters: str = Field(description="As the client sent them, shortened")
    positions: list[ClientPosition]
    first_seen_at: float
    last_seen_at: float
    requests: int
    served_bytes: int
    bytes_per_s: float
    last_error: str
    last_error_at: float | None
    report: ClientReport | None = Field(description="What the client says of itself")


class Clients(ApiModel):
    """Everybody who has read from this relay of late."""

    clients: list[ClientView]


class Problem(ApiModel):
    """An error, with its position where it has one."""

    at: float
    physical_source: str
    client: str = Field(description="Empty when it is the relay's own")
    scn: Scn | None
    place: str = Field(description="File and offset, where the source has them")
    text: str
    count: int = Field(description="How many times in a row")


class Problems(ApiModel):
    """The last errors, the newest first."""

    problems: list[Problem]


class Restart(ApiModel):
    """From where capture begins again: the ring is emptied, and its windows are read anew."""

    scn: Scn = Field(description="The first window is the one after it")


class HistoryQuery(ApiModel):
    """How far back."""

    seconds: int = Field(default=600, ge=1, le=86_400)


class RowsQuery(ApiModel):
    """Which rows."""

    source: str = Field(max_length=300)
    limit: int = Field(default=20, ge=1, le=200)
