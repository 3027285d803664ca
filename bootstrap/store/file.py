"""A store's SQLite file: opening, transactions and errors.

WAL, synchronous=NORMAL: a power cut may lose the newest transactions, but only whole ones
and in order, and the position with them, so the relay sends them again. Several processes
write in turn; each transaction starts with BEGIN IMMEDIATE, so that none fails half-way
because another was faster.

A process may write under a lease, which has a term. Each transaction
looks at its begin, and again right before its COMMIT, whether the lease is held, and at its begin
whether a newer term has begun, which is noted in the store. So nothing is written under a term once
a newer one has begun, and a process that was frozen for longer than its lease rolls back what it
was writing.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Protocol

from databus.bootstrap.store import source_table
from databus.bootstrap.store.filter_sql import add_functions
from databus.bootstrap.store.migrations import (
    MIGRATIONS,
    has_term,
    is_current,
    is_unmade,
    migrate,
)
from databus.daemon.faults import as_sqlite_errors
from databus.daemon.files import make_folder, make_private
from databus.daemon.sqlite_tables import Database
from databus.leases.errors import check_term
from databus.schemas.errors import BootstrapError, ProtocolError, StoreDamagedError

log = logging.getLogger(__name__)


class WriteLease(Protocol):
    """The lease that a process writes a store under."""

    def term(self) -> int:
        """Return the term to write under; raise LeaseLostError when the lease is not held now."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Return a context that each transaction is in, as long as it has the write lock."""
        ...


BUSY_S = 30.0
_SWITCH_S = 0.002
_CACHE_KIB = 32 << 10
_WAL_BYTES = 64 << 20
_CACHED_STATEMENTS = 512

_SETUP = (
    f"pragma cache_size = -{_CACHE_KIB}",
    f"pragma journal_size_limit = {_WAL_BYTES}",
    "pragma synchronous = normal",
    # Debian's SQLite overwrites deleted content with zeros. "fast" does it only in pages
    # that are written anyway: a TRUNCATE of a million rows would write all to the WAL.
    "pragma secure_delete = fast",
)

# Advice, by the start of SQLite's name for the error.
_ADVICE = {
    "SQLITE_FULL": "the disk is full: make room; nothing was lost",
    "SQLITE_BUSY": "another process holds its lock",
    "SQLITE_LOCKED": "another process holds its lock",
    "SQLITE_CORRUPT": "the file is damaged: move it away, and all is seeded again",
    "SQLITE_NOTADB": "the file is damaged: move it away, and all is seeded again",
    "SQLITE_READONLY": "the file or its folder cannot be written to",
    "SQLITE_CANTOPEN": "the file or its folder cannot be opened; see data_dir",
    "SQLITE_IOERR": "the disk does not read or write",
}
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class StoreFile:
    """One connection to a store's file, used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        is_read_only: bool = False,
        lease: WriteLease | None = None,
        busy_s: float | None = None,
    ) -> None:
        """Open the file; create or migrate it unless `is_read_only`. Raises BootstrapError.

        Waits for another process that writes, `BUSY_S` unless `busy_s` is given. Under a
        `lease`, LeaseError is raised, too.
        """
        self.path = path
        self._lease = lease
        self._is_in_transaction = False
        self.is_stamped = True  # whether every row's checksum is current
        with self.explained("opening"):
            self.connection = _connect(path, is_read_only, busy_s)
            try:
                self.database = Database(self.connection)
                self._prepare(is_read_only)
            except BaseException:
                self.connection.close()
                raise

    def close(self) -> None:
        """Close the connection; may be called twice."""
        self.connection.close()

    @contextmanager
    def writing(
        self, what: str, source: str = "", scn: int | None = None, *, stamps: bool = True
    ) -> Iterator[None]:
        """Run the block in one write transaction; `what` names the operation in errors.

        Without `stamps`, the checksums of `sources` are neither checked nor written here: a
        caller that changes more than `log_bytes` does that for the row it changes.
        """
        assert not self._is_in_transaction, "a transaction within a transaction"
        # The guard before the lock: frozen between both, the process would hold it for ever.
        guard = nullcontext() if self._lease is None else self._lease.writing()
        with self.explained(what, source, scn), guard:
            self.connection.execute("BEGIN IMMEDIATE")
            self._is_in_transaction = True
            try:
                self._check_term(what)
                if stamps:
                    source_table.check(self.connection, self.path)
                self.is_stamped = not stamps
                yield
                if stamps:
                    source_table.stamp(self.connection)
                if self._lease is not None:
                    self._lease.term()  # the process may have been frozen meanwhile
                self.connection.execute("COMMIT")
            except BaseException:
                # SQLite may have rolled back already, for example on a full disk.
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            finally:
                self._is_in_transaction, self.is_stamped = False, True

    def _check_term(self, what: str) -> None:
        if self._lease is not None and has_term(self.database):
            newest = source_table.term_of(self.connection)
            check_term(f"store {self.path}: {what}", self._lease.term(), newest)

    @contextmanager
    def reading(self, what: str, source: str = "", scn: int | None = None) -> Iterator[None]:
        """Run the block in one read transaction; may be nested in another transaction."""
        with self.explained(what, source, scn):
            if self._is_in_transaction:
                yield
                return
            self.connection.execute("BEGIN")
            self._is_in_transaction = True
            try:
                yield
            finally:
                self._is_in_transaction = False
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def explained(
        self, what: str, source: str = "", scn: int | None = None
    ) -> AbstractContextManager[None]:
        """Turn errors into BootstrapError with the path, the operation, source and SCN.

        These are SQLite's errors, and those of a damaged event: events from elsewhere were
        validated before they got here. StoreDamagedError when the file is damaged.
        """
        return _explained(self.path, what, source, scn)

    def _prepare(self, is_read_only: bool) -> None:
        for statement in _SETUP:
            self.connection.execute(statement)
        if is_read_only:
            self.connection.execute("pragma query_only = on")
            if not is_current(self.database, self.path):
                if is_unmade(self.database):
                    raise BootstrapError(f"store {self.path} is new: its producer makes it now")
                raise BootstrapError(
                    f"store {self.path} has the schema of an older version: "
                    "the producer brings it up to date when it starts, which may take minutes"
                )
            return
        # Takes effect only in a file without tables. Then free pages can be given back
        # to the disk a few at a time.
        self.connection.execute("pragma auto_vacuum = incremental")
        self._use_wal()
        if not is_current(self.database, self.path):
            with self.writing("migrating", stamps=False):
                before = migrate(self.database)
                source_table.stamp_all(self.connection)
            if 0 < before < len(MIGRATIONS):  # not new, and nobody else was quicker
                log.warning("store %s is brought up to date", self.path)

    def _use_wal(self) -> None:
        """Switch to WAL. SQLite does not wait while another process does that to a new file."""
        deadline_s = time.monotonic() + BUSY_S
        while True:
            try:
                self.connection.execute("pragma journal_mode = wal")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline_s:
                    raise
                time.sleep(_SWITCH_S)


@contextmanager
def _explained(path: Path, what: str, source: str = "", scn: int | None = None) -> Iterator[None]:
    place = f" of {source}" if source else ""
    at = "" if scn is None else f" at scn {scn}"
    try:
        with as_sqlite_errors():
            yield
    except ProtocolError as error:
        raise source_table.damaged(
            path, f"{what}{place}{at} read a malformed event: {error}"
        ) from error
    except (sqlite3.Error, OSError) as error:
        name = _name_of(error)
        kind = StoreDamagedError if name.startswith(_DAMAGED) else BootstrapError
        raise kind(f"store {path}: {what}{place}{at} failed: {error}{_advice(name)}") from error


def _connect(path: Path, is_read_only: bool, busy_s: float | None = None) -> sqlite3.Connection:
    if is_read_only:
        # Not `mode=ro`: readers of a WAL database write to its -shm file.
        uri = f"{path.resolve().as_uri()}?mode=rw"
    else:
        make_folder(path.parent)
        make_private(path)
        uri = path.resolve().as_uri()
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=BUSY_S if busy_s is None else busy_s,
        isolation_level=None,
        check_same_thread=False,  # one thread at a time: the opener may hand it on
        cached_statements=_CACHED_STATEMENTS,
    )
    add_functions(connection)
    return connection


def _name_of(error: Exception) -> str:
    """Return SQLite's name for an error; "" when it is not SQLite's."""
    if str(error).startswith("Could not decode"):  # invalid text: Python's wording
        return "SQLITE_CORRUPT"
    name: str = getattr(error, "sqlite_errorname", "")
    return name


def _advice(name: str) -> str:
    for beginning, advice in _ADVICE.items():
        if name.startswith(beginning):
            return f"; {advice}"
    return ""


def identify(path: Path) -> tuple[str, int]:
    """Return the id of a store, and its newest term, without changing it; make it if it is new.

    Raises BootstrapError, also for a file that a newer version of the project wrote.
    """
    make_folder(path.parent)
    make_private(path)
    with _explained(path, "opening"), closing(_connect(path, is_read_only=True)) as connection:
        database = Database(connection)
        if not is_unmade(database):
            is_current(database, path)
            (store_id,) = connection.execute("select id from store").fetchone()
            return str(store_id), source_table.term_of(connection) if has_term(database) else 0
    StoreFile(path).close()
    return identify(path)


_PROBE = """
select cast(group_concat(piece, '') as blob) from (select x'00ff' piece union all select x'80')
"""


@cache
def joins_bytes() -> bool:
    """Return whether `group_concat` keeps zero bytes; older versions end at the first."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return bool(connection.execute(_PROBE).fetchone()[0] == b"\x00\xff\x80")
