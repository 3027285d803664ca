"""The models of the relay's API, `/api/v1`, which the page and `databus top` read.

Times are seconds since 1970, ages and lags seconds, sizes bytes, rates per second over the
last few seconds. None = unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, model_validator

from databus.daemon.client_report import ClientReport
from databus.daemon.http.openapi import ApiModel, Scn
from databus.relay.admin.trouble import CaptureState, Trouble


class RelayView(ApiModel):
    """The relay as a whole."""

    name: str = Field(description="Host and port in the request")
    version: str
    process_id: int
    started_at: float
    is_healthy: bool
    is_ready: bool
    troubles: list[Trouble] = Field(description="Current problems, the worst first")
    role: Literal["reader", "admin"] = Field(description="Role of the caller")
    clients: int
    held_requests: int
    stream_requests: int
    served_bytes: int
    served_bytes_per_s: float


class SourceName(ApiModel):
    """A source, its id, and the table that it is captured from."""

    name: str
    id: int
    table: str = ""  # left out by older relays


class StoppedTable(ApiModel):
    """A source that is stopped alone, and what is to be done."""

    source: str
    after_scn: Scn = Field(description="The windows after it are captured without its rows")
    since: float
    problem: str


class RingView(ApiModel):
    """The content of a ring."""

    capacity_bytes: int
    used_bytes: int
    min_scn: Scn | None
    max_scn: Scn | None
    prev_scn: Scn | None = Field(description="The newest window that has been overwritten")
    oldest_at: float | None = Field(description="Commit time of the oldest window")
    newest_at: float | None
    sleep_s: float | None = Field(
        description="How long a consumer that has read everything can pause before it lags out: "
        "the ring's capacity at the rates at which its last half and all of it were written; None "
        "while nothing is written"
    )


class LogView(ApiModel):
    """Log status: the lag behind the database's log, and its purging."""

    holding: str
    behind_bytes: int | None
    behind_s: float | None
    hours_left: float | None
    warning: str


class ArchiveView(ApiModel):
    """The archive of a relay log: what it has of the log, and what keeps it from going on."""

    uri: str = Field(description="Without credentials")
    is_known: bool = Field(description="It was listed; otherwise it may hold more")
    min_scn: Scn | None
    max_scn: Scn | None
    oldest_at: float | None
    segments: int
    size_bytes: int
    waiting_segments: int = Field(description="Sealed segments that are not in the archive yet")
    problem: str = Field(description="Why it cannot be read or written; retried for ever")
    since: float | None = Field(description="When the problem began")


class RelayLogView(ApiModel):
    """The relay log: what it has on disk behind the ring, and what keeps it from going on."""

    folder: str
    min_scn: Scn | None
    prev_scn: Scn | None = Field(description="Newest SCN before the oldest window")
    durable_scn: Scn | None = Field(description="SCN of the newest window on disk")
    oldest_at: float | None
    newest_at: float | None
    segments: int
    size_bytes: int = Field(description="On disk, logs that were moved aside included")
    retention_share: float = Field(
        description="Share of what may be kept that is used, by bytes or by age; 1 = the oldest "
        "segments are deleted"
    )
    problem: str = Field(description="Why it cannot be written; retried for ever")
    since: float | None = Field(description="When the problem began")
    began_anew: str = Field(description="Why the log began anew the last time")
    held_after_scn: Scn | None = Field(
        description="Segments with windows after it are kept for clients; 0 = all, as one of them "
        "has not reported yet; None = none"
    )
    unread: str = Field(description="Why windows were deleted that such a client had not read")
    capture_waits_s: float | None = Field(
        description="For how long capture has been waiting for the log; None = it is not waiting"
    )
    archive: ArchiveView | None = Field(description="None without one")


class CatchUpView(ApiModel):
    """A second reading of the source's log, for consumers of what the relay no longer holds."""

    state: Literal["queued", "opening", "reading", "held_back", "joined", "failed"]
    asked_scn: Scn = Field(description="The place that it was begun for")
    begin_scn: Scn | None = Field(description="It reads the windows after this one")
    scn: Scn | None = Field(description="The newest window that it has read")
    at: float | None = Field(description="Commit time of that window")
    until_scn: Scn | None = Field(description="The relay holds the windows after this one")
    size_bytes: int = Field(description="On disk")
    windows: int
    read_bytes: int = Field(description="Bytes of events that consumers have read from it")
    readers: list[str] = Field(description="Clients whose last request was served from catch-ups")
    idle_s: float = Field(description="Time since the last request")
    problem: str = Field(description="The problem that is retried, or that ended it")


class RoleView(ApiModel):
    """Which of the relays with `capture_lease_s` captures the source."""

    is_active: bool = Field(description="This relay captures; otherwise it reads from the owner")
    owner: str | None = Field(description="URL of the relay that has the lease; None = not known")
    term: int | None = Field(description="Grows by one with each owner; None = not known")
    ttl_s: float
    problem: str = Field(description="Why the coordinator cannot be asked")

    @property
    def words(self) -> str:
        """The role in words, for a terminal."""
        if self.is_active:
            return f"captures under term {self.term}"
        if self.owner is None:
            return "stands by, and knows of no relay that captures"
        return f"stands by, and reads from {self.owner}"


class PhysicalSourceView(ApiModel):
    """One physical source: its capture, its ring and its relay log."""

    name: str
    uri: str = Field(description="Of the server that is read, or tried; without a password")
    uris: list[str] = Field(default=[], description="All servers of the list")
    relays: list[str] = Field(
        default=[],
        description="Ids of this relay's process, and of the relays through which it reads",
    )
    epoch: int = Field(default=0, description="Goes up with each other server")
    state: CaptureState
    problem: str
    since: float | None = Field(description="When this state began")
    next_try_at: float | None = Field(description="Time of the next retry")
    is_connected: bool = Field(
        description="The database was heard from just now; otherwise lags are unknown"
    )
    heard_at: float | None = Field(description="When the database was last heard from")
    warnings: list[str]
    sources: list[SourceName]
    stopped_tables: list[StoppedTable] = Field(
        default=[], description="Sources that are stopped alone; the others are captured"
    )
    ring: RingView
    relay_log: RelayLogView | None = Field(description="None without one")
    catch_ups: list[CatchUpView] = Field(
        default=[], description="Running and queued ones; see `catch_ups` in the settings"
    )
    log: LogView
    role: RoleView | None = Field(default=None, description="None without `capture_lease_s`")
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
    drain: DrainView | None = Field(description="None without a drain")


class DrainView(ApiModel):
    """Progress of a drain: capture is paused, and clients read the rest."""

    until_scn: Scn
    waiting_for: list[str] = Field(description="Names of the clients that have not read everything")
    is_done: bool


class PhysicalSources(ApiModel):
    """All physical sources."""

    physical_sources: list[PhysicalSourceView]


class History(ApiModel):
    """History, the oldest first; all lists have the same length. None = unknown then."""

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
    """One captured row change."""

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
    """A change of a column by a schema version."""

    kind: Literal["added", "removed", "changed", "renamed", "key"]
    column: str
    text: str = Field(description="In words: `price int`, `int → bigint`")


class SchemaVersionView(ApiModel):
    """One version of a source's schema."""

    version: int
    schema_id: str
    since_scn: Scn | None = Field(description="The first window written with it, if known")
    is_compatible: bool = Field(description="Whether readers of the previous version can read it")
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
    """State of a client as the relay sees it."""

    LIVE = "live"  # at the newest window, or a moment behind it
    WAITING = "waiting"  # at the newest window, but the source is not connected
    BEHIND = "behind"
    FALLING = "falling"  # its position will soon be overwritten
    FALLEN = "fallen"  # lagged out: its next window is overwritten
    AHEAD = "ahead"  # after the newest window: its position may be of another log
    SUSPENDED = "suspended"  # stopped by an error, as it reports
    PAUSED = "paused"  # by a person, as it reports
    BOOTSTRAPPING = "bootstrapping"
    SILENT = "silent"  # not heard from for a while
    STOPPED = "stopped"  # it has ended, as it said itself


class AwaitedSource(ApiModel):
    """A source that is not connected: the state of its capture, and since when."""

    state: CaptureState | Literal["silent"]
    since: float | None


class ClientPosition(ApiModel):
    """A client's position in one physical source."""

    physical_source: str
    by: Literal["kept", "asked"] = Field(
        default="asked",
        description="Kind of position: `kept` = where it would continue after a crash, after the "
        "newest checkpoint in its report; `asked` = where its last request began, for a client "
        "that reports no checkpoint: its buffer counts as consumed",
    )
    is_gone: bool = Field(
        default=False,
        description="The next window is overwritten: a start from this position needs a bootstrap "
        "server",
    )
    is_ahead: bool = Field(
        default=False,
        description="It is after the newest window: the relay has not captured so far yet, or the "
        "position is of another log; its lag is unknown",
    )
    scn: Scn | None = Field(
        description="Of the checkpoint or request; None: no checkpoint yet, or the oldest window"
    )
    behind_bytes: int | None = Field(
        description="Bytes of the ring after it; None if it is not in the ring"
    )
    behind_s: float | None = Field(
        description="Age of the next window relative to the newest; None = unknown, for example "
        "of a silent client"
    )
    waits_for: AwaitedSource | None = Field(
        default=None,
        description="Set if it has read nearly everything and the source is not connected",
    )
    edge_share: float | None = Field(
        description="Share of the ring left until its position is overwritten: 1 = at the newest "
        "window, 0 = lagged out"
    )
    is_in_source_log: bool = Field(
        default=False, description="It is served from the source's own log, by a catch-up"
    )
    is_in_log: bool = Field(
        default=False, description="The ring no longer has it: it is read from the relay log"
    )
    falls_in_s: float | None = Field(
        description="Seconds until it lags out at the current rates; None if it does not"
    )


class ClientView(ApiModel):
    """A client that reads from this relay."""

    id: str
    name: str
    address: str
    agent: str
    state: ClientState
    sources: list[str]
    filters: str = Field(description="As the client sent them, shortened")
    positions: list[ClientPosition]
    first_seen_at: float
    last_seen_at: float | None
    requests: int
    served_bytes: int
    bytes_per_s: float
    last_error: str
    last_error_at: float | None
    report: ClientReport | None = Field(description="The client's last report")


class Clients(ApiModel):
    """All recent clients of this relay."""

    clients: list[ClientView]


class Problem(ApiModel):
    """An error, with its position if it has one."""

    at: float
    physical_source: str
    client: str = Field(description="Empty for the relay's own errors")
    scn: Scn | None
    place: str = Field(description="File and offset, if the source has them")
    text: str
    count: int = Field(description="Number of occurrences")


class Problems(ApiModel):
    """The last errors, the newest first."""

    problems: list[Problem]


class Restart(ApiModel):
    """Where capture starts again, into an emptied ring."""

    scn: Scn | None = Field(
        default=None, description="The first window captured is the one after it"
    )
    at: str = Field(
        default="",
        max_length=300,
        description="Instead of `scn`, a place in the database's log: `earliest`, `latest`, "
        "`time:…`, `gtid:…` or `binlog:FILE:OFFSET`",
    )

    @model_validator(mode="after")
    def _is_one_place(self) -> Self:
        if (self.scn is None) == (not self.at):
            raise ValueError("give scn or at, one of the two")
        return self


class Switch(ApiModel):
    """The server to read from now on."""

    uri: str = Field(max_length=1000, description="One of the servers in the setting `uri`")


class RepairTable(ApiModel):
    """A source that is stopped alone, to be taken in again."""

    source: str = Field(max_length=1000)
    scn: Scn | None = Field(
        default=None,
        description="First SCN of the definition to set, which the problem names; None = none is",
    )
    create_table: str = Field(
        default="",
        max_length=100_000,
        description="CREATE TABLE statement; without one the database is asked",
    )


class PositionQuery(ApiModel):
    """The named place."""

    at: str = Field(
        max_length=300,
        description="`earliest`, `latest`, an SCN, `time:…`, `gtid:…` or `binlog:FILE:OFFSET`",
    )
    others: str = Field(
        default="",
        max_length=10_000,
        description="Other sources that are read with it, by id or name, separated by commas",
    )
    nearest: bool = Field(
        default=False,
        description="For a place before the oldest window or after the newest one: answer with "
        "that end of what is held, not with an error",
    )


class PositionView(ApiModel):
    """Where reading begins: after the transaction that `scn` names."""

    source: str
    physical_source: str
    at: str = Field(description="The named place")
    scn: Scn | None = Field(
        description="None: that of the window before the oldest one, for `earliest`, is unknown"
    )
    committed_at: float | None
    gtid: str | None
    binlog: str | None = Field(description="MySQL: file and offset at which the transaction ends")
    rung: Literal["ring", "relayLog", "archive"] = Field(
        description="Which one has what follows the place"
    )
    is_nearest: bool = Field(
        description="The place itself is not held: it is the nearest that is, as was asked for"
    )
    oldest_scn: Scn | None
    newest_scn: Scn | None


class HistoryQuery(ApiModel):
    """The time span."""

    seconds: int = Field(default=600, ge=1, le=86_400)


class RowsQuery(ApiModel):
    """The source and the number of rows."""

    source: str = Field(max_length=300)
    limit: int = Field(default=20, ge=1, le=200)
