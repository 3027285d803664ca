"""Settings: pydantic models read from TOML, validated once, at start.

`loading` reads them. Nothing below the command line reads files or the environment: it
gets the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from databus.conf.addresses import check_ports, is_loopback
from databus.conf.bootstrap_settings import (
    BootstrapHttpSettings,
    BootstrapSettings,
    PairSettings,
)
from databus.conf.doors.canal_settings import CanalSettings
from databus.conf.doors.ptubes_settings import PtubesSettings, ReaderTaskSettings
from databus.conf.model import PlaceText, Settings, SizeBytes
from databus.conf.server_settings import (
    COORDINATOR_TEXT,
    LOG_FORMAT,
    ROOM,
    BackOffSettings,
    HttpSettings,
    ListedServerSettings,
    OtherRelaysSettings,
    ServerAccessSettings,
    check_coordinator_url,
    check_server_urls,
)
from databus.conf.sink_settings import SinkSettings, check_sink_names
from databus.conf.source_names import doubles
from databus.conf.source_settings import (
    PhysicalSourceSettings,
    RelayLogSettings,
    SourceSettings,
)

__all__ = [
    "BackOffSettings",
    "BootstrapHttpSettings",
    "BootstrapSettings",
    "CanalSettings",
    "ClientHttpSettings",
    "ClientSettings",
    "HttpSettings",
    "ListedServerSettings",
    "MaxScnSettings",
    "OtherRelaysSettings",
    "PairSettings",
    "PhysicalSourceSettings",
    "PtubesSettings",
    "ReaderTaskSettings",
    "RelayLogSettings",
    "RelaySettings",
    "ServerAccessSettings",
    "Settings",
    "SourceSettings",
    "is_loopback",
]


class MaxScnSettings(Settings):
    """The store of the last SCN written to the ring."""

    store: Literal["file", "sqlite"] = Field(default="file", description="`file` or `sqlite`")
    flush_s: float = Field(default=1.0, gt=0, description="Longest time between two writes")


class RelaySettings(ListedServerSettings):
    """A relay, `databus relay run -c relay.toml`, or with its bootstrap pair, `databus run`."""

    data_dir: Path = Field(description="Rings, MaxSCN and schema store live here")
    schema_dir: Path | None = Field(
        default=None, description="Hand-made schemas, one .avsc a version"
    )
    http: HttpSettings = Field(default_factory=HttpSettings, description="The HTTP server")
    log_format: Literal["text", "json"] = LOG_FORMAT
    serving_processes: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Processes that serve readers; 0 = the process that captures serves them, too",
    )
    max_scn: MaxScnSettings = Field(
        default_factory=MaxScnSettings, description="Where MaxSCN is kept"
    )
    physical_sources: tuple[PhysicalSourceSettings, ...] = Field(
        min_length=1, description="What is captured"
    )
    canal: CanalSettings | None = Field(
        default=None, description="The front door for clients of Canal; none = no such port"
    )
    ptubes: PtubesSettings | None = Field(
        default=None, description="Serve stock clients of Ptubes; none = it does not"
    )
    other_relays: OtherRelaysSettings = Field(
        default_factory=OtherRelaysSettings, description="Other relays that its page shows"
    )
    bootstrap: PairSettings = Field(
        default_factory=PairSettings,
        description="The bootstrap pair of `databus run`; `databus relay run` starts none",
    )
    sinks: tuple[SinkSettings, ...] = Field(
        default=(),
        description="The sinks of `databus run`, which read its relay and its pair; `databus relay "
        "run` starts none",
    )

    @field_validator("sinks")
    @classmethod
    def _each_sink_once(cls, sinks: tuple[SinkSettings, ...]) -> tuple[SinkSettings, ...]:
        return check_sink_names(sinks)

    @field_validator("canal")
    @classmethod
    def _door_fits(cls, canal: CanalSettings | None, info: ValidationInfo) -> CanalSettings | None:
        sources = info.data.get("physical_sources")
        if canal is not None and sources:
            names = [one.name for one in sources]
            canal.check(names, info.data.get("coordinator", ""))
        return canal

    @field_validator("physical_sources")
    @classmethod
    def _with_a_coordinator(
        cls, physical_sources: tuple[PhysicalSourceSettings, ...], info: ValidationInfo
    ) -> tuple[PhysicalSourceSettings, ...]:
        leased = [one.name for one in physical_sources if one.capture_lease_s is not None]
        if leased and not info.data.get("coordinator"):
            raise ValueError(f"{leased[0]}: capture_lease_s needs `coordinator`, which has leases")
        return physical_sources

    @field_validator("physical_sources")
    @classmethod
    def _each_name_once(
        cls, physical_sources: tuple[PhysicalSourceSettings, ...]
    ) -> tuple[PhysicalSourceSettings, ...]:
        if twice := doubles(one.name for one in physical_sources):
            raise ValueError(f"physical source {twice[0]} is listed more than once")
        names = doubles(name for one in physical_sources for name in one.source_names)
        if names:
            raise ValueError(
                f"source {names[0]} is listed in two physical sources: give one of them a name of "
                'its own, { name = "…", table = "…" }'
            )
        return physical_sources

    @field_validator("physical_sources")
    @classmethod
    def _patterns_in_one_process(
        cls, physical_sources: tuple[PhysicalSourceSettings, ...], info: ValidationInfo
    ) -> tuple[PhysicalSourceSettings, ...]:
        named = [one.name for one in physical_sources if one.patterns]
        if named and info.data.get("serving_processes"):
            raise ValueError(
                f"{named[0]}: with patterns in `sources`, serving_processes must be 0: the serving "
                "processes know only the tables that are listed"
            )
        return physical_sources

    @field_validator("physical_sources")
    @classmethod
    def _each_id_once(
        cls, physical_sources: tuple[PhysicalSourceSettings, ...]
    ) -> tuple[PhysicalSourceSettings, ...]:
        listed = [source for one in physical_sources for source in one.sources]
        ids = [source.id for source in listed if isinstance(source, SourceSettings) and source.id]
        if twice := next((src_id for src_id in ids if ids.count(src_id) > 1), None):
            raise ValueError(f"id {twice} is given to two sources: each needs its own")
        return physical_sources

    @field_validator("canal", "ptubes", "bootstrap")
    @classmethod
    def _own_ports(cls, door: Any, info: ValidationInfo) -> Any:
        http = info.data.get("http")
        if door is not None and http is not None:
            own = {info.field_name or "": door}
            others = {"http": http, "canal": info.data.get("canal")}
            check_ports({**others, "ptubes": info.data.get("ptubes"), **own})
        return door

    @field_validator("physical_sources")
    @classmethod
    def _own_log_folder(
        cls, physical_sources: tuple[PhysicalSourceSettings, ...]
    ) -> tuple[PhysicalSourceSettings, ...]:
        folders = [one.log.dir for one in physical_sources if one.log and one.log.dir]
        shared = next((folder for folder in folders if folders.count(folder) > 1), None)
        if shared is not None:
            raise ValueError(
                f"log.dir {shared} is that of two physical sources: each needs its own"
            )
        return physical_sources

    @field_validator("ptubes")
    @classmethod
    def _reads_what_there_is(
        cls, ptubes: PtubesSettings | None, info: ValidationInfo
    ) -> PtubesSettings | None:
        sources = info.data.get("physical_sources", ())
        tables = {one.name: {named.table for named in one.named_tables} for one in sources}
        for task in ptubes.reader_tasks if ptubes and tables else ():
            task.check(tables)
        return ptubes


class ClientHttpSettings(HttpSettings):
    """The address of a client's HTTP server (status, metrics, pause), and its limits."""

    port: int = Field(default=11117, ge=0, le=65535, description="Port to bind; 0 picks a free one")
    max_connections: int = Field(default=100, ge=1, description="Most connections served at once")


class ClientSettings(Settings):
    """A client: its servers, buffer, retries and checkpoints."""

    name: str = Field(
        default="",
        max_length=200,
        description="Its name in relays; empty = its host and process id",
    )
    relays: tuple[str, ...] = Field(
        default=(), description="Relay URLs; none = those that the coordinator lists"
    )
    bootstrap_servers: tuple[str, ...] = Field(
        default=(),
        description="Bootstrap server URLs; without `relays`, besides those that the coordinator "
        "lists",
    )
    coordinator: str = Field(
        default="",
        validate_default=True,
        description="Where servers are listed, and where the processes of a group meet: "
        f"{COORDINATOR_TEXT}; empty = for a group, `checkpoint_dir`",
    )
    room: str = ROOM
    access: ServerAccessSettings = Field(
        default_factory=ServerAccessSettings, description="Token and CA for those servers"
    )
    log_format: Literal["text", "json"] = LOG_FORMAT
    bootstrap_order: Literal["linear", "classic"] = Field(
        default="linear",
        description="All snapshots, then one catch-up; or `classic`, which a stock Databus "
        "bootstrap server needs",
    )
    checkpoint_dir: Path | None = Field(
        default=None, description="Folder of checkpoints; none = in memory only"
    )
    group: str = Field(
        default="",
        max_length=100,
        pattern=r"^([^\s\x00-\x1f]([^\x00-\x1f]*[^\s\x00-\x1f])?)?$",
        description="Share the rows with the other processes of this group; empty = read them all",
    )
    partitions: int = Field(
        default=32, ge=1, le=1 << 15, description="Of a new group; more than processes"
    )
    partition_by: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="Columns whose values say in which partition a row is; none = its key",
    )
    group_ttl_s: float = Field(
        default=10.0,
        gt=0,
        description="A process that a group has not heard of for so long is one no more",
    )
    group_finish_s: float = Field(
        default=10.0, gt=0, description="Time to finish a partition that another process is to have"
    )
    start: PlaceText = Field(
        default="earliest",
        description="Without a checkpoint: `earliest`, `latest`, `beginning`, an SCN, `time:…`, "
        "`gtid:…` or `binlog:FILE:OFFSET`; with `bootstrap_servers` the default is `beginning`",
    )
    fetch_bytes: SizeBytes = Field(
        default=2 << 20, ge=1024, description="`size` of each stream request"
    )
    buffer_bytes: SizeBytes = Field(
        default=8 << 20, ge=4096, description="Most bytes waiting for callbacks; then reading stops"
    )
    max_window_bytes: SizeBytes = Field(
        default=256 << 20, ge=4096, description="Largest transaction that is assembled in memory"
    )
    wait_ms: int = Field(default=5_000, ge=0, description="Long-poll time of a stream request")
    connect_timeout_s: float = Field(default=5.0, gt=0, description="Time to connect to a server")
    request_timeout_s: float = Field(
        default=30.0, gt=0, description="Time for an answer, in addition to `wait_ms`"
    )
    callback_budget_s: float = Field(default=60.0, gt=0, description="Time budget of one callback")
    callback_retries: int = Field(
        default=5, ge=0, description="Replays of a failing window before the client stops"
    )
    checkpoint_every_s: float = Field(
        default=0.5, ge=0, description="Least time between two checkpoint writes; 0 = every window"
    )
    back_off: BackOffSettings = Field(
        default_factory=BackOffSettings, description="Waits between retries"
    )
    http: ClientHttpSettings | None = Field(
        default=None, description="The client's own HTTP server; none = no server"
    )
    report_every_s: float = Field(
        default=2.0, ge=0, description="How often it reports its status to its relay; 0 = never"
    )

    @model_validator(mode="before")
    @classmethod
    def _begins_with_the_rows_that_are_there(cls, given: Any) -> Any:
        # Who names bootstrap servers wants the tables whole, if nothing else is said.
        if isinstance(given, dict) and given.get("bootstrap_servers"):
            return {"start": "beginning", **given}
        return given

    @field_validator("relays", "bootstrap_servers")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_server_urls(urls)

    @field_validator("partition_by")
    @classmethod
    def _are_of_a_group(cls, columns: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if columns and not info.data.get("group"):
            raise ValueError("without a `group` this process reads all rows")
        if doubled := doubles(columns):
            raise ValueError(f"{', '.join(doubled)}: a column is named twice")
        return columns

    @field_validator("coordinator")
    @classmethod
    def _has_servers(cls, url: str, info: ValidationInfo) -> str:
        if not url and not info.data.get("relays"):
            raise ValueError("no server is named: give relays, or the coordinator that lists them")
        return check_coordinator_url(url)
