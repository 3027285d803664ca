"""Whether it is the file of the seals that is damaged, and not the watched database.

An error of SQLite does not say which of the two files it is of, and what cures the one
would harm the other: a shop's database is restored, the seals are made again from it.
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
    """Return what is wrong with the bytes of a database; empty when nothing is, or none is there.

    Somebody who holds its lock, a disk that fails, or a file that may not be written is no damage.
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
    """Keep a database that is not open here, with its WAL, under another name; return that."""
    kept = path.with_name(f"{path.name}.damaged")
    # First what belongs to it: a WAL must not come to lie beside the one that is made anew.
    for end in ("-wal", "-shm", ""):
        Path(f"{kept}{end}").unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            Path(f"{path}{end}").rename(f"{kept}{end}")
    return kept


def _may_be_written(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
