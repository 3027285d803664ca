"""Read a job file: a `.sql` file whose first comments name the servers and the target.

    -- target: delta:lake/open_orders
    -- relays: http://127.0.0.1:11115
    -- bootstrap_servers: http://127.0.0.1:11116
    -- checkpoint: lake/jobs/open_orders

    SELECT id, customer, total FROM shop.orders WHERE status = 'open'

A comment before the SELECT is a setting if it begins with a lower-case word and a
colon. Other comments are ignored. `relays.NAME` and `bootstrap_servers.NAME` are the
servers of one physical source, whose tables the SELECT names as NAME.shop.orders.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from databus.client.spark.sql.query import Query, parse_query
from databus.client.spark.sql.source_text import SqlText
from databus.conf.loading import build_settings
from databus.conf.settings import Settings
from databus.schemas.errors import SettingsError

_SETTING = re.compile(r"--\s*([a-z][\w]*(?:\.[\w-]+)?)\s*:\s*(.*?)\s*$")
_OF_ONE = ("relays", "bootstrap_servers")


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


Urls = Annotated[tuple[str, ...], BeforeValidator(_split)]


class JobSettings(Settings):
    """What the comments of a job file may set."""

    reads_texts = True

    target: str = Field(
        description="Where the rows go: `delta:PATH`, `iceberg:CATALOG.NAMESPACE.TABLE` or "
        "`SQLALCHEMY-URL#TABLE`",
        min_length=1,
    )
    relays: Urls = Field(default=(), description="Relay URLs, separated by commas")
    bootstrap_servers: Urls = Field(default=(), description="Bootstrap server URLs")
    checkpoint: Path = Field(
        description="The job's own folder, with its position, and for a JOIN its join state"
    )
    trigger_seconds: float = Field(
        default=1.0, ge=0, description="Least time between two micro-batches"
    )
    max_rows_per_trigger: int = Field(default=200_000, ge=1, description="Rows of a micro-batch")


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers from which a physical source is read."""

    relays: tuple[str, ...]
    bootstrap_servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SqlJob:
    """A parsed job file. `servers`: those of the physical sources that have their own."""

    name: str
    settings: JobSettings
    servers: Mapping[str, Servers]
    query: Query

    def servers_of(self, physical_source: str) -> Servers:
        """Return the servers of a physical source: its own, or else the job's."""
        common = Servers(self.settings.relays, self.settings.bootstrap_servers)
        return self.servers.get(physical_source, common)


def read_job(file: Path) -> SqlJob:
    """Return the job of a file; raises SettingsError that names the problem and the line."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: cannot be read: {error}") from error
    return parse_job(text, str(file))


def parse_job(text: str, name: str = "job.sql") -> SqlJob:
    """Return the job of a file's text; raises SettingsError as `read_job` does."""
    given = _settings_of(text, name)
    # `relays.NAME` and the like are settings of one physical source.
    own = {key: given.pop(key) for key in list(given) if "." in key}
    settings = build_settings(given, JobSettings, f"{name}: comments before the SELECT")
    query = parse_query(SqlText(name, text))
    job = SqlJob(name, settings, _servers(own, settings, name), query)
    _check_servers(job)
    return job


def _settings_of(text: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        # Settings stand above the SELECT; comments within it are SQL.
        if line.strip() and not line.startswith("--"):
            break
        match = _SETTING.match(line)
        if match is None:
            continue
        key, value = match.groups()
        if key in found:
            raise SettingsError(f"{name}, line {number}: {key} is given twice")
        found[key] = value
    _check_known(found, name)
    return found


def _check_known(found: Mapping[str, Any], name: str) -> None:
    known = list(JobSettings.model_fields)
    for key in found:
        setting, _, one = key.partition(".")
        if setting not in (_OF_ONE if one else known):
            more = ", ".join(f"{each}.NAME" for each in _OF_ONE)
            raise SettingsError(
                f"{name}: the comment `-- {key}: …` names no setting; the settings are "
                f"{', '.join(known)} and {more} (a comment for the reader begins with a capital "
                "letter, or has no colon after its first word)"
            )


def _servers(own: Mapping[str, Any], settings: JobSettings, name: str) -> dict[str, Servers]:
    found: dict[str, Servers] = {}
    for physical in dict.fromkeys(key.partition(".")[2] for key in own):
        relays = _split(own.get(f"relays.{physical}", settings.relays))
        servers = _split(own.get(f"bootstrap_servers.{physical}", settings.bootstrap_servers))
        if not relays:
            raise SettingsError(f"{name}: relays.{physical} is missing")
        found[physical] = Servers(relays, servers)
    return found


def _check_servers(job: SqlJob) -> None:
    named = {relation.physical_source for relation in job.query.relations}
    unused = sorted({*job.servers} - named)
    if unused:
        raise SettingsError(
            f"{job.name}: relays.{unused[0]}: the SELECT reads nothing of {unused[0]}; write "
            f"its tables as {unused[0]}.shop.orders"
        )
    for relation in job.query.relations:
        if not job.servers_of(relation.physical_source).relays:
            raise job.query.text.refusal(
                relation.at,
                f"no relay is given for {relation.label}: write `-- relays: URL` above the SELECT",
            )
    _check_told_apart(job)


def _check_told_apart(job: SqlJob) -> None:
    bare = {one.source for one in job.query.relations if not one.physical_source}
    for relation in job.query.relations:
        if relation.physical_source and relation.source in bare:
            raise job.query.text.refusal(
                relation.at,
                f"{relation.source} is named with and without a physical source: always write the "
                "physical source, as NAME.shop.orders",
            )
