"""Settings of a bootstrap pair: as a process of its own, and beside a relay."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from databus.conf.model import Settings, SizeBytes
from databus.conf.server_settings import (
    LOG_FORMAT,
    BackOffSettings,
    HttpSettings,
    ListedServerSettings,
    ServerAccessSettings,
    check_server_urls,
)
from databus.conf.source_settings import PhysicalSourceSettings


class BootstrapHttpSettings(HttpSettings):
    """The address of the bootstrap server, and its limits."""

    port: int = Field(default=11116, ge=0, le=65535, description="Port to bind; 0 picks a free one")


class StoreSettings(Settings):
    """Retention and seeding of the stores of a bootstrap pair."""

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

    packed_bytes: SizeBytes = Field(
        default=4 << 30,
        ge=0,
        description="Most bytes that a store has of rows packed as columns, from which Spark "
        "reads tables faster; 0 = none",
    )


class PairSettings(StoreSettings):
    """The bootstrap pair beside a relay, in its process: `databus run -c databus.toml`.

    All else is the relay's: its physical sources, and address, tokens, TLS and limits of its
    `[http]`.
    """

    data_dir: Path | None = Field(
        default=None,
        description="One store for each physical source lives here; none = `bootstrap` in the "
        "relay's data_dir",
    )
    port: int = Field(default=11116, ge=0, le=65535, description="Port to bind; 0 picks a free one")
    public_url: str = Field(
        default="",
        pattern=r"^(https?://[^\s/]+)?$",
        description="Its URL as clients reach it, for the `coordinator`; empty = host and port",
    )
    relay_tls_ca: Path | None = Field(
        default=None,
        description="With http.tls_cert: CA that verifies it, at the relay's `public_url`, which "
        "the pair reads then; without it, those of the system",
    )


class BootstrapSettings(ListedServerSettings, StoreSettings):
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
    back_off: BackOffSettings = Field(
        default_factory=BackOffSettings, description="Waits between retries"
    )

    @field_validator("relays")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return check_server_urls(urls)

    @field_validator("physical_sources")
    @classmethod
    def _one_store_each(
        cls, sources: tuple[PhysicalSourceSettings, ...]
    ) -> tuple[PhysicalSourceSettings, ...]:
        if patterned := [source.name for source in sources if source.patterns]:
            raise ValueError(
                f"{patterned[0]}: a bootstrap pair keeps the tables that are listed: name them "
                "instead of patterns; `databus run`, with its own pair, takes patterns, too"
            )
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise ValueError("each physical source is listed once")
        return sources
