"""MaxSCN: the last SCN that a source has handed to its ring, kept durably.

It may be older than the ring (it is saved now and then), never newer than what
the ring was given. Capture goes on from the older of the two. What cannot be
read is an error: a guessed SCN would be a gap that nobody notices.
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

from databus.conf.durable_file import replace_file
from databus.schemas.errors import RingError

# `scn:date`, then a checksum; an operator who writes the file may leave that out.
_LINE = re.compile(r"(?P<text>(?P<scn>\d{1,19}):[0-9TZ:.+-]+)(?: crc=(?P<crc>[0-9a-f]{8}))?\n")
_LARGEST = (1 << 63) - 1

_CREATE = """
CREATE TABLE IF NOT EXISTS max_scn (
    source TEXT PRIMARY KEY,
    scn INTEGER NOT NULL CHECK (typeof(scn) = 'integer' AND scn >= 0),
    timestamp_ns INTEGER NOT NULL
)
"""
_SAVE = """
INSERT INTO max_scn (source, scn, timestamp_ns) VALUES (?, ?, ?)
ON CONFLICT (source) DO UPDATE SET scn = excluded.scn, timestamp_ns = excluded.timestamp_ns
"""
_LOAD = "SELECT scn FROM max_scn WHERE source = ?"
_BUSY_S = 10.0


class MaxScnStore(Protocol):
    """Where one physical source's MaxSCN is kept."""

    def load(self) -> int | None:
        """Return the SCN saved last, None when none ever was; raises RingError."""

    def save(self, scn: int, timestamp_ns: int) -> None:
        """Save an SCN and its window's commit time, durably; raises RingError."""


class FileMaxScn:
    """MaxSCN in a text file: `scn:date crc=…`, the date being that of the commit.

    Each save is a new file, synced and renamed over the old one: after a crash
    the file has the older or the newer SCN. One thread at a time may save.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> int | None:
        """Return the SCN in the file, None when there is no file; raises RingError."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RingError(f"MaxSCN: {error}") from error
        found = _LINE.fullmatch(content.decode("ascii", errors="replace"))
        if found is None or int(found["scn"]) > _LARGEST:
            raise self._damaged(content)
        if found["crc"] and int(found["crc"], 16) != crc32(found["text"].encode()):
            raise self._damaged(content)
        return int(found["scn"])

    def save(self, scn: int, timestamp_ns: int) -> None:
        """Replace the file durably; raises RingError."""
        date = datetime.fromtimestamp(timestamp_ns // 1_000_000_000, UTC)
        text = f"{scn}:{date:%Y-%m-%dT%H:%M:%SZ}"
        try:
            replace_file(self._path, f"{text} crc={crc32(text.encode()):08x}\n".encode())
        except OSError as error:
            raise RingError(f"MaxSCN cannot be saved: {error}") from error

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
        if not self._path.exists():
            return None
        with self._database() as database:
            row = database.execute(_LOAD, (self._source,)).fetchone()
        if row is None:
            return None
        if not isinstance(row[0], int) or row[0] < 0:
            raise RingError(f"MaxSCN in {self._path}: {row[0]!r} is no SCN of {self._source}")
        return row[0]

    def save(self, scn: int, timestamp_ns: int) -> None:
        """Save in one synced transaction; raises RingError."""
        with self._database() as database, database:
            database.execute(_SAVE, (self._source, scn, timestamp_ns))

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self._path, timeout=_BUSY_S)) as database:
                database.execute("PRAGMA synchronous = FULL")
                database.execute(_CREATE)
                yield database
        except sqlite3.Error as error:
            raise RingError(f"MaxSCN in {self._path}: {error}") from error
