"""Changes a watched table without a gap, or stops watching a database.

    python -m databus.relay.sources.sqlite.ddl shop.db "ALTER TABLE orders DROP COLUMN note"
    python -m databus.relay.sources.sqlite.ddl shop.db --uninstall

SQLite refuses to drop a column that a trigger names. And after CREATE UNIQUE INDEX, others may
write before the triggers know the index. Here everything happens in one transaction: it drops
the capture triggers, runs the statements and creates the triggers again. Relays may run
meanwhile; they see the new form at their next poll.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import click

from databus.relay.sources.sqlite.connection import connect, transaction, waiting
from databus.relay.sources.sqlite.install import (
    OWN_TABLES,
    CaptureGapError,
    bring_up_to_date,
    drop_triggers,
    identity,
    inspect,
    install_triggers,
    is_installed,
)
from databus.relay.sources.sqlite.rows_at_rest import log_alteration
from databus.relay.sources.sqlite.window_bounds import WindowBounds, bounds_path
from databus.schemas.errors import SourceUnavailableError

# A change that is made while there are no triggers is not logged.
_ALLOWED = re.compile(
    r"\s*(ALTER\s+TABLE|CREATE\s+(UNIQUE\s+)?INDEX|DROP\s+INDEX)\b", re.IGNORECASE
)
_LOCK_WAIT_S = 10.0


def change_tables(path: Path, statements: Sequence[str]) -> None:
    """Run ALTER TABLE, CREATE INDEX and DROP INDEX statements on a watched database.

    All or nothing. Raises CaptureGapError if a watched table would be gone or could not be
    captured afterwards, SourceUnavailableError if the database cannot be opened or stays locked,
    and sqlite3.Error for a bad statement.
    """
    for statement in statements:
        if not _ALLOWED.match(statement):
            raise CaptureGapError(
                f"{statement!r}: only ALTER TABLE, CREATE INDEX and DROP INDEX can run without the "
                "capture triggers; run anything else as usual"
            )
    with _locked(path) as connection:
        if not is_installed(connection):
            raise CaptureGapError(f"{path} is not watched; change it as usual")
        with closing(WindowBounds(path, identity(connection))) as bounds:
            closed_id = bounds.newest().scn
        _change(connection, closed_id, statements)


def uninstall(path: Path) -> None:
    """Remove every trigger and table of databus; later SCNs of this database start over."""
    with _locked(path) as connection:
        if not is_installed(connection):
            return
        for name in _watched(connection):
            drop_triggers(connection, name)
        for table in OWN_TABLES:
            connection.execute(f"DROP TABLE {table}")
    for suffix in ("", "-wal", "-shm"):
        Path(f"{bounds_path(path)}{suffix}").unlink(missing_ok=True)


def _change(connection: sqlite3.Connection, closed_id: int, statements: Sequence[str]) -> None:
    names = _watched(connection)
    bring_up_to_date(connection, names, closed_id)
    for statement in statements:
        for name in names:
            drop_triggers(connection, name)
        connection.execute(statement)
        for name in names:
            # One by one: the columns before and after each statement show what happened to rows.
            found = inspect(connection, name, has_triggers=False)
            assert found.recorded is not None
            number = install_triggers(connection, found.table)
            log_alteration(connection, found.table, number, found.recorded.columns)


def _watched(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM _databus_table")]


@contextmanager
def _locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database and hold its write lock for the block, which is one transaction."""
    try:
        connection = connect(path)
    except sqlite3.OperationalError as error:
        raise SourceUnavailableError(f"{path}: {error}") from error
    with closing(connection), waiting(connection, _LOCK_WAIT_S), transaction(connection):
        yield connection


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("statements", nargs=-1)
@click.option(
    "--uninstall", "is_uninstall", is_flag=True, help="Remove all triggers and tables of databus"
)
def main(path: Path, statements: tuple[str, ...], is_uninstall: bool) -> None:
    """Run ALTER TABLE statements on a watched SQLite database while capture continues.

    Example: python -m databus.relay.sources.sqlite.ddl shop.db
    "ALTER TABLE orders DROP COLUMN note"
    """
    try:
        if is_uninstall:
            uninstall(path)
        else:
            change_tables(path, statements)
    except (CaptureGapError, SourceUnavailableError, sqlite3.Error) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
