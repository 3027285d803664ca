"""Queries the facts at start that `server/findings.py` and `server/checks.py` judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.binlog.gtid_set import purged_problem
from databus.relay.sources.mysql.binlog.packets import FATAL, SAME_ID, StreamEnded
from databus.relay.sources.mysql.rows.layout import Dialect
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.checks import LogFilters, Replication
from databus.relay.sources.mysql.server.findings import ServerFacts
from databus.relay.sources.mysql.server.start_position import Start, reach_of
from databus.relay.sources.mysql.tables.names import split_name
from databus.schemas.errors import SourceError

_ENGINE = """
SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_THREADS = ("Slave_IO_Running", "Slave_SQL_Running", "Replica_IO_Running", "Replica_SQL_Running")


def read_facts(
    catalog: ServerCatalog, variables: Mapping[str, str], sources: Sequence[str]
) -> ServerFacts:
    """Query all facts once; raises SourceError."""
    with catalog.session():
        status, replicas = catalog.log_status(), catalog.replica_status()
        engines = {source: catalog.ask(_ENGINE, split_name(source)) for source in sources}
    return ServerFacts(
        variables,
        _filters(status),
        _replication(replicas),
        {source: str(rows[0][0]).upper() for source, rows in engines.items() if rows},
    )


def is_mariadb_of(variables: Mapping[str, str]) -> bool:
    """Return whether a server's variables are those of MariaDB, not of MySQL."""
    return "mariadb" in variables.get("version", "").lower()


def dialect_of(
    catalog: ServerCatalog, settings: PhysicalSourceSettings, *, is_mariadb: bool
) -> Dialect:
    """Return a server's dialect, with what the settings say of dates and partial rows."""
    dialect = catalog.dialect(
        is_mariadb=is_mariadb, zero_dates_are_null=settings.zero_dates == "null"
    )
    return replace(dialect, delivers_partial_rows=settings.partial_rows == "deliver")


def gtid_start_problem(catalog: ServerCatalog, start: Start, is_mariadb: bool) -> str:
    """Return why a dump cannot begin after a GTID set; empty if it can, or on MariaDB."""
    if not start.gtids or is_mariadb:
        return ""
    rows = catalog.ask("SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_purged, @@GLOBAL.gtid_executed")
    mode, purged, executed = (str(value) for value in rows[0])
    if mode.upper() == "OFF":
        return f"start = {start}, and gtid_mode of the server is OFF: use an SCN"
    return purged_problem(start.gtids, purged, executed)


def with_log_ends(ended: StreamEnded, start: Start, catalog: ServerCatalog) -> StreamEnded:
    """Add the requested and the available log to the error that ended a stream.

    `start` is where the stream began.
    """
    if ended.code not in FATAL or SAME_ID in ended.text:
        return ended
    try:
        reach = reach_of(catalog.log_files())
    except (SourceError, ValueError):
        return ended  # what ended the stream is what matters
    asked = f"asked for the server's log from {start} on, {reach}"
    return StreamEnded(ended.code, f"{ended.text} ({asked})")


def _filters(status: Mapping[str, Any]) -> LogFilters:
    def names(column: str) -> frozenset[str]:
        return frozenset(filter(None, str(status.get(column) or "").split(",")))

    return LogFilters(names("Binlog_Do_DB"), names("Binlog_Ignore_DB"))


def _replication(rows: Sequence[Mapping[str, Any]] | None) -> Replication:
    if rows is None:
        return Replication.UNKNOWN
    if any(row.get(thread) not in (None, "No") for row in rows for thread in _THREADS):
        return Replication.RUNNING
    return Replication.SET_UP if rows else Replication.NONE
