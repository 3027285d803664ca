"""Parse the options of `format("databus")`. Spark passes texts, and ignores the case of names.

An error names the option and the rule; for an unknown option it lists the known ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from databus.client.responses import mark_of
from databus.conf.loading import build_settings
from databus.conf.named_places import NamedPlace, Word, parse_place
from databus.conf.patterns import NamePatterns, is_pattern
from databus.conf.server_settings import check_server_urls
from databus.conf.settings import ServerAccessSettings, Settings
from databus.daemon.credentials import ServerAccess
from databus.schemas.errors import DatabusError, SettingsError
from databus.schemas.filters import EventFilter, parse_filters

TOKEN_FILE_VARIABLE = "DATABUS_TOKEN_FILE"
TLS_CA_VARIABLE = "DATABUS_TLS_CA"


class Mode(StrEnum):
    """The kinds of rows that `spark.read` can read."""

    TABLE = "table"  # a table as of an SCN, from a bootstrap server
    CHANGES = "changes"  # the changes between two SCNs
    DATABASE = "database"  # a table, from its own database


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _parse_start(value: Any) -> NamedPlace:
    try:
        return parse_place(value)
    except SettingsError as error:
        raise ValueError(str(error)) from None


def _parse_mark(value: Any) -> tuple[int, int] | None:
    return None if value is None else mark_of(str(value))


def _parse_filters(value: Any) -> dict[str, EventFilter]:
    """Return filters by source; the JSON is that of the protocol, with names instead of ids."""
    if isinstance(value, dict):
        return value
    try:
        by_source = json.loads(value)
        names = list(by_source)
        found = parse_filters(json.dumps({i + 1: by_source[name] for i, name in enumerate(names)}))
    except (ValueError, TypeError, DatabusError) as error:
        raise ValueError(f"must be a JSON map from source to filter: {error}") from None
    return {names[number - 1]: one for number, one in found.items()}


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Urls = Annotated[Names, AfterValidator(check_server_urls)]


class SourceOptions(Settings):
    """The options of `format("databus")`."""

    reads_texts = True

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, arbitrary_types_allowed=True
    )

    sources: Names = Field(
        description="Sources to read, separated by commas; for changes also patterns (`shop.*`, "
        "`!shop.tmp_*`), which take in tables that come later",
        min_length=1,
    )
    relays: Urls = Field(default=(), description="Relay URLs, separated by commas")
    bootstrap_servers: Urls = Field(default=(), description="Bootstrap server URLs")
    start: Annotated[NamedPlace, BeforeValidator(_parse_start)] = Field(
        default=Word.BEGINNING,
        description="Where a stream without a checkpoint begins: `beginning` (the whole table, "
        "then its changes), `earliest`, `latest`, an SCN, `time:…`, `gtid:…` or `binlog:…`",
    )
    start_mark: Annotated[tuple[int, int] | None, BeforeValidator(_parse_mark)] = Field(
        default=None,
        description="With an SCN as `start`: a window with rows of the sources, `<SCN>,<timestamp "
        "in ns>`, that the log had; a server with another log is refused. `databus spark sync` "
        "gives the one that is in its target",
    )
    new_sources: Literal["beginning", "here"] | None = Field(
        default=None,
        description="Sources that a stream takes in later, by a pattern or a longer list: all "
        "their rows and then their changes (`beginning`), or their changes from the query's place "
        "on (`here`). Default: `beginning` with start = beginning and bootstrap servers",
    )
    filters: Annotated[dict[str, Any], BeforeValidator(_parse_filters)] = Field(
        default={},
        description="JSON map from source to a MOD or RANGE filter of its keys, as in the protocol",
    )
    layout: Literal["columns", "structs", "events"] | None = Field(
        default=None,
        description="`columns`: the table's columns at top level; `structs`: one struct per "
        "source; `events`: rows as the servers send them, in column `event`, for "
        "`split_by_source`. Default: `events` with patterns, `columns` if all sources have the "
        "same columns, else `structs`",
    )
    before_images: bool = Field(default=True, description="Include `_databus.before`")
    columns_as_text: Names = Field(
        default=(), description="Columns to read as text, whatever their types are"
    )
    on_new_column: Literal["fail", "ignore"] = Field(
        default="fail",
        description="When a column is added while the query runs: `fail` ends the query, and its "
        "restart adds the column; `ignore` leaves the column out",
    )
    on_stopped_source: Literal["fail", "warn"] = Field(
        default="fail",
        description="When a query reads up to the newest change (`availableNow`, `changes` without "
        "`until`) and the relay is not capturing the source (starting, in error, unreachable, "
        "paused): read what the relay has, then end with an error (`fail`) or a warning (`warn`)",
    )
    stopped_source_seconds: float | None = Field(
        default=None,
        ge=0,
        description="A query that goes on for ever, and has read what the relay has, ends with an "
        "error when the relay has not captured the source for so many seconds; default: it waits",
    )
    max_rows_per_trigger: int = Field(
        default=200_000,
        ge=1,
        description="Most rows of a micro-batch; a larger transaction is still read whole",
    )
    max_bytes_per_trigger: int = Field(
        default=256 << 20, ge=1, description="Most bytes of events in a micro-batch"
    )
    shards: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="Most tasks that share a micro-batch; a small one is read by one task",
    )
    batch_rows: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Most rows of an Arrow batch"
    )
    fetch_bytes: int = Field(default=4 << 20, ge=4096, description="Bytes of one response")
    retry_seconds: float = Field(
        default=60.0, ge=0, description="How long to retry while no server answers"
    )
    mode: Mode = Field(
        default=Mode.CHANGES,
        description="What to read: `changes`, or with `spark.read` also a `table` as of an SCN "
        "from a bootstrap server, or a table from its `database`",
    )
    as_of: int | None = Field(default=None, ge=0, description="`table`: the SCN; default: newest")
    after: int | None = Field(
        default=None, ge=0, description="`changes`: read changes after this SCN"
    )
    until: int | None = Field(
        default=None,
        ge=0,
        description="`changes`: read changes up to and including this SCN; default: newest",
    )
    archive: str | None = Field(
        default=None,
        description="`changes` with `spark.read`: the URI of the archive of relay logs; tasks read "
        "what is archived from there, and the relays, if any, are asked for the rest",
    )
    columns: Names = Field(default=(), description="`table`, `database`: read only these columns")
    where: str = Field(
        default="",
        description="`table`, `database`: read only rows that fulfil this condition; its moments "
        "have a zone (`'2026-03-10 07:00:00Z'`), as that of the session is not known",
    )
    scn: bool = Field(
        default=False, description="`table`: add the row's SCN as last column, `_databus_scn`"
    )
    partitions: int | None = Field(
        default=None, ge=1, le=4096, description="`table`, `database`: number of reading tasks"
    )
    token_file: Path | None = Field(
        default=None,
        description="File whose first line is the token for relays and bootstrap servers; on the "
        "driver and on each worker, readable only by their user",
    )
    token_env: str | None = Field(
        default=None,
        description="Environment variable with that token, on the driver and on each worker",
    )
    tls_ca: Path | None = Field(
        default=None, description="CA certificates (PEM) for servers at `https://`"
    )
    settings: Path | None = Field(
        default=None,
        description="`database`: a relay's settings file with the database's URI and password",
    )

    @property
    def reads_new_whole(self) -> bool:
        """Whether all rows of a source that is taken in later are read."""
        if self.new_sources is None:
            return self.start is Word.BEGINNING and bool(self.bootstrap_servers)
        return self.new_sources == "beginning"

    @property
    def keeps_events(self) -> bool:
        """Whether rows stay whole events."""
        if self.layout is None:
            return any(map(is_pattern, self.sources))
        return self.layout == "events"

    @property
    def access(self) -> ServerAccess:
        """The credentials for servers."""
        shown = {"token_file": self.token_file, "token_env": self.token_env, "tls_ca": self.tls_ca}
        return ServerAccess(ServerAccessSettings.model_validate(shown))


_OF_LOADS = frozenset(
    ("tokenfile", "tokenenv", "tlsca", "retryseconds", "fetchbytes", "batchrows", "columnsastext")
)


# The options that say which rows and columns come, and the modes that have them. Another mode would
# take them and do nothing.
_OF_MODES = {
    "asOf": (Mode.TABLE,),
    "scn": (Mode.TABLE,),
    "columns": (Mode.TABLE, Mode.DATABASE),
    "where": (Mode.TABLE, Mode.DATABASE),
    "partitions": (Mode.TABLE, Mode.DATABASE),
    "after": (Mode.CHANGES,),
    "until": (Mode.CHANGES,),
    "archive": (Mode.CHANGES,),
    "settings": (Mode.DATABASE,),
}

_INSTEAD = "; use select and where of the DataFrame"


def option_names() -> list[str]:
    """Return the documented names of all options."""
    return [to_camel(name) for name in SourceOptions.model_fields]


def parse_options(
    options: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> SourceOptions:
    """Return validated options; raises SettingsError.

    `load("shop.orders")` sets the option `path`, which names the sources. Token file
    and CA default to the environment variables DATABUS_TOKEN_FILE and DATABUS_TLS_CA,
    for the jobs of `databus spark`; `environ` replaces the process's environment.
    """
    by_lower = {name.lower(): name for name in option_names()}
    # The case of names does not count, as everywhere in Spark.
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
    _check_mode(parsed.mode, values)
    match = NamePatterns(parsed.sources).match
    strange = [source for source in parsed.filters if not match(source)]
    if strange:
        raise SettingsError(f"option filters: {', '.join(strange)} is not in option sources")
    if parsed.new_sources == "beginning":
        need_bootstrap(parsed)
    if parsed.token_file and parsed.token_env:
        raise SettingsError("give option tokenFile or tokenEnv, not both")
    return parsed


def _check_mode(mode: Mode, given: Mapping[str, str]) -> None:
    """Raise SettingsError for an option that only other modes have."""
    for name, modes in _OF_MODES.items():
        if name in given and mode not in modes:
            advice = _INSTEAD if name in ("columns", "where") else ""
            raise SettingsError(
                f"option {name} is only for mode = {' and '.join(modes)}, and this is mode = "
                f"{mode}{advice}"
            )


def _access_of(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return token file and CA from the environment, unless the options give them."""
    found = {}
    if environ.get(TOKEN_FILE_VARIABLE) and not given.keys() & {"tokenFile", "tokenEnv"}:
        found["tokenFile"] = environ[TOKEN_FILE_VARIABLE]
    if environ.get(TLS_CA_VARIABLE):
        found["tlsCa"] = environ[TLS_CA_VARIABLE]
    return found


def options_of_load(options: Mapping[str, str], source: str) -> dict[str, str]:
    """Return those options of a stream that a load of one of its tables takes, too.

    Raises SettingsError if the stream reads only some rows of it: a load has no such filter.
    """
    if source in parse_options(options).filters:
        raise SettingsError(
            f"{source}: its rows cannot be read again by the job, as option filters takes only "
            "some of them: empty the target, and start with another checkpoint folder"
        )
    return {name: text for name, text in options.items() if name.lower() in _OF_LOADS}


def need_relays(options: SourceOptions) -> None:
    """Raise SettingsError if no relay is given."""
    if not options.relays:
        raise SettingsError("option relays is missing: the URLs of relays, separated by commas")


def need_bootstrap(options: SourceOptions) -> None:
    """Raise SettingsError if no bootstrap server is given."""
    if not options.bootstrap_servers:
        raise SettingsError(
            "option bootstrapServers is missing: the URLs of bootstrap servers, separated by commas"
        )
