"""The shop's transactions, applied to a real SQLite database."""

from __future__ import annotations

import itertools
import sqlite3

import pytest

from databus.demo.shop import TABLES, Shop, create_statements


def make_shop(seed: int = 1) -> Shop:
    clock = itertools.count(1_000)
    return Shop(seed, lambda: next(clock), lambda: "2024-01-01 00:00:00.000")


@pytest.mark.parametrize("changes", [1, 2, 7, 20, 50, 333, 1000])
def test_the_shop_stops_after_exactly_so_many_changes(changes: int) -> None:
    found = [len(statements) for statements in make_shop().transactions(changes)]
    assert sum(found) == changes
    assert all(found)


def test_every_statement_changes_one_row_and_numbers_grow() -> None:
    db = sqlite3.connect(":memory:")
    for create in create_statements("sqlite"):
        db.execute(create)
    numbers, number = [], 0
    for transaction in make_shop().transactions(2000):
        for statement in transaction:
            before = db.total_changes
            db.execute(statement.sql, statement.parameters)
            assert db.total_changes == before + 1
            number += 1
            if not statement.sql.startswith("DELETE"):
                columns = [name for name in TABLES if f" {name} " in statement.sql]
                (newest,) = db.execute(f"SELECT max(change_no) FROM {columns[0]}").fetchone()
                numbers.append((newest, number))
    db.close()
    assert all(newest == expected for newest, expected in numbers)


def test_a_row_is_stamped_right_before_it_is_deleted() -> None:
    deletions = 0
    for transaction in make_shop().transactions(2000):
        for earlier, later in itertools.pairwise(transaction):
            if later.sql.startswith("DELETE"):
                deletions += 1
                assert earlier.sql.startswith("UPDATE orders")
                assert earlier.parameters[-1] == later.parameters[0]
    assert deletions > 10


def test_equal_seeds_make_equal_shops() -> None:
    first, again = (list(make_shop(3).transactions(200)) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("dialect", ["sqlite", "mysql"])
def test_every_table_carries_the_stamps(dialect: str) -> None:
    assert all("change_no" in text and "changed_ns" in text for text in create_statements(dialect))
