"""Statements of many rows: what is in the table after them, in each database."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from databus.client.sql import statements
from databus.client.sql.names import run
from databus.client.sql.statements import Statements

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

# More than a statement has.
COUNT = 1_234
ODD = "a%s ?"


def table(*key: str) -> sa.Table:
    columns: list[sa.Column[Any]] = [
        sa.Column("id", sa.Integer, primary_key="id" in key, autoincrement=False),
        sa.Column(ODD, sa.String(20), primary_key=ODD in key),
        sa.Column("v", sa.Integer),
        sa.Column("w", sa.Integer, server_default="7"),
    ]
    return sa.Table("t $1 %s", sa.MetaData(), *columns)


def made(connection: sa.Connection, *key: str, is_typed: bool = False) -> Statements:
    """Make a table with that key and `COUNT` rows: their number, "%s", and v = the number."""
    found = table(*key)
    found.create(connection)
    wanted = Statements(connection, found, is_typed=is_typed)
    wanted.insert(["id", ODD, "v"], [(at, "%s", at) for at in range(COUNT)])
    return wanted


def rows(connection: sa.Connection) -> dict[int, tuple[Any, ...]]:
    """Return the rows by number."""
    found = connection.execute(table("id").select()).all()
    assert len({row[0] for row in found}) == len(found)
    return {row[0]: tuple(row[1:]) for row in found}


KEYS = pytest.mark.parametrize("key", [("id",), ("id", ODD)])
TYPED = pytest.mark.parametrize("is_typed", [False, True])


def keys(key: tuple[str, ...], *numbers: int) -> list[tuple[Any, ...]]:
    return [(at, "%s")[: len(key)] for at in numbers]


@KEYS
@TYPED
def test_rows_are_deleted_by_key(
    connection: sa.Connection, key: tuple[str, ...], is_typed: bool
) -> None:
    wanted = made(connection, *key, is_typed=is_typed)
    wanted.delete(key, keys(key, *range(1, COUNT)))
    assert rows(connection) == {0: ("%s", 0, 7)}
    wanted.delete(key, keys(key, 0, 5))
    wanted.delete(key, [])
    assert rows(connection) == {}


@KEYS
@TYPED
def test_rows_are_set_by_key(
    connection: sa.Connection, key: tuple[str, ...], is_typed: bool
) -> None:
    wanted = made(connection, *key, is_typed=is_typed)
    wanted.set_rows(["v", "w"], (-1, None), key, keys(key, *range(COUNT - 1), COUNT))
    expected = dict.fromkeys(range(COUNT - 1), ("%s", -1, None))
    assert rows(connection) == {**expected, COUNT - 1: ("%s", COUNT - 1, 7)}
    wanted.set_rows(["v"], (-2,), key, keys(key, COUNT - 1))
    assert rows(connection)[COUNT - 1] == ("%s", -2, 7)


@KEYS
def test_rows_are_updated_by_key_and_those_that_were_there_counted(
    connection: sa.Connection, key: tuple[str, ...]
) -> None:
    wanted = made(connection, *key)
    lines = [(-1, *one) for one in keys(key, *range(10, COUNT + 10))]
    assert wanted.update(["v"], key, lines) == COUNT - 10
    assert wanted.update(["v"], key, lines) == COUNT - 10, "although nothing changes"
    assert wanted.update(["v"], key, []) == 0
    expected = {at: ("%s", at if at < 10 else -1, 7) for at in range(COUNT)}
    assert rows(connection) == expected


@KEYS
def test_an_upsert_keeps_columns_that_it_does_not_have(
    connection: sa.Connection, key: tuple[str, ...]
) -> None:
    wanted = made(connection, *key)
    wanted.set_rows(["w"], (9,), key, keys(key, *range(COUNT)))
    wanted.upsert(["id", ODD, "v"], key, [(at, "%s", -at) for at in range(COUNT + 1)])
    expected = {at: ("%s", -at, 9) for at in range(COUNT)}
    assert rows(connection) == {**expected, COUNT: ("%s", -COUNT, 7)}


@KEYS
@TYPED
def test_rows_are_found_by_key(
    connection: sa.Connection, key: tuple[str, ...], is_typed: bool
) -> None:
    wanted = made(connection, *key, is_typed=is_typed)
    found = list(wanted.select(["v", ODD], key, keys(key, *range(1, COUNT + 5))))
    assert sorted(found) == [(at, "%s") for at in range(1, COUNT)]
    assert list(wanted.select(["v", ODD], key, keys(key, 3))) == [(3, "%s")]
    assert list(wanted.select(["v"], key, keys(key, 3), nulls=["w"])) == []


def test_long_texts_are_in_several_statements(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "_CHARS", 10)
    wanted = made(connection, "id")
    assert len(rows(connection)) == COUNT
    lines = [(at, "x" * 20) for at in range(4)]
    wanted.upsert(["id", ODD], ["id"], lines)
    assert [rows(connection)[at][0] for at in range(5)] == ["x" * 20] * 4 + ["%s"]


@pytest.mark.parametrize("connection", ["mariadb"], indirect=True)
def test_mariadb_reads_no_whole_table_for_one_row(connection: sa.Connection) -> None:
    wanted = made(connection, "id", ODD)
    connection.commit()
    run(connection, "FLUSH STATUS")
    wanted.delete(["id", ODD], [(3, "%s")])
    wanted.set_rows(["v"], (1,), ["id", ODD], [(4, "%s")])
    (read,) = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read_rnd_next'")
    assert int(read[1]) < COUNT
