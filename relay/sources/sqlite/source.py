"""The SQLite source: a change log written by triggers, inside the application's transactions.

At the first open the source puts its tables and triggers into the watched database
(`install.py`, `triggers.py`). From then on, the transaction that changes a watched table also
logs the change, in any program, whether or not a relay runs.

**SCN.** The number of the commit's last row in the change log. Triggers cannot see commits, so
the source polls for newly committed log rows and writes *window bounds* (`window_bounds.py`): a
row in `<file>-databus` says that a window ends here. All relays of the file use the same bounds
and so give the same SCN to the same rows: the first relay writes a bound, the others read it.
Keep the two files together. If bounds are lost, windows may get other bounds, but an SCN still
stands for the same row: behind it come all later rows, or the whole window that contains it.

If the tables have rows when the change log is installed, the log begins with an empty window,
SCN 1: those rows can be read as of that SCN. The log of empty tables begins with one, too, once
a relay has waited half a second for a first row. A relay that first starts at `latest` hands
over that position as an empty window.

**Windows.** A window is one or more whole transactions, never a part of one. It is one
transaction as long as polls are more frequent than commits. Transactions that are committed
between two polls become one window, and **everything committed while no relay runs becomes one
window**. The ring must be large enough for it.

**Locks.** Polling and reading take no lock that an application needs, and wait for none: a long
transaction does not delay what was committed before it. The source takes the write lock of the
database at the first open, after DDL and to trim the log: for a moment, and after the first
open only when it is free.

**Durability** is what the application chose. With `synchronous=FULL`, SQLite's default,
everything that a relay sees is on disk. With NORMAL, a power failure may undo the last commits
after consumers have seen them. The source then stops: the log is shorter than what was handed
over, or the last row of its newest window is another one. `?fsync=on` in the URI excludes this:
the WAL is flushed before a window is closed, which costs each window a wait for the disk.

**WAL.** The database must be in WAL mode. The source switches it if necessary, and logs that.
The file must be on a local disk, and writable.

**Schema changes** are noticed by SQLite's schema version, before a window with rows of the new
schema is closed. Capture continues after ADD COLUMN and RENAME COLUMN; rows that the old
triggers logged since the change are logged again in full. If the table is dropped or renamed,
or has lost its triggers, the source stops and says what to do. SQLite refuses DROP COLUMN while
a trigger names the column: `python -m databus.relay.sources.sqlite.ddl FILE "ALTER TABLE …"`
runs any ALTER TABLE and replaces the triggers in one transaction.

**Order of changes.** As logged. An update that changes the primary key is a delete of the old
key and an insert of the new one.

**Names.** Source `shop.orders` is the table `orders`: the part before the first dot is free.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

from databus.conf.column_settings import unnamed
from databus.conf.named_places import (
    NamedPlace,
    ScnPlace,
    TimePlace,
    Word,
    parse_source_start,
)
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.generated_columns import shown_text
from databus.relay.sources.keys import key_warnings
from databus.relay.sources.source import (
    Captured,
    Findings,
    Newest,
    Origin,
    RowChange,
    Source,
    TableDefined,
    Transaction,
)
from databus.relay.sources.sqlite.catalog import SqliteTable, table_of
from databus.relay.sources.sqlite.change_log import (
    ChangeLog,
    LogDamagedError,
    LoggedWindow,
    LogRow,
    install,
)
from databus.relay.sources.sqlite.connection import connect, is_busy, translated, waiting
from databus.relay.sources.sqlite.damaged_window_bounds import damage_of, put_aside
from databus.relay.sources.sqlite.install import CaptureGapError
from databus.relay.sources.sqlite.matched_tables import MatchedTables
from databus.relay.sources.sqlite.rows_at_rest import ALTERED, read_alteration
from databus.relay.sources.sqlite.triggers import LOG
from databus.relay.sources.sqlite.window_bounds import NO_BOUND, WindowBounds, bounds_path
from databus.relay.sources.uri import parse_uri
from databus.relay.sources.window_writer import WindowWriter
from databus.schemas.errors import (
    SettingsError,
    SourceError,
    SourceStoppedError,
    SourceUnavailableError,
)
from databus.schemas.event.metadata import Op
from databus.schemas.table import Table

_log = logging.getLogger(__name__)

_Place = Word | ScnPlace | TimePlace  # what a start may be

_PARAMETERS = ("fsync",)
_OPS = {"i": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE, "r": Op.UPDATE}
_READ_WAIT_S = 0.5
_LOCK_WAIT_S = 1.0
# Polls come at the set interval while there is work and for this long after,
# then less and less often, down to the idle interval.
_BUSY_S = 0.1
_IDLE_INTERVAL_S = 0.005
_SLOWER = 1.25
_FILE_CHECK_S = 1.0


class SqliteSource(Source):
    """Reads the changes of one SQLite database.

    `clock` is a monotonic clock in seconds; `stop`, when set by another thread,
    makes `read` come back at once.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        clock: Callable[[], float] = time.monotonic,
        stop: Event | None = None,
    ) -> None:
        uri = parse_uri(settings.uri)
        uri.check(_PARAMETERS)
        if not uri.path:
            raise SettingsError(f"uri = {settings.uri!r}: must name a file, as `sqlite:/shop.db`")
        self.name = settings.name
        self._settings = settings
        self._path = Path(uri.path)
        self._is_flushed = _on_or_off(uri.parameters.get("fsync", "off"))
        self._watched = _watched_tables(settings)
        self._matched = MatchedTables(settings.patterns, settings.found)
        self._start = _place(settings.start)
        self._clock = clock
        self._stop = stop or Event()
        self._connection: sqlite3.Connection | None = None
        self._bounds: WindowBounds | None = None
        self._log: ChangeLog | None = None
        self._wal: int | None = None
        self._announced: Transaction | None = None
        self._scn = 0
        self._has_read = False
        self._writer = WindowWriter(self.name)
        self._forget()

    def open(self, after_scn: int | None, newest: Newest | None = None) -> None:
        """Connect, install what is missing, and start after `after_scn`.

        Raises SourceUnavailableError when the file cannot be opened or stays
        locked, SourceStoppedError when a person must act.
        """
        self.close()
        self._scn = after_scn or 0
        self._writer = WindowWriter(self.name, self._encoder, newest)
        try:
            with self._errors():
                self._scn = self._connect(after_scn, newest, self._start)
        except BaseException:
            self.close()
            raise

    def scn_at(self, place: NamedPlace) -> int:
        """Look for a place in the change log; see `Source.scn_at`."""
        self.close()
        searched = _place(str(place))
        try:
            with self._errors():
                return self._connect(None, None, searched)
        finally:
            self.close()

    def tables(self) -> Sequence[Table]:
        """Return the watched tables as they are now."""
        with self._errors():
            return self._opened().tables()

    def _refuse_shown(self, table: SqliteTable) -> None:
        """Raise CaptureGapError for a table whose generated columns may show protected ones."""
        source = self._watched.get(table.name, "")
        generated = (column.name for column in table.columns if column.is_generated)
        if shown := unnamed(self._settings.columns, source, generated):
            raise CaptureGapError(shown_text(shown, source))

    @property
    def findings(self) -> Findings:
        """The warnings about keys, and about tables that patterns match, or do not."""
        return Findings(warnings=(*key_warnings(self.tables()), *self._matched.warnings))

    def read(self) -> Sequence[Captured]:
        """Return the next windows; see `read_transactions`."""
        return self._writer.write_from(self.read_transactions)

    def read_transactions(self) -> Sequence[Transaction]:
        """Return the next transactions; waits up to half a second, but for the first time.

        The first call returns at once: [] proves the connection, too.
        """
        log = self._opened()
        announced, self._announced = self._announced, None
        if announced is not None:
            return [announced]
        has_read, self._has_read = self._has_read, True
        deadline = self._clock() + (_READ_WAIT_S if has_read else 0.0)
        with self._errors():
            while True:
                windows = self._poll(log)
                now = self._clock()
                if windows:
                    self._busy_until = now + _BUSY_S
                    self._interval = self._settings.poll_interval_s
                    return [_transaction(window) for window in windows]
                if now >= deadline:
                    if has_read:
                        log.begin_while_quiet()
                    return []
                if self._stop.wait(min(self._interval, deadline - now)):
                    return []
                # An idle source is polled less often, up to the idle interval.
                if now > self._busy_until:
                    slowest = max(_IDLE_INTERVAL_S, self._settings.poll_interval_s)
                    self._interval = min(self._interval * _SLOWER, slowest)

    @property
    def is_at_end(self) -> bool:
        """Whether the last `read` left nothing to the next one because of a lock."""
        return self._log is not None and self._log.is_all_read

    def close(self) -> None:
        """Close the connection; the triggers continue to log."""
        if self._bounds is not None:
            self._bounds.close()
        if self._connection is not None:
            self._connection.close()
        if self._wal is not None:
            os.close(self._wal)
        self._connection = self._bounds = self._log = self._wal = None
        self._forget()

    def _forget(self) -> None:
        self._announced = None
        self._has_read = False
        self._files: tuple[object, object] = (None, None)
        self._file_checked = 0.0
        self._interval = self._settings.poll_interval_s
        self._busy_until = 0.0

    def _opened(self) -> ChangeLog:
        if self._log is None:
            raise SourceUnavailableError(f"source {self.name}: not open")
        return self._log

    def _connect(self, after_scn: int | None, newest: Newest | None, start: _Place) -> int:
        """Open the files and find the position in the log; return the SCN to read after.

        `start` is where to begin without `after_scn`.
        """
        self._connection = connect(self._path)
        with waiting(self._connection, _LOCK_WAIT_S):
            self._use_wal(self._connection)
            present = self._matched.present(self._connection, self._watched)
            identity = install(self._connection, present)
            self._bounds = WindowBounds(self._path, identity)
            connection, bounds, matched = self._connection, self._bounds, self._matched
            given = (connection, bounds, self._watched, self._flush, matched, self._refuse_shown)
            log = ChangeLog(*given)
            # Prove that it is the same log before anything is written to it.
            log.check_bounds()
            if newest is not None:
                self._check_handed_over(log, newest)
            if after_scn is not None:
                self._resume(log, after_scn)
            log.follow_schema()
            scn = after_scn
            if scn is None:
                scn = self._first_scn(log, self._bounds, start)
        self._log = log
        self._files = self._present_files()
        return scn

    def _check_handed_over(self, log: ChangeLog, newest: Newest) -> None:
        """Stop if the log was cut below the newest window, even if it has grown since."""
        if newest.scn > log.last_logged():
            raise self._stopped(_too_new(newest.scn, log.last_logged()))
        log.check_time(newest.scn, newest.timestamp_ns)

    def _resume(self, log: ChangeLog, after_scn: int) -> None:
        if after_scn > log.last_logged():
            raise self._stopped(_too_new(after_scn, log.last_logged()))
        if after_scn > log.newest.scn:
            _log.warning(
                "source %s: the newest window of %s is %d, and %d had been read: window bounds "
                "were lost, as in a power failure; if the database was restored instead, stop the "
                "relay and start over",
                self.name,
                bounds_path(self._path),
                log.newest.scn,
                after_scn,
            )
            log.restore_bound(after_scn)

    def _first_scn(self, log: ChangeLog, bounds: WindowBounds, start: _Place) -> int:
        log.mark_beginning()
        log.close_all_windows()
        match start:
            case ScnPlace(scn):
                if scn > log.newest.scn:
                    raise self._stopped(_too_new(scn, log.newest.scn))
            case TimePlace():
                scn = self._scn_before(start, bounds)
            case Word.LATEST:
                scn = log.newest.scn
            case _:
                scn = bounds.oldest().prev_scn
        if start is Word.LATEST and scn:
            # Otherwise there is no SCN before the first change.
            self._announced = _transaction(LoggedWindow(log.newest, []))
        return scn

    def _scn_before(self, start: TimePlace, bounds: WindowBounds) -> int:
        """Return the SCN before the first window of a time or later."""
        oldest, found = bounds.oldest(), bounds.since(start.time_ns)
        if found == NO_BOUND:
            raise self._stopped(
                f"start = {start} is after the newest window of the log; use latest, or an "
                "earlier time"
            )
        if found == oldest and oldest.prev_scn:
            raise self._stopped(
                f"start = {start} is before the oldest window of the log, which was trimmed "
                "since; use earliest, or a later time"
            )
        return found.prev_scn

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == "wal":
            return
        (now,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if now != "wal":
            raise self._stopped(
                f"{self._path} has journal mode {mode} and cannot be switched to WAL; put it on "
                "a local disk, or run `PRAGMA journal_mode=WAL` on it"
            )
        _log.warning(
            "source %s: switched %s from journal mode %s to WAL; it stays that way",
            self.name,
            self._path,
            mode,
        )

    def _poll(self, log: ChangeLog) -> list[LoggedWindow]:
        self._check_file()
        # Trim first, while no window waits.
        log.tidy(self._scn, self._settings.retention_rows)
        windows = log.read(self._scn)
        if windows:
            self._scn = windows[-1].bound.scn
        return windows

    def _flush(self) -> None:
        """Put the log rows on disk. Any process's fsync writes all of a file's pages."""
        if not self._is_flushed:
            return
        if self._wal is None:
            with suppress(FileNotFoundError):
                self._wal = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        if self._wal is not None:
            os.fsync(self._wal)

    def _check_file(self) -> None:
        now = self._clock()
        if now - self._file_checked < _FILE_CHECK_S:
            return
        self._file_checked = now
        # The connections would continue to read the deleted files.
        if self._present_files() != self._files:
            raise SourceUnavailableError(
                f"source {self.name}: {self._path} or {bounds_path(self._path)} was moved, removed "
                "or replaced"
            )

    def _present_files(self) -> tuple[object, object]:
        return _identity(self._path), _identity(bounds_path(self._path))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with translated(self.name, self._path, lambda: self._scn):
                yield
        except CaptureGapError as error:
            raise self._stopped(str(error)) from None
        except LogDamagedError as error:
            self._replace_damaged_bounds()
            raise self._stopped(str(error)) from None
        except SourceError as error:
            if isinstance(error.__cause__, sqlite3.Error) and not is_busy(error.__cause__):
                self._replace_damaged_bounds()
            raise

    def _replace_damaged_bounds(self) -> None:
        """Rename the file of window bounds if it is damaged; losing it loses no change."""
        path = bounds_path(self._path)
        damage = damage_of(path)
        if not damage:
            return
        self.close()
        problem = (
            f"{path}, the relay's own file beside the database, is damaged ({damage}): it was "
            f"renamed to {put_aside(path)} and is made again; {self._path} is not affected, and "
            "no change is lost"
        )
        _log.warning("source %s: %s", self.name, problem)
        raise SourceUnavailableError(f"source {self.name}: {problem}")

    def _stopped(self, problem: str) -> SourceStoppedError:
        return SourceStoppedError(self.name, self._scn, problem, position=f"{self._path}")


def _watched_tables(settings: PhysicalSourceSettings) -> dict[str, str]:
    """Return the name of each table, with the name of its source."""
    watched: dict[str, str] = {}
    for name in settings.source_names:
        table = table_of(name)
        if any(table.lower() == other.lower() for other in watched):
            raise SettingsError(f"sources = {name!r}: table {table} is listed twice")
        watched[table] = name
    return watched


def _place(text: str) -> _Place:
    place = parse_source_start(text)
    if isinstance(place, Word | ScnPlace | TimePlace):
        return place
    raise SettingsError(
        f"start = {text!r}: must be `latest`, `earliest`, an SCN or `time:…` for SQLite"
    )


def _on_or_off(text: str) -> bool:
    if text not in ("on", "off"):
        raise SettingsError(f"uri: fsync = {text!r}: must be `on` or `off`")
    return text == "on"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _too_new(after_scn: int, last: int) -> str:
    return (
        f"capture continues after scn {after_scn}, but the log ends with {last}: the database was "
        "made again or restored, or lost its last commits in a power failure; bring consumers up "
        "to date from the tables, then remove this source's ring and MaxSCN"
    )


def _transaction(window: LoggedWindow) -> Transaction:
    scn, prev_scn, timestamp_ns = window.bound
    changes = [_alteration(row) if row.op == ALTERED else _row_change(row) for row in window.rows]
    return Transaction(scn, timestamp_ns, changes, Origin(file=LOG, offset=prev_scn + 1))


def _alteration(logged: LogRow) -> TableDefined:
    table = logged.generation.table
    assert table is not None
    altered = read_alteration(table.source, table, logged.images[0])
    return TableDefined((table.source,), "", f"ALTER TABLE {table.source}", (altered,))


def _row_change(logged: LogRow) -> RowChange:
    table, names = logged.generation
    assert table is not None
    row = dict(zip(names, logged.images, strict=False))
    before = None
    if logged.op == "u":
        before = dict(zip(names, logged.images[len(names) :], strict=False))
    return RowChange(table, _OPS[logged.op], row, before)
