"""A shop with a fact and two dimensions, its rows, and random changes.

Orders refer to customers, these to countries; without constraints, so that a
reference may lead nowhere. A change may be of any kind, also of a key.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from databus.demo.databases import Database, Dialect, Session

KEYS = {"orders": "id", "customers": "id", "countries": "code"}
SOURCES = tuple(f"shop.{table}" for table in KEYS)
STATUSES = ("new", "open", "paid", "sent")
# Fact, dimension, dimension of the dimension: most changes are of the fact.
WEIGHTS = {"orders": 6, "customers": 3, "countries": 1}
ROWS_AT_ONCE = 200
# The share of additional keys, of those in use at the start.
SPARE = 1.5

Key = int | str
Statement = tuple[str, list[object]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of rows at the start."""

    orders: int
    customers: int
    countries: int

    @classmethod
    def of(cls, orders: int) -> Sizes:
        """Return the dimensions' sizes for a number of facts."""
        return cls(orders, max(4, orders // 10), max(3, orders // 100))


def create(dialect: Dialect) -> list[str]:
    """Return the statements that make the tables."""
    place = "shop." if dialect == "mysql" else ""
    return [
        f"CREATE TABLE {place}orders (id INT PRIMARY KEY, customer INT, "
        "status VARCHAR(10) NOT NULL, total INT)",
        f"CREATE TABLE {place}customers (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL, "
        "country VARCHAR(10))",
        f"CREATE TABLE {place}countries (code VARCHAR(10) NOT NULL PRIMARY KEY, "
        "name VARCHAR(40) NOT NULL)",
    ]


@dataclass
class Shop:
    """One database under change; one seed, one history."""

    database: Database
    seed: int
    sizes: Sizes
    _used: dict[str, set[Key]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._place = "shop." if self.database.dialect == "mysql" else ""
        self._used = {table: set() for table in KEYS}

    def fill(self) -> None:
        """Insert the initial rows; no change log has them."""
        session = self.database.connect()
        try:
            if self.database.dialect == "mysql":
                session.execute("SET SESSION sql_log_bin = 0")
            session.begin()
            for table in KEYS:
                self._fill(session, table)
            session.commit()
        finally:
            session.close()

    def touch(self) -> None:
        """Change each table once, because a source is served after its first change."""
        self._execute(self._put(table, self._free_key(table)) for table in KEYS)

    def transactions(self, changes: int) -> Iterator[int]:
        """Commit a number of changes in transactions of one to five; yield each one's size."""
        session = self.database.connect()
        try:
            while changes > 0:
                count = min(changes, self._random.choice((1, 1, 1, 2, 5)))
                session.begin()
                for _ in range(count):
                    session.execute(*self._change())
                session.commit()
                changes -= count
                yield count
        finally:
            session.close()

    def answer(self, select: str) -> list[tuple[Any, ...]]:
        """Return the result of a query; `{place}` stands before a table's name."""
        session = self.database.connect()
        try:
            return [tuple(row) for row in session.rows(select.format(place=self._place))]
        finally:
            session.close()

    def execute(self, statement: str) -> None:
        """Execute a statement with `{place}` before names."""
        self._execute([(statement.format(place=self._place), [])])

    def _execute(self, statements: Iterator[Statement] | list[Statement]) -> None:
        session = self.database.connect()
        try:
            session.begin()
            for sql, values in statements:
                session.execute(sql, values)
            session.commit()
        finally:
            session.close()

    def _fill(self, session: Session, table: str) -> None:
        keys = [self._key(table, number) for number in range(getattr(self.sizes, table))]
        self._used[table].update(keys)
        for begin in range(0, len(keys), ROWS_AT_ONCE):
            rows = [self._row(table, key) for key in keys[begin : begin + ROWS_AT_ONCE]]
            marks = ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))
            values = [value for row in rows for value in row]
            session.execute(f"INSERT INTO {self._place}{table} VALUES {marks}", values)

    def _change(self) -> Statement:
        (table,) = self._random.choices(list(WEIGHTS), weights=list(WEIGHTS.values()))
        used = self._used[table]
        kind = self._random.random()
        if not used or kind < 0.2:
            return self._put(table, self._free_key(table))
        key = self._random.choice(sorted(used))
        if kind < 0.35:
            used.discard(key)
            return f"DELETE FROM {self._place}{table} WHERE {KEYS[table]} = ?", [key]
        if kind < 0.42:
            return self._move(table, key)
        return self._put(table, key)

    def _put(self, table: str, key: Key) -> Statement:
        """Insert or update a row."""
        row = self._row(table, key)
        if key not in self._used[table]:
            self._used[table].add(key)
            marks = ", ".join("?" * len(row))
            return f"INSERT INTO {self._place}{table} VALUES ({marks})", row
        names = {"orders": "customer status total", "customers": "name country"}
        columns = names.get(table, "name").split()
        settings = ", ".join(f"{name} = ?" for name in columns)
        return f"UPDATE {self._place}{table} SET {settings} WHERE {KEYS[table]} = ?", [
            *row[1:],
            key,
        ]

    def _move(self, table: str, key: Key) -> Statement:
        """Change a row's key."""
        new = self._free_key(table)
        self._used[table].discard(key)
        self._used[table].add(new)
        column = KEYS[table]
        return f"UPDATE {self._place}{table} SET {column} = ? WHERE {column} = ?", [new, key]

    def _free_key(self, table: str) -> Key:
        """Return an unused key, which may have been used before."""
        # One more than are in use, so that one of them is free.
        most = max(int(getattr(self.sizes, table) * SPARE), len(self._used[table])) + 1
        free = {self._key(table, number) for number in range(most)} - self._used[table]
        return self._random.choice(sorted(free))

    def _key(self, table: str, number: int) -> Key:
        return f"c{number}" if table == "countries" else number

    def _row(self, table: str, key: Key) -> list[object]:
        pick = self._random
        if table == "countries":
            return [key, f"country {pick.randrange(5)}"]
        if table == "customers":
            country = self._key("countries", pick.randrange(self.sizes.countries + 2))
            return [key, f"name {pick.randrange(1000)}", pick.choice([country, country, None])]
        customer = pick.randrange(int(self.sizes.customers * SPARE))
        total = pick.choice([None, pick.randrange(100), pick.randrange(100)])
        return [key, pick.choice([customer, customer, None]), pick.choice(STATUSES), total]
