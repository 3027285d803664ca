"""MaxSCN: the last SCN that a source has handed to its ring, stored durably.

It is saved now and then, so it may be older than the ring, but never newer than what the
ring was given. Capture continues from the older of the two. A value that cannot be read is
an error: a guessed SCN would be an unnoticed gap.

The identity of the source's log at that SCN is saved with it (`schemas/log_mark.py`), if
the source provides one. Files of older versions have none; the next save adds it.

Of several relays that capture one source, one has the lease. It saves MaxSCN under the term of
its lease, and a smaller term than the greatest that was seen is refused (`StaleTermError`): a
relay that was frozen, and wakes after another one took over, does not set MaxSCN back. A save
without a term is refused where there is one.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

from databus.daemon.faults import as_sqlite_errors
from databus.daemon.files import make_private, replace_file
from databus.daemon.guarded_files import content_of
from databus.leases.errors import LeaseError, StaleTermError, check_term
from databus.leases.file_records import FileRecords
from databus.leases.records import Records, change, record_name
from databus.schemas.errors import RingError
from databus.schemas.log_mark import LogMark

# `scn:date`, the log mark, the term, a checksum of all; only the first is needed in a file written
# by hand. `none:-` has a term that has begun before anything was saved.
_LINE = re.compile(
    r"(?P<text>(?P<scn>\d{1,19}|none):(?P<date>[0-9TZ:.+-]+)(?: log=(?P<log>\d+:\{[ -~]*\}))?"
    r"(?: term=(?P<term>\d{1,19}))?)(?: crc=(?P<crc>[0-9a-f]{8}))?\n"
)
_NONE, _NO_DATE = "none", "-"
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
_CREATE_TERMS = """
CREATE TABLE IF NOT EXISTS max_scn_terms (
    source TEXT PRIMARY KEY,
    term INTEGER NOT NULL CHECK (typeof(term) = 'integer' AND term > 0),
    crc INTEGER NOT NULL
)
"""
_SAVE_TERM = "REPLACE INTO max_scn_terms (source, term, crc) VALUES (?, ?, ?)"
_LOAD_TERM = "SELECT term, crc FROM max_scn_terms WHERE source = ?"
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


class FencedMaxScnStore(MaxScnStore, Protocol):
    """Storage of a MaxSCN that several relays write, one after another, each under a term."""

    def begin_term(self, term: int) -> int | None:
        """Return the SCN saved last, None without one, and refuse smaller terms from now on.

        A relay calls it before it captures. Raises StaleTermError, RingError.
        """
        ...

    def save_under(
        self, scn: int, timestamp_ns: int, term: int, mark: LogMark | None = None
    ) -> None:
        """Save like `save`; raise StaleTermError if a greater term has begun."""


class Saved(NamedTuple):
    """A MaxSCN as it is stored; `scn` is None if only a term has begun, `log` "" without a mark."""

    scn: int | None
    date: str
    log: str = ""
    term: int | None = None

    @classmethod
    def of(
        cls, scn: int, timestamp_ns: int, mark: LogMark | None, term: int | None = None
    ) -> Saved:
        """Return what is stored of a window."""
        date = datetime.fromtimestamp(timestamp_ns // 1_000_000_000, UTC)
        log = "" if mark is None else mark.encode()
        return cls(scn, f"{date:%Y-%m-%dT%H:%M:%SZ}", log, term)

    def encode(self) -> bytes:
        """Return the line."""
        text = f"{_NONE if self.scn is None else self.scn}:{self.date}"
        text += f" log={self.log}" * bool(self.log)
        text += "" if self.term is None else f" term={self.term}"
        return f"{text} crc={crc32(text.encode()):08x}\n".encode()

    @classmethod
    def decode(cls, content: bytes) -> Saved | None:
        """Read a line; None if it is damaged."""
        found = _LINE.fullmatch(content.decode("ascii", errors="replace"))
        if found is None:
            return None
        scn = None if found["scn"] == _NONE else int(found["scn"])
        term = None if found["term"] is None else int(found["term"])
        # A line written by hand has no checksum, and then nothing but an SCN and a date.
        is_checked = found["crc"] is not None
        needs_check = bool(found["log"]) or scn is None or term is not None
        if is_checked:
            is_whole = int(found["crc"], 16) == crc32(found["text"].encode())
        else:
            is_whole = not needs_check
        if not is_whole or (scn or 0) > _LARGEST or (scn is None and term is None):
            return None
        return cls(scn, found["date"], found["log"] or "", term)


class RecordMaxScn:
    """MaxSCN of one source in a store of records, SQL or ZooKeeper, that relays share."""

    def __init__(self, records: Records, source: str) -> None:
        self._records, self._name = records, f"max_scn/{record_name(source, source)}"
        self._place = f"{records.shown} {self._name}"

    def load(self) -> int | None:
        """Return the SCN saved last, None without one; raise RingError."""
        saved = self._read()
        return None if saved is None else saved.scn

    def mark(self) -> LogMark | None:
        """Return the log mark saved last, None without one; raise RingError."""
        saved = self._read()
        return None if saved is None or not saved.log else LogMark.decode(saved.log)

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Save durably; raise RingError, also if it is saved under leases."""

        def saved(before: Saved | None) -> Saved:
            _check_no_term(None if before is None else before.term, self._place)
            return Saved.of(scn, timestamp_ns, mark)

        self._change(saved)

    def save_under(
        self, scn: int, timestamp_ns: int, term: int, mark: LogMark | None = None
    ) -> None:
        """Save durably; raise StaleTermError if a greater term has begun, RingError."""

        def saved(before: Saved | None) -> Saved:
            check_term(f"MaxSCN {self._place}", term, None if before is None else before.term)
            return Saved.of(scn, timestamp_ns, mark, term)

        self._change(saved)

    def begin_term(self, term: int) -> int | None:
        """Return the SCN saved last, None without one, and refuse smaller terms from now on."""
        found: list[int | None] = []

        def begun(before: Saved | None) -> Saved:
            before = before or Saved(None, _NO_DATE)
            check_term(f"MaxSCN {self._place}", term, before.term)
            found[:] = [before.scn]
            return before._replace(term=term)

        self._change(begun)
        return found[0]

    def _read(self) -> Saved | None:
        try:
            stored = self._records.read(self._name)
        except LeaseError as error:
            raise RingError(f"MaxSCN: {error}") from error
        return None if stored is None else self._decoded(stored.data)

    def _change(self, changed: Callable[[Saved | None], Saved]) -> None:
        def replaced(data: bytes | None) -> bytes:
            return changed(None if data is None else self._decoded(data)).encode()

        try:
            change(self._records, self._name, replaced)
        except StaleTermError:
            raise
        except LeaseError as error:
            raise RingError(f"MaxSCN cannot be saved: {error}") from error

    def _decoded(self, content: bytes) -> Saved:
        saved = Saved.decode(content)
        if saved is None:
            raise RingError(
                f"MaxSCN file {self._place} is damaged: it has {content[:80]!r}, not a line "
                "'scn:date'; write the SCN to continue from into it in that form, or remove it to "
                "continue from the ring's newest window"
            )
        return saved


class FileMaxScn(RecordMaxScn):
    """MaxSCN in a text file: `scn:date log=… term=… crc=…`, the date being that of the commit.

    Each save writes a new file, syncs it and renames it over the old one: after a crash the
    file has the older or the newer SCN. Only one thread at a time may save without a term.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(FileRecords(path.parent, suffix=""), path.name)
        self._path, self._name, self._place = path, path.name, str(path)

    def save(self, scn: int, timestamp_ns: int, mark: LogMark | None = None) -> None:
        """Replace the file durably; raise RingError, also if it is saved under leases."""
        with suppress(OSError):  # then it cannot be saved either
            before = content_of(self._path)
            # What was damaged since it was read at the start is replaced.
            saved = None if before is None else Saved.decode(before)
            _check_no_term(None if saved is None else saved.term, self._place)
        try:
            replace_file(self._path, Saved.of(scn, timestamp_ns, mark).encode())
        except OSError as error:
            raise RingError(f"MaxSCN cannot be saved: {error}") from error


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
        """Save in one synced transaction; raise RingError, also if it is saved under leases."""
        with self._transaction() as database:
            _check_no_term(self._term(database), self._place)
            self._write(database, scn, timestamp_ns, mark)

    def save_under(
        self, scn: int, timestamp_ns: int, term: int, mark: LogMark | None = None
    ) -> None:
        """Save in one synced transaction; raise StaleTermError, RingError."""
        with self._transaction() as database:
            self._begin(database, term)
            self._write(database, scn, timestamp_ns, mark)

    def begin_term(self, term: int) -> int | None:
        """Return the SCN saved last, None without one, and refuse smaller terms from now on."""
        with self._transaction() as database:
            self._begin(database, term)
        return self.load()

    def _write(
        self, database: sqlite3.Connection, scn: int, timestamp_ns: int, mark: LogMark | None
    ) -> None:
        log = "" if mark is None else mark.encode()
        crc = _row_crc(self._source, scn, timestamp_ns, log)
        database.execute(_SAVE, (self._source, scn, timestamp_ns, log, crc))

    def _begin(self, database: sqlite3.Connection, term: int) -> None:
        database.execute(_CREATE_TERMS)
        check_term(f"MaxSCN {self._place}", term, self._term(database))
        crc = crc32(f"{self._source} {term}".encode())
        database.execute(_SAVE_TERM, (self._source, term, crc))

    def _term(self, database: sqlite3.Connection) -> int | None:
        if not database.execute("PRAGMA table_info(max_scn_terms)").fetchall():
            return None
        row = database.execute(_LOAD_TERM, (self._source,)).fetchone()
        if row is None:
            return None
        term, crc = row
        if crc != crc32(f"{self._source} {term}".encode()):
            raise RingError(
                f"MaxSCN in {self._path} is damaged: the checksum of {self._source}'s term is "
                "wrong; restore the file from a copy"
            )
        return int(term)

    @property
    def _place(self) -> str:
        return f"{self._path}, {self._source}"

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._database() as database, database:
            # The term is compared, and the row written, with nobody in between.
            database.execute("BEGIN IMMEDIATE")
            yield database

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


def _check_no_term(seen: int | None, place: str) -> None:
    """Raise RingError if MaxSCN is saved under leases: a relay without one may not be alone."""
    if seen is not None:
        raise RingError(
            f"MaxSCN {place} is saved under a lease, term {seen}, and this relay has none; run it "
            "with its lease. Once no other relay captures the source, and none is to again, "
            "remove MaxSCN: capture continues from the ring's newest window"
        )


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
