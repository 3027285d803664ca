"""A table of MySQL or MariaDB, digested by the server; see `SourceTable`.

With an integer key, each chunk is one statement that uses the primary key's
index. With another key, the digests of all buckets take one pass over the table.
Columns are read as the relay's own scan reads them, so values equal the stream's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from databus.client.spark.verify.checksums.checksum_table import ChecksumPlace
from databus.client.spark.verify.checksums.mysql_checksums import MysqlChecksums
from databus.client.spark.verify.chunks import where
from databus.client.spark.verify.mysql_texts import MysqlTexts
from databus.client.spark.verify.source_table import Selection, SourceTable
from databus.client.spark.verify.table_shape import Key, Row, shape_of, spark_values
from databus.client.spark.verify.texts import TEXTS, Form, base_type, form_of
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.rows.layout import Definition
from databus.relay.sources.mysql.scan.columns import MisfitError, rows_of, selected
from databus.relay.sources.mysql.scan.tables import MysqlTableScan
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of, connect, driver_errors
from databus.relay.sources.mysql.tables.ddl_tokens import quote
from databus.relay.sources.mysql.tables.names import split_name
from databus.schemas.columns.avro_columns import AvroColumn, Kind
from databus.schemas.errors import SettingsError, SourceStoppedError

# A pass over a large table returns its first row late.
_LONGEST_ANSWER_S = 6 * 3600.0
_SESSION = (
    "SET SESSION character_set_results = NULL, sql_mode = '', time_zone = '+00:00',"
    " sql_select_limit = 18446744073709551615, sql_big_selects = 1"
)
_NO_LIMIT = {True: "max_statement_time", False: "max_execution_time"}
_TOUCHED = frozenset({"datetime", "timestamp"})
_FETCHED_ROWS = 5_000


class MysqlTable(SourceTable):
    """One table of one server."""

    def __init__(self, physical: PhysicalSourceSettings, source: str, selection: Selection) -> None:
        super().__init__(physical, source, selection)
        self._address = address_of(physical)
        self._name = quote(*split_name(source))
        self._scan = MysqlTableScan(physical)
        self._connection: Any = None
        try:
            self._scan.open()
            definition = self._defined(physical)
            self._connection = self._connect()
        except BaseException:
            self.close()
            raise
        is_null = physical.zero_dates == "null"
        self.shape = shape_of(definition.table(source), selection.columns)
        self._selected = [
            selected(column, zero_dates_are_null=is_null)
            for column in definition.columns
            if column.name in self.shape.names
        ]
        self._texts = MysqlTexts(self._is_mariadb, zero_dates_are_null=is_null)
        self._digest = self._texts.digest(self.shape.columns)
        self._bucket = self._texts.digest(self.shape.key)
        self._values = spark_values(self.shape)
        self._key = quote(self.shape.key[0].name)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _chunk_select(self, condition: str, rows: int, last: str, lock: str) -> str:
        key = self._key
        # FORCE INDEX: any other plan would sort the table for each chunk.
        return (
            f"SELECT {last} AS last, COUNT(*) AS found, BIT_XOR(d) AS digest "
            f"FROM (SELECT {key} AS k, {self._digest} AS d FROM {self._name} FORCE INDEX (PRIMARY)"
            f"{condition} ORDER BY {key} LIMIT {rows}{lock}) AS c"
        )

    def _buckets_query(self, count: int) -> str:
        return (
            f"SELECT b, COUNT(*), BIT_XOR(d) FROM (SELECT {self._bucket} MOD {count} AS b, "
            f"{self._digest} AS d FROM {self._name}{where(self._where)}) AS c GROUP BY b"
        )

    def rows_of(self, keys: Sequence[Key]) -> Iterator[Row]:
        """Yield the rows that have these keys."""
        return self._read(self._is_one_of(keys))

    def touch(self, keys: Sequence[Key], column: str) -> None:
        """Write the current time into a DATETIME or TIMESTAMP column of these rows."""
        defined = {one.name: base_type(one.sql_type) for one in self._all_columns}
        if defined.get(column) not in _TOUCHED:
            has = [name for name, kind in defined.items() if kind in _TOUCHED]
            raise SettingsError(
                f"{self._source}: --touch-column {column} is not a DATETIME or TIMESTAMP column; "
                f"those are: {', '.join(has) or 'none'}"
            )
        self._ask(
            f"UPDATE {self._name} SET {quote(column)} = CURRENT_TIMESTAMP(6) "
            f"WHERE {self._is_one_of(keys)}"
        )

    def checksums(self, table: str, source: str, run: str) -> MysqlChecksums:
        """Return the table for this one's checksums, on a connection of its own."""
        place = ChecksumPlace(table, source, self._source, run)
        return MysqlChecksums(place, self._connect(), is_mariadb=self._is_mariadb)

    def _defined(self, physical: PhysicalSourceSettings) -> Definition:
        definition = ServerCatalog(self._address, physical, 0).definition(self._source)
        if definition is None:
            raise SourceStoppedError(physical.name, 0, f"table {self._source} is not there")
        self._all_columns = definition.columns
        return definition

    def _connect(self) -> Any:
        options: dict[str, Any] = {
            "read_timeout": _LONGEST_ANSWER_S,
            # Bytes as the server sends them, which the row decoder of the scan expects.
            "use_unicode": False,
            "conv": {},
        }
        connection = connect(self._address, source=self.physical_source, **options)
        try:
            version = self._ask("SELECT VERSION()", connection)[0][0]
            self._is_mariadb = b"mariadb" in version.lower()
            self._ask(_SESSION, connection)
            self._ask(f"SET SESSION {_NO_LIMIT[self._is_mariadb]} = 0", connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_one_of(self, keys: Sequence[Key]) -> str:
        conditions = (
            " AND ".join(
                self._equals(c, value) for c, value in zip(self.shape.key, key, strict=True)
            )
            for key in keys
        )
        return f"({' OR '.join(f'({condition})' for condition in conditions)})"

    def _equals(self, column: AvroColumn, value: Any) -> str:
        literal = _literal(column, value)
        if literal:
            return f"{quote(column.name)} = {literal}"
        # Compare texts: no index helps, but the result is exact.
        text = TEXTS[form_of(column, "mysql")](value)
        return f"{self._texts.text(column)} = '{text}'"

    def _read(self, condition: str) -> Iterator[Row]:
        columns = ", ".join(column.expression for column in self._selected)
        raw = self._ask(f"SELECT {columns} FROM {self._name}{where(condition, self._where)}")
        for at in range(0, len(raw), _FETCHED_ROWS):
            try:
                made = rows_of(self._selected, raw[at : at + _FETCHED_ROWS])
            except MisfitError as error:
                problem = f"table {self._source}: {error}"
                raise SourceStoppedError(self.physical_source, 0, problem) from error
            yield from map(self._values, made)

    def _ask(self, query: str, connection: Any = None) -> Any:
        with (
            driver_errors(self.physical_source, 0, f"reading {self._source} of {self._address}"),
            (connection or self._connection).cursor() as cursor,
        ):
            cursor.execute(query)
            return cursor.fetchall()


def _literal(column: AvroColumn, value: Any) -> str:
    """Return a key's value as a SQL literal that an index can find; "" if there is none."""
    form = form_of(column, "mysql")
    if column.kind is Kind.TIME or base_type(column.sql_type) == "bit" or form is Form.DOUBLE:
        return ""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime):
        return f"'{value.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    return f"_utf8mb4 x'{value.encode().hex()}'"
