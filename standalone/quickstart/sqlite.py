"""What is in an SQLite file, for `databus quickstart`. Only reads."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from databus.daemon.faults import as_sqlite_errors
from databus.relay.sources.keys import key_note
from databus.relay.sources.sqlite.catalog import read_table, table_from_json, table_names
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SettingsError
from databus.standalone.quickstart.found import Found, FoundTable, Needs

_VIEWS = "SELECT name FROM main.sqlite_master WHERE type = 'view' ORDER BY name"


def look_at_file(uri: str, folder: Path) -> Found:
    """Return what is in the file of a URI, a path in or from `folder`; raises SettingsError."""
    path = folder / parse_uri(uri).path
    if not path.is_file():
        raise SettingsError(f"{path} does not exist: make the database first, or correct the URI")
    word = re.sub(r"[^A-Za-z0-9_]", "_", path.stem)
    try:
        connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)
        with as_sqlite_errors(), closing(connection) as database:
            tables = tuple(_tables(database, word))
    except sqlite3.Error as problem:
        raise SettingsError(f"{path}: {problem}; is it an SQLite database?") from problem
    installs = (
        f"{path.name} goes to WAL mode, and stays there",
        "tables _databus_…, above all the change log _databus_log",
        "triggers of each captured table, which write its changes into that log",
        f"a file {path.name}-databus beside it: back up and move the two together",
    )
    return Found(word, uri, uri, tables, Needs(installs=installs))


def _tables(database: sqlite3.Connection, word: str) -> list[FoundTable]:
    found = [_table(database, word, name) for name in table_names(database)]
    views = [name for (name,) in database.execute(_VIEWS)]
    return found + [
        FoundTable(f"{word}.{name}", f"{name} is a view; the tables behind it are captured")
        for name in views
    ]


def _table(database: sqlite3.Connection, word: str, name: str) -> FoundTable:
    source = f"{word}.{name}"
    try:
        table = read_table(database, name)
    except ValueError as problem:
        return FoundTable(source, str(problem))
    if table is None:
        return FoundTable(source, f"{name} was dropped just now")
    return FoundTable(source, note=key_note(table_from_json(source, table.columns_json())))
