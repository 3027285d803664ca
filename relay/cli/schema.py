"""`databus schema generate` and `repair`: the columns of a table, now and in the past.

`generate` only reads the table's columns: it installs no triggers and reads no log. Both
commands are in the `schema` group, but live here because only `relay/sources` can read
databases.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from databus.conf.loading import build_settings, load_settings
from databus.conf.patterns import escaped
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
@click.option("--uri", help="URI of the database instead: sqlite:FILE or mysql://USER@HOST:PORT.")
@click.option("--password-env", help="Environment variable with the password, with --uri.")
@click.option(
    "--out",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Write OUT/SOURCE.VERSION.avsc with the next free version, instead of printing.",
)
def generate(
    source: str, config: Path | None, uri: str | None, password_env: str | None, out: Path | None
) -> None:
    """Generate the schema of the table behind SOURCE from its current columns.

    SOURCE is DATABASE.TABLE; for an SQLite file you can choose the part before
    the dot. With --config it is the name of a source, or its table.

    Example: `databus schema generate shop.orders --uri sqlite:shop.db`
    """
    physical_source = _physical_source(source, config, uri, password_env)
    table = read_columns(physical_source, source)
    text = avro_schema(table)
    if out is None:
        click.echo(text)
        return
    path = _next_file(out, table.source)
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
    help="First SCN of the definition; the relay's error names it.",
)
@click.option(
    "--create-table",
    type=click.File("r", encoding="utf-8"),
    help="File with a CREATE TABLE statement, `-` for stdin. Default: the "
    "database's definition, if the table was not altered since.",
)
def repair(source: str, config: Path, scn: int, create_table: IO[str] | None) -> None:
    """Set the definition of the table behind SOURCE from an SCN on.

    For a MySQL or MariaDB source that stopped at a statement it cannot parse,
    or at rows that do not match the definition it has.

    Example: `databus schema repair shop.orders --scn 4294968030 -c relay.toml`
    """
    # Imported here: `generate` needs no relay, whose modules load slowly.
    from databus.relay.relay import LOCK_FILE

    settings = load_settings(config, RelaySettings)
    physical_source = _physical_source(source, config, None, None)
    text = create_table.read() if create_table is not None else None
    folder = settings.data_dir
    name = physical_source.name
    in_use = (
        f"a relay is using {folder}: use `databus source repair {name} {source} --scn {scn}`, or "
        "stop it first"
    )
    let_go = take_lock(folder / LOCK_FILE, in_use)
    try:
        repaired = repair_history(physical_source, folder, RepairRequest(source, scn, text))
    finally:
        let_go()
    shown = ", ".join(f"{column.name} {column.sql_type}" for column in repaired.table.columns)
    click.echo(f"{source}, from scn {scn} on: {shown}")
    if repaired.doubt:
        click.echo(repaired.doubt)


def _physical_source(
    source: str, config: Path | None, uri: str | None, password_env: str | None
) -> PhysicalSourceSettings:
    if (config is None) == (uri is None):
        raise click.UsageError("give either --config RELAY.toml or --uri URI")
    if config is None:
        raw = {
            "name": "generate",
            "uri": uri,
            "sources": [escaped(source)],
            "password_env": password_env,
        }
        return build_settings(raw, PhysicalSourceSettings, origin="--uri")
    known: list[str] = []
    for physical_source in load_settings(config, RelaySettings).physical_sources:
        names = physical_source.source_names
        # Also by table: that is what the error of a source names.
        if source in (one.table for one in physical_source.named_tables):
            return physical_source
        if (having := physical_source.with_source(source)) is not None:
            return having
        known += names
    raise UnknownSourceError(source, known)


def _next_file(folder: Path, source: str) -> Path:
    version = 1
    while (path := folder / f"{source}.{version}.avsc").exists():
        version += 1
    return path
