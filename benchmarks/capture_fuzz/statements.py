"""The statements that servers log: every kind of column and transaction. No I/O.

Each list is run in order in one session. Values are literals, so that a
recording is the same each time but for its clock.
"""

from __future__ import annotations

from collections.abc import Iterator

SOURCES = ("f.types", "f.plain", "f.wide", "f.loose")
SCHEMA = "CREATE DATABASE f CHARACTER SET utf8mb4"
# Type, and values beside NULL; `id` is the key in front.
COLUMNS = {
    "TINYINT": ("-128", "127"),
    "TINYINT UNSIGNED": ("255",),
    "SMALLINT": ("-32768",),
    "MEDIUMINT": ("-8388608", "8388607"),
    "INT UNSIGNED": ("4294967295",),
    "BIGINT UNSIGNED": ("18446744073709551615",),
    "FLOAT": ("1.1",),
    "DOUBLE": ("-1e300",),
    "DECIMAL(65,30)": ("-1234567890123.000000000000000000000000000001", "0"),
    "DECIMAL(5,0)": ("-99999",),
    "BIT(17)": ("b'10000000000000001'",),
    "YEAR": ("0", "2155"),
    "DATE": ("'9999-12-31'", "'2024-02-29'"),
    "TIME(3)": ("'-00:00:00.001'", "'838:59:59'"),
    "DATETIME(6)": ("'2024-02-29 12:34:56.789012'",),
    "DATETIME": ("'1000-01-01 00:00:00'",),
    "TIMESTAMP(2) NULL": ("'2024-02-29 12:34:56.78'",),
    "CHAR(20)": ("'trailing  '", "'é日本'"),
    "CHAR(255)": ("REPEAT('x', 255)",),
    "BINARY(16)": ("X'00FF00'",),
    "VARCHAR(300)": ("'quote '' and \\\\'", "''"),
    "VARCHAR(20) CHARACTER SET latin1": ("'ñ'",),
    "VARCHAR(20) CHARACTER SET utf16": ("'日'",),
    "VARBINARY(20)": ("X'FF'",),
    "TEXT": ("REPEAT('text ', 30)",),
    "MEDIUMBLOB": ("X'0001'",),
    "ENUM('a','ñ','c')": ("'ñ'",),
    "SET('x','y','z')": ("'x,z'", "''"),
    "JSON": ('\'{"a": [1, 2.5, null, "x"], "b": {"c": true}}\'', "'[]'"),
    "POINT": ("ST_GeomFromText('POINT(1 2)')",),
}
MARIADB_COLUMNS = {
    **COLUMNS,
    "VARCHAR(200) COMPRESSED": ("REPEAT('q', 150)", "'short'"),
    "TEXT COMPRESSED": ("REPEAT('q', 500)",),
    "INET6": ("'::1'",),
    "UUID": ("'123e4567-e89b-12d3-a456-426655440000'",),
}
_SHAPES = (
    "INSERT INTO f.plain VALUES ({n}, {n} * 7, 'row {n}', 1.5), ({n} + 1, NULL, NULL, NULL)",
    "UPDATE f.plain SET a = a + 1, b = CONCAT(b, '!') WHERE id <= {n} AND a IS NOT NULL LIMIT 5",
    "DELETE FROM f.plain WHERE id = {n} + 1",
    "INSERT INTO f.unwatched VALUES ({n})",
    "INSERT INTO f.loose VALUES ({n}, 'no transaction')",
    "BEGIN; INSERT INTO f.plain VALUES ({n} + 2, 1, 'a', 0); SAVEPOINT s; INSERT INTO f.loose "
    "VALUES ({n} + 2, 'kept'); INSERT INTO f.plain VALUES ({n} + 3, 2, 'gone', 0); "
    "ROLLBACK TO s; UPDATE f.plain SET c = 2 WHERE id = {n} + 2; COMMIT",
    "XA START 'x{n}'; INSERT INTO f.plain VALUES ({n} + 4, 1, 'xa', 0); XA END 'x{n}'; "
    "XA PREPARE 'x{n}'; XA COMMIT 'x{n}'",
    "XA START 'y{n}'; INSERT INTO f.plain VALUES ({n} + 5, 1, 'xa', 0); XA END 'y{n}'; "
    "XA PREPARE 'y{n}'; XA ROLLBACK 'y{n}'",
    "INSERT INTO f.wide SELECT seq + {n} * 100, {wide} FROM f.numbers",
)
_WIDE_COLUMNS = 50
_DDL = (
    "ALTER TABLE f.plain ADD COLUMN d{n} INT DEFAULT 7",
    "INSERT INTO f.plain (id, a) VALUES ({n} + 6, 1)",
    "ALTER TABLE f.plain DROP COLUMN d{n}",
    "CREATE TABLE f.copy{n} SELECT * FROM f.plain LIMIT 2",
    "RENAME TABLE f.copy{n} TO f.other{n}",
    "DROP TABLE f.other{n}",
)


def tables(columns: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the statements that create the tables."""
    every = ", ".join(f"c{at} {sql_type}" for at, sql_type in enumerate(columns))
    yield f"CREATE TABLE f.types (id INT PRIMARY KEY, {every})"
    yield "CREATE TABLE f.plain (id INT PRIMARY KEY, a BIGINT, b VARCHAR(50), c DOUBLE)"
    wide = ", ".join(f"c{at} {'INT' if at % 2 else 'VARCHAR(20)'}" for at in range(_WIDE_COLUMNS))
    yield f"CREATE TABLE f.wide (id INT PRIMARY KEY, {wide})"
    yield "CREATE TABLE f.loose (id INT, note VARCHAR(50)) ENGINE = MyISAM"
    yield "CREATE TABLE f.unwatched (id INT)"
    yield "CREATE TABLE f.numbers (seq INT PRIMARY KEY)"
    yield f"INSERT INTO f.numbers VALUES {', '.join(f'({n})' for n in range(40))}"


def rows(columns: dict[str, tuple[str, ...]], first: int) -> Iterator[str]:
    """Yield inserts, updates and deletes of the table of every type."""
    most = max(map(len, columns.values()))
    marks = [
        ", ".join(values[at % len(values)] for values in columns.values()) for at in range(most)
    ]
    nulls = ", ".join("NULL" for _ in columns)
    yield f"INSERT INTO f.types VALUES ({first}, {nulls})"
    for at, values in enumerate(marks, first + 1):
        yield f"INSERT INTO f.types VALUES ({at}, {values})"
    yield f"UPDATE f.types SET id = id + 1000000, c0 = 1 WHERE id >= {first} AND id < 1000000"
    # One value against none, in either direction: two images of different sizes.
    yield f"UPDATE f.types SET c0 = NULL, c20 = 'x' WHERE id >= {first}"
    yield f"DELETE FROM f.types WHERE id >= {first} + 1000000"


def shapes(first: int) -> Iterator[str]:
    """Yield transactions of every shape."""
    wide = ", ".join("seq" if at % 2 else "CONCAT('v', seq)" for at in range(_WIDE_COLUMNS))
    for shape in _SHAPES:
        yield from shape.format(n=first, wide=wide).split("; ")


def ddl(first: int) -> Iterator[str]:
    """Yield DDL statements, with row changes between them."""
    for statement in _DDL:
        yield statement.format(n=first)
