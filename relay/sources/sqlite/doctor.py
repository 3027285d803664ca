"""What `databus doctor` asks an SQLite file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.faults import as_sqlite_errors
from databus.doctor.checks import Check, check_matched, error, errors
from databus.relay.sources.kind import CheckRequest
from databus.relay.sources.sqlite.catalog import table_names, table_of
from databus.relay.sources.sqlite.matched_tables import MatchedTables
from databus.relay.sources.uri import parse_uri


def check_file(request: CheckRequest) -> list[Check]:
    """Check that the file may be read, and written by a relay, and has the sources' tables."""
    subject, path = request.subject, Path(parse_uri(request.settings.uri).path)
    if not path.exists():
        return [error(subject, f"{path} does not exist; make it, or correct uri")]
    if not os.access(path, os.R_OK):
        return [error(subject, f"{path} may not be read by this user")]
    if request.reads_log and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        text = f"{path} and its folder must be writable by this user: a relay puts triggers into it"
        return [error(subject, text)]
    return _check_tables(subject, path, request.settings)


def _check_tables(subject: str, path: Path, settings: PhysicalSourceSettings) -> list[Check]:
    sources, matched = settings.source_names, MatchedTables(settings.patterns)
    try:
        connection = sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True)
        with as_sqlite_errors(), closing(connection) as database:
            tables = {name.lower() for name in table_names(database)}
            listed = [table_of(name) for name in sources]
            found, warnings = matched.look(database, listed) if settings.patterns else ([], ())
    except sqlite3.Error as problem:
        return [error(subject, f"{path}: {problem}; is it an SQLite database?")]
    missing = [name for name in sources if table_of(name).lower() not in tables]
    problems = [
        f"{path} has no table for source {name}; make it, or leave it out" for name in missing
    ]
    well = f"{path} has the tables of all {len(sources)} sources" if sources else ""
    return [*errors(subject, problems, well), *check_matched(subject, found, warnings)]
