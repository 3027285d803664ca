"""Settings that several daemons have: an HTTP server, access to others, being found, retries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from databus.conf.addresses import EVERYWHERE, is_loopback, without_password
from databus.conf.model import Settings, SizeBytes


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
        default=None,
        description="File with readers' tokens, one per line, and behind a token the sources that "
        "it is for, by patterns such as `shop.*`; `#` begins a comment",
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


class OtherRelaysSettings(ServerAccessSettings):
    """Other relays that a relay's page and `/api/v1/relays` show, and a reader's token for them."""

    urls: tuple[str, ...] = Field(default=(), max_length=50, description="URLs of the other relays")

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(url.rstrip("/") for url in check_server_urls(urls)))


LOG_FORMAT: Any = Field(
    default="text", description="Format of the log on stderr: `text`, or `json`, an object per line"
)


COORDINATOR_TEXT = "`file:FOLDER`, `zookeeper://HOST:PORT,…/PATH` or a URL of SQLAlchemy"
_URL = re.compile(r"https?://[^/@\s]+(/\S*)?")


def check_server_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Return the URLs of servers as they are; raise ValueError for what is none."""
    for url in urls:
        if not _URL.fullmatch(url):
            raise ValueError(
                f"{without_password(url)!r} is not a URL like http://127.0.0.1:11115 (a token is "
                "named apart, by token_file)"
            )
    return urls


def check_coordinator_url(url: str) -> str:
    """Return a coordinator's URL as it is; raise ValueError for what is none."""
    if url and not re.match(r"file:.|[^:]+://", url):
        raise ValueError(f"give {COORDINATOR_TEXT}")
    return url


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

    @field_validator("coordinator")
    @classmethod
    def _is_a_store(cls, url: str) -> str:
        return check_coordinator_url(url)

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


class BackOffSettings(Settings):
    """Waits between retries: `s' = min(max, s·factor + delta)`, with jitter."""

    first_s: float = Field(default=0.05, ge=0, description="First wait")
    factor: float = Field(
        default=2.0, ge=1, description="Each wait is the one before it times this"
    )
    delta_s: float = Field(default=0.0, ge=0, description="… plus this")
    max_s: float = Field(default=10.0, gt=0, description="Longest wait")
    jitter: float = Field(default=0.2, ge=0, le=1, description="Share of each wait that is random")
