"""Conditions of option `where` on Arrow batches: as SQL means them, or refused by name."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from databus.client.spark.arrow.predicate import RowCondition
from databus.schemas.errors import SettingsError

PLAIN = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("d", pa.float64()), ("t", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("big", pa.decimal128(38, 10)),
        ("f", pa.float32()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("data", pa.binary()),
        ("Odd Name", pa.string()),
    ]
)
ROWS = [
    {
        "id": n,
        "price": Decimal(n) / 4,
        "big": Decimal(n) * 1000,
        "f": n / 4,
        "day": date(2024, 1, 1 + n),
        "at": datetime(2024, 1, 1 + n, 12, tzinfo=UTC),
        "local": datetime(2024, 1, 1 + n, 12),
        "data": bytes([n]),
        "Odd Name": f"n{n}",
    }
    for n in range(20)
]


def ids(condition: str, schema: pa.Schema, rows: list[dict[str, Any]]) -> list[int]:
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    found: list[int] = RowCondition(condition, schema).rows(batch).column("id").to_pylist()
    return found


@pytest.mark.parametrize(
    "condition",
    [
        "n = 3",
        "n <> 3",
        "not n = 3",
        "n > 2.5",
        "-1 < n",
        "3 >= n",
        "d < 5 and n > 2",
        "d < 5 or t = 'a'",
        "not (n = 1 or t = 'a')",
        "n in (1, 2, 3)",
        "n not in (1, 2)",
        "n not in (1, null)",
        "t in ('a', 'b')",
        "n between 2 and 4",
        "n not between 2 and 4",
        "t is null",
        "t is not null and n is null",
        "n = null",
        "n < d",
        "id = n",
        "t like 'b_'",
        "t not like 'a%'",
        "not t like 'a%'",
        "T = 'a' AND N = 1",
        f"n in ({', '.join(map(str, range(0, 4000, 2)))})",
    ],
)
def test_a_condition_is_true_of_the_rows_of_which_a_database_says_so(condition: str) -> None:
    chance = Random(1)

    def some(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    rows = [
        {
            "id": n,
            "n": some(chance.randrange(10)),
            "d": some(chance.random() * 10),
            "t": some(chance.choice(["a", "ab", "b", "bc", ""])),
        }
        for n in range(200)
    ]
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA case_sensitive_like = on")
        database.execute("CREATE TABLE x (id INT, n INT, d REAL, t TEXT)")
        database.executemany("INSERT INTO x VALUES (:id, :n, :d, :t)", rows)
        wanted = database.execute(f"SELECT id FROM x WHERE {condition}").fetchall()
    assert ids(condition, PLAIN, rows) == [number for (number,) in wanted]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("price = 1.25", [5]),
        ("price >= 4.5", [18, 19]),
        ("big < 1000.5", [0, 1]),
        ("big = 3000", [3]),
        ("f = 0.75", [3]),
        ("day <= '2024-01-02'", [0, 1]),
        ("day = date '2024-01-03'", [2]),
        ("at < '2024-01-02 12:00:01Z'", [0, 1]),
        ("at = timestamp '2024-01-03 13:00:00+01:00'", [2]),
        ("local = '2024-01-04T12:00:00'", [3]),
        ("data = x'05'", [5]),
        ("`Odd Name` = 'n7'", [7]),
        ("id = true", [1]),
    ],
)
def test_literals_are_of_the_column_s_type(condition: str, wanted: list[int]) -> None:
    assert ids(condition, SCHEMA, ROWS) == wanted


def test_the_columns_of_a_condition_are_known() -> None:
    condition = RowCondition("PRICE > 1 and (day is null or `odd name` like 'x')", SCHEMA)
    assert condition.columns == {"price", "day", "Odd Name"}


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("cost > 1", "there is no column 'cost'; the columns are id, price"),
        ("id >", "is not an SQL condition"),
        ("lower(`Odd Name`) = 'a'", r"does not support LOWER.*DataFrame\.where"),
        ("id + 1 = 2", r"does not support id \+ 1"),
        ("id", "does not support id"),
        ("id = (select 1)", "does not support"),
        ("x.id = 1", r"does not support x\.id"),
        ("id between symmetric 2 and 1", "does not support"),
        ("id is true", "does not support id IS TRUE"),
        ("`Odd Name` like 'x' escape 'a'", "does not support"),
        ("`Odd Name` like any ('x', 'a')", "does not support"),
        ("id <=> 1", "does not support"),
        ("id = 'a'", "'a' is not a value of id, a int64"),
        ("`Odd Name` = 1", "1 is not a value of Odd Name, a string"),
        ("`Odd Name` > id", "compares string with int64"),
        ("id like 'a'", "LIKE needs a text, and id is int64"),
        ("day = 'soon'", "'soon' is not a value of day"),
        ("local = '2024-01-01 00:00:00Z'", "is not a value of local"),
        # Spark takes such a moment for one of the session's zone.
        ("at = '2024-01-01 00:00:00'", r"has no time zone, and column at .*'2026-03-10 07:00:00Z'"),
        ("at > timestamp '2024-01-01 00:00:00'", "has no time zone"),
        ("at >= '2024-01-01'", "has no time zone"),
        ("local > at", "cannot be computed"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(condition: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        RowCondition(condition, SCHEMA)
