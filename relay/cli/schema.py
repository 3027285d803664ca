"""`databus schema generate` and `repair`: what a table's columns are, and were.

To generate is to look at the table's columns and at nothing else: no trigger
is installed, no log is read. The commands are in the `schema` group, and live
here because only `relay/sources` knows how to look into a database.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from databus.conf.loading import build_settings, load_settings
from databus.conf.settings import PhysicalSourceSettings, RelaySettings
from databus.daemon.files import take_lock
from databus.relay.sources.kind import RepairRequest, read_columns, repair_history
from databus.schemas.errors import UnknownSourceError
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
    # Imported here: making a schema needs no relay, which takes long to load.
    from databus.relay.relay import LOCK_FILE

    settings = load_settings(config, RelaySettings)
    physical_source = _physical_source(source, config, None, None)
    text = create_table.read() if create_table is not None else None
    folder = settings.data_dir
    let_go = take_lock(folder / LOCK_FILE, f"a relay is using {folder}: stop it first")
    try:
        repaired = repair_history(physical_source, folder, RepairRequest(source, scn, text))
    finally:
        let_go()
    shown = ", ".join(f"{column.name} {column.sql_type}" for column in repaired.table.columns)
    click.echo(f"{source} is, from scn {scn} on: {shown}")
    if repaired.doubt:
        click.echo(repaired.doubt)


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
