"""Checksum rows in MySQL and MariaDB: `INSERT … SELECT` under InnoDB's next-key locks.

Why a checksum holds at the place of its row in the binlog. The statement reads the chunk
with shared next-key locks, at isolation level REPEATABLE READ: on the rows, and on the gaps
between them. A locking read sees the newest committed rows, not a snapshot. For a
transaction W that changes a row of the chunk, or inserts one, or deletes one:

- W had its lock before this statement came to the row. Then the statement did not get its
  own lock before W was committed. A server writes a transaction to the binlog before it
  commits it in InnoDB and lets go of its locks. So W is in the binlog before this statement
  reads the row, and so before the checksum; and the statement has read what W wrote.
- W asks for its lock after this statement came to the row. Then it waits until the
  statement's transaction lets go of its locks, after that was written to the binlog. So W
  is in the binlog after the checksum, and the statement has not read what W wrote.

At READ COMMITTED, `INSERT … SELECT` reads a snapshot without locks, or with the lock clause
locks rows but no gaps: W may commit between the read and the row's place in the binlog.
The order of commits in InnoDB (`binlog_order_commits`) does not matter, only the locks.
A cluster that orders transactions without locks of other servers (Galera, Group Replication
with several primaries) breaks the second half, so it is refused.

The statement is a transaction of its own, so that no lock waits for this process. It
does not wait for locks while it holds some (NOWAIT): it fails at once, and is tried again.
So it is never part of a deadlock. A chunk that always has a locked row is waited for in
the end, a second at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from databus.client.spark.verify.checksums.checksum_table import (
    CREATE,
    ChecksumPlace,
    ChecksumTable,
    ChunkQuery,
    Written,
)
from databus.relay.sources.mysql.server.connection import driver_errors
from databus.relay.sources.mysql.tables.ddl_tokens import quote
from databus.relay.sources.mysql.tables.names import split_name
from databus.schemas.errors import SettingsError, SourceError, SourceUnavailableError

_LEVEL = "REPEATABLE-READ"
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SET SESSION innodb_lock_wait_timeout = 1",
    # An ALTER of the table is waited for, but not for a day.
    "SET SESSION lock_wait_timeout = 60",
)
_VARIABLES = (
    "SHOW VARIABLES WHERE variable_name IN ('tx_isolation', 'transaction_isolation', "
    "'sql_log_bin', 'innodb_locks_unsafe_for_binlog', 'wsrep_on', 'group_replication_group_name', "
    "'group_replication_single_primary_mode')"
)
_ENGINE = (
    "SELECT engine FROM information_schema.tables WHERE table_schema = '{}' AND table_name = '{}'"
)
# Lock wait timeout, deadlock, "record has changed since last read", NOWAIT.
_LOCKED = frozenset({1205, 1213, 1020, 3572})
_NO_RIGHT = frozenset({1142, 1143, 1044})
_AT_ONCE_TRIES = 40
_TRIES = 120
_PAUSE_S = 0.025


class MysqlChecksums(ChecksumTable):
    """Checksum rows on one connection, whose session digests need; see `MysqlTable`."""

    def __init__(
        self,
        place: ChecksumPlace,
        connection: Any,
        *,
        is_mariadb: bool,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(place)
        self._connection = connection
        self._pause = pause
        # The same lock; each server knows NOWAIT with its own clause only.
        self._lock = "LOCK IN SHARE MODE" if is_mariadb else "FOR SHARE"

    @property
    def _quoted(self) -> str:
        return quote(*split_name(self.table))

    @property
    def _literal(self) -> str:
        return f"_utf8mb4 x'{self._compared.encode().hex()}'"

    def close(self) -> None:
        """Close the connection."""
        if self._connection.open:
            self._connection.close()

    def create(self) -> None:
        """Create the table if it is not there."""
        if not self._ask(_engine_query(self.table)):
            self._ask(f"{CREATE.format(self._quoted)} ENGINE = InnoDB")

    def check(self) -> None:
        """Raise SettingsError unless the session and the tables have the locks that are needed."""
        for statement in _SESSION:
            self._ask(statement)
        variables = {_text(name).lower(): _text(value) for name, value in self._ask(_VARIABLES)}
        if problem := session_problem(variables):
            raise SettingsError(f"--through-log: {problem}")
        for table in (self.table, self._compared):
            engine = self._ask(_engine_query(table))
            if not engine:
                raise self._missing()
            name = _text(engine[0][0])
            if name.upper() != "INNODB":
                raise SettingsError(
                    f"--through-log: {table} is a table of {name}, not of InnoDB, so that no lock "
                    "holds its rows until the checksum is committed: compare without --through-log"
                )

    def write(self, number: int, query: ChunkQuery) -> Written:
        """Compute the checksum of a chunk and write its row, in one transaction.

        Raises SourceUnavailableError if other transactions keep rows of the chunk locked.
        """
        for attempt in range(_TRIES):
            nowait = " NOWAIT" if attempt < _AT_ONCE_TRIES else ""
            if self._is_written(self._insert(number, query, f" {self._lock}{nowait}")):
                ((last, rows),) = self._ask(self._row(number))
                return Written(None if last is None else int(last), int(rows))
            self._pause(_PAUSE_S)
        raise SourceUnavailableError(
            f"{self._compared}: other transactions keep rows behind key {query.after} locked; "
            "information_schema.innodb_trx has those that are open: wait for them, then compare "
            "again"
        )

    def delete(self) -> None:
        """Delete the rows of this comparison."""
        self._ask(self._delete())

    def _is_written(self, statement: str) -> bool:
        try:
            self._ask(statement)
        except SourceError as error:
            if _code_of(error) in _LOCKED:
                return False
            raise
        return True

    def _ask(self, query: str) -> Any:
        doing = f"writing checksums to {self.table}"
        try:
            with driver_errors(self._compared, 0, doing), self._connection.cursor() as cursor:
                cursor.execute(query)
                return cursor.fetchall()
        except SourceError as error:
            if _code_of(error) not in _NO_RIGHT:
                raise
            raise SettingsError(
                f"--through-log: {error.__cause__}: GRANT SELECT, INSERT, DELETE ON {self.table} "
                "TO the account, and CREATE for --create-table"
            ) from error


def _code_of(error: SourceError) -> Any:
    """Return the server's number of an error; the driver's errors begin with it."""
    cause = error.__cause__
    return cause.args[0] if cause is not None and cause.args else None


def session_problem(variables: Mapping[str, str]) -> str:
    """Return why checksums of this session do not hold at their place in the log; "" if they do."""
    level = variables.get("transaction_isolation") or variables.get("tx_isolation", "")
    if level.upper() != _LEVEL:
        return (
            f"the session has isolation level {level}, not {_LEVEL}, though it asked for it: is "
            "there a proxy between that keeps its own? Connect to the server itself"
        )
    if variables.get("innodb_locks_unsafe_for_binlog", "OFF") == "ON":
        return "innodb_locks_unsafe_for_binlog is ON, so that gaps are not locked: turn it off"
    if variables.get("sql_log_bin", "ON") != "ON":
        return "sql_log_bin is OFF for this account, so that no checksum is in the log"
    several = variables.get("group_replication_single_primary_mode") == "OFF"
    is_group = bool(variables.get("group_replication_group_name")) and several
    if variables.get("wsrep_on", "OFF") == "ON" or is_group:
        return (
            "other servers of this cluster commit transactions without the locks of this one, so "
            "that a checksum does not hold at its place in the log: compare without --through-log"
        )
    return ""


def _engine_query(table: str) -> str:
    return _ENGINE.format(*(part.replace("'", "''") for part in split_name(table)))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
