"""`databus schema`: show the schemas of a relay, and check new ones before they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from databus.cli.main import CommandAt, LazyGroup
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.registry.compatibility import check_reader
from databus.registry.registry import SchemaRegistry
from databus.registry.store import FileStore, SchemaStore, StoredVersion, open_store
from databus.schemas.avro_meta import field_meta
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.errors import SchemaError, SchemaNotFoundError, UnknownSourceError

# These commands read a database, so they are in the relay, which this package must not
# import: their names are resolved when the commands are used.
LAZY = {
    "generate": CommandAt(
        "databus.relay.cli.schema:generate", "Print the current schema of a database's table."
    ),
    "repair": CommandAt(
        "databus.relay.cli.schema:repair", "Tell a relay what a table was from an SCN on."
    ),
}

_CONFIG = click.option(
    "-c",
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings of the relay that has the schemas.",
)
_FOLDER = click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read a folder of hand-made schemas instead.",
)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=LazyGroup, lazy=LAZY)
def schema() -> None:
    """List, show, check and make schemas.

    Example: `databus schema list -c relay.toml`
    """


@schema.command("list")
@_CONFIG
@_FOLDER
def list_schemas(config: Path | None, folder: Path | None) -> None:
    """List every version of every source.

    Example: `databus schema list -c relay.toml`
    """
    store = _open_store(config, folder)
    ids = store.load_sources()
    versions = store.load_versions()
    table = Table("source", "src_id", "version", "from SCN", "fields", "schema id")
    for version in versions:
        table.add_row(
            version.source,
            str(ids.get(version.source, "-")),
            str(version.version),
            str(version.start_scn),
            str(len(json.loads(version.text)["fields"])),
            schema_id(version.text).hex(),
        )
    _console().print(table if versions else "no schemas yet")


@schema.command()
@click.argument("source")
@click.option(
    "--version",
    "number",
    type=click.IntRange(min=1),
    help="Show this version instead of the newest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the exact text of the schema.")
@_CONFIG
@_FOLDER
def show(
    source: str, number: int | None, as_json: bool, config: Path | None, folder: Path | None
) -> None:
    """Show one schema of SOURCE: its fields, or with --json its text.

    Example: `databus schema show shop.orders --version 2 -c relay.toml`
    """
    version = _pick(_history(_open_store(config, folder), source), number)
    if as_json:
        click.echo(version.text)
        return
    table = Table(
        "field", "Avro type", "column", "SQL type", "key", title=_title(version), title_style=""
    )
    for field in json.loads(version.text)["fields"]:
        meta = field_meta(field)
        key = meta.get("key")
        table.add_row(
            field["name"],
            _type_text(field["type"]),
            str(meta.get("column", "")),
            str(meta.get("sqlType", "")),
            "" if key is None else str(key + 1),
        )
    _console().print(table)


@schema.command()
@click.argument("reader", type=_FILE)
@click.option("--against", type=_FILE, help="Can READER read rows of this schema file?")
@click.option("--source", help="Can READER read every version of this source?")
@_CONFIG
@_FOLDER
def check(
    reader: Path,
    against: Path | None,
    source: str | None,
    config: Path | None,
    folder: Path | None,
) -> None:
    """Check whether the schema in file READER can read rows written with other schemas.

    Uses Avro's resolution rules; the answer names the field. Exits with 1 when it cannot.

    Example: `databus schema check mine.avsc --source shop.orders -c relay.toml`
    """
    if (against is None) == (source is None):
        raise click.UsageError("give either --against FILE or --source NAME")
    text = _read(reader)
    row_codec(text)
    if against is not None:
        check_reader(against.name, _read(against), text)
        click.echo(f"{reader} reads what {against} wrote")
        return
    history = _history(_open_store(config, folder), source or "")
    for version in history:
        check_reader(f"{version.source} version {version.version}", version.text, text)
    click.echo(f"{reader} reads all {len(history)} versions of {source}")


def _open_store(config: Path | None, folder: Path | None) -> SchemaStore:
    if (config is None) == (folder is None):
        raise click.UsageError("give either --config RELAY.toml or --dir FOLDER")
    if folder is not None:
        return FileStore(folder)
    assert config is not None
    settings = load_settings(config, RelaySettings)
    if not settings.data_dir.is_dir():
        raise SchemaError(f"{settings.data_dir} does not exist: has this relay ever run?")
    store = open_store(settings.data_dir, settings.schema_dir)
    SchemaRegistry(store)  # raises when a history is broken
    return store


def _history(store: SchemaStore, source: str) -> list[StoredVersion]:
    versions = store.load_versions()
    found = [version for version in versions if version.source == source]
    if not found:
        raise UnknownSourceError(source, sorted({version.source for version in versions}))
    return found


def _pick(history: list[StoredVersion], number: int | None) -> StoredVersion:
    if number is None:
        return history[-1]
    for version in history:
        if version.version == number:
            return version
    raise SchemaNotFoundError(f"{history[0].source} has versions 1 to {history[-1].version}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}: {error}") from error


def _title(version: StoredVersion) -> str:
    return f"{version.source} version {version.version}, from SCN {version.start_scn}"


def _type_text(avro_type: Any) -> str:
    """Return an Avro type as short text: `null or decimal(10,2)`."""
    if isinstance(avro_type, list):
        return " or ".join(_type_text(branch) for branch in avro_type)
    if not isinstance(avro_type, dict):
        return str(avro_type)
    logical = avro_type.get("logicalType")
    if logical == "decimal":
        return f"decimal({avro_type['precision']},{avro_type.get('scale', 0)})"
    return str(logical or avro_type.get("name") or avro_type["type"])


def _console() -> Console:
    # Ids and names must not be cut when the output is piped.
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=200)
