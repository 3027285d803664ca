"""Batches in tables of databases, also in such as somebody else has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.target import Applied, Target, open_target
from databus.schemas.errors import RowError, SettingsError
from tests.client.spark.changing_source import Change, batch_of, change
from tests.client.spark.targets.target_rows import rows_of_target, table_of

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]
DATABASES = pytest.mark.parametrize(
    "target_uri",
    ["sqlite", "mariadb", pytest.param("postgres", marks=pytest.mark.postgres)],
    indirect=True,
)
MARIADB = pytest.mark.parametrize("target_uri", ["mariadb"], indirect=True)


def apart(uri: str, *statements: str) -> list[Any]:
    """Do something in a target's database that its owner does; return the rows of the last one."""
    engine = sa.create_engine(uri.rpartition("#")[0])
    with engine.begin() as connection:
        results = [connection.execute(sa.text(statement)) for statement in statements]
        rows = [tuple(row) for row in results[-1]] if results[-1].returns_rows else []
    engine.dispose()
    return rows


def apply(target: Target, number: int, *changes: Change) -> Applied:
    return target.apply("app", number, changes_of(batch_of(changes), ["id"]))


def person(key: int, name: str) -> dict[str, Any]:
    return {"id": key, "name": name}


@DATABASES
@pytest.mark.parametrize("key", ["PRIMARY KEY", "NOT NULL"])
def test_a_row_that_is_there_is_updated_whatever_an_insert_would_need(
    opened: Open, target_uri: str, key: str
) -> None:
    apart(
        target_uri,
        f"CREATE TABLE person (id INT {key}, name VARCHAR(20), mine INT NOT NULL)",
        "INSERT INTO person VALUES (1, 'x', 7), (2, 'x', 8)",
    )
    target = opened()
    changes = [change("update", 2, person(1, "y")), change("delete", 2, person(2, "x"))]
    assert apply(target, 0, *changes) == Applied(1, 1, positions={"shop": 2})
    older = change("snapshot", 1, person(1, "x"), as_of=9)
    assert apply(target, 1, older) == Applied(1, 0, positions={"shop": 2})
    held = apart(target_uri, "SELECT id, name, mine, _databus_scn, _databus_as_of FROM person")
    assert held == [(1, "y", 7, 2, 9)]
    said = r"row id = 3 of SCN 3: .*mine.* Take that constraint"
    with pytest.raises(RowError, match=said):
        apply(target, 2, change("insert", 3, person(3, "z")))


@DATABASES
def test_rows_that_follow_a_truncate_in_its_window_stay_however_many_they_are(
    opened: Open, target_uri: str
) -> None:
    """`CREATE OR REPLACE TABLE … SELECT` is such a window; PostgreSQL has 65,535 parameters."""
    count = 70_000 if target_uri.startswith("postgres") else 1_200
    target = opened()
    apply(target, 0, *(change("insert", 10, person(key, "old")) for key in range(count + 5)))
    truncate = change("truncate", 10, index=1)
    rows = [change("insert", 10, person(key, "new"), index=2) for key in range(count)]
    more = change("insert", 10, person(-1, "new"), index=2)
    applied = apply(target, 1, truncate, *rows, more)
    assert applied == Applied(count + 1, 5, positions={"shop": 10})
    found = table_of(target)
    assert set(found["id"].to_pylist()) == {-1, *range(count)}
    told = {name: set(found[name].to_pylist()) for name in ("name", "_databus_scn")}
    assert told == {"name": {"new"}, "_databus_scn": {10}}


@DATABASES
def test_rows_with_a_unique_value_of_others_are_refused_and_leave_those(
    opened: Open, target_uri: str
) -> None:
    columns = "id INT PRIMARY KEY, name VARCHAR(20) UNIQUE"
    apart(target_uri, f"CREATE TABLE person ({columns})")
    target = opened()
    apply(target, 0, *(change("insert", 1, person(key, f"n{key}")) for key in range(600)))
    changes = [change("update", 2, person(key, f"m{key}")) for key in range(600)]
    changes[555] = change("update", 2, person(555, "n577"))
    with pytest.raises(RowError, match=r"row id = 555 of SCN 2: .* Take that constraint"):
        apply(target, 1, *changes)
    held = {row["id"]: row["name"] for row in rows_of_target(target)}
    assert held == {key: f"n{key}" for key in range(600)}


@MARIADB
def test_keys_that_are_one_in_the_table_are_refused_and_do_not_overwrite(
    opened: Open, target_uri: str
) -> None:
    collation = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    apart(
        target_uri,
        f"CREATE TABLE person (id INT, name VARCHAR(20) {collation}, n INT, PRIMARY KEY (name))",
    )
    target = opened(["name"])

    def applied(number: int, *changes: Change) -> Applied:
        return target.apply("app", number, changes_of(batch_of(changes), ["name"]))

    applied(0, change("insert", 1, person(1, "a")), change("insert", 1, person(1, "b")))
    for other in ("A", "a "):
        with pytest.raises(RowError, match=f"row name = '{other}' of SCN 2: .*Duplicate"):
            applied(1, change("insert", 2, person(2, other)))
    changes = [change("update", 3, person(3, "a")), change("delete", 3, person(3, "B"))]
    assert applied(1, *changes) == Applied(1, 0, positions={"shop": 3})
    assert apart(target_uri, "SELECT id, name FROM person ORDER BY name") == [(3, "a"), (1, "b")]


def test_each_row_gets_its_own_as_of_scn(opened: Open) -> None:
    target = opened(source_column=True)

    def applied(number: int, changes: list[Change]) -> Applied:
        batch = changes_of(batch_of(changes), ["id"], source_column=True)
        return target.apply("app", number, batch)

    applied(0, [change("insert", 50, person(key, "x")) for key in range(90)])
    touches = [
        change("snapshot", 1, person(key, "old"), as_of=60 + key % 3) for key in range(1, 90)
    ]
    assert applied(1, touches) == Applied(89, 0, positions={"shop": 50})
    held = {row["id"]: row["_databus_as_of"] for row in table_of(target).to_pylist()}
    assert held == {0: 50, **{key: 60 + key % 3 for key in range(1, 90)}}
    assert {row["name"] for row in rows_of_target(target)} == {"x"}


def test_another_kind_of_database_is_refused_without_its_password() -> None:
    problem = r"tables can be kept in PostgreSQL, .* and not in mssql"
    with pytest.raises(SettingsError, match=problem) as error:
        open_target("mssql+pyodbc://me:geheim@host/shop#orders")
    assert "geheim" not in str(error.value)
