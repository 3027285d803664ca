"""Reads the tables of an SQLite database in chunks.

A chunk is one read transaction; applications can write meanwhile. Rows are read in the order of
the rowid, or of the primary key in a table WITHOUT ROWID. VACUUM may change hidden rowids, and
moves the schema version, like DDL. Then the table is read from its beginning again, because rows
that moved to the front would be missed.

The connection is read-only. The change log must exist, with triggers on the tables, so a relay
must have run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.sqlite.catalog import SqliteTable, quote, table_from_json, table_of
from databus.relay.sources.sqlite.connection import connect, transaction, translated
from databus.relay.sources.sqlite.install import CaptureGapError, State, inspect, is_installed
from databus.relay.sources.sqlite.triggers import LOG
from databus.relay.sources.table_scan import NO_KEY_RANGES, Chunk, KeyRange
from databus.relay.sources.uri import parse_uri
from databus.schemas.errors import SettingsError, SourceStoppedError, SourceUnavailableError
from databus.schemas.table import Table

_LOCK_WAIT_S = 5.0
_LAST_LOGGED = f"SELECT coalesce(max(id), 0) FROM {LOG}"
_SCHEMA_VERSION = "PRAGMA main.schema_version"


@dataclass(frozen=True, slots=True)
class _Reading:
    """The way in which a table is read under one schema version.

    `order` are the terms of ORDER BY, none if the table is one consistent read; `order_name`
    identifies the order, so that a `resume` of another order is noticed.
    """

    schema_version: int
    table: Table
    names: tuple[str, ...]
    name: str
    order: tuple[str, ...]
    order_name: str
    has_integer_key: bool = False  # then the one term of the order is the key

    def columns(self) -> str:
        """Return the columns as SQL."""
        return ", ".join(quote(name) for name in self.names)

    def select(self, is_after: bool) -> str:
        """Return the query of a chunk: order terms, then columns; parameters, then the limit."""
        terms = ", ".join(self.order)
        marks = ", ".join("?" * len(self.order))
        where = f" WHERE ({terms}) > ({marks})" if is_after else ""
        return f"SELECT {terms}, {self.columns()} FROM {self.name}{where} ORDER BY {terms} LIMIT ?"

    def select_within(self) -> str:
        """Return the query of a chunk of a range of keys; first and last of it, then the limit."""
        (key,) = self.order
        where = f"WHERE {key} BETWEEN ? AND ?"
        return f"SELECT {key}, {self.columns()} FROM {self.name} {where} ORDER BY {key} LIMIT ?"

    def select_extent(self) -> str:
        """Return the query of the least and the greatest key."""
        (key,) = self.order
        # SQLite looks each of them up in the B-tree; min and max in one SELECT scan the table.
        first, last = (f"(SELECT {which}({key}) FROM {self.name})" for which in ("min", "max"))
        return f"SELECT {first}, {last}"

    def select_all(self) -> str:
        """Return the query of everything, in no order."""
        return f"SELECT {self.columns()} FROM {self.name}"

    def resume(self, after: Sequence[Any]) -> str:
        """Return the `resume` text after a row with these order terms."""
        return json.dumps({"order": self.order_name, "after": [_to_json(v) for v in after]})

    def after(self, resume: str | None) -> tuple[Any, ...]:
        """Return the order terms in a `resume` text; none if it is of another order."""
        if not resume:
            return ()
        place = json.loads(resume)
        if place["order"] != self.order_name:
            return ()
        return tuple(_from_json(value) for value in place["after"])


class SqliteTableScan:
    """Reads the tables of one SQLite database; implements `TableScan`."""

    def __init__(self, settings: PhysicalSourceSettings) -> None:
        uri = parse_uri(settings.uri)
        if not uri.path:
            raise SettingsError(f"uri = {settings.uri!r}: must name a file, as `sqlite:/shop.db`")
        self.name = settings.name
        self._path = Path(uri.path)
        names = settings.source_names
        self._tables = {name: table_of(name) for name in names}
        self._connection: sqlite3.Connection | None = None
        self._readings: dict[str, _Reading] = {}

    def open(self) -> None:
        """Connect, and check that each table is captured."""
        self.close()
        try:
            with self._errors():
                self._connection = self._connect()
                with transaction(self._connection, "DEFERRED"):
                    self._check()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._readings.clear()
        if connection is not None:
            connection.close()

    def table(self, source: str) -> Table:
        """Return a source's current table."""
        return self._read_now(source).table

    def is_chunked(self, source: str) -> bool:
        """Return whether rows are read in an order, by rowid or key."""
        return bool(self._read_now(source).order)

    def estimate_rows(self, source: str) -> int:
        """Count the rows, because SQLite has no estimate."""
        with self._reading() as connection:
            name = self._reading_of(connection, source).name
            (count,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
        return int(count)

    def visible_scn(self) -> int:
        """Return the newest committed row of the change log.

        A change and its log row are committed together.
        """
        with self._reading() as connection:
            (scn,) = connection.execute(_LAST_LOGGED).fetchone()
        return int(scn)

    def newest_scn(self) -> int:
        """Return the newest committed row of the change log."""
        return self.visible_scn()

    def chunks(
        self, source: str, rows: int, resume: str | None = None
    ) -> Generator[Chunk, None, None]:
        """Read a table in chunks; see `TableScan`. Closing it ends the read where it is."""
        if not self.is_chunked(source):
            yield from self._whole(source, rows)
            return
        place: str | None = resume
        while True:
            chunk = self._chunk(source, rows, place)
            yield chunk
            place = chunk.resume
            if place is None:
                return

    def key_range(self, source: str) -> KeyRange | None:
        """Return the least and the greatest key; see `TableScan`."""
        with self._reading() as connection:
            reading = self._reading_of(connection, source)
            if not reading.has_integer_key:
                return None
            first, last = connection.execute(reading.select_extent()).fetchone()
        return None if first is None else KeyRange(first, last)

    def chunks_within(
        self, source: str, rows: int, within: KeyRange
    ) -> Generator[Chunk, None, None]:
        """Read a range of keys in chunks; see `TableScan`."""
        first: int | None = within.first
        while first is not None:
            with self._reading() as connection:
                reading = self._reading_of(connection, source)
                if not reading.has_integer_key:
                    raise self._stopped(NO_KEY_RANGES.format(source))
                bounds = first, within.last, rows + 1
                found = _fetch_all(connection, reading.select_within(), bounds)
            made = [dict(zip(reading.names, row[1:], strict=True)) for row in found[:rows]]
            first = found[rows][0] if len(found) > rows else None
            yield Chunk(reading.table, made, None if first is None else "")

    def _chunk(self, source: str, rows: int, resume: str | None) -> Chunk:
        with self._reading() as connection:
            reading = self._reading_of(connection, source)
            after = reading.after(resume)
            # One row more than requested tells whether there are more.
            found = _fetch_all(connection, reading.select(bool(after)), (*after, rows + 1))
        width, names = len(reading.order), reading.names
        made = [dict(zip(names, row[width:], strict=True)) for row in found[:rows]]
        is_end = len(found) <= rows
        return Chunk(
            reading.table, made, None if is_end else reading.resume(found[rows - 1][:width])
        )

    def _whole(self, source: str, rows: int) -> Iterator[Chunk]:
        # A separate connection, which stays in one transaction between chunks.
        with self._errors(), closing(self._connect()) as connection:
            connection.text_factory = _decode_any
            connection.execute("BEGIN DEFERRED")
            reading = self._reading_of(connection, source)
            cursor = connection.execute(reading.select_all())
            found = cursor.fetchmany(rows)
            while True:
                following = cursor.fetchmany(rows) if found else []
                made = [dict(zip(reading.names, row, strict=True)) for row in found]
                yield Chunk(reading.table, made, "" if following else None)
                if not following:
                    return
                found = following

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self._path, mode="ro")
        connection.execute(f"PRAGMA busy_timeout = {int(_LOCK_WAIT_S * 1000)}")
        return connection

    def _check(self) -> None:
        connection = self._opened()
        if not is_installed(connection):
            raise self._stopped(
                "the database has no change log yet: start the relay of this physical source, and "
                "then this"
            )
        for source in self._tables:
            self._reading_of(connection, source)

    def _read_now(self, source: str) -> _Reading:
        with self._reading() as connection:
            return self._reading_of(connection, source)

    def _reading_of(self, connection: sqlite3.Connection, source: str) -> _Reading:
        """Return the table's reading under the current schema, in the caller's transaction."""
        (version,) = connection.execute(_SCHEMA_VERSION).fetchone()
        known = self._readings.get(source)
        if known is not None and known.schema_version == version:
            return known
        finding = inspect(connection, self._tables[source])
        if finding.state is State.NEW:
            raise self._stopped(
                f"table {self._tables[source]} is not captured yet: start the relay with {source} "
                "among its sources, and then this"
            )
        found = _reading_made(connection, version, source, finding.table)
        if known is not None and known.table == found.table:
            # Caches are keyed by it.
            found = replace(found, table=known.table)
        self._readings[source] = found
        return found

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), transaction(self._opened(), "DEFERRED") as connection:
            yield connection

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise SourceUnavailableError(f"source {self.name}: not open")
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with translated(self.name, self._path, lambda: 0):
                yield
        except CaptureGapError as error:
            raise self._stopped(str(error)) from None

    def _stopped(self, problem: str) -> SourceStoppedError:
        return SourceStoppedError(self.name, 0, problem, position=f"{self._path}")


def _reading_made(
    connection: sqlite3.Connection, version: int, source: str, found: SqliteTable
) -> _Reading:
    columns = tuple(column.name for column in found.columns)
    table = table_from_json(source, found.columns_json())
    whole = _Reading(version, table, columns, quote(found.name), (), "")
    if found.row_id:
        # VACUUM keeps an INTEGER PRIMARY KEY, but may change other rowids.
        name = found.row_id if found.has_integer_key else f"rowid in schema {version}"
        order = (quote(found.row_id),)
        return replace(whole, order=order, order_name=name, has_integer_key=found.has_integer_key)
    keyed = [found.columns[place] for place in found.key]
    name = ", ".join(f"{c.name} {c.sql_type} {c.collation}" for c in keyed)
    by_key = replace(whole, order=tuple(quote(c.name) for c in keyed), order_name=name)
    return by_key if _is_key_order(connection, by_key) else whole


def _is_key_order(connection: sqlite3.Connection, reading: _Reading) -> bool:
    """Return whether the order is that of the primary key's own B-tree.

    It is not if the key has another collation than the column, or columns in different
    directions. A table whose rowid has no free name has no such B-tree either, and may have
    NULLs in its key.
    """
    # The comment gives each schema its own text: the plan of a cached statement is not renewed.
    query = f"EXPLAIN QUERY PLAN /* {reading.schema_version} */ {reading.select(is_after=True)}"
    steps = connection.execute(query, [None] * len(reading.order) + [1]).fetchall()
    return len(steps) == 1 and " USING PRIMARY KEY " in steps[0][3]


def _fetch_all(
    connection: sqlite3.Connection, query: str, parameters: Sequence[Any]
) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if "decode to UTF-8" not in str(error):
            raise
    # Text that is not UTF-8 is refused when the row is encoded, with the column's name; the
    # change log does the same.
    connection.text_factory = _decode_any
    try:
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.text_factory = str


def _decode_any(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, float):
        return {"real": value.hex()}
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return bytes.fromhex(value["blob"]) if "blob" in value else float.fromhex(value["real"])
