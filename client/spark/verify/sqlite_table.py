"""A table of an SQLite database, digested in this process; see `SourceTable`.

SQLite has no MD5, so the connection registers the digest as a function. Each
statement reads one consistent state; writers go on meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from databus.client.spark.verify.checksums.checksum_table import ChecksumPlace
from databus.client.spark.verify.checksums.sqlite_checksums import SqliteChecksums
from databus.client.spark.verify.chunks import where
from databus.client.spark.verify.source_table import Selection, SourceTable
from databus.client.spark.verify.table_shape import Key, Row, Shape, shape_of, spark_values
from databus.client.spark.verify.texts import digest, row_text
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.sqlite.catalog import quote
from databus.relay.sources.sqlite.connection import connect, transaction, translated
from databus.relay.sources.sqlite.table_scan import SqliteTableScan
from databus.relay.sources.uri import parse_uri
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind
from databus.schemas.errors import SettingsError

_LOCK_WAIT_MS = 5000
_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


class _Xor:
    """The XOR of integers, as an aggregate of SQLite."""

    def __init__(self) -> None:
        self._found = 0

    def step(self, value: int) -> None:
        """Add one number."""
        self._found ^= value

    def finalize(self) -> int:
        """Return the XOR."""
        return self._found


class SqliteTable(SourceTable):
    """One table of one database file."""

    def __init__(self, physical: PhysicalSourceSettings, source: str, selection: Selection) -> None:
        super().__init__(physical, source, selection)
        self._path = Path(parse_uri(physical.uri).path)
        self._name = quote(source.partition(".")[2] or source)
        self._scan = scan = SqliteTableScan(physical)
        self._connection: sqlite3.Connection | None = None
        try:
            scan.open()
            table = scan.table(source)
            self.shape = shape_of(table, selection.columns)
            self._kinds = {column.name: column for column in shape_of(table).columns}
            with translated(physical.name, self._path, lambda: 0):
                self._connection = self._connect()
        except BaseException:
            self.close()
            raise
        self._values = spark_values(self.shape)
        self._key = quote(self.shape.key[0].name)
        self._digest = f"databus_digest({', '.join(map(quote, self.shape.names))})"
        self._bucket = f"databus_key_digest({', '.join(map(quote, self.shape.key_names))})"

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _chunk_select(self, condition: str, rows: int, last: str, lock: str) -> str:
        key = self._key
        # Without rows Python's aggregates return NULL.
        return (
            f"SELECT {last} AS last, count(*) AS found, coalesce(databus_xor(d), 0) AS digest "
            f"FROM (SELECT {key} AS k, {self._digest} AS d FROM {self._name}{condition} "
            f"ORDER BY {key} LIMIT {rows}{lock})"
        )

    def _buckets_query(self, count: int) -> str:
        return (
            f"SELECT {self._bucket} % {count} AS b, count(*), databus_xor({self._digest}) "
            f"FROM {self._name}{where(self._where)} GROUP BY b"
        )

    def rows_of(self, keys: Sequence[Key]) -> Iterator[Row]:
        """Yield the rows that have these keys."""
        return self._read(self._is_one_of(keys), [value for key in keys for value in key])

    def touch(self, keys: Sequence[Key], column: str) -> None:
        """Write the current time into a text column of these rows."""
        found = self._kinds.get(column)
        if found is None or found.kind not in (Kind.STRING, Kind.ANY):
            raise SettingsError(
                f"{self._source}: --touch-column {column} is not a column that takes a text"
            )
        update = f"UPDATE {self._name} SET {quote(column)} = {_NOW} WHERE {self._is_one_of(keys)}"
        values = [value for key in keys for value in key]
        with (
            translated(self.physical_source, self._path, lambda: 0),
            # The comparison's own connection is read-only.
            closing(self._connect("rw")) as connection,
            transaction(connection),
        ):
            connection.execute(update, values)

    def checksums(self, table: str, source: str, run: str) -> SqliteChecksums:
        """Return the table for this one's checksums, on a connection of its own."""
        with translated(self.physical_source, self._path, lambda: 0):
            connection = self._connect("rw")
        place = ChecksumPlace(table, source, self._source, run)
        return SqliteChecksums(place, connection, self._path)

    def _connect(self, mode: str = "ro") -> sqlite3.Connection:
        connection = connect(self._path, mode=mode)
        connection.execute(f"PRAGMA busy_timeout = {_LOCK_WAIT_MS}")
        shape = self.shape
        _add(connection, "databus_digest", shape, shape.columns)
        _add(connection, "databus_key_digest", shape, shape.key)
        connection.create_function("databus_any", 1, any_text, deterministic=True)
        connection.create_aggregate("databus_xor", 1, _Xor)
        return connection

    def _is_one_of(self, keys: Sequence[Key]) -> str:
        # Spark has the text of a key of kind ANY: compare with that text.
        terms = [
            f"databus_any({quote(c.name)})" if c.kind is Kind.ANY else quote(c.name)
            for c in self.shape.key
        ]
        one = " AND ".join(f"{term} = ?" for term in terms)
        return f"({' OR '.join([f'({one})'] * len(keys))})"

    def _read(self, condition: str, values: Sequence[Any] = ()) -> Iterator[Row]:
        columns = ", ".join(map(quote, self.shape.names))
        query = f"SELECT {columns} FROM {self._name}{where(condition, self._where)}"
        for row in self._ask(query, values):
            yield self._values(dict(zip(self.shape.names, row, strict=True)))

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        assert self._connection is not None
        with translated(self.physical_source, self._path, lambda: 0):
            return self._connection.execute(query, values).fetchall()


def _add(
    connection: sqlite3.Connection, name: str, shape: Shape, columns: Sequence[AvroColumn]
) -> None:
    text = row_text(columns, shape.dialect)
    any_places = [at for at, column in enumerate(columns) if column.kind is Kind.ANY]

    def of_row(*values: Any) -> int:
        if any_places:
            changed = list(values)
            for at in any_places:
                changed[at] = any_text(values[at])
            return digest(text(changed))
        return digest(text(values))

    function: Callable[..., int] = of_row
    connection.create_function(name, len(columns), function, deterministic=True)
