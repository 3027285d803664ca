"""Settings of a physical source: its database, its sources, and how its log is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from databus.conf.addresses import has_password
from databus.conf.column_settings import (
    ColumnSettings,
    check_columns,
    check_masks,
    columns_of,
)
from databus.conf.model import Settings, SizeBytes, SourceStart
from databus.conf.patterns import NamePatterns, escaped, is_pattern, unescaped
from databus.conf.source_names import NamedTable, SourceNames, pattern_problems, source_problems

RELAY_SCHEMES = ("databus+http", "databus+https")


class SourceSettings(Settings):
    """One table stream of a physical source."""

    name: str = Field(
        description="Source name, e.g. `shop.orders` or `com.example.shop.Orders`; stock Databus 2 "
        "clients read names of one part, or of three and more"
    )
    table: str | None = Field(
        default=None,
        description="Table that it is captured from; without it, the name is the table's",
    )
    id: int | None = Field(
        default=None,
        ge=1,
        le=32767,
        description="src_id; without it, assigned in the order of the list",
    )


class RelayLogSettings(Settings):
    """The relay log of a physical source: hours or days of its windows in files, behind its ring.

    A consumer whose position is no longer in the ring is served from it, change by change.
    """

    dir: Path | None = Field(
        default=None, description="Folder of the log; without it, `NAME.relay-log` in `data_dir`"
    )
    segment_bytes: SizeBytes = Field(
        default=256 << 20, ge=64 << 10, description="Size at which a new segment begins"
    )
    segment_s: float = Field(
        default=3600.0, gt=0, description="Age at which a new segment begins, with its next window"
    )
    retention_bytes: SizeBytes = Field(
        default=10 << 30, ge=1 << 20, description="Most bytes on disk; the oldest segments go first"
    )
    retention_hours: float = Field(
        default=72.0, gt=0, description="Segments that ended longer ago are deleted"
    )
    hold: tuple[str, ...] = Field(
        default=(),
        description="Names of clients: what they have not read is not deleted, whatever its age",
    )
    hold_bytes: SizeBytes = Field(
        default=50 << 30,
        ge=1 << 20,
        description="Most bytes on disk with `hold`; then the oldest segments go, read or not",
    )
    sync_ms: float = Field(
        default=50.0,
        gt=0,
        le=60_000,
        description="Time between two syncs to disk, unless the ring is full before",
    )
    compression: Literal["zstd", "none"] = Field(
        default="zstd", description="`zstd`, or `none` to save CPU time"
    )
    archive: str | None = Field(
        default=None,
        description="Where sealed segments are copied to, and read from once they are deleted "
        "here: `file:///…`, `s3://bucket/…`, `gs://…`, `abfs://…` or `hdfs://…`",
    )
    archive_after_s: float = Field(
        default=0.0, ge=0, description="Time from the end of a segment until it is archived"
    )
    archive_retention_bytes: SizeBytes | None = Field(
        default=None, description="Most bytes of a ring's logs in the archive; none = no limit"
    )
    archive_retention_hours: float | None = Field(
        default=None,
        gt=0,
        description="Archived segments that ended longer ago are deleted; none = never",
    )
    archive_cache_bytes: SizeBytes = Field(
        default=2 << 30,
        ge=64 << 20,
        description="Most bytes on disk of archived segments that are being read; room for a few",
    )


class PhysicalSourceSettings(Settings):
    """One database whose change log is read.

    `uri` is `sqlite:/path/shop.db`, `mysql://user@host:3306`, `generator:?rate=100`, or another
    relay, `databus+http://relay-a:11115`. It never contains a password: `password_file` or
    `password_env` names the file or variable with it.
    """

    # The settings file, named in advice about manual steps.
    _file: Path | None = PrivateAttr(None)
    # The tables that the patterns of `sources` have found, named as they are.
    _found: tuple[str, ...] = PrivateAttr(())

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$", description="Name of the physical source")
    uri: str = Field(
        description="Where the change log is read from. MySQL: or a list of servers that replicate "
        "each other, or of relays; the first is read, and the next when it is gone"
    )
    # The others of a list.
    standby_uris: SkipJsonSchema[tuple[str, ...]] = ()
    switch_after_s: float = Field(
        default=30.0,
        ge=0,
        description="With several servers in `uri`: how long one is gone before the next is tried. "
        "With `capture_lease_s`: how long all are gone before another relay is let",
    )
    epoch_peers: tuple[str, ...] = Field(
        default=(),
        description="MySQL: URLs of all other relays that capture this source by this name, e.g. "
        "`http://relay-b:11115`; they agree on its epochs, so that SCNs are equal after a switch",
    )
    epoch_peers_token_file: Path | None = Field(
        default=None, description="File with a reader's token for them, first line"
    )
    epoch_peers_tls_ca: Path | None = Field(
        default=None, description="CA file for those at `https://`; without it, the system's"
    )
    capture_lease_s: float | None = Field(
        default=None,
        ge=2,
        le=600,
        description="Of the relays with one `coordinator` that have this setting, one captures the "
        "source, under a lease of so many seconds, and the others read from it; when it is gone, "
        "another one captures within twice that time; none = this relay captures in any case",
    )
    upstream_token_file: Path | None = Field(
        default=None,
        description="databus+http, and with `capture_lease_s`: file with a reader's token for the "
        "other relays, first line",
    )
    upstream_tls_ca: Path | None = Field(
        default=None,
        description="databus+https, and with `capture_lease_s`: CA file for the other relays; "
        "without it, the system's",
    )
    upstream_compression: Literal["zstd", "none"] = Field(
        default="none",
        description="databus+http: `zstd` has the relays in `uri` compress what they send: fewer "
        "bytes, more CPU time; for another room",
    )
    sources: tuple[SourceSettings | str, ...] = Field(
        description="Tables to capture: names, patterns such as `shop.*` and `!shop.tmp_*`, or "
        "TOML tables with `name`, `table` and `id`",
        min_length=1,
    )
    columns: tuple[ColumnSettings, ...] = Field(
        default=(),
        description="Columns of tables that are not captured, and masks in place of values",
    )
    mask_key_file: Path | None = Field(
        default=None,
        description="File with the key of `hash` masks, first line, which others may not read; "
        "`openssl rand -base64 32` makes one",
    )
    start: SourceStart = Field(
        default="latest",
        description="Where a first start begins: `latest`, `earliest`, an SCN, `time:…`, `gtid:…`, "
        "`gtid-set:…` or `binlog:FILE:OFFSET`",
    )
    ring_bytes: SizeBytes = Field(
        default=64 << 20, ge=64 << 10, description="Size of the ring's data"
    )
    log: RelayLogSettings | None = Field(
        default=None, description="The relay log behind the ring; none = no log"
    )
    catch_ups: int = Field(
        default=1,
        ge=0,
        le=16,
        description="MySQL: most second readings of the source's log at once, for consumers whose "
        "position is in neither ring nor relay log; 0 = none",
    )
    catch_up_bytes: SizeBytes = Field(
        default=10 << 30, ge=1 << 20, description="Most bytes on disk of one such catch-up"
    )
    catch_up_idle_s: float = Field(
        default=300.0, gt=0, description="Time without a request after which a catch-up is dropped"
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
        description="SCNs at which capture stopped (such as a row that does not fit its column), "
        "and may now continue without those changes; the error names the number",
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
    on_statement: Literal["stop", "deliver"] = Field(
        default="stop",
        description="MySQL: what to do about an INSERT, UPDATE or DELETE of a session that has set "
        "`binlog_format` so that its rows are not logged: `stop`, or `deliver` the statement",
    )
    purge_warning_hours: float = Field(
        default=24.0,
        ge=0,
        description="MySQL: warn if the server may purge the log that is yet to be read within "
        "this time (or within half of its retention time, if that is less)",
    )
    coalesce_ms: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Time for which capture rests after a few rows, so that transactions that "
        "follow one another closely are read and sent together: less CPU time, more latency; "
        "0 = never",
    )
    poll_interval_s: float = Field(
        default=0.001, gt=0, le=10, description="Time between two polls of an SQLite change log"
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

    @model_validator(mode="before")
    @classmethod
    def _several_servers(cls, values: Any) -> Any:
        """Take a list of servers apart."""
        uris = values.get("uri") if isinstance(values, dict) else None
        if not isinstance(uris, list | tuple):
            return values
        if not uris:
            raise ValueError("uri: the list is empty")
        kinds = {"relay" if _is_relay(str(uri)) else _scheme(str(uri)) for uri in uris}
        if len(uris) > 1 and kinds not in ({"mysql"}, {"relay"}):
            raise ValueError(
                "uri: a list can only have servers of mysql:, or relays of databus+http: and "
                f"databus+https:, not {uris[-1]!r} beside {uris[0]!r}"
            )
        if len(set(uris)) < len(uris):
            raise ValueError("uri: the list has a server twice")
        return {**values, "uri": uris[0], "standby_uris": tuple(uris[1:])}

    @field_validator("uri", "standby_uris")
    @classmethod
    def _without_password(cls, uris: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if any(map(has_password, (uris,) if isinstance(uris, str) else uris)):
            raise ValueError(
                "it has a password in it: put that into a file or an environment variable, and "
                "name it as password_file or password_env (of another relay: a token, in "
                "upstream_token_file)"
            )
        return uris

    @property
    def uris(self) -> tuple[str, ...]:
        """All its servers; `uri` is the first."""
        return (self.uri, *self.standby_uris)

    def at(self, uri: str) -> PhysicalSourceSettings:
        """Return the settings for one of its servers."""
        return self.model_copy(update={"uri": uri, "standby_uris": ()})

    @field_validator("tls_cert", "tls_key")
    @classmethod
    def _with_an_authority(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        # Otherwise the missing TLS would go unnoticed.
        if path is not None and info.data.get("tls_ca") is None:
            raise ValueError("tls_cert and tls_key need tls_ca, which puts TLS on")
        return path

    @field_validator("password_env")
    @classmethod
    def _one_password(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name and info.data.get("password_file"):
            raise ValueError("give password_file or password_env, not both")
        return name

    @field_validator("reconnect_max_s")
    @classmethod
    def _not_below_the_first(cls, longest_s: float, info: ValidationInfo) -> float:
        if longest_s < info.data.get("reconnect_min_s", 0.0):
            raise ValueError("the longest wait is less than reconnect_min_s, the first")
        return longest_s

    @field_validator("epoch_peers")
    @classmethod
    def _urls_of_peers(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if urls and _scheme(str(info.data.get("uri", ""))) != "mysql":
            raise ValueError("epoch_peers: only sources of mysql: have epochs")
        for url in urls:
            if not re.fullmatch(r"https?://[^/@\s]+(/\S*)?", url):
                raise ValueError(f"epoch_peers: {url!r} is not a URL like http://relay-b:11115")
        return tuple(dict.fromkeys(url.rstrip("/") for url in urls))

    @field_validator("capture_lease_s")
    @classmethod
    def _by_lease(cls, ttl_s: float | None, info: ValidationInfo) -> float | None:
        if ttl_s is not None and _is_relay(str(info.data.get("uri", ""))):
            raise ValueError("capture_lease_s: it is read from relays; give it to those")
        if ttl_s is not None and info.data.get("epoch_peers"):
            raise ValueError(
                "capture_lease_s: one relay captures, so none has to agree with others on epochs; "
                "take `epoch_peers` out"
            )
        return ttl_s

    @field_validator("sources")
    @classmethod
    def _names_and_tables(
        cls, sources: tuple[SourceSettings | str, ...], info: ValidationInfo
    ) -> tuple[SourceSettings | str, ...]:
        uri = str(info.data.get("uri", ""))
        scheme = _scheme(uri)
        listed = [_named(source) for source in sources if not _is_pattern(source)]
        own = [s.name for s in listed if s.is_given]
        if _is_relay(uri) and own:
            raise ValueError(
                f"source {own[0]}: a relay's sources have their names there; write no `table`"
            )
        for problem in source_problems(listed, scheme):
            raise ValueError(problem)
        for problem in pattern_problems([s for s in sources if _is_pattern(s)], listed, scheme):
            raise ValueError(problem)
        return sources

    @model_validator(mode="after")
    def _columns_of_sources(self) -> PhysicalSourceSettings:
        if self.columns and self.is_relay:
            raise ValueError("columns: its rows come from a relay; give that relay the setting")
        check_columns(self.columns, self.named_tables, self.patterns)
        check_masks(self.columns, self.mask_key_file, self.on_statement)
        return self

    @field_validator("capture_lease_s")
    @classmethod
    def _lease_without_patterns(cls, ttl_s: float | None, info: ValidationInfo) -> float | None:
        # The relays that stand by know only the tables that they list.
        if ttl_s is not None and any(map(_is_pattern, info.data.get("sources", ()))):
            raise ValueError("capture_lease_s: with patterns in `sources` it cannot be; list them")
        return ttl_s

    @property
    def scheme(self) -> str:
        """The scheme of its URI."""
        return _scheme(self.uri)

    @property
    def is_relay(self) -> bool:
        """Whether it is read from another relay."""
        return _is_relay(self.uri)

    @property
    def named_tables(self) -> list[NamedTable]:
        """The names and tables of its sources, in the order of the file."""
        listed = [_named(source) for source in self.sources if not _is_pattern(source)]
        known = {one.name for one in listed}
        found = (name for name in self._found if name not in known)
        return [*listed, *(NamedTable(name, name, is_given=False) for name in found)]

    @property
    def patterns(self) -> NamePatterns:
        """The patterns of its sources."""
        return NamePatterns(str(source) for source in self.sources if _is_pattern(source))

    @property
    def found(self) -> tuple[str, ...]:
        """The tables that the patterns have found."""
        return self._found

    def with_found(self, tables: Iterable[str]) -> PhysicalSourceSettings:
        """Return the settings with these tables found by the patterns."""
        copy = self.model_copy()
        copy._found = tuple(tables)
        return copy

    @property
    def source_names(self) -> list[str]:
        """The names of its sources, in the order of the file."""
        return [source.name for source in self.named_tables]

    def with_source(self, name: str) -> PhysicalSourceSettings | None:
        """Return the settings with a source in them, which a pattern may match; None if not."""
        if name in self.source_names:
            return self
        return self.with_found((*self.found, name)) if self.patterns.match(name) else None

    @property
    def names(self) -> SourceNames:
        """The translation between its sources' names and tables."""
        return SourceNames(self.named_tables)

    def protects(self, table: str) -> bool:
        """Return whether a table, by its name in the database, has protected columns."""
        return any(entry.concerns(table) for entry in self.columns)

    def by_table(self) -> PhysicalSourceSettings:
        """Return the settings with tables for sources, which is what source kinds know."""
        tables = [escaped(s.table) for s in self.named_tables if s.name not in self._found]
        patterns = [source for source in self.sources if _is_pattern(source)]
        return self.model_copy(update={"sources": (*tables, *patterns)})

    def only(self, names: Collection[str]) -> PhysicalSourceSettings:
        """Return the settings with only these sources."""
        listed = [source for source in self.sources if not _is_pattern(source)]
        chosen = [source for source in listed if _named(source).name in names]
        found = [name for name in self._found if name in names]
        tables = [one.table for one in self.named_tables if one.name in names]
        columns = columns_of(self.columns, tables)
        update = {"sources": (*chosen, *map(escaped, found)), "columns": columns}
        return self.with_found(found).model_copy(update=update)

    @field_validator("uri")
    @classmethod
    def _sqlite_from_the_file(cls, uri: str, info: ValidationInfo) -> str:
        scheme, _, rest = uri.partition(":")
        if scheme != "sqlite" or rest.startswith(("/", "?")) or not rest or not info.context:
            return uri
        return f"sqlite:{quote(str(info.context['folder']))}/{rest}"


def _named(source: SourceSettings | str) -> NamedTable:
    if isinstance(source, str):
        name = unescaped(source)
        return NamedTable(name, name, is_given=False)
    if source.table is None:
        return NamedTable(source.name, source.name, is_given=False)
    return NamedTable(source.name, source.table)


def _is_pattern(source: SourceSettings | str) -> bool:
    return isinstance(source, str) and is_pattern(source)


def _is_relay(uri: str) -> bool:
    return _scheme(uri) in RELAY_SCHEMES


def _scheme(uri: str) -> str:
    return uri.partition(":")[0]
