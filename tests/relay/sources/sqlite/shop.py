"""A watched SQLite file, a source on it, and a consumer that applies what it yields."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.source import Transaction
from databus.relay.sources.sqlite.source import SqliteSource
from databus.schemas.event.keys import event_key
from databus.schemas.event.metadata import Op
from tests import PATIENCE_S

State = dict[str, dict[Any, dict[str, Any]]]


def settings(path: Path, *tables: str, **more: Any) -> PhysicalSourceSettings:
    """Return settings for a source of `shop.<table>` for each table."""
    more.setdefault("uri", f"sqlite:{path}")
    return PhysicalSourceSettings(
        name="shop", sources=tuple(f"shop.{table}" for table in tables), **more
    )


@contextmanager
def opened(
    path: Path, *tables: str, after_scn: int | None = None, **more: Any
) -> Iterator[SqliteSource]:
    """Open a source, and close it; its reads look once and do not wait."""
    at_once = Event()
    at_once.set()
    source = SqliteSource(settings(path, *tables, **more), stop=at_once)
    try:
        source.open(after_scn)
        yield source
    finally:
        source.close()


@contextmanager
def database(path: Path, script: str = "") -> Iterator[sqlite3.Connection]:
    """Open an application's connection, in autocommit; WAL, for else the source would switch."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(script)
        yield connection


@contextmanager
def writing(path: Path, statements: Callable[[], Sequence[str]], every_s: float) -> Iterator[None]:
    """Run statements, a transaction at a time, for the length of a `with`."""
    stop = Event()

    def write() -> None:
        with database(path) as connection:
            while not stop.wait(every_s):
                run(connection, statements())

    writer = Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join(PATIENCE_S)


def drain(source: SqliteSource, until_s: float = 10.0) -> list[Transaction]:
    """Read until everything that is committed now has come."""
    found: list[Transaction] = []
    deadline = time.monotonic() + until_s
    while True:
        got = source.read_transactions()
        found += got
        if not got and not has_open_rows(source):
            return found
        assert time.monotonic() < deadline, "the source does not come to an end"


def has_open_rows(source: SqliteSource) -> bool:
    """Say whether there are committed rows that no window holds yet."""
    assert source._log is not None
    newest = source._log.newest.scn
    return source._log.last_logged() > newest or newest > source._scn


def bounds(path: Path) -> list[int]:
    """Return the SCNs of the window bounds."""
    with closing(sqlite3.connect(f"{path}-databus")) as connection:
        return [scn for (scn,) in connection.execute("SELECT scn FROM seal ORDER BY scn")]


def lose_bounds(path: Path, after_scn: int) -> None:
    """Lose the window bounds after an SCN, as a power failure may."""
    with closing(sqlite3.connect(f"{path}-databus")) as connection, connection:
        connection.execute("DELETE FROM seal WHERE scn > ?", (after_scn,))


def changes(transactions: Iterable[Transaction]) -> list[tuple[str, dict[str, Any]]]:
    """Return (operation, row) of every change."""
    return [(c.op.value, dict(c.row)) for t in transactions for c in t.changes]


def apply(transactions: Iterable[Transaction], state: State) -> State:
    """Apply changes by key, as a consumer does that keeps the last image of each row."""
    for transaction in transactions:
        for change in transaction.changes:
            rows = state.setdefault(change.table.source, {})
            key = event_key(change.table, change.row)
            if change.op is Op.DELETE:
                rows.pop(key, None)
            else:
                rows[key] = dict(change.row)
    return state


def applied_rows(state: State, source: str) -> list[tuple[Any, ...]]:
    """Return the rows of one source's state, sorted."""
    rows = [tuple(row.values()) for row in state.get(source, {}).values()]
    return sorted(rows, key=repr)


def table_rows(connection: sqlite3.Connection, select: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, sorted the same way."""
    return sorted(connection.execute(select).fetchall(), key=repr)


def remove(path: Path) -> None:
    """Remove a database and its companions."""
    for found in path.parent.glob(f"{path.name}*"):
        found.unlink()


def run(connection: sqlite3.Connection, statements: Sequence[str]) -> None:
    """Run statements in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in statements:
        connection.execute(statement)
    connection.execute("COMMIT")
