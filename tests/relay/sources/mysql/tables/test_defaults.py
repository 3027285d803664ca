"""Defaults of new columns: what a version says of rows at rest is what the server has in them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymysql.err import MySQLError

from databus.relay.sources.kind import open_scan
from databus.relay.sources.source import TableAltered, TableDefined
from databus.relay.sources.table_scan import TableScan
from databus.schemas.table_change import TableChange, change_of, with_change
from databus.schemas.table_schema import avro_schema
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import watching
from tests.relay.sources.mysql.tables.ddl_following import Follower, following

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]

# Written as the values of their type are: every reader can be told them.
PLAIN = {
    "INT": ["7", "-7", "'7'", "TRUE", "NULL", "0", "'0'"],
    "BIGINT UNSIGNED": ["18446744073709551615"],
    "DECIMAL(5,2)": ["7", "7.5", "'7.50'", "-0.01"],
    "DECIMAL(5,2) UNSIGNED": ["0.10"],
    "FLOAT": ["0.1", "-7", "16777217"],
    "DOUBLE UNSIGNED": ["0.30000000000000004", "'7.5'"],
    "YEAR": ["2020", "'1999'", "0"],
    "DATE": ["'2020-02-29'", "'0001-01-01'"],
    "TIME(3)": ["'-12:30:00'", "'12:30:00.5'", "'838:59:59'"],
    "DATETIME(6)": ["'2020-02-29 01:02:03.000004'", "'2020-02-29'", "'9999-12-31 23:59:59'"],
    "TIMESTAMP NULL": ["CURRENT_TIMESTAMP", "NOW()", "LOCALTIME ON UPDATE now()"],
    "TIMESTAMP NOT NULL": ["current_timestamp()"],
    "CHAR(5)": ["'a'", "'a '", "''", "7"],
    "VARCHAR(40)": ["'a '", "'it''s'", "'a\\nb'", "'\\\\'", '"dq"', "'%s'", "-7", "''"],
    "VARCHAR(40) CHARACTER SET utf8mb4": ["'é'", "'dé\"f'", "'ä\\\\''\\n'", "'\U0001f600'", "N'ł'"],
    "VARCHAR(40) CHARACTER SET latin1": ["'é'", "'€'"],
    "VARCHAR(40) CHARACTER SET utf8": ["'日本'"],
    "VARCHAR(40) CHARACTER SET gbk": ["'日本'"],
    "VARBINARY(9)": ["'a'", "'a\\0b'"],
    "ENUM('a','0','')": ["'a'", "'0'", "''"],
    "SET('b','a')": ["'a,b'", "''", "'a,a'"],
    "ENUM('é','ü') CHARACTER SET utf8mb4": ["'ü'"],
    "SET('é','ü') CHARACTER SET utf8mb4": ["'ü,é'"],
}
# Which each type and server makes something of its own of, or refuses.
ODD = {
    "INT": ["'7.6'", "7.6", "1e1", "'1e1'", "' 7'", "'007'", "x'37'", "0x37", "b'111'", "(1+1)"],
    "INT ZEROFILL": ["7"],
    "DECIMAL(5,2)": ["-0", "-0e0", "'-0'", "1e1", "'1e1'", ".5", "5.", "1.005", "'1.005'", "+7"],
    "DECIMAL(5,2) UNSIGNED": ["'-7'", "-7"],
    "DECIMAL(5,2) ZEROFILL": ["-0e0", "'-0'"],
    "FLOAT": ["-0e0", "'-0'", "1e-46", "'1e3'", "1e40"],
    "FLOAT UNSIGNED": ["'-7'", "-7", "-0e0"],
    "FLOAT(7,2)": ["7.555"],
    "DOUBLE": ["-0e0", "-0.0", "'-0.0'", "1e400", "0x37"],
    "DOUBLE ZEROFILL": ["'-1'"],
    "BIT(9)": ["b'101'", "5", "'5'", "x'05'", "0"],
    "YEAR": ["'0'", "'00'", "70", "'69'", "20", "2020.4", "'02020'"],
    "DATE": ["'20-1-1'", "20200101", "'2020/01/01'", "'2020-01-01 10:00:00'", "DATE '2020-01-01'"],
    "TIME": ["'10:11'", "101112", "'1 10:11:12'", "'-00:00:00'", "12.7", "'12:30:00.5'"],
    "DATETIME(3)": ["'2020-01-01 01:02:03.1235'", "20200101010203", "'2020-01-01T01:02:03'"],
    "TIMESTAMP NULL": ["'2020-01-01 01:02:03'", "'2020-01-01'"],
    "TIMESTAMP(3) NULL": ["CURRENT_TIMESTAMP(3)", "now(3)"],
    "DATETIME": ["CURRENT_TIMESTAMP"],
    "CHAR(5)": ["_latin1'abc'", "x'61'", "0x6100", "'a' 'b'", "7.50", "1e3", "TRUE", "-0", "007"],
    "VARCHAR(9) CHARACTER SET swe7": ["'[a]'", "'~'", "'é'", "'ä'"],
    "VARCHAR(9) CHARACTER SET latin1": ["'ł'", "'\U0001f600'", "'\u0081'"],
    "VARCHAR(9) CHARACTER SET sjis": ["'日\\\\'", "'\U0001f600'"],
    "VARCHAR(9) CHARACTER SET utf8": ["'\U0001f600'"],
    "VARCHAR(9) CHARACTER SET utf8mb4": ["_latin1'é'", "'\ufffd'", "'e\u0301'", "'\u00a0'"],
    "VARCHAR(9) CHARACTER SET ucs2": ["'a'", "x'0061'"],
    "TEXT": ["'a'", "('a')", "(concat('a','b'))", "x'61'"],
    "BLOB": ["'a'", "('a')", "(x'ff')"],
    "BINARY(3)": ["'a'", "'a '", "x'61'", "''"],
    "VARBINARY(9)": ["x'ff'", "b'1'", "7.5", "'é'"],
    "ENUM('é','É') CHARACTER SET utf8mb4 COLLATE utf8mb4_bin": ["'É'", "'e'"],
    "JSON": ["'{}'", "('[1, 2]')", "(json_array())", "'{ \"a\":1 }'"],
    "ENUM('0','1','2')": ["1", "'1'", "2", "'2 '", "x'31'"],
    "SET('a','b')": ["1", "3", "'b,a'", "'B'", "'a, b'"],
    "UUID": ["'123E4567-E89B-12D3-A456-426614174000'"],
    "INET6": ["'::FFFF:1.2.3.4'"],
    "BLOB COLLATE utf8mb4_bin": ["'a'"],
}
MODES = ("", "NO_BACKSLASH_ESCAPES", "ORACLE", "EMPTY_STRING_IS_NULL")
OF_MODES = {
    "VARCHAR(9)": ["''", "'a\\nb'", "'\\\\'", "'a '"],
    "CHAR(2)": ["'abc'", "''"],
    "CHAR(2) CHARACTER SET latin1": ["'ł'", "'é'"],
    "CHAR(2) CHARACTER SET utf8": ["'\U0001f600'"],
    "INT": ["''", "'7'"],
    "DATE": ["'0000-00-00'", "''"],
    "DECIMAL(5,2) UNSIGNED": ["'-7'", "-7", "7.555"],
    "ENUM('a','')": ["''"],
}
COLLATED = (
    *("BLOB", "BLOB(10)", "BLOB(100)", "TINYBLOB", "LONG VARBINARY", "BINARY", "BINARY(3)"),
    *("VARBINARY(40)", "JSON", "UUID", "INT", "TEXT"),
)


class Columns:
    """A table with a row, to which columns are added and taken away again."""

    def __init__(self, follower: Follower, scan: TableScan) -> None:
        self._follower = follower
        self._scan = scan

    def add(self, column: str) -> TableChange | None:
        """Add a column and return what is said of rows; None when the server refuses it."""
        try:
            self._follower.database.run(f"ALTER TABLE t ADD x {column}")
        except MySQLError:
            return None
        self._follower.changes.clear()
        self._follower.catch_up()
        (altered,) = self._altered()
        text = with_change(avro_schema(altered.table), altered.change)
        return change_of(text)

    def _altered(self) -> Sequence[TableAltered]:
        return [
            one
            for change in self._follower.changes
            if isinstance(change, TableDefined)
            for one in change.altered
        ]

    def has(self) -> Any:
        """Return what the row has in it, as the scan reads it."""
        self._scan.open()
        ((row,),) = [chunk.rows for chunk in self._scan.chunks(self._follower.source, 10)]
        return row["x"]

    def drop(self) -> None:
        """Take the column away."""
        # Columns that are dropped at once stay in InnoDB's rows, which become too large.
        self._follower.run("ALTER TABLE t DROP x, ALGORITHM=COPY")


def shown(value: Any) -> str:
    """Return a value such that -0.0 is not 0.0, and 1.50 not 1.5."""
    return f"{type(value).__name__} {value!r}"


def wrong(columns: Columns, forms: dict[str, list[str]], *, are_told: bool) -> list[str]:
    """Return the defaults that rows at rest are told another value of, or none."""
    found = []
    for kind, defaults in forms.items():
        for default in defaults:
            column = f"{kind} DEFAULT {default}"
            change = columns.add(column)
            if change is None:
                continue
            if change.reload:
                found += [f"{column}: {change.why_reload}"] if are_told else []
            elif shown(change.added["x"]) != shown(columns.has()):
                found.append(f"{column}: {change.added['x']!r} and not {columns.has()!r}")
            columns.drop()
    return found


def test_a_default_that_rows_at_rest_are_told_is_what_the_server_has_in_them(
    either_database: Database, tmp_path: Path
) -> None:
    either_database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    settings = watching(either_database, tmp_path, "t", zero_dates="null")
    with following(either_database, tmp_path) as follower, closing(open_scan(settings)) as scan:
        columns = Columns(follower, scan)
        assert wrong(columns, PLAIN, are_told=True) == []
        assert wrong(columns, ODD, are_told=False) == []
        for mode in MODES:
            try:
                either_database.run("SET sql_mode = %s", args=(mode,))
            except MySQLError:
                continue  # of the other server
            assert wrong(columns, OF_MODES, are_told=False) == [], mode


def test_rows_whose_new_date_is_none_are_read_again_where_such_dates_stop(
    mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    for is_null in (True, False):
        with following(mysql_database, tmp_path, zero_dates_are_null=is_null) as follower:
            columns = Columns(follower, open_scan(watching(mysql_database, tmp_path, "t")))
            change = columns.add("TIMESTAMP NOT NULL")
            assert change is not None
            assert ("0000-00-00" in change.why_reload) is not is_null
            columns.drop()


@pytest.mark.parametrize("collation", ["latin1_bin", "utf8mb4_bin", "uca1400_ai_ci", "`binary`"])
def test_bytes_with_a_collation_are_the_texts_that_the_server_makes_of_them(
    database: Database, tmp_path: Path, collation: str
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with following(database, tmp_path) as follower:
        for number, kind in enumerate(COLLATED):
            follower.run(f"ALTER TABLE t ADD x{number} {kind} COLLATE {collation}")
            assert follower.known() == follower.now(), kind
