"""What `databus doctor` asks a physical source, whatever kind of database it is."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection
from contextlib import closing
from importlib import import_module
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.faults import as_sqlite_errors
from databus.doctor.checks import Check, error, errors, ok
from databus.doctor.machine import Machine
from databus.relay.sources.sqlite.catalog import table_names, table_of
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SettingsError

# By name: who looks at SQLite files needs no PyMySQL.
_MYSQL = "databus.relay.sources.mysql.doctor"


def check_source(
    settings: PhysicalSourceSettings, machine: Machine, *, reads_log: bool, newest_scn: int | None
) -> list[Check]:
    """Look whether a source can be captured, or with `reads_log` false, its tables read.

    `newest_scn` is where capture goes on, None when it has never begun.
    """
    subject = f"source {settings.name}"
    try:
        uri = parse_uri(settings.uri)
        if uri.scheme == "sqlite":
            return _check_sqlite(subject, Path(uri.path), settings.source_names, reads_log)
        if uri.scheme == "mysql":
            found: list[Check] = import_module(_MYSQL).check_server(
                subject, settings, machine.now_s(), reads_log=reads_log, newest_scn=newest_scn
            )
            return found
        if uri.scheme == "generator":
            return [ok(subject, "makes its rows itself")]
    except SettingsError as problem:
        return [error(subject, str(problem))]
    return [error(subject, f"uri = {settings.uri!r}: no such kind of source")]


def _check_sqlite(
    subject: str, path: Path, sources: Collection[str], reads_log: bool
) -> list[Check]:
    if not path.exists():
        return [error(subject, f"{path} does not exist; make it, or correct uri")]
    if not os.access(path, os.R_OK):
        return [error(subject, f"{path} may not be read by this user")]
    if reads_log and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        text = f"{path} and its folder must be writable by this user: a relay puts triggers into it"
        return [error(subject, text)]
    try:
        connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)
        with as_sqlite_errors(), closing(connection) as database:
            tables = {name.lower() for name in table_names(database)}
    except sqlite3.Error as problem:
        return [error(subject, f"{path}: {problem}; is it an SQLite database?")]
    missing = [name for name in sources if table_of(name).lower() not in tables]
    problems = [
        f"{path} has no table for source {name}; make it, or leave it out" for name in missing
    ]
    return errors(subject, problems, f"{path} has the tables of all {len(sources)} sources")
