"""Find out whether the file of window bounds is damaged, and not the watched database.

An error of SQLite does not say which of the two files it is about, and the cure of one would
harm the other: the database must be restored, while the bounds are made again from it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from databus.daemon.faults import as_sqlite_errors
from databus.relay.sources.sqlite.connection import connect

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def damage_of(path: Path) -> str:
    """Return how a database is damaged; empty when it is sound or does not exist.

    A held lock, a failing disk and a read-only file are no damage.
    """
    try:
        with as_sqlite_errors(), closing(connect(path)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                return str(found)
            connection.execute("BEGIN IMMEDIATE")
            # On a file that forbids it, the transaction begins as one that only reads.
            connection.execute("CREATE TABLE damaged(_)")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        code = int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
        # The header of a database can forbid to write it.
        is_forbidden = code == sqlite3.SQLITE_READONLY and _may_be_written(path)
        return str(error) if code in _DAMAGED or is_forbidden else ""
    return ""


def put_aside(path: Path) -> Path:
    """Rename a database that is not open here, and its WAL; return the new name."""
    kept = path.with_name(f"{path.name}.damaged")
    # The WAL first: it must not end up beside the database that is made next.
    for end in ("-wal", "-shm", ""):
        Path(f"{kept}{end}").unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            Path(f"{path}{end}").rename(f"{kept}{end}")
    return kept


def _may_be_written(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
