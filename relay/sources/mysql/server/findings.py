"""Reports facts and warnings about a server and its tables at start. Pure.

Problems that prevent capture are in `server/checks.py`; the warnings here are about
limits that a user may not expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from databus.relay.sources.keys import key_warnings
from databus.relay.sources.mysql.server.checks import (
    LogFilters,
    Replication,
    logs_replicated_changes,
)
from databus.relay.sources.mysql.server.log_retention import keeping_of
from databus.relay.sources.source import Findings
from databus.schemas.table import UNKNOWN_CHARACTER, Table

_HOUR_S = 3600.0
# Engine → which of its changes are not in this server's log.
_ENGINES: Mapping[str, str] = {
    "MEMORY": "is emptied when the server restarts, and the log says so, as a TRUNCATE, only when "
    "the table is used again",
    "MRG_MYISAM": "shows rows of other tables: changes made in those are logged as theirs",
    **dict.fromkeys(
        ("FEDERATED", "CONNECT", "SPIDER"),
        "has its rows elsewhere: changes that are made there are not in this server's log",
    ),
}


class ServerFacts(NamedTuple):
    """The facts that a server reports at start; `engines` by source name, in capitals."""

    variables: Mapping[str, str]
    filters: LogFilters
    replication: Replication
    engines: Mapping[str, str]


def findings_of(
    facts: ServerFacts,
    tables: Sequence[Table],
    begin: str,
    warning_hours: float,
    more: Iterable[str] = (),
) -> Findings:
    """Return the facts and warnings about a server that is read from `begin` on, and `more`."""
    warnings = (*_warnings(facts, tables, warning_hours), *more)
    return Findings(_summary(facts, tables, begin), warnings)


def _summary(facts: ServerFacts, tables: Sequence[Table], begin: str) -> str:
    variables = facts.variables
    version = variables.get("version", "unknown")
    kind = "MariaDB" if "mariadb" in version.lower() else "MySQL"
    compressed = [
        name
        for name in ("log_bin_compress", "binlog_transaction_compression")
        if variables.get(name, "OFF").upper() == "ON"
    ]
    parts = [
        f"{kind} {version}, server id {variables.get('server_id', '0')}",
        f"binlog_format {variables.get('binlog_format', 'unknown')}",
        f"row image {variables.get('binlog_row_image', 'FULL')}",
        f"row metadata {variables.get('binlog_row_metadata', 'none')}",
        f"checksum {variables.get('binlog_checksum', 'NONE')}",
        *(f"{name} ON" for name in compressed),
        *([f"gtid_mode {variables['gtid_mode']}"] if "gtid_mode" in variables else []),
        f"log kept {keeping_of(variables).text}",
        f"replication {facts.replication.value}",
        f"{len(tables)} tables from {begin}",
    ]
    # No server tells which sessions have set it.
    return ", ".join(parts) + "; changes of sessions with sql_log_bin = 0 cannot be seen"


def _warnings(facts: ServerFacts, tables: Sequence[Table], warning_hours: float) -> list[str]:
    found = [*key_warnings(tables)]
    if facts.variables.get("binlog_row_metadata", "").upper() != "FULL":
        found += [
            f"{table.source}: information_schema shows members of column {column.name!r} with a "
            "?, which may stand for another character, and logged rows of the table stop capture: "
            "SET GLOBAL binlog_row_metadata = FULL before they are written"
            for table in tables
            for column in table.columns
            if UNKNOWN_CHARACTER in column.sql_type
        ]
    found += [
        f"{source} has ENGINE = {engine}: it {_ENGINES[engine]}"
        for source, engine in facts.engines.items()
        if engine in _ENGINES
    ]
    if facts.filters.only or facts.filters.ignored:
        found.append(
            "the server's log is filtered (binlog_do_db, binlog_ignore_db): an ALTER TABLE of a "
            "watched table that is run in a database that is left out is not in the log"
        )
    found += _replication_warnings(facts)
    expiry_s = keeping_of(facts.variables).expiry_s
    if expiry_s and expiry_s < warning_hours * _HOUR_S:
        found.append(
            f"the server keeps its log for {expiry_s / _HOUR_S:.4g} h only: capture cannot "
            "continue after a longer downtime; SET GLOBAL binlog_expire_logs_seconds"
        )
    return found


def _replication_warnings(facts: ServerFacts) -> list[str]:
    if logs_replicated_changes(facts.variables):
        return []
    if facts.replication is Replication.SET_UP:
        return [
            "the server is set up as a replica, which is not running, with log_slave_updates OFF: "
            "once it runs, what it gets is not in its log"
        ]
    # MariaDB: not empty if the server has ever received changes by replication.
    if facts.replication is Replication.UNKNOWN and facts.variables.get("gtid_slave_pos"):
        return [
            "the server is or was a replica, with log_slave_updates OFF, and the account may not "
            "see which: changes that come by replication would not be in its log; GRANT REPLICA "
            "MONITOR ON *.* to the account"
        ]
    return []
