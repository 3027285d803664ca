"""Seeded transactions over three tables: what the torture's writer commits. No I/O.

Every row carries the number of the transaction that wrote it last (`tx`),
which of that transaction's row changes it was (`tx_row`, from 1) and of how
many (`tx_rows`), so that a consumer sees a transaction that was cut. A deleted
row comes as it was before, so the workload updates a row right before deleting
it: the deletion is then change `tx_row` + 1 of the same transaction.

Committed transactions are numbered 1, 2, 3 … in commit order; what is rolled
back carries a negative number, which nobody may ever see. Rows that were there
before the first transaction carry 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

SOURCES = ("shop.accounts", "shop.stock", "shop.notes")
STAMPS = ("tx", "tx_row", "tx_rows")

TYPES = {
    "sqlite": {"int": "INTEGER", "text": "TEXT", "bytes": "BLOB"},
    "mysql": {"int": "BIGINT", "text": "VARCHAR(200)", "bytes": "BLOB"},
}


@dataclass(frozen=True, slots=True)
class TortureTable:
    """A table: the kinds of its columns, and which of them are the key."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]

    @property
    def source(self) -> str:
        """The name of its source."""
        return f"shop.{self.name}"

    @property
    def values(self) -> tuple[str, ...]:
        """The columns that are neither key nor stamp."""
        return tuple(c for c in self.columns if c not in self.key and c not in STAMPS)

    def select(self, where: str = "") -> str:
        """Return the query for the whole table in key order, equal for both databases.

        The last key column is a number that is unique by itself: sorting by it
        keeps the databases' collations out.
        """
        only = f" WHERE {where}" if where else ""
        return f"SELECT {', '.join(self.columns)} FROM {self.name}{only} ORDER BY {self.key[-1]}"

    def create(self, dialect: str) -> str:
        """Return the CREATE TABLE statement."""
        types = TYPES[dialect]
        columns = [
            f"{name} {types[kind]}{' NOT NULL' if name in self.key else ''}"
            for name, kind in self.columns.items()
        ]
        return (
            f"CREATE TABLE {self.name} ({', '.join(columns)}, PRIMARY KEY ({', '.join(self.key)}))"
        )


_STAMPED = dict.fromkeys(STAMPS, "int")
TABLES = (
    TortureTable("accounts", {"id": "int", "owner": "text", "balance": "int", **_STAMPED}, ("id",)),
    TortureTable(
        "stock",
        {"sku": "text", "branch": "int", "quantity": "int", **_STAMPED},
        ("sku", "branch"),
    ),
    TortureTable("notes", {"id": "int", "body": "text", "data": "bytes", **_STAMPED}, ("id",)),
)
BY_SOURCE = {table.source: table for table in TABLES}


class End(StrEnum):
    """How a transaction ends."""

    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass
class Work:
    """One transaction: its number, its statements with `?` parameters, its end."""

    number: int
    statements: list[tuple[str, tuple[object, ...]]] = field(default_factory=list)
    end: End = End.COMMIT


Key = tuple[object, ...]
# (table, what, key, new key): a step of a transaction before its size is known.
Step = tuple[TortureTable, str, Key, Key | None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large transactions are: one of `tables`, and in each of them one of `rows`, is drawn.

    `large_share` of them are larger than any single response of the relay. Of
    the keys that rows get, `reused_share` are those of rows that are gone.
    """

    tables: Sequence[int] = (1, 1, 2, 3)
    rows: Sequence[int] = (1, 1, 1, 2, 3, 5)
    large_share: float = 0.01
    reused_share: float = 0.0


# Of four initial rows, this many are in each table.
TABLES_BEFORE = (TABLES[0], TABLES[1], TABLES[0], TABLES[2])


class Workload:
    """Knows the existing keys, and draws the next transaction by the seed."""

    def __init__(self, seed: int, sizes: Sizes | None = None) -> None:
        self._random = random.Random(seed)
        self._sizes = sizes or Sizes()
        self._keys: dict[str, list[Key]] = {table.name: [] for table in TABLES}
        self._gone: dict[str, list[Key]] = {table.name: [] for table in TABLES}
        self._next_id = 0

    def keys_before(self, count: int) -> Iterator[tuple[TortureTable, Key]]:
        """Yield the keys of a number of initial rows; they do not depend on the seed."""
        for number in range(count):
            table = TABLES_BEFORE[number % len(TABLES_BEFORE)]
            self._keys[table.name].append(self._new_key(table))
            yield table, self._keys[table.name][-1]

    def row_before(self, table: TortureTable, key: Key) -> Key:
        """Draw the values of an initial row."""
        return (*key, *self._values(table), *(0 for _ in STAMPS))

    def transactions(self, count: int | None = None) -> Iterator[Work]:
        """Yield `count` committed transactions, or endless ones, with rolled-back ones between."""
        for number in itertools.count(1) if count is None else range(1, count + 1):
            yield from self.at(number)

    def at(self, number: int) -> Iterator[Work]:
        """Yield the committed transaction of a number, perhaps with one rolled back before it."""
        if self._random.random() < 0.06:
            yield self._rolled_back(number)
        yield self._committed(number)

    def inserts(self, number: int, table: TortureTable) -> tuple[Work, list[Key]]:
        """Return a transaction of new rows alone, and their keys, which nobody else uses.

        Not until they are given to `adopt`. A negative number is rolled back.
        """
        keys = [self._new_key(table) for _ in range(self._random.randrange(1, 6))]
        statements = [
            self._statement((table, "insert", key, None), (number, row, len(keys)))
            for row, key in enumerate(keys, 1)
        ]
        return Work(number, statements, End.COMMIT if number > 0 else End.ROLLBACK), keys

    def adopt(self, table: TortureTable, keys: Sequence[Key]) -> None:
        """Allow changes of rows from now on."""
        self._keys[table.name] += keys

    def forget(self, table: TortureTable) -> None:
        """Record that a table is empty."""
        self._keys[table.name].clear()

    def _committed(self, number: int) -> Work:
        steps: list[Step] = []
        for table in self._random.sample(TABLES, self._random.choice(self._sizes.tables)):
            steps += self._steps(table, self._how_many())
        stamps = ((number, row, len(steps)) for row in range(1, len(steps) + 1))
        work = Work(number, [self._statement(*both) for both in zip(steps, stamps, strict=True)])
        if self._random.random() < 0.05:
            # Rolled back to a savepoint in mid-transaction; the rest is committed.
            at = self._random.randrange(len(steps) + 1)
            work.statements[at:at] = [("SAVEPOINT s", ()), self._ghost(number), _UNDO]
        return work

    def _rolled_back(self, number: int) -> Work:
        ghosts = [self._ghost(number) for _ in range(self._random.randrange(1, 6))]
        return Work(-number, ghosts, End.ROLLBACK)

    def _how_many(self) -> int:
        # Now and then a transaction that no single response of the relay holds.
        if self._random.random() < self._sizes.large_share:
            return self._random.randrange(100, 300)
        return self._random.choice(self._sizes.rows)

    def _steps(self, table: TortureTable, rows: int) -> list[Step]:
        steps: list[Step] = []
        for _ in range(rows):
            steps += self._step(table)
        return steps

    def _step(self, table: TortureTable) -> list[Step]:
        keys = self._keys[table.name]
        kind = self._random.choices(("insert", "update", "delete", "rekey"), (40, 35, 18, 7))[0]
        if kind == "insert" or not keys:
            keys.append(self._free_key(table))
            return [(table, "insert", keys[-1], None)]
        at = self._random.randrange(len(keys))
        key = keys[at]
        if kind == "update":
            return [(table, "update", key, None)]
        if kind == "rekey":
            keys[at] = self._free_key(table)
            self._gone[table.name].append(key)
            return [(table, "update", key, None), (table, "rekey", key, keys[at])]
        self._gone[table.name].append(key)
        keys[at] = keys[-1]
        keys.pop()
        return [(table, "update", key, None), (table, "delete", key, None)]

    def _free_key(self, table: TortureTable) -> Key:
        gone, share = self._gone[table.name], self._sizes.reused_share
        if gone and share and self._random.random() < share:
            return gone.pop(self._random.randrange(len(gone)))
        return self._new_key(table)

    def _new_key(self, table: TortureTable) -> Key:
        self._next_id += 1
        if len(table.key) == 1:
            return (self._next_id,)
        return (f"sku {self._next_id % 97}/é", self._next_id)

    def _statement(self, step: Step, stamps: Key) -> tuple[str, tuple[object, ...]]:
        table, what, key, new_key = step
        where = " AND ".join(f"{column} = ?" for column in table.key)
        if what == "delete":
            return f"DELETE FROM {table.name} WHERE {where}", key
        if what == "insert":
            marks = ", ".join("?" * len(table.columns))
            values = (*key, *self._values(table), *stamps)
            names = ", ".join(table.columns)
            return f"INSERT INTO {table.name} ({names}) VALUES ({marks})", values
        changed = table.key if new_key is not None else table.values
        values = new_key if new_key is not None else self._values(table)
        sets = ", ".join(f"{column} = ?" for column in (*changed, *STAMPS))
        return f"UPDATE {table.name} SET {sets} WHERE {where}", (*values, *stamps, *key)

    def _ghost(self, number: int) -> tuple[str, tuple[object, ...]]:
        table = self._random.choice(TABLES)
        return self._statement((table, "insert", self._new_key(table), None), (-number, 1, 1))

    def _values(self, table: TortureTable) -> tuple[object, ...]:
        return tuple(self._value(table.columns[column]) for column in table.values)

    def _value(self, kind: str) -> object:
        draw = self._random
        if draw.random() < 0.1:
            return None
        if kind == "int":
            return draw.choice((draw.randrange(1000), -(2**63), 2**63 - 1, 0, -1))
        if kind == "bytes":
            return draw.randbytes(draw.randrange(200))
        return "".join(draw.choices("abc xyz-Äß日本€\\'\"%;", k=draw.randrange(120)))


_UNDO: tuple[str, tuple[object, ...]] = ("ROLLBACK TO SAVEPOINT s", ())
