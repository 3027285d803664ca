"""The options of `format("databus")`, as Spark hands them over: texts, names in any case.

What comes out is valid in itself; everything wrong is refused here with the
option's name, the rule, and the options that there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from databus.conf.loading import build_settings
from databus.conf.settings import ServerAccessSettings, Settings
from databus.daemon.credentials import ServerAccess
from databus.schemas.errors import DatabusError, SettingsError
from databus.schemas.filters import EventFilter, parse_filters
from databus.schemas.scn import MAX_SCN

TOKEN_FILE_VARIABLE = "DATABUS_TOKEN_FILE"
TLS_CA_VARIABLE = "DATABUS_TLS_CA"


class Mode(StrEnum):
    """What `spark.read` reads."""

    TABLE = "table"  # as of an SCN, from a bootstrap server
    CHANGES = "changes"  # between two SCNs
    DATABASE = "database"  # the tables themselves


class Named(StrEnum):
    """Where a query begins that has no checkpoint, in words."""

    EARLIEST = "earliest"  # the oldest window that a relay holds
    LATEST = "latest"  # after the newest
    BEGINNING = "beginning"  # the whole table as it is, then its changes


Start = Named | int | datetime  # a word, an SCN, or a time


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _parse_start(value: Any) -> Start:
    text = str(value).strip()
    if text in set(Named):
        return Named(text)
    if text.isascii() and text.isdigit() and int(text) <= MAX_SCN:
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        words = ", ".join(Named)
        raise ValueError(f"is one of {words}, an SCN, or a time as 2026-11-21T10:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _parse_filters(value: Any) -> dict[str, EventFilter]:
    """Return filters by source; their JSON is the wire's, with names in place of ids."""
    if isinstance(value, dict):
        return value
    try:
        by_source = json.loads(value)
        names = list(by_source)
        found = parse_filters(json.dumps({i + 1: by_source[name] for i, name in enumerate(names)}))
    except (ValueError, TypeError, DatabusError) as error:
        raise ValueError(f"is a JSON map from source to filter: {error}") from None
    return {names[number - 1]: one for number, one in found.items()}


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


class SourceOptions(Settings):
    """What `format("databus")` takes."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=True
    )

    sources: Names = Field(description="Sources to read, separated by commas", min_length=1)
    relays: Names = Field(default=(), description="Relay URLs, separated by commas")
    bootstrap_servers: Names = Field(default=(), description="Bootstrap server URLs")
    start: Annotated[Start, BeforeValidator(_parse_start)] = Field(
        default=Named.BEGINNING,
        description="Where a stream without a checkpoint begins: `beginning` (the whole table, "
        "then its changes), `earliest`, `latest`, an SCN, or a time",
    )
    filters: Annotated[dict[str, Any], BeforeValidator(_parse_filters)] = Field(
        default={}, description="JSON: by source, the wire's MOD or RANGE filter of its keys"
    )
    layout: Literal["columns", "structs"] | None = Field(
        default=None,
        description="`columns`: the table's columns at the top; `structs`: one struct a source. "
        "Left out: `columns` when all sources have the same",
    )
    before_images: bool = Field(default=True, description="Whether `_databus.before` is there")
    columns_as_text: Names = Field(
        default=(), description="Columns to deliver as text, whatever their types were"
    )
    on_new_column: Literal["fail", "ignore"] = Field(
        default="fail",
        description="A column that came after the query was started: end the query (its restart "
        "takes the column in), or leave the column out",
    )
    on_stopped_source: Literal["fail", "warn"] = Field(
        default="fail",
        description="Who reads up to the newest (`availableNow`, `changes` without `until`) while "
        "the relay does not capture the source (starting, in error, unreachable, paused): read "
        "what there is and then end with an error, or with a warning",
    )
    max_rows_per_trigger: int = Field(
        default=200_000, ge=1, description="Rows of a micro-batch; a larger transaction comes whole"
    )
    max_bytes_per_trigger: int = Field(
        default=256 << 20, ge=1, description="Bytes of a micro-batch, as events"
    )
    shards: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Tasks that share the rows of a micro-batch; few rows are read by one",
    )
    batch_rows: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Rows of an Arrow batch"
    )
    fetch_bytes: int = Field(default=4 << 20, ge=4096, description="Bytes of one answer")
    retry_seconds: float = Field(
        default=60.0, ge=0, description="How long to try again when no server answers"
    )
    mode: Mode = Field(
        default=Mode.CHANGES,
        description="`changes`; `spark.read` alone: a `table` as of an SCN from a bootstrap "
        "server, or of the `database` itself",
    )
    as_of: int | None = Field(default=None, ge=0, description="`table`: the SCN; none = the newest")
    after: int | None = Field(default=None, ge=0, description="`changes`: those after this SCN")
    until: int | None = Field(
        default=None, ge=0, description="`changes`: up to and with this SCN; none = the newest"
    )
    columns: Names = Field(default=(), description="`table`, `database`: these columns alone")
    where: str = Field(
        default="", description="`table`, `database`: the rows that fulfil this condition"
    )
    scn: bool = Field(
        default=False, description="`table`: the row's SCN as a last column `_databus_scn`"
    )
    partitions: int | None = Field(
        default=None, ge=1, le=4096, description="`table`, `database`: how many tasks read"
    )
    token_file: Path | None = Field(
        default=None,
        description="File with the token for relays and bootstrap servers, first line; on the "
        "driver and on each worker, readable by their user alone",
    )
    token_env: str | None = Field(
        default=None, description="… or the environment variable with it, there too"
    )
    tls_ca: Path | None = Field(
        default=None, description="CA certificates, PEM, that vouch for servers at `https://`"
    )
    settings: Path | None = Field(
        default=None, description="`database`: a relay's settings file, for its URI and passwords"
    )

    @property
    def access(self) -> ServerAccess:
        """What is shown to servers."""
        shown = {"token_file": self.token_file, "token_env": self.token_env, "tls_ca": self.tls_ca}
        return ServerAccess(ServerAccessSettings.model_validate(shown))


def option_names() -> list[str]:
    """Return the options' names as they are documented."""
    return [to_camel(name) for name in SourceOptions.model_fields]


def parse_options(
    options: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> SourceOptions:
    """Return valid options; raises SettingsError that lists the right ones.

    `path` is what `load("shop.orders")` gives: the sources. The token's file and
    the CA that no option names may stand in the environment (the process's when
    `environ` is None), for the jobs of `databus spark`.
    """
    by_lower = {name.lower(): name for name in option_names()}
    given = {key.lower(): value for key, value in options.items()}
    if "path" in given:
        given.setdefault("sources", given.pop("path"))
    unknown = sorted(set(given) - set(by_lower))
    if unknown:
        raise SettingsError(
            f"format databus has no option {', '.join(unknown)}; its options are "
            f"{', '.join(by_lower.values())}"
        )
    values = {by_lower[key]: value for key, value in given.items()}
    values = _access_of(os.environ if environ is None else environ, values) | values
    parsed = build_settings(values, SourceOptions, "options of format databus")
    strange = sorted({*parsed.filters} - {*parsed.sources})
    if strange:
        raise SettingsError(f"filters: {', '.join(strange)} is not among the option sources")
    if parsed.token_file and parsed.token_env:
        raise SettingsError("give option tokenFile or tokenEnv, not both")
    return parsed


def _access_of(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment says of token and CA, where the options say nothing."""
    found = {}
    if environ.get(TOKEN_FILE_VARIABLE) and not given.keys() & {"tokenFile", "tokenEnv"}:
        found["tokenFile"] = environ[TOKEN_FILE_VARIABLE]
    if environ.get(TLS_CA_VARIABLE):
        found["tlsCa"] = environ[TLS_CA_VARIABLE]
    return found


def need_relays(options: SourceOptions) -> None:
    """Raise SettingsError when no relay is given."""
    if not options.relays:
        raise SettingsError("option relays is missing: the URLs of relays, separated by commas")


def need_bootstrap(options: SourceOptions) -> None:
    """Raise SettingsError when no bootstrap server is given."""
    if not options.bootstrap_servers:
        raise SettingsError(
            "option bootstrapServers is missing: the URLs of bootstrap servers, with commas"
        )
