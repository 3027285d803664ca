"""Settings: pydantic models read from TOML, validated once, at start.

`loading` reads them. Nothing below the command line reads files or the environment: it
gets the model.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)

from databus.conf.source_names import name_problem
from databus.conf.units import parse_size_bytes

SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes)]


class Settings(BaseModel):
    """The base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _from_the_file(cls, value: Any, info: ValidationInfo) -> Any:
        """Resolve a relative path against the folder of its settings file, if there is one."""
        if isinstance(value, Path) and info.context:
            return info.context["folder"] / value
        return value


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; `localhost` is the only name."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


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
        default=None, description="Tokens of who may read, one a line; `#` begins a comment"
    )
    admin_tokens_file: Path | None = Field(
        default=None, description="Tokens of who may also pause, resume, restart and drain"
    )
    reader_token_env: str | None = Field(
        default=None, description="Environment variable with such a token"
    )
    admin_token_env: str | None = Field(
        default=None, description="Environment variable with such a token"
    )
    open_to_all: bool = Field(
        default=False,
        validate_default=True,
        description="Bind an address that others reach though there are no tokens",
    )
    max_request_bytes: SizeBytes = Field(
        default=256 << 10, ge=1024, description="Longest request, headers and query string included"
    )
    max_filter_bytes: SizeBytes = Field(
        default=64 << 10, ge=1024, description="Longest `filters`, `filter` or `subs` of a request"
    )
    max_connections: int = Field(default=1000, ge=1, description="Most connections served at once")
    max_connections_per_client: int = Field(
        default=300, ge=1, description="… of them from one client address"
    )
    request_s: float = Field(
        default=20.0,
        gt=0,
        description="A new connection that has not sent a whole request by then is closed, and "
        "any whose request's body takes longer",
    )
    idle_connection_s: float = Field(
        default=120.0, gt=0, description="A connection that moves no byte for so long is closed"
    )
    max_response_bytes: SizeBytes = Field(
        default=16 << 20, ge=4096, description="Largest answer; a larger `size` is cut to it"
    )
    max_wait_ms: int = Field(default=30_000, ge=0, description="Longest `wait` of a long-poll")
    max_answer_s: float = Field(
        default=60.0,
        gt=0,
        description="Longest work for one request, the `wait` of a long-poll apart",
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
        description="CA certificates, PEM, that vouch for servers at `https://`; left out: those "
        "of the system",
    )

    @field_validator("token_env")
    @classmethod
    def _one_token(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("token_file"):
            raise ValueError("give token_file or token_env, not both")
        return name


LOG_FORMAT: Any = Field(
    default="text", description="Of the log on stderr: `text`, or `json`, an object a line"
)


class SourceSettings(Settings):
    """One table stream of a physical source."""

    name: str = Field(description="Source name, e.g. `shop.orders`")
    id: int | None = Field(
        default=None,
        ge=1,
        le=32767,
        description="src_id; given in the order of listing when left out",
    )


class PhysicalSourceSettings(Settings):
    """One database whose change log is read.

    `uri` is `sqlite:/path/shop.db`, `mysql://user@host:3306` or
    `generator:?rate=100`. It never contains a password: `password_file` or
    `password_env` names the file or variable with it.
    """

    # The settings file, named in advice about manual steps.
    _file: Path | None = PrivateAttr(None)

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$", description="Name of the physical source")
    uri: str = Field(description="Where the change log is read from")
    sources: tuple[SourceSettings | str, ...] = Field(
        description="Tables to capture, as names or as tables with `name` and `id`", min_length=1
    )
    start: str = Field(
        default="latest",
        description="Where a first start begins: `latest`, `earliest`, an SCN, or `gtid:…`",
    )
    ring_bytes: SizeBytes = Field(
        default=64 << 20, ge=64 << 10, description="Size of the ring's data"
    )
    before_images: bool = Field(
        default=True, description="Keep the row before an update in the event's metadata"
    )
    password_file: Path | None = Field(
        default=None, description="File with the password, first line"
    )
    password_env: str | None = Field(
        default=None, description="Environment variable with the password"
    )
    server_id: int = Field(
        default=0, ge=0, le=2**32 - 1, description="Replica id at the MySQL server; 0 derives one"
    )
    epoch: int = Field(
        default=0, ge=0, le=255, description="How many times the server was switched"
    )
    tls_ca: Path | None = Field(
        default=None, description="CA file; TLS to the database is on when given"
    )
    tls_cert: Path | None = Field(default=None, description="Client certificate")
    tls_key: Path | None = Field(default=None, description="Client key")
    acknowledged_scns: tuple[int, ...] = Field(
        default=(),
        description="Places at which capture stopped (a TRUNCATE, a row that does not fit its "
        "column) and may now go on without what is there; the error names the number",
    )
    allow_cascades: bool = Field(
        default=False,
        description="MySQL: capture tables whose rows a foreign key changes by cascade, though "
        "the server does not log those changes",
    )
    zero_dates: Literal["stop", "null"] = Field(
        default="stop",
        description="MySQL: what to do about dates such as 0000-00-00: `stop` or `null`",
    )
    partial_rows: Literal["stop", "deliver"] = Field(
        default="stop",
        description="MySQL: what to do about row images that lack columns (`binlog_row_image` "
        "MINIMAL or NOBLOB): `stop`, or `deliver` rows without the values that are not logged",
    )
    purge_warning_hours: float = Field(
        default=24.0,
        ge=0,
        description="MySQL: warn when the server may purge within so many hours what is yet to "
        "be read (or within half of what it keeps, when that is less)",
    )
    poll_interval_s: float = Field(
        default=0.001, gt=0, le=10, description="How often an SQLite change log is looked at"
    )
    retention_rows: int = Field(
        default=1_000_000, ge=1000, description="Rows kept in an SQLite change log behind the ring"
    )
    reconnect_min_s: float = Field(default=0.2, gt=0, description="First wait before reconnecting")
    reconnect_max_s: float = Field(
        default=30.0, gt=0, description="Longest wait before reconnecting"
    )

    def model_post_init(self, context: Any, /) -> None:
        """Store the file's path."""
        self._file = (context or {}).get("file")

    @property
    def file(self) -> Path | None:
        """The settings file; None when the settings do not come from a file."""
        return self._file

    @field_validator("tls_cert", "tls_key")
    @classmethod
    def _with_an_authority(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        # Otherwise the missing TLS would go unnoticed.
        if path is not None and info.data.get("tls_ca") is None:
            raise ValueError("tls_cert and tls_key need tls_ca, which puts TLS on")
        return path

    @field_validator("sources")
    @classmethod
    def _names_that_can_be_asked_for(
        cls, sources: tuple[SourceSettings | str, ...], info: ValidationInfo
    ) -> tuple[SourceSettings | str, ...]:
        is_mysql = str(info.data.get("uri", "")).startswith("mysql:")
        for source in sources:
            name = source if isinstance(source, str) else source.name
            if problem := name_problem(name):
                raise ValueError(f"{name!r} {problem}")
            if is_mysql and not all(name.partition(".")):
                raise ValueError(f"{name!r} is no table of a server: write DATABASE.TABLE")
        return sources

    @property
    def source_names(self) -> list[str]:
        """The names of its sources, in the order of the file."""
        return [source if isinstance(source, str) else source.name for source in self.sources]

    @field_validator("uri")
    @classmethod
    def _sqlite_from_the_file(cls, uri: str, info: ValidationInfo) -> str:
        scheme, _, rest = uri.partition(":")
        if scheme != "sqlite" or rest.startswith(("/", "?")) or not rest or not info.context:
            return uri
        return f"sqlite:{quote(str(info.context['folder']))}/{rest}"


class MaxScnSettings(Settings):
    """The store of the last SCN written to the ring."""

    store: Literal["file", "sqlite"] = Field(default="file", description="`file` or `sqlite`")
    flush_s: float = Field(default=1.0, gt=0, description="Longest time between two writes")


class RelaySettings(Settings):
    """A relay: `databus relay run -c relay.toml`."""

    data_dir: Path = Field(description="Rings, MaxSCN and schema store live here")
    schema_dir: Path | None = Field(
        default=None, description="Hand-made schemas, one .avsc a version"
    )
    http: HttpSettings = Field(default_factory=HttpSettings, description="The HTTP server")
    log_format: Literal["text", "json"] = LOG_FORMAT
    max_scn: MaxScnSettings = Field(
        default_factory=MaxScnSettings, description="Where MaxSCN is kept"
    )
    physical_sources: tuple[PhysicalSourceSettings, ...] = Field(
        min_length=1, description="What is captured"
    )


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
        description="What relays call it; empty = its host and process id",
    )
    relays: tuple[str, ...] = Field(description="Relay URLs", min_length=1)
    bootstrap_servers: tuple[str, ...] = Field(default=(), description="Bootstrap server URLs")
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
        default=None, description="Where checkpoints are kept; none = in memory only"
    )
    start: str = Field(
        default="earliest",
        description="Without a checkpoint: `earliest`, `latest`, `beginning` or an SCN",
    )
    fetch_bytes: SizeBytes = Field(
        default=1 << 20, ge=1024, description="`size` of each stream request"
    )
    buffer_bytes: SizeBytes = Field(
        default=8 << 20, ge=4096, description="Most bytes waiting for callbacks; then reading stops"
    )
    max_window_bytes: SizeBytes = Field(
        default=256 << 20, ge=4096, description="Largest transaction that is put together in memory"
    )
    wait_ms: int = Field(default=5_000, ge=0, description="Long-poll time of a stream request")
    connect_timeout_s: float = Field(default=5.0, gt=0, description="Time to connect to a server")
    request_timeout_s: float = Field(default=30.0, gt=0, description="On top of `wait_ms`")
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
        default=None, description="The client's own HTTP server; none = it has none"
    )
    report_every_s: float = Field(
        default=2.0, ge=0, description="How often it tells its relay how it is; 0 = never"
    )


class BootstrapHttpSettings(HttpSettings):
    """The address of the bootstrap server, and its limits."""

    port: int = Field(default=11116, ge=0, le=65535, description="Port to bind; 0 picks a free one")


class BootstrapSettings(Settings):
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
        description="How long it is remembered that a row was deleted, for consumers that "
        "come back after so long",
    )
    retention_every_s: float = Field(
        default=60.0, gt=0, description="How often what is too old is deleted"
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
