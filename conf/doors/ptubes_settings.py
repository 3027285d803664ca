"""The settings of what serves Ptubes' stock clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from zoneinfo import ZoneInfo

from pydantic import Field, ValidationInfo, field_validator

from databus.conf.addresses import is_loopback
from databus.conf.model import Settings, SizeBytes, known_zone
from databus.conf.source_names import doubles

_NAME = r"^[^\s,/]+$"


class ReaderTaskSettings(Settings):
    """A reader task: the name by which Ptubes' clients read a physical source."""

    name: str = Field(
        pattern=_NAME, max_length=200, description="The clients' `ptubes.sdk.reader.name`"
    )
    physical_source: str = Field(description="The physical source that it reads")
    tables: tuple[str, ...] = Field(
        default=(),
        description="The tables that clients may read, as `database.table`; none = all of the "
        "physical source",
    )
    key_columns: Mapping[str, tuple[str, ...]] = Field(
        default={},
        description='By table, the columns that say in which partition a row is, as `{"shop.orders"'
        ' = ["customer_id"]}`; others have their primary key',
    )

    def check(self, tables: Mapping[str, Collection[str]]) -> None:
        """Raise ValueError if it reads what is not captured; `tables` are by physical source."""
        known = tables.get(self.physical_source)
        if known is None:
            raise ValueError(
                f"reader task {self.name}: there is no physical source {self.physical_source}; "
                f"there is {', '.join(tables)}"
            )
        for table in (*self.tables, *self.key_columns):
            if table not in known:
                raise ValueError(
                    f"reader task {self.name}: {self.physical_source} does not capture {table}"
                )


class PtubesSettings(Settings):
    """Serve stock clients of Ptubes (ptubes-sdk). Their protocol has no passwords."""

    host: str = Field(
        default="127.0.0.1", description="Address to bind; another one needs `open_to_all`"
    )
    port: int = Field(
        default=28332, ge=0, le=65535, description="Port for clients; 0 picks a free one"
    )
    monitor_port: int | None = Field(
        default=23333,
        ge=0,
        le=65535,
        description="Port of the monitoring endpoints; 0 picks a free one",
    )
    open_to_all: bool = Field(
        default=False,
        validate_default=True,
        description="Bind an address that other machines reach: whoever does reads every table of "
        "the reader tasks",
    )
    reader_tasks: tuple[ReaderTaskSettings, ...] = Field(
        min_length=1, description="What clients may read"
    )
    time_zone: str = Field(
        default="",
        validate_default=True,
        description="Zone of dates and times, as `Asia/Shanghai`: that of the clients; empty = the "
        "machine's",
    )
    heartbeat_s: float = Field(
        default=5.0,
        gt=0,
        description="How often a session's partitions without rows are told how far it is",
    )
    read_bytes: SizeBytes = Field(
        default=1 << 20,
        ge=4096,
        description="Most bytes that a session holds of what its client has not fetched; a larger "
        "row alone",
    )
    max_response_bytes: SizeBytes = Field(
        default=16 << 20, ge=4096, le=90 << 20, description="Largest answer; a larger row alone"
    )
    max_request_bytes: SizeBytes = Field(
        default=8 << 20, ge=1024, description="Largest body of a request"
    )
    max_connections: int = Field(
        default=300, ge=1, le=100_000, description="Most connections served at once"
    )
    idle_connection_s: float = Field(
        default=40.0,
        gt=0,
        description="A connection without traffic for this long is closed; the clients' own time "
        "is 30",
    )
    request_s: float = Field(
        default=10.0, gt=0, description="Time for a request to arrive whole once it has begun"
    )

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        return known_zone(name) if name else name

    @field_validator("reader_tasks")
    @classmethod
    def _each_once(cls, tasks: tuple[ReaderTaskSettings, ...]) -> tuple[ReaderTaskSettings, ...]:
        if doubled := doubles(task.name for task in tasks):
            raise ValueError(f"reader task {doubled[0]} is listed more than once")
        return tasks

    @field_validator("open_to_all")
    @classmethod
    def _closed_unless_said(cls, is_open: bool, info: ValidationInfo) -> bool:
        host = info.data.get("host", "")
        if is_open or is_loopback(host):
            return is_open
        raise ValueError(
            f"others reach the address {host!r}, and Ptubes' protocol has no passwords: whoever "
            "does could read every row; set open_to_all = true where something else keeps others "
            "out"
        )

    def zone(self) -> ZoneInfo | None:
        """Return the zone; None is the machine's."""
        return ZoneInfo(self.time_zone) if self.time_zone else None
