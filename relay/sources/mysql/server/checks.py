"""Checks that a server must pass before its log is read. Pure.

Each problem names the variable or the table, and the statement that fixes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from databus.relay.sources.mysql.server.log_retention import KEEPING_VARIABLES

# Variable → required value, and how to set it. A variable that a server does not have is
# not checked: the variables differ between servers and versions.
_WANTED: Mapping[str, tuple[str, str]] = {
    "log_bin": ("ON", "start the server with --log-bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW', and in sessions that are open"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = 'FULL', and in open sessions"),
}
VARIABLES = (
    *_WANTED,
    *KEEPING_VARIABLES,
    "binlog_checksum",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_transaction_compression",
    "gtid_mode",
    "gtid_slave_pos",
    "log_bin_compress",
    "log_replica_updates",
    "log_slave_updates",
    "lower_case_table_names",
    "server_id",
    "server_uuid",
    "version",
    "explicit_defaults_for_timestamp",
    "old_mode",
)

VERSIONED = "SYSTEM VERSIONED"  # as the server says it
VERSIONED_BY_TRANSACTION = "SYSTEM VERSIONED BY TRANSACTION"  # as it does not
_NOT_TABLES = {
    "VIEW": "is a view; name the tables behind it",
    "SYSTEM VIEW": "is a view of the server",
    "SEQUENCE": "is a sequence",
    VERSIONED_BY_TRANSACTION: "is system-versioned by transaction, and so its changes are logged "
    "as statements; ALTER TABLE … DROP SYSTEM VERSIONING, or version it by TIMESTAMP(6)",
}
GRANT_HINT = (
    "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO the account, and SELECT on each "
    "watched table"
)


class Cascade(NamedTuple):
    """A foreign key that changes rows of a watched table without logging them."""

    source: str
    constraint: str
    rule: str


class Replication(Enum):
    """Whether a server replicates from another one."""

    NONE = "none"
    SET_UP = "set up, and not running"
    RUNNING = "running"
    UNKNOWN = "not known"  # the account may not ask


class LogFilters(NamedTuple):
    """The databases that a server's options include in its log or exclude from it."""

    only: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()


def variable_problems(variables: Mapping[str, str], *, any_row_image: bool = False) -> list[str]:
    """Return the problems of variables; with `any_row_image`, rows may lack columns."""
    problems = []
    for name, (wanted, cure) in _WANTED.items():
        value = variables.get(name)
        if any_row_image and name == "binlog_row_image":
            continue
        if value is not None and value.upper() not in (wanted, "1" if wanted == "ON" else wanted):
            problems.append(f"{name} is {value}, and must be {wanted}: {cure}")
    return problems


def table_problems(sources: Collection[str], kinds: Mapping[str, str]) -> list[str]:
    """Return the problems of sources, given information_schema's TABLE_TYPE."""
    problems = []
    for source in sources:
        kind = kinds.get(source)
        if kind is None:
            problems.append(
                f"table {source} does not exist, or the account may not see it: {GRANT_HINT}"
                f"{_taken_for(source)}"
            )
        elif kind in _NOT_TABLES:
            problems.append(f"{source} {_NOT_TABLES[kind]}")
    return problems


def _taken_for(source: str) -> str:
    """Explain how an ambiguous name was read; empty for any other name."""
    database, _, table = source.partition(".")
    if not ("." in table or {'"', "`"} & set(source)):
        return ""
    return (
        f". It is taken for table {table!r} of database {database!r}: names stand without "
        "quotes, and the database is what is before the first dot, so that one with a dot in "
        "its own name cannot be captured"
    )


def cascade_problems(cascades: Iterable[Cascade]) -> list[str]:
    """Return the problems of foreign keys that change watched rows without logging them."""
    return [
        f"foreign key {c.constraint} of {c.source} is ON {c.rule}: rows that it changes are not "
        "in the log of this server; make it RESTRICT, or set allow_cascades = true to capture the "
        "table without those changes"
        for c in cascades
    ]


def replica_id_problem(server_id: int, own_server_id: int) -> str:
    """Return the problem of using the server's own id as replica id; empty if not used."""
    if server_id != own_server_id:
        return ""
    return f"server_id {server_id} is the server's own; set another server_id for this source"


def filter_problems(
    sources: Iterable[str], filters: LogFilters, *, fold_case: bool = False
) -> list[str]:
    """Return the problems of sources in databases that the server does not log."""

    def folded(names: Iterable[str]) -> set[str]:
        return {name.lower() if fold_case else name for name in names}

    only, ignored = folded(filters.only), folded(filters.ignored)
    problems = []
    for source in sources:
        (database,) = folded([source.partition(".")[0]])
        # The server uses its list of ignored databases only if it has no list of logged ones.
        option = "binlog_do_db" if only else "binlog_ignore_db"
        if (database not in only) if only else (database in ignored):
            problems.append(
                f"{source} is not in the log: {option} of the server leaves out its database; "
                "change that option and restart the server"
            )
    return problems


def replication_problem(variables: Mapping[str, str], replication: Replication) -> str:
    """Return the problem of a replica that does not log its primary's changes, or ""."""
    if logs_replicated_changes(variables) or replication is not Replication.RUNNING:
        return ""
    return (
        "the server is a replica with log_slave_updates OFF: changes that come by replication are "
        "not in its log; start it with --log-slave-updates (MySQL: --log-replica-updates), or "
        "capture its primary"
    )


def logs_replicated_changes(variables: Mapping[str, str]) -> bool:
    """Return whether a server logs the changes that it gets by replication."""
    names = ("log_replica_updates", "log_slave_updates")
    return any(variables.get(name, "OFF").upper() in ("ON", "1") for name in names)
