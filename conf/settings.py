"""Settings: pydantic models read from TOML, validated once, at start.

`loading` reads them. Nothing below the command line reads files or the environment: it
gets the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from databus.conf.canal_settings import CanalSettings
from databus.conf.model import PlaceText, Settings, SizeBytes
from databus.conf.ptubes_settings import PtubesSettings, ReaderTaskSettings
from databus.conf.reaching import EVERYWHERE, is_loopback
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


class HttpSettings(Settings):
    """The address of an HTTP server, its tokens, and its limits.

    A server that other machines reach needs tokens, or `open_to_all = true`. Tokens are in
    files that only the server's user may read, or in environment variables.
    """

    host: str = Field(
        default="127.0.0.1", description="Address to bind; loopback unless you say otherwise"
    )
    port: int = Field(default=11115, ge=0, le=65535, description="Port to bind; 0 picks a free one")
    tls_cert: Path | None = Field(
        default=None,
        description="Certificate with its chain, PEM; the server speaks HTTPS when given",
    )
    tls_key: Path | None = Field(
        default=None, validate_default=True, description="Its key, PEM, without a passphrase"
    )
    reader_tokens_file: Path | None = Field(
        default=None, description="File with readers' tokens, one per line; `#` begins a comment"
    )
    admin_tokens_file: Path | None = Field(
        default=None,
        description="File with admins' tokens, who may also pause, resume, restart and drain",
    )
    reader_token_env: str | None = Field(
        default=None, description="Environment variable with a reader's token"
    )
    admin_token_env: str | None = Field(
        default=None, description="Environment variable with an admin's token"
    )
    open_to_all: bool = Field(
        default=False,
        validate_default=True,
        description="Bind an address that other machines reach, without tokens",
    )
    max_request_bytes: SizeBytes = Field(
        default=256 << 10, ge=1024, description="Longest request, headers and query string included"
    )
    max_filter_bytes: SizeBytes = Field(
        default=64 << 10, ge=1024, description="Longest `filters`, `filter` or `subs` of a request"
    )
    max_connections: int = Field(default=1000, ge=1, description="Most connections served at once")
    max_connections_per_client: int = Field(
        default=300, ge=1, description="Most connections from one client address"
    )
    request_s: float = Field(
        default=20.0,
        gt=0,
        description="Time in which a new connection must send its first request, and any request "
        "its body; otherwise the connection is closed",
    )
    idle_connection_s: float = Field(
        default=120.0, gt=0, description="Time without a byte after which a connection is closed"
    )
    max_response_bytes: SizeBytes = Field(
        default=16 << 20, ge=4096, description="Largest answer; a larger `size` is cut to it"
    )
    max_wait_ms: int = Field(default=30_000, ge=0, description="Longest `wait` of a long-poll")
    max_answer_s: float = Field(
        default=60.0,
        gt=0,
        description="Longest work for one request, without the `wait` of a long-poll",
    )

    @property
    def has_tokens(self) -> bool:
        """Whether requests need a token."""
        return any(
            (
                self.reader_tokens_file,
                self.admin_tokens_file,
                self.reader_token_env,
                self.admin_token_env,
            )
        )

    @field_validator("tls_key")
    @classmethod
    def _certificate_and_key(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if (key is None) != (info.data.get("tls_cert") is None):
            raise ValueError("tls_cert and tls_key are given together, or neither is")
        return key

    @field_validator("open_to_all")
    @classmethod
    def _closed_unless_said(cls, is_open: bool, info: ValidationInfo) -> bool:
        host = info.data.get("host", "")
        tokens = ("reader_tokens_file", "admin_tokens_file", "reader_token_env", "admin_token_env")
        if is_open or is_loopback(host) or any(info.data.get(name) for name in tokens):
            return is_open
        raise ValueError(
            f"others reach the address {host!r}, and could read every row: name the tokens of who "
            "may (reader_tokens_file, admin_tokens_file), or set open_to_all = true where "
            "something else keeps others out"
        )


class ServerAccessSettings(Settings):
    """A client's token for relays and bootstrap servers, and the CA that verifies them."""

    token_file: Path | None = Field(
        default=None, description="File with the token, first line; only its user may read it"
    )
    token_env: str | None = Field(default=None, description="Environment variable with the token")
    tls_ca: Path | None = Field(
        default=None,
        description="CA certificates (PEM) for servers at `https://`; without it, those of the "
        "system",
    )

    @field_validator("token_env")
    @classmethod
    def _one_token(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("token_file"):
            raise ValueError("give token_file or token_env, not both")
        return name


LOG_FORMAT: Any = Field(
    default="text", description="Format of the log on stderr: `text`, or `json`, an object per line"
)


COORDINATOR_TEXT = "`file:FOLDER`, `zookeeper://HOST:PORT,…/PATH` or a URL of SQLAlchemy"
ROOM: Any = Field(
    default="",
    max_length=100,
    description="Where it runs: a client reads from servers of its own room if it can",
)


class ListedServerSettings(Settings):
    """A server that clients may find by a coordinator."""

    http: HttpSettings
    coordinator: str = Field(
        default="",
        description=f"Where clients find it: {COORDINATOR_TEXT}; empty = they name it themselves",
    )
    public_url: str = Field(
        default="",
        validate_default=True,
        pattern=r"^(https?://[^\s/]+)?$",
        description="Its URL as clients reach it; empty = host and port of `http`",
    )
    room: str = ROOM

    @field_validator("public_url")
    @classmethod
    def _can_be_found(cls, url: str, info: ValidationInfo) -> str:
        http = info.data.get("http")
        if info.data.get("coordinator") and not url and http and http.host in EVERYWHERE:
            raise ValueError(
                f"clients cannot find it at http.host = {http.host!r}: give its URL, such as "
                f'"http://relay-a.example.com:{http.port}"'
            )
        return url


class MaxScnSettings(Settings):
    """The store of the last SCN written to the ring."""

    store: Literal["file", "sqlite"] = Field(default="file", description="`file` or `sqlite`")
    flush_s: float = Field(default=1.0, gt=0, description="Longest time between two writes")


class RelaySettings(ListedServerSettings):
    """A relay: `databus relay run -c relay.toml`."""

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
        names = doubles(name for one in physical_sources for name in one.source_names)
        if names:
            raise ValueError(
                f"source {names[0]} is listed in two physical sources: give one of them a name of "
                'its own, { name = "…", table = "…" }'
            )
        return physical_sources

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


class BackOffSettings(Settings):
    """Waits between retries: `s' = min(max, s·factor + delta)`, with jitter."""

    first_s: float = Field(default=0.05, ge=0, description="First wait")
    factor: float = Field(
        default=2.0, ge=1, description="Each wait is the one before it times this"
    )
    delta_s: float = Field(default=0.0, ge=0, description="… plus this")
    max_s: float = Field(default=10.0, gt=0, description="Longest wait")
    jitter: float = Field(default=0.2, ge=0, le=1, description="Share of each wait that is random")


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
        "`gtid:…` or `binlog:FILE:OFFSET`",
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
        return url


class BootstrapHttpSettings(HttpSettings):
    """The address of the bootstrap server, and its limits."""

    port: int = Field(default=11116, ge=0, le=65535, description="Port to bind; 0 picks a free one")


class BootstrapSettings(ListedServerSettings):
    """A bootstrap pair: `databus bootstrap run -c bootstrap.toml`.

    The blocks of `physical_sources` can be copied from the relay's file. The names must be
    the relay's, the seeder reads the database, and settings of a ring are not used.
    """

    data_dir: Path = Field(description="One store for each physical source lives here")
    relays: tuple[str, ...] = Field(
        description="Relay URLs that the producers read from", min_length=1
    )
    relay_access: ServerAccessSettings = Field(
        default_factory=ServerAccessSettings, description="Token and CA for those relays"
    )
    http: BootstrapHttpSettings = Field(
        default_factory=BootstrapHttpSettings, description="The HTTP server"
    )
    physical_sources: tuple[PhysicalSourceSettings, ...] = Field(
        min_length=1, description="What is kept, as in the relay's file"
    )
    fill_lease_s: float | None = Field(
        default=None,
        ge=0.5,
        description="Several processes may `run` on the stores: one of them fills each, under a "
        "lease at `coordinator` or else in `data_dir`, and the others stand by and serve. One "
        "that is not heard of for so long is followed by another after at most 1.5 times that",
    )
    log_format: Literal["text", "json"] = LOG_FORMAT
    log_retention_s: float = Field(
        default=7 * 86400.0, gt=0, description="Log rows older than this are deleted"
    )
    log_retention_bytes: SizeBytes = Field(
        default=10 << 30, ge=1 << 20, description="Most bytes of the log of a physical source"
    )
    deleted_retention_s: float = Field(
        default=30 * 86400.0,
        gt=0,
        description="How long deletions of rows are remembered, for consumers that return after "
        "that time",
    )
    retention_every_s: float = Field(
        default=60.0, gt=0, description="Time between two deletions of expired rows"
    )
    chunk_rows: int = Field(default=2000, ge=1, description="Rows of one read of the seeder")
    most_rows_per_s: int = Field(
        default=0, ge=0, description="Most rows that the seeder reads in a second; 0 = no limit"
    )
    back_off: BackOffSettings = Field(
        default_factory=BackOffSettings, description="Waits between retries"
    )

    @field_validator("physical_sources")
    @classmethod
    def _one_store_each(
        cls, sources: tuple[PhysicalSourceSettings, ...]
    ) -> tuple[PhysicalSourceSettings, ...]:
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError("each physical source is listed once")
        return sources
