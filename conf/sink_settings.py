"""Settings of sinks: what each reads, passes on and writes, and what follows a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from databus.conf.model import PlaceText, Settings, SizeBytes
from databus.conf.named_places import GtidPlace, ScnPlace, TimePlace, parse_place
from databus.conf.patterns import NamePatterns
from databus.conf.server_settings import (
    COORDINATOR_TEXT,
    LOG_FORMAT,
    ROOM,
    BackOffSettings,
    HttpSettings,
    ServerAccessSettings,
    check_coordinator_url,
    check_server_urls,
)
from databus.conf.source_names import doubles

_FOR_EVER = -1
Then = Literal["stop", "skip", "dead-letter"]


class FailureRuleSettings(Settings):
    """What follows a failure of one kind."""

    retries: int = Field(default=_FOR_EVER, ge=-1, description="How often again; -1 = for ever")
    then: Then = Field(
        default="stop",
        description="Then `stop` the sink, `skip` the row, or keep it as a `dead-letter`",
    )


class FailureSettings(Settings):
    """What follows when a sink fails, by kind of failure."""

    unavailable: FailureRuleSettings = Field(
        default=FailureRuleSettings(), description="The target cannot be reached, or is busy"
    )
    refused: FailureRuleSettings = Field(
        default=FailureRuleSettings(retries=0), description="The target refuses a row"
    )
    other: FailureRuleSettings = Field(
        default=FailureRuleSettings(retries=5), description="Anything else"
    )
    fast_retries: int = Field(default=2, ge=0, description="Retries at once, before any wait")
    back_off: BackOffSettings = Field(
        default=BackOffSettings(first_s=1.0, max_s=60.0),
        description="Waits between the later retries",
    )
    dead_letters: Path | None = Field(
        default=None,
        description="File of rows that were set aside; none = `NAME.dead-letters.jsonl` in "
        "`data_dir`",
    )
    alert_after_s: float = Field(
        default=30.0, ge=0, description="A sink that has failed for so long raises an alert"
    )
    alert_every_s: float = Field(
        default=3600.0, gt=0, description="… and again so often while it fails"
    )


class FlushSettings(Settings):
    """When a sink writes what it has collected."""

    rows: int = Field(default=1000, ge=1, description="After so many rows, of whole transactions")
    seconds: float = Field(default=1.0, ge=0, description="… or so long after the first of them")
    compact: bool = Field(
        default=False,
        description="Write only the net change of each key; for targets that hold rows by key",
    )


class SinkTableSettings(Settings):
    """What a sink takes of some sources; the first entry that matches a source counts."""

    sources: tuple[str, ...] = Field(min_length=1, description="Names and patterns of sources")
    where: str = Field(
        default="",
        description="SQL condition over the row; an update that moves a row out is a delete",
    )
    columns: tuple[str, ...] = Field(default=(), description="Only these columns; none = all")
    without: tuple[str, ...] = Field(default=(), description="All columns but these")
    rename: dict[str, str] = Field(default={}, description="Column = its name in the target")
    mask: dict[str, str] = Field(
        default={}, description="Column = `hash`, `redact` or `truncate:LENGTH`"
    )
    unique_keys: tuple[tuple[str, ...], ...] = Field(
        default=(), description="Unique keys that the target has besides the primary key"
    )

    @field_validator("without")
    @classmethod
    def _one_way(cls, without: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if without and info.data.get("columns"):
            raise ValueError("give columns or without, not both")
        return without

    @field_validator("rename")
    @classmethod
    def _each_name_once(cls, rename: dict[str, str]) -> dict[str, str]:
        if twice := doubles(rename.values()):
            raise ValueError(f"{twice[0]} is the name of two columns")
        return rename


class LimitSettings(Settings):
    """What the process of an isolated sink may use; one that uses more is killed.

    Each lane has such a process. All processes that it starts count, too.
    """

    memory_bytes: SizeBytes = Field(
        default=512 << 20, ge=64 << 20, description="Most memory, of all processes together"
    )
    cpu_s: float = Field(
        default=60.0,
        ge=1,
        description="Most seconds of CPU that a process uses in one call of the class, such as a "
        "write, and in each minute between two calls",
    )
    call_s: float = Field(
        default=300.0, gt=0, description="Most seconds that one call of the class takes"
    )
    processes: int = Field(default=64, ge=1, description="Most processes, the first one included")


class SinkSettings(Settings):
    """One sink."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,100}$", description="Its name, which its positions have, too"
    )
    kind: str = Field(
        description="`print`, `files`, `kafka`, `sql`, `redis`, `webhook` and others, one that a "
        "package publishes, or `module:Class`"
    )
    sources: tuple[str, ...] = Field(
        min_length=1, description="Sources to read: names, and patterns such as `shop.*`"
    )
    options: dict[str, Any] = Field(default={}, description="Options of the kind")
    isolate: bool | None = Field(
        default=None,
        description="Run its code in a process of its own, with `limits`; none = if the kind is a "
        "`module:Class`",
    )
    limits: LimitSettings = Field(
        default=LimitSettings(), description="What that process may use, if it is isolated"
    )
    start: PlaceText | None = Field(
        default=None,
        description="Where to begin without a position, as a client's `start`; none = its default",
    )
    until: PlaceText | None = Field(
        default=None,
        description="Where to end: the last SCN, a time (`time:…`) or the last transaction "
        "(`gtid:…`); then the sink is done",
    )
    order: Literal["transaction", "single-table", "table", "row"] = Field(
        default="transaction", description="What is kept in order"
    )
    lanes: int = Field(
        default=1, ge=1, le=64, description="Threads that write; 1 in order `transaction`"
    )
    unique: Literal["primary", "writeset"] = Field(
        default="primary",
        description="In order `row`: the target has only the primary key; or lanes by the values "
        "of all unique keys",
    )
    ddl: bool = Field(default=False, description="Pass on DDL, and DML that was logged as text")
    capacity: int = Field(
        default=20_000, ge=1, description="Most rows that are read and not written; then it waits"
    )
    capacity_bytes: SizeBytes = Field(
        default=32 << 20, ge=4096, description="Most bytes of these rows, as they were sent"
    )
    positions_every_s: float = Field(
        default=0.5, ge=0, description="Least time between two writes of its position"
    )
    buffer_bytes: SizeBytes = Field(
        default=8 << 20, ge=4096, description="Most bytes that wait undecoded"
    )
    flush: FlushSettings = Field(default=FlushSettings(), description="When it writes")
    failures: FailureSettings = Field(
        default=FailureSettings(), description="What follows when it fails"
    )
    mask_key_file: Path | None = Field(
        default=None,
        description="File with the key of `hash`, as relays have it; only its user may read it",
    )
    tables: tuple[SinkTableSettings, ...] = Field(
        default=(), description="What is taken of each source; none = all"
    )

    @field_validator("until")
    @classmethod
    def _ends_somewhere(cls, until: str | None) -> str | None:
        if until is not None and not isinstance(
            parse_place(until), ScnPlace | TimePlace | GtidPlace
        ):
            raise ValueError("write an SCN, time:2026-11-21T10:00:00Z or gtid:0-1-17")
        return until

    @field_validator("lanes")
    @classmethod
    def _has_an_order(cls, lanes: int, info: ValidationInfo) -> int:
        if lanes > 1 and info.data.get("order") == "transaction":
            raise ValueError("order = 'transaction' has one lane: choose another order")
        return lanes

    @field_validator("flush")
    @classmethod
    def _may_compact(cls, flush: FlushSettings, info: ValidationInfo) -> FlushSettings:
        if flush.compact and info.data.get("unique") == "writeset":
            raise ValueError(
                "compact = true changes the order of rows, which unique = 'writeset' is about"
            )
        return flush

    @property
    def patterns(self) -> NamePatterns:
        """What it reads."""
        return NamePatterns(self.sources)

    @property
    def is_isolated(self) -> bool:
        """Whether its code runs in a process of its own."""
        return ":" in self.kind if self.isolate is None else self.isolate


class SinksHttpSettings(HttpSettings):
    """The address of the HTTP server of running sinks, and its limits."""

    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port to bind; 0 picks a free one, which the commands find in `data_dir`",
    )
    max_connections: int = Field(default=100, ge=1, description="Most connections served at once")


class SinksSettings(Settings):
    """Sinks that run in one process, `databus sink run -c sink.toml`."""

    data_dir: Path = Field(description="Positions and dead letters live here")
    relays: tuple[str, ...] = Field(
        default=(), description="Relay URLs; none = those that the coordinator lists"
    )
    bootstrap_servers: tuple[str, ...] = Field(
        default=(), description="Bootstrap server URLs, for the rows that are there"
    )
    coordinator: str = Field(
        default="",
        validate_default=True,
        description=f"Where servers are listed: {COORDINATOR_TEXT}",
    )
    room: str = ROOM
    access: ServerAccessSettings = Field(
        default_factory=ServerAccessSettings, description="Token and CA for those servers"
    )
    log_format: Literal["text", "json"] = LOG_FORMAT
    back_off: BackOffSettings = Field(
        default_factory=BackOffSettings, description="Waits between requests that failed"
    )
    http: SinksHttpSettings = Field(
        default_factory=SinksHttpSettings,
        description="Its HTTP server: status, metrics, pause, skip",
    )
    sinks: tuple[SinkSettings, ...] = Field(min_length=1, description="The sinks")

    @field_validator("relays", "bootstrap_servers")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_server_urls(urls)

    @field_validator("coordinator")
    @classmethod
    def _has_servers(cls, url: str, info: ValidationInfo) -> str:
        if not url and not info.data.get("relays"):
            raise ValueError("no server is named: give relays, or the coordinator that lists them")
        return check_coordinator_url(url)

    @field_validator("sinks")
    @classmethod
    def _each_name_once(cls, sinks: tuple[SinkSettings, ...]) -> tuple[SinkSettings, ...]:
        return check_sink_names(sinks)


def check_sink_names(sinks: tuple[SinkSettings, ...]) -> tuple[SinkSettings, ...]:
    """Return sinks whose names differ; raise ValueError."""
    if twice := doubles(one.name for one in sinks):
        raise ValueError(f"sink {twice[0]} is listed more than once")
    return sinks
