"""SQLite files as a kind of source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.faults import as_sqlite_errors
from databus.relay.sources.kind import SourceKind
from databus.relay.sources.sqlite.catalog import (
    read_table,
    table_from_json,
    table_names,
    table_of,
)
from databus.relay.sources.sqlite.doctor import check_file
from databus.relay.sources.sqlite.source import SqliteSource
from databus.relay.sources.sqlite.table_scan import SqliteTableScan
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SchemaError, SourceUnavailableError, UnknownSourceError
from databus.schemas.table import Table


def _open(settings: PhysicalSourceSettings, data_dir: Path | None) -> SqliteSource:  # noqa: ARG001
    # What it must remember lies beside the database: every relay of the file uses it.
    return SqliteSource(settings)


def _read_columns(settings: PhysicalSourceSettings, source: str) -> Table:
    path = Path(parse_uri(settings.uri).path)
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


KIND = SourceKind(
    open=_open,
    check=check_file,
    read_columns=_read_columns,
    scan=SqliteTableScan,
    digest="databus.client.spark.verify.sqlite_table:SqliteTable",
)
