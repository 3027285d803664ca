"""Digests of rows: the database, Spark and Python make the same of every type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from databus.client.spark.arrow.row_types import arrow_schema, spark_type
from databus.client.spark.verify.chunks import ChunkDigest
from databus.client.spark.verify.source_table import SourceTable, open_source_table
from databus.client.spark.verify.spark_texts import digest_of
from databus.client.spark.verify.table_shape import Row, Shape
from databus.client.spark.verify.texts import digest, row_text
from databus.conf.settings import SourceSettings
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import watching
from tests.relay.sources.mysql.test_mysql8 import JSON_LITERALS, MYSQL_TYPES
from tests.relay.sources.mysql.test_table_scan import EVERY_TYPE
from tests.relay.sources.sqlite.shop import (
    database as sqlite_database,
    opened,
    settings as sqlite_settings,
)

pytest_plugins = ["tests.mariadb", "tests.mysql"]

DOUBLES = ["5e-324", "1e15", "1e16", "123456789012345678", "0.00001", "2e-3", "-1.5e-300", "1e22"]
JSON_NUMBERS = [
    "'1e20'", "'1e-5'", "'1e-14'", "'1e-15'", "'1e-16'", "'1e15'", "'1e14'", "'-1.25e300'",
    "'123456789012345678.0'", "'[1e16, 0.0, -0.5e-7, 2.50]'",
]  # fmt: skip
COLUMNS_OF_A_TABLE = 30
Types = list[tuple[str, list[str]]]


def python_digests(shape: Shape, rows: list[Row]) -> list[int]:
    text = row_text(shape.columns, shape.dialect)
    return [digest(text([row[name] for name in shape.names])) for row in rows]


def spark_frame(spark: SparkSession, shape: Shape, rows: list[Row]) -> DataFrame:
    fields = [StructField(column.name, spark_type(column)) for column in shape.columns]
    schema = arrow_schema(StructType(fields))
    return spark.createDataFrame(pa.Table.from_pylist([dict(row) for row in rows], schema=schema))


def spark_digests(spark: SparkSession, shape: Shape, rows: list[Row]) -> list[int]:
    frame = spark_frame(spark, shape, rows).coalesce(1)
    found = frame.select(digest_of(shape.columns, shape.dialect).alias("d")).collect()
    return [row.d for row in found]


def database_digests(table: SourceTable, rows: int) -> list[int]:
    return [table.next_chunk(key - 1, 1)[1].digest for key in range(1, rows + 1)]


@contextmanager
def table_of(database: Database, folder: Path, types: Types) -> Iterator[tuple[SourceTable, int]]:
    """Make a table with a column of each type, a row for each literal, and NULLs."""
    declared = [one if one.endswith(" NULL") else f"{one} NULL" for one, _ in types]
    columns = ", ".join(f"c{at} {one}" for at, one in enumerate(declared))
    database.run(f"CREATE TABLE every (id INT PRIMARY KEY, {columns}) ROW_FORMAT = DYNAMIC")
    rows = max(len(literals) for _, literals in types) + 1
    for number in range(1, rows + 1):
        named = [(f"c{at}", of[number - 1 : number]) for at, (_, of) in enumerate(types)]
        values = {name: literal[0] for name, literal in named if literal}
        names = ", ".join(["id", *values])
        database.run(
            f"INSERT INTO every ({names}) VALUES ({', '.join([str(number), *values.values()])})"
        )
    physical = watching(database, folder, "every")
    with open_source_table(physical, f"{database.name}.every") as table:
        yield table, rows


def check_all_sides(spark: SparkSession, table: SourceTable, rows: int) -> None:
    shape = table.shape
    read = sorted(table.rows_of([(key,) for key in range(1, rows + 1)]), key=lambda r: r["id"])
    assert len(read) == rows
    expected = python_digests(shape, read)
    assert len(set(expected)) == rows
    assert database_digests(table, rows) == expected
    assert spark_digests(spark, shape, read) == expected


@pytest.mark.mariadb
def test_every_type_of_mariadb_has_one_digest_everywhere(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    database.run("SET time_zone = '+00:00', sql_mode = ''")
    types = [*EVERY_TYPE, ("DOUBLE", DOUBLES), ("FLOAT", DOUBLES)]
    for at in range(0, len(types), COLUMNS_OF_A_TABLE):
        with table_of(database, tmp_path, types[at : at + COLUMNS_OF_A_TABLE]) as (table, rows):
            check_all_sides(spark, table, rows)
        database.run("DROP TABLE every")


@pytest.mark.mysql
def test_every_type_of_mysql_has_one_digest_everywhere(
    mysql_database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    mysql_database.run("SET time_zone = '+00:00', sql_mode = ''")
    types = [item for item in MYSQL_TYPES.items() if "COMPRESSED" not in item[0]]
    types += [("DOUBLE", DOUBLES), ("FLOAT", DOUBLES), ("JSON", [*JSON_LITERALS, *JSON_NUMBERS])]
    for at in range(0, len(types), COLUMNS_OF_A_TABLE):
        some = types[at : at + COLUMNS_OF_A_TABLE]
        with table_of(mysql_database, tmp_path, some) as (table, rows):
            check_all_sides(spark, table, rows)
        mysql_database.run("DROP TABLE every")


@pytest.mark.mariadb
def test_dates_that_are_none_are_null_where_the_relay_has_them_as_null(
    database: Database, tmp_path: Path
) -> None:
    database.run("SET sql_mode = 'ALLOW_INVALID_DATES'")
    literals = ["0000-00-00", "2020-00-15", "2020-02-30", "2020-02-00", "2020-02-28"]
    database.run("CREATE TABLE d (id INT PRIMARY KEY, a DATE, b DATETIME(3), c TIMESTAMP NULL)")
    for number, text in enumerate(literals, 1):
        stamp = text if number in (1, 5) else "2021-01-01"
        database.run(f"INSERT INTO d VALUES ({number}, '{text}', '{text}', '{stamp}')")
    physical = watching(database, tmp_path, "d", zero_dates="null")
    with open_source_table(physical, f"{database.name}.d") as table:
        read = list(table.rows_of([(number,) for number in range(1, 6)]))
        assert [row["a"] is None for row in read] == [True, True, True, True, False]
        assert database_digests(table, 5) == python_digests(table.shape, read)


SQLITE_VALUES: list[tuple[Any, ...]] = [
    (1, None, None, None, None, None),
    (2, 2**63 - 1, 1e22, "", b"", "12"),
    (3, -(2**63), -0.0, "a ", b"\x00\xff", 12),
    (4, 0, 5e-324, "é😀'", b"x'00'", 12.0),
    (5, 7, 2e-3, "-;", b"-;", b"\x0c"),
]


def test_every_kind_of_sqlite_has_one_digest_everywhere(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    columns = "id INTEGER PRIMARY KEY, i INT, r REAL, t TEXT, b BLOB, a ANY"
    with sqlite_database(path, f"CREATE TABLE things({columns})") as connection:
        connection.executemany("INSERT INTO things VALUES (?, ?, ?, ?, ?, ?)", SQLITE_VALUES)
    with opened(path, "things"):
        pass  # leaves a change log, as a relay does
    with open_source_table(sqlite_settings(path, "things"), "shop.things") as table:
        check_all_sides(spark, table, len(SQLITE_VALUES))


def test_a_chunk_without_rows_has_the_digest_of_none_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite_database(path, "CREATE TABLE things (id INTEGER PRIMARY KEY)"):
        pass
    with opened(path, "things"):
        pass
    with open_source_table(sqlite_settings(path, "things"), "shop.things") as table:
        assert table.next_chunk(None, 10) == (None, ChunkDigest())
        assert table.bucket_digests(3) == {}


@pytest.mark.mariadb
def test_a_chunk_without_rows_has_the_digest_of_none_in_mariadb(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE d (id INT PRIMARY KEY)", "INSERT INTO d VALUES (1), (2)")
    with open_source_table(watching(database, tmp_path, "d"), f"{database.name}.d") as table:
        last, _ = table.next_chunk(None, 2)
        assert table.next_chunk(last, 2) == (None, ChunkDigest())


def test_a_source_with_a_name_of_its_own_is_digested_from_its_table(tmp_path: Path) -> None:
    path, own = tmp_path / "shop.db", "com.example.shop.Things"
    with sqlite_database(path, "CREATE TABLE things (id INTEGER PRIMARY KEY, t TEXT)") as db:
        db.execute("INSERT INTO things VALUES (1, 'a')")
    with opened(path, "things"):
        pass
    plain = sqlite_settings(path, "things")
    named = plain.model_copy(update={"sources": (SourceSettings(name=own, table="shop.things"),)})
    with open_source_table(plain, "shop.things") as by_table, open_source_table(named, own) as it:
        assert it.shape == replace(by_table.shape, source=own)
        assert it.next_chunk(None, 10) == by_table.next_chunk(None, 10)
        assert list(it.rows_of([(1,)])) == [{"id": 1, "t": "a"}]
        assert it.estimate_rows() == by_table.estimate_rows()
