"""MaxSCN: the last SCN that a source has handed to its ring, stored durably.

It is saved now and then, so it may be older than the ring, but never newer than what the
ring was given. Capture continues from the older of the two. A value that cannot be read is
an error: a guessed SCN would be an unnoticed gap.

The identity of the source's log at that SCN is saved with it (`schemas/log_mark.py`), if
the source provides one. Files of older versions have none; the next save adds it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from zlib import crc32

from databus.daemon.faults import as_sqlite_errors
from databus.daemon.files import make_private, replace_file
from databus.schemas.errors import RingError
from databus.schemas.log_mark import LogMark

# `scn:date`, the log mark, a checksum of both; only the first is needed in a file written
# by hand.
_LINE = re.compile(
    r"(?P<text>(?P<scn>\d{1,19}):[0-9TZ:.+-]+(?: log=(?P<log>\d+:\{[ -~]*\}))?)"
    r"(?: crc=(?P<crc>[0-9a-f]{8}))?\n"
)
_LARGEST = (1 << 63) - 1

_CREATE = """
CREATE TABLE IF NOT EXISTS max_scn (
    source TEXT PRIMARY KEY,
    scn INTEGER NOT NULL CHECK (typeof(scn) = 'integer' AND scn >= 0),
    timestamp_ns INTEGER NOT NULL,
    log TEXT NOT NULL DEFAULT '',
    crc INTEGER
)
"""
# Adds the columns of this version to an older file; its rows have no checksum to check.
_WIDEN = (
    "ALTER TABLE max_scn ADD COLUMN log TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE max_scn ADD COLUMN crc INTEGER",
)
_SAVE = "REPLACE INTO max_scn (source, scn, timestamp_ns, log, crc) VALUES (?, ?, ?, ?, ?)"
_LOAD = "SELECT scn, timestamp_ns, log, crc FROM max_scn WHERE source = ?"
_ALL = "SELECT source, scn, timestamp_ns FROM max_scn"
_BUSY_S = 10.0


class MaxScnStore(Protocol):
    """Storage of one physical source's MaxSCN."""

    def load(self) -> int | None:
        """Return the SCN saved last, None without one; raise RingError."""
        ...

    def mark(self) -> LogMark | None:
        """Return the log mark saved last, None without one; raise RingError."""
        ...

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Save an SCN, its window's commit time and the log mark durably; raise RingError."""


class FileMaxScn:
    """MaxSCN in a text file: `scn:date log=… crc=…`, the date being that of the commit.

    Each save writes a new file, syncs it and renames it over the old one: after a crash the
    file has the older or the newer SCN. Only one thread at a time may save.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int | None:
        """Return the SCN in the file, None without a file; raise RingError."""
        found = self._read()
        return None if found is None else int(found["scn"])

    def mark(self) -> LogMark | None:
        """Return the log mark in the file, None without one; raise RingError."""
        found = self._read()
        return None if found is None or not found["log"] else LogMark.decode(found["log"])

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Replace the file durably; raise RingError."""
        date = datetime.fromtimestamp(timestamp_ns // 1_000_000_000, UTC)
        text = f"{scn}:{date:%Y-%m-%dT%H:%M:%SZ}"
        if mark is not None:
            text += f" log={mark.encode()}"
        try:
            replace_file(self._path, f"{text} crc={crc32(text.encode()):08x}\n".encode())
        except OSError as error:
            raise RingError(f"MaxSCN cannot be saved: {error}") from error

    def _read(self) -> re.Match[str] | None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RingError(f"MaxSCN: {error}") from error
        found = _LINE.fullmatch(content.decode("ascii", errors="replace"))
        if found is None or int(found["scn"]) > _LARGEST:
            raise self._damaged(content)
        # A line written by hand has no checksum, and then it may have no log mark.
        is_checked = found["crc"] is not None
        if found["log"] and not is_checked:
            raise self._damaged(content)
        if is_checked and int(found["crc"], 16) != crc32(found["text"].encode()):
            raise self._damaged(content)
        return found

    def _damaged(self, content: bytes) -> RingError:
        return RingError(
            f"MaxSCN file {self._path} is damaged: it has {content[:80]!r}, not a line "
            "'scn:date'; write the SCN to continue from into it in that form, or remove it to "
            "continue from the ring's newest window"
        )


class SqliteMaxScn:
    """MaxSCN of one source in an SQLite file that several sources may share.

    Thread-safe: each call has its own connection and transaction.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source

    def load(self) -> int | None:
        """Return the source's SCN, None without one; raise RingError."""
        row = self._row()
        return None if row is None else row[0]

    def mark(self) -> LogMark | None:
        """Return the log mark of the source, None without one; raise RingError."""
        row = self._row()
        return None if row is None or not row[1] else LogMark.decode(row[1])

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Save in one synced transaction; raise RingError."""
        log = "" if mark is None else mark.encode()
        crc = _row_crc(self._source, scn, timestamp_ns, log)
        with self._database() as database, database:
            database.execute(_SAVE, (self._source, scn, timestamp_ns, log, crc))

    def _row(self) -> tuple[int, str] | None:
        if not self._path.exists():
            return None
        with self._database() as database:
            row = database.execute(_LOAD, (self._source,)).fetchone()
        if row is None:
            return None
        scn, timestamp_ns, log, crc = row
        if not isinstance(scn, int) or scn < 0:
            raise RingError(f"MaxSCN in {self._path}: {scn!r} is no SCN of {self._source}")
        if crc != _row_crc(self._source, scn, timestamp_ns, log):
            raise RingError(
                f"MaxSCN in {self._path} is damaged: the checksum of {self._source}'s row is "
                "wrong; delete the row to continue from the ring's newest window"
            )
        return scn, log

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            # Before SQLite creates it with the permissions of the umask.
            make_private(self._path)
            connection = sqlite3.connect(self._path, timeout=_BUSY_S)
            with as_sqlite_errors(), closing(connection) as database:
                # A saved MaxSCN survives a power failure.
                database.execute("PRAGMA synchronous = FULL")
                database.execute(_CREATE)
                _widen(database)
                yield database
        except sqlite3.Error as error:
            raise RingError(f"MaxSCN in {self._path}: {error}") from error


def _row_crc(source: str, scn: int, timestamp_ns: int, log: str) -> int:
    return crc32(f"{source} {scn}:{timestamp_ns} {log}".encode())


def _widen(database: sqlite3.Connection) -> None:
    """Give a table of before the columns that it lacks, and its rows their checksums."""
    if any(row[1] == "crc" for row in database.execute("PRAGMA table_info(max_scn)")):
        return
    with database:
        database.execute("BEGIN IMMEDIATE")
        if any(row[1] == "crc" for row in database.execute("PRAGMA table_info(max_scn)")):
            return
        for statement in _WIDEN:
            database.execute(statement)
        for source, scn, timestamp_ns in database.execute(_ALL).fetchall():
            crc = _row_crc(source, scn, timestamp_ns, "")
            database.execute(_SAVE, (source, scn, timestamp_ns, "", crc))
