"""Values that a target's database cannot have: an error for good that names the row."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
import sqlalchemy as sa

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.target import Target, open_target
from databus.schemas.errors import RowError
from tests.client.spark.changing_source import META_ALONE, batch_of, change
from tests.client.spark.targets.target_rows import rows_of_target
from tests.mariadb_server import Database

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]
UTC_TIME = pa.timestamp("us", tz="UTC")
TEXTS = pa.schema([("id", pa.string()), ("note", pa.string()), ("_databus", META_ALONE)])


def apply(target: Target, number: int, *changes: dict[str, Any]) -> None:
    target.apply("app", number, changes_of(batch_of(changes, TEXTS), ["id"]))


@pytest.mark.postgres
def test_a_nul_in_a_text_is_refused_by_postgres_with_the_row_before_anything_is_written(
    postgres_url: str,
) -> None:
    target = open_target(f"{postgres_url}#notes", ["id"])
    good = change("insert", 3, {"id": "a", "note": "x"})
    bad = change("update", 4, {"id": "b", "note": "y\0z"})
    with pytest.raises(RowError, match=r"column 'note': row id = 'b' of SCN 4: .* NUL .* --again"):
        apply(target, 0, good, bad)
    assert target.schema() is None
    # Nothing has to be stored for one that is gone again.
    apply(target, 0, good, {**bad, "_databus": {**bad["_databus"], "op": "delete"}})
    apply(target, 1, change("delete", 5, {"id": "c\0", "note": None}))
    assert [row["id"] for row in rows_of_target(target)] == ["a"]
    assert target.applied("app") == 1
    target.close()


def refusing(url: str) -> None:
    """Apply to a table of somebody's own, with a column that is too short for some rows."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE notes (id VARCHAR(20) PRIMARY KEY, note CHAR(3))"))
    engine.dispose()
    target = open_target(f"{url}#notes", ["id"])
    rows = [change("insert", 1, {"id": f"k{n}", "note": "abc"}, index=n) for n in range(20)]
    apply(target, 0, *rows)
    rows = [change("update", 2, {"id": f"k{n}", "note": "xyz"}, index=n) for n in range(20)]
    rows[13]["note"] = "four"
    said = re.escape("row id = 'k13' of SCN 2: ") + ".* too long .* new checkpoint"
    with pytest.raises(RowError, match=said) as error:
        apply(target, 1, *rows)
    assert "\n" not in str(error.value)
    assert {row["note"] for row in rows_of_target(target)} == {"abc"}
    apply(target, 1, *rows[:13])
    assert target.applied("app") == 1
    target.close()


@pytest.mark.postgres
def test_what_postgres_says_of_a_value_is_final_and_names_the_row(postgres_url: str) -> None:
    refusing(postgres_url)


def test_what_mariadb_says_of_a_value_is_final_and_names_the_row(database: Database) -> None:
    server = database.server
    login = f"{server.user}:{server.password}@127.0.0.1:{server.port}"
    refusing(f"mysql+pymysql://{login}/{database.name}?charset=utf8mb4")


def test_what_a_lenient_server_would_cut_or_count_is_refused_or_stored_as_it_is(
    database: Database,
) -> None:
    """The session's settings are those of a server whose administrator has set them."""
    server = database.server
    login = f"{server.user}:{server.password}@127.0.0.1:{server.port}"
    lenient = "SET sql_mode = 'ANSI_QUOTES', time_zone = '+09:00'"
    url = f"mysql+pymysql://{login}/{database.name}?charset=utf8mb4&init_command={quote(lenient)}"
    refusing(url)
    apart(
        url,
        "CREATE TABLE counted (id INT PRIMARY KEY AUTO_INCREMENT, at TIMESTAMP NULL)",
        "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'",
        "INSERT INTO counted VALUES (3, '2020-01-01 09:00:00')",
    )
    counting(url)


@pytest.mark.postgres
def test_a_moment_is_the_same_in_a_database_of_another_time_zone(postgres_url: str) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options={quote('-c timezone=Japan')}"
    apart(
        url,
        "CREATE TABLE counted (id INT PRIMARY KEY, at TIMESTAMPTZ NULL)",
        "INSERT INTO counted VALUES (3, '2020-01-01 09:00:00')",
    )
    counting(url)


def counting(url: str) -> None:
    """Apply a row of key 0 to a table of somebody's own that has one of the same moment."""
    target = open_target(f"{url}#counted", ["id"])
    schema = pa.schema([("id", pa.int32()), ("at", UTC_TIME), ("_databus", META_ALONE)])
    midnight = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    batch = batch_of([change("insert", 1, {"id": 0, "at": midnight})], schema)
    target.apply("app", 0, changes_of(batch, ["id"]))
    found = sorted((row["id"], row["at"]) for row in rows_of_target(target))
    assert found == [(0, midnight), (3, midnight)]
    target.close()


def apart(url: str, *statements: str) -> None:
    """Do something in a target's database that its owner does."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def constraining(url: str, drop_index: str) -> None:
    """Apply to a table of somebody's own, with constraints that some rows break."""
    apart(
        url,
        "CREATE TABLE notes (id VARCHAR(20) PRIMARY KEY, note VARCHAR(20) NOT NULL)",
        "CREATE UNIQUE INDEX one_of_each ON notes (note)",
    )
    target = open_target(f"{url}#notes", ["id"])
    rows = [change("insert", 1, {"id": f"k{n}", "note": f"n{n}"}, index=n) for n in range(20)]
    rows[11]["note"] = None
    remedy = ".* Take that constraint from the target's table.* with the checkpoint there is"
    said = re.escape("column 'note': row id = 'k11' of SCN 1: ") + remedy
    with pytest.raises(RowError, match=said):
        apply(target, 0, *rows)
    rows[11]["note"] = "n2"
    # Only together with another row of the batch is it wrong.
    with pytest.raises(RowError, match=re.escape("row id = 'k11' of SCN 1: ") + remedy) as error:
        apply(target, 0, *rows)
    assert "\n" not in str(error.value)
    assert target.applied("app") is None
    apart(url, drop_index)
    apply(target, 0, *rows)
    assert len(rows_of_target(target)) == 20
    target.close()


def test_a_constraint_of_a_table_in_sqlite_is_final_and_names_the_row(tmp_path: Path) -> None:
    constraining(f"sqlite:///{tmp_path}/notes.db", "DROP INDEX one_of_each")


def test_a_constraint_of_a_table_in_mariadb_is_final_and_names_the_row(database: Database) -> None:
    server = database.server
    login = f"{server.user}:{server.password}@127.0.0.1:{server.port}"
    url = f"mysql+pymysql://{login}/{database.name}?charset=utf8mb4"
    constraining(url, "DROP INDEX one_of_each ON notes")


@pytest.mark.postgres
def test_a_constraint_of_a_table_in_postgres_is_final_and_names_the_row_or_the_mark(
    postgres_url: str,
) -> None:
    constraining(postgres_url, "DROP INDEX one_of_each")
    child = "CREATE TABLE readers (note VARCHAR(20) REFERENCES notes (id))"
    apart(postgres_url, child, "INSERT INTO readers VALUES ('k5')")
    target = open_target(f"{postgres_url}#notes", ["id"])
    with pytest.raises(RowError, match=r"row id = 'k5' of SCN 2: .* Take that constraint"):
        apply(target, 1, change("delete", 2, {"id": "k5", "note": None}))
    with pytest.raises(RowError, match=r"rows that are gone at SCN 3: .* Take that constraint"):
        apply(target, 1, change("truncate", 3))
    apart(postgres_url, "DROP TABLE readers")
    apply(target, 1, change("truncate", 3))
    assert not rows_of_target(target)
    target.close()
