"""`databus schema generate` and `repair`: what a table's columns are, and were.

To generate is to look at the table's columns and at nothing else: no trigger
is installed, no log is read. The commands are in the `schema` group, and live
here because only `relay/sources` knows how to look into a database.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import IO

import click

from databus.conf.loading import build_settings, load_settings
from databus.conf.settings import (
    PhysicalSourceSettings,
    RelaySettings,
)
from databus.daemon.faults import as_sqlite_errors
from databus.daemon.files import take_lock
from databus.relay.sources.sqlite.catalog import (
    read_table,
    table_from_json,
    table_names,
    table_of,
)
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import (
    SchemaError,
    SettingsError,
    SourceUnavailableError,
    UnknownSourceError,
)
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema


@click.command()
@click.argument("source")
@click.option(
    "-c",
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings of a relay that captures SOURCE.",
)
@click.option("--uri", help="The database instead: sqlite:FILE or mysql://USER@HOST:PORT.")
@click.option("--password-env", help="Environment variable with the password, with --uri.")
@click.option(
    "--out",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write OUT/SOURCE.VERSION.avsc, with the next free version, instead of printing.",
)
def generate(
    source: str, config: Path | None, uri: str | None, password_env: str | None, out: Path | None
) -> None:
    """Make the schema of the table behind SOURCE from its columns as they are now.

    SOURCE is DATABASE.TABLE; for an SQLite file, what stands before the dot is
    yours to choose.

    Example: `databus schema generate shop.orders --uri sqlite:shop.db`
    """
    physical_source = _physical_source(source, config, uri, password_env)
    text = avro_schema(read_columns(physical_source, source))
    if out is None:
        click.echo(text)
        return
    path = _next_file(out, source)
    path.write_text(text, encoding="utf-8")
    click.echo(f"wrote {path}")


@click.command()
@click.argument("source")
@click.option(
    "-c",
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="Settings of the relay that captures SOURCE; it must not be running.",
)
@click.option(
    "--scn",
    type=click.IntRange(min=1),
    required=True,
    help="From where on; the relay's error names it.",
)
@click.option(
    "--create-table",
    type=click.File("r", encoding="utf-8"),
    help="File with a CREATE TABLE statement, `-` for stdin; else the database "
    "is asked, unless the table was altered since.",
)
def repair(source: str, config: Path, scn: int, create_table: IO[str] | None) -> None:
    """Tell a relay what the table behind SOURCE was from an SCN on.

    For a MySQL or MariaDB source that stopped because it cannot know: a
    statement that it does not understand, or rows that do not fit.

    Example: `databus schema repair shop.orders --scn 4294968030 -c relay.toml`
    """
    # Imported here: making a schema of an SQLite file must not load PyMySQL.
    from databus.relay.relay import LOCK_FILE
    from databus.relay.sources import history_path
    from databus.relay.sources.mysql.history_repair import repair_history

    settings = load_settings(config, RelaySettings)
    physical_source = _physical_source(source, config, None, None)
    if parse_uri(physical_source.uri).scheme != "mysql":
        raise SettingsError(f"uri = {physical_source.uri!r}: keeps no definitions over time")
    text = create_table.read() if create_table is not None else None
    folder = settings.data_dir
    let_go = take_lock(folder / LOCK_FILE, f"a relay is using {folder}: stop it first")
    try:
        path = history_path(physical_source, folder)
        repaired = repair_history(physical_source, path, source, scn, text)
    finally:
        let_go()
    shown = ", ".join(f"{column.name} {column.sql_type}" for column in repaired.table.columns)
    click.echo(f"{source} is, from scn {scn} on: {shown}")
    if repaired.doubt:
        click.echo(repaired.doubt)


def read_columns(physical_source: PhysicalSourceSettings, source: str) -> Table:
    """Return a source's table as its database has it now.

    Raises UnknownSourceError, SourceUnavailableError, SourceStoppedError, or
    SettingsError for a kind of source that has no tables.
    """
    scheme = parse_uri(physical_source.uri).scheme
    if scheme == "sqlite":
        return _sqlite_table(Path(parse_uri(physical_source.uri).path), source)
    if scheme == "mysql":
        return _mysql_table(physical_source, source)
    raise SettingsError(f"uri = {physical_source.uri!r}: has no tables to make a schema of")


def _sqlite_table(path: Path, source: str) -> Table:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with as_sqlite_errors(), closing(connection) as database:
            found = read_table(database, table_of(source))
            if found is None:
                raise UnknownSourceError(source, table_names(database))
    except sqlite3.Error as error:
        raise SourceUnavailableError(f"{path}: {error}") from error
    except ValueError as error:
        raise SchemaError(f"{path}: {error}") from error
    return table_from_json(source, found.columns_json())


def _mysql_table(physical_source: PhysicalSourceSettings, source: str) -> Table:
    # Imported here: making a schema of an SQLite file must not load PyMySQL.
    from databus.relay.sources.mysql.server.catalog import ServerCatalog
    from databus.relay.sources.mysql.server.connection import address_of
    from databus.relay.sources.mysql.tables.captured_tables import Names

    catalog = ServerCatalog(address_of(physical_source), physical_source, 0)
    catalog.names = Names((source,))
    definition = catalog.definition(source)
    if definition is None:
        raise UnknownSourceError(source, [])
    return definition.table(source)


def _physical_source(
    source: str, config: Path | None, uri: str | None, password_env: str | None
) -> PhysicalSourceSettings:
    if (config is None) == (uri is None):
        raise click.UsageError("give either --config RELAY.toml or --uri URI")
    if config is None:
        raw = {"name": "generate", "uri": uri, "sources": [source], "password_env": password_env}
        return build_settings(raw, PhysicalSourceSettings, origin="--uri")
    known: list[str] = []
    for physical_source in load_settings(config, RelaySettings).physical_sources:
        names = physical_source.source_names
        if source in names:
            return physical_source
        known += names
    raise UnknownSourceError(source, known)


def _next_file(folder: Path, source: str) -> Path:
    version = 1
    while (path := folder / f"{source}.{version}.avsc").exists():
        version += 1
    return path
