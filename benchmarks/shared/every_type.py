"""A table with every type, and changes of it, no two of which are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.mariadb_server import Database

TABLE = (
    "CREATE TABLE every_type (id INT PRIMARY KEY, ver INT, nothing INT, small TINYINT UNSIGNED, "
    "large BIGINT UNSIGNED, price DECIMAL(12,3), ratio DOUBLE, bits BIT(10), word CHAR(8), "
    "line VARCHAR(80), page TEXT, raw BINARY(4), bytes VARBINARY(20), blob_ BLOB, "
    "letter ENUM('a','b'), letters SET('x','y','z'), day DATE, span TIME(3), at DATETIME(6), "
    "stamp TIMESTAMP(3), year_ YEAR, json_ JSON)"
)
_INSERT = f"INSERT INTO every_type VALUES ({','.join(['%s'] * 22)})"
_ROWS = 50  # of a transaction
_BLOCK = 10  # transactions of inserts, then one that updates and one that deletes
_PER_BLOCK = _BLOCK * _ROWS


class Change(NamedTuple):
    """One change: two of them are never the same."""

    kind: str
    id: int
    ver: int


def changes(count: int) -> Iterator[list[Change]]:
    """Yield the changes of each transaction, until there are so many."""
    done, first = 0, 1
    while done < count:
        for begin in range(first, first + _PER_BLOCK, _ROWS):
            yield [Change("INSERT", n, 0) for n in range(begin, begin + _ROWS)]
        yield [Change("UPDATE", n, 1) for n in range(first, first + _ROWS)]
        yield [Change("DELETE", n, 0) for n in range(first + _ROWS, first + 2 * _ROWS)]
        done += _PER_BLOCK + 2 * _ROWS
        first += _PER_BLOCK


def make(database: Database, wanted: Sequence[list[Change]]) -> None:
    """Make the changes."""
    cursor = database.connection.cursor()
    cursor.execute("SET time_zone = '+00:00'")
    for transaction in wanted:
        kind, first, last = transaction[0].kind, transaction[0].id, transaction[-1].id
        if kind == "INSERT":
            cursor.executemany(_INSERT, [_values(change.id) for change in transaction])
        elif kind == "UPDATE":
            cursor.execute(f"UPDATE every_type SET ver = 1 WHERE id BETWEEN {first} AND {last}")
        else:
            cursor.execute(f"DELETE FROM every_type WHERE id BETWEEN {first} AND {last}")
        database.connection.commit()


def _values(n: int) -> list[Any]:
    return [
        *(n, 0, None, n % 256, (1 << 63) + n, f"{n}.125", n * 0.5, n % 1024, f"w{n}"),
        *(
            f"line {n} ü €",
            f"page {n}",
            b"\x01\xff\x80",
            bytes([n % 256, 255]),
            bytes([255, n % 7]),
        ),
        *("ab"[n % 2], "x,z", "2020-02-29", "-12:34:56.789", "2020-02-29 01:02:03.456789"),
        *("2020-02-29 01:02:03.456", 2024, f'{{"n": {n}}}'),
    ]
