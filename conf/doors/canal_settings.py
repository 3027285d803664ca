"""Settings of the front door for clients of Canal."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from databus.conf.addresses import EVERYWHERE, is_loopback
from databus.conf.model import Settings, SizeBytes, known_zone
from databus.conf.source_names import doubles

_ADDRESS = re.compile(r"[^\s:/]+:\d{1,5}")


class CanalDestinationSettings(Settings):
    """A destination, as clients of Canal name it: the changes of one or several databases."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$", description="Name of the destination"
    )
    physical_sources: tuple[str, ...] = Field(
        min_length=1,
        description="The physical sources whose changes it has; several are merged by commit time",
    )
    filter: str = Field(
        default="",
        description="Tables for clients that subscribe without a filter: regular expressions of "
        "`schema.table`, with commas between them; empty = all",
    )
    black_filter: str = Field(
        default="", description="Tables that no client gets, whatever its filter; empty = none"
    )
    start: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="Where a new client begins: with the oldest change held, or with the next one",
    )

    @field_validator("physical_sources")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if doubled := doubles(names):
            raise ValueError(f"{', '.join(doubled)}: a physical source is named twice")
        return names


class CanalSettings(Settings):
    """The front door for clients of Canal; a relay without this table has none.

    An address that others reach needs a password, of which the relay has a hash only, or
    `open_to_all`.
    """

    host: str = Field(
        default="127.0.0.1", description="Address to bind; loopback unless you say otherwise"
    )
    port: int = Field(default=11111, ge=0, le=65535, description="Port to bind; 0 picks a free one")
    public_address: str = Field(
        default="",
        validate_default=True,
        description="HOST:PORT as clients reach it, for ZooKeeper; empty = `host` and `port`",
    )
    user: str = Field(default="", description="Name of the user; empty = any name is right")
    password_hash_file: Path | None = Field(
        default=None,
        description="File with the hash of the password, 40 hexadecimal digits, as in Canal's "
        "`canal.passwd`; only its user may read it",
    )
    password_hash_env: str | None = Field(
        default=None, description="Environment variable with that hash"
    )
    plain_passwords: bool = Field(
        default=False, description="Take the password in clear text, too: canal-python sends it so"
    )
    open_to_all: bool = Field(
        default=False,
        validate_default=True,
        description="Bind an address that other machines reach, without a password",
    )
    destinations: tuple[CanalDestinationSettings, ...] = Field(
        min_length=1, description="What clients subscribe to"
    )
    batch_mode: Literal["memsize", "itemsize"] = Field(
        default="memsize",
        description="What the batch size of a client counts: KiB of the binlog, or entries",
    )
    max_batch_bytes: SizeBytes = Field(
        default=16 << 20, ge=64 << 10, description="Largest batch, whatever a client asks for"
    )
    time_zone: str = Field(
        default="UTC", description="Time zone of TIMESTAMPs in their text, such as Europe/Berlin"
    )
    merge_wait_ms: int = Field(
        default=1000,
        ge=0,
        le=60_000,
        description="How long a physical source without changes holds back the others of its "
        "destination, whose order is that of commits",
    )
    ddl_isolation: bool = Field(default=False, description="A DDL is alone in its batch")
    max_wait_s: float = Field(
        default=30.0,
        gt=0,
        le=55.0,
        description="Longest wait of a request for changes; Java's client gives up after 60 s",
    )
    max_connections: int = Field(default=200, ge=1, description="Most connections served at once")
    idle_connection_s: float = Field(
        default=3600.0,
        gt=0,
        description="Time without a request after which a connection is closed",
    )
    zookeeper: bool = Field(
        default=False,
        description="Several relays serve the destinations, one at a time, and Canal's cluster "
        "clients find it: cursors are kept in ZooKeeper, at the relay's `coordinator`",
    )

    @property
    def has_password(self) -> bool:
        """Whether clients need a password."""
        return self.password_hash_file is not None or self.password_hash_env is not None

    @field_validator("public_address")
    @classmethod
    def _is_address(cls, address: str) -> str:
        if address and not _ADDRESS.fullmatch(address):
            raise ValueError("give HOST:PORT; clients of Canal know no IPv6 addresses")
        return address

    @field_validator("time_zone")
    @classmethod
    def _is_zone(cls, name: str) -> str:
        return known_zone(name)

    @field_validator("password_hash_env")
    @classmethod
    def _one_password(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("password_hash_file"):
            raise ValueError("give password_hash_file or password_hash_env, not both")
        return name

    @field_validator("open_to_all")
    @classmethod
    def _closed_unless_said(cls, is_open: bool, info: ValidationInfo) -> bool:
        host = info.data.get("host", "")
        has_password = any(info.data.get(f"password_hash_{kind}") for kind in ("file", "env"))
        if is_open or has_password or is_loopback(host):
            return is_open
        raise ValueError(
            f"others reach the address {host!r}, and could read every row: give the hash of a "
            "password (password_hash_file), or set open_to_all = true where something else keeps "
            "others out"
        )

    @field_validator("destinations")
    @classmethod
    def _each_name_once(
        cls, destinations: tuple[CanalDestinationSettings, ...]
    ) -> tuple[CanalDestinationSettings, ...]:
        if doubled := doubles(one.name for one in destinations):
            raise ValueError(f"{', '.join(doubled)}: a destination is named twice")
        return destinations

    @field_validator("zookeeper")
    @classmethod
    def _can_be_found(cls, is_wanted: bool, info: ValidationInfo) -> bool:
        host, address = info.data.get("host", ""), info.data.get("public_address")
        if is_wanted and not address and (host in EVERYWHERE or ":" in host):
            raise ValueError(
                f"clients cannot find it at canal.host = {host!r}: give canal.public_address, such "
                'as "relay-a.example.com:11111"'
            )
        return is_wanted

    def check(self, physical_sources: Collection[str], coordinator: str) -> None:
        """Raise ValueError if it contradicts the rest of the relay's settings."""
        for one in self.destinations:
            unknown = [name for name in one.physical_sources if name not in physical_sources]
            if unknown:
                raise ValueError(
                    f"destination {one.name}: no physical source is called {unknown[0]}"
                )
        if self.zookeeper and not coordinator.startswith("zookeeper://"):
            raise ValueError("canal.zookeeper needs `coordinator` = zookeeper://HOST:PORT,…")
