"""MaxSCN: the last SCN that a source has handed to its ring, kept durably.

It may be older than the ring (it is saved now and then), never newer than what
the ring was given. Capture goes on from the older of the two. What cannot be
read is an error: a guessed SCN would be a gap that nobody notices.

With it goes what the source's log was there (`schemas/log_mark.py`), where the source can
say so. Files of before that have none: then it is unknown, and is kept from the
next time on.
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

# `scn:date`, what the log was, a checksum of both; who writes the file by hand may leave out
# all but the first.
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
# To a file of before: what is in it then has no checksum to prove it, and gets one.
_WIDEN = (
    "ALTER TABLE max_scn ADD COLUMN log TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE max_scn ADD COLUMN crc INTEGER",
)
_SAVE = "REPLACE INTO max_scn (source, scn, timestamp_ns, log, crc) VALUES (?, ?, ?, ?, ?)"
_LOAD = "SELECT scn, timestamp_ns, log, crc FROM max_scn WHERE source = ?"
_ALL = "SELECT source, scn, timestamp_ns FROM max_scn"
_BUSY_S = 10.0


class MaxScnStore(Protocol):
    """Where one physical source's MaxSCN is kept."""

    def load(self) -> int | None:
        """Return the SCN saved last, None when none ever was; raises RingError."""
        ...

    def mark(self) -> LogMark | None:
        """Return what the log was, as saved last; None when that is unknown; raises RingError."""
        ...

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Save an SCN, its window's commit time and what the log is, durably; raises RingError."""


class FileMaxScn:
    """MaxSCN in a text file: `scn:date log=… crc=…`, the date being that of the commit.

    Each save is a new file, synced and renamed over the old one: after a crash
    the file has the older or the newer SCN. One thread at a time may save.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int | None:
        """Return the SCN in the file, None when there is no file; raises RingError."""
        found = self._read()
        return None if found is None else int(found["scn"])

    def mark(self) -> LogMark | None:
        """Return what the file says of the log; None when it says nothing; raises RingError."""
        found = self._read()
        return None if found is None or not found["log"] else LogMark.decode(found["log"])

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Replace the file durably; raises RingError."""
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
        is_checked = found["crc"] is not None
        if found["log"] and not is_checked:
            raise self._damaged(content)
        if is_checked and int(found["crc"], 16) != crc32(found["text"].encode()):
            raise self._damaged(content)
        return found

    def _damaged(self, content: bytes) -> RingError:
        return RingError(
            f"MaxSCN file {self._path} is damaged: it has {content[:80]!r}, not a line "
            "'scn:date'; write the SCN to go on from into it that way, or remove it to go on "
            "from the ring's newest window"
        )


class SqliteMaxScn:
    """MaxSCN of one source in an SQLite file that several sources may share.

    Any thread may call it: each call has its own connection and transaction.
    """

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source

    def load(self) -> int | None:
        """Return the source's SCN, None when it has none; raises RingError."""
        row = self._row()
        return None if row is None else row[0]

    def mark(self) -> LogMark | None:
        """Return what is said of the log; None when nothing is; raises RingError."""
        row = self._row()
        return None if row is None or not row[1] else LogMark.decode(row[1])

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Save in one synced transaction; raises RingError."""
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
                "wrong; delete the row, to go on from the ring's newest window"
            )
        return scn, log

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            make_private(self._path)
            connection = sqlite3.connect(self._path, timeout=_BUSY_S)
            with as_sqlite_errors(), closing(connection) as database:
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
