"""What must be so on the server before a byte of its log is read. Pure.

Each problem names the variable or the table, and the statement that cures it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

# Variable → value wanted, and how to get it. One that a server does not have
# is one that it needs not have: each version of each server has its own.
_WANTED: Mapping[str, tuple[str, str]] = {
    "log_bin": ("ON", "start the server with --log-bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW', and in sessions that are open"),
    "binlog_row_image": ("FULL", "SET GLOBAL binlog_row_image = 'FULL', and in open sessions"),
}
VARIABLES = (*_WANTED, "binlog_checksum", "server_id", "lower_case_table_names", "version")

_NOT_TABLES = {
    "VIEW": "is a view; name the tables behind it",
    "SYSTEM VIEW": "is a view of the server",
    "SEQUENCE": "is a sequence",
    "SYSTEM VERSIONED": "is system-versioned: its deletes are logged as updates of row_end, "
    "which is not supported; ALTER TABLE … DROP SYSTEM VERSIONING",
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


def variable_problems(variables: Mapping[str, str]) -> list[str]:
    """Say which variables are not as they must be."""
    problems = []
    for name, (wanted, cure) in _WANTED.items():
        value = variables.get(name)
        if value is not None and value.upper() not in (wanted, "1" if wanted == "ON" else wanted):
            problems.append(f"{name} is {value}, and must be {wanted}: {cure}")
    return problems


def table_problems(sources: Collection[str], kinds: Mapping[str, str]) -> list[str]:
    """Say which of the sources cannot be captured, given information_schema's TABLE_TYPE."""
    problems = []
    for source in sources:
        kind = kinds.get(source)
        if kind is None:
            problems.append(
                f"table {source} does not exist, or the account may not see it: {GRANT_HINT}"
            )
        elif kind in _NOT_TABLES:
            problems.append(f"{source} {_NOT_TABLES[kind]}")
    return problems


def cascade_problems(cascades: Iterable[Cascade]) -> list[str]:
    """Say which foreign keys change watched rows behind the log's back."""
    return [
        f"foreign key {c.constraint} of {c.source} is ON {c.rule}: rows that it changes are not "
        "in the log of this server; make it RESTRICT, or set allow_cascades = true to capture the "
        "table without those changes"
        for c in cascades
    ]


def replica_id_problem(server_id: int, own_server_id: int) -> str:
    """Say when the relay would use the server's own id; empty when not."""
    if server_id != own_server_id:
        return ""
    return f"server_id {server_id} is the server's own; set another server_id for this source"
