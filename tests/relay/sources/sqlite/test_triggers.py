"""What the triggers log is what a consumer needs to have the table's rows."""

from __future__ import annotations

import math
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from databus.relay.sources.sqlite.catalog import split_index_sql
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.keys import event_key
from databus.schemas.table import Table
from tests.relay.sources.sqlite.shop import (
    State,
    applied_rows,
    apply,
    changes,
    database,
    drain,
    opened,
    remove,
    table_rows,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def test_every_kind_of_value_comes_out_bit_for_bit(path: Path) -> None:
    values = [
        None,
        0,
        -(2**63),
        2**63 - 1,
        0.1,
        5e-324,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        1.0,
        "",
        "a\x00b",
        "häuser 苔 🪁",
        b"",
        b"\x00\xff",
    ]
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db, opened(path, "t") as s:
        db.executemany("INSERT INTO t VALUES (?, ?)", enumerate(values))
        got = [row["v"] for _, row in changes(drain(s))]
    assert got == values
    assert [type(v) for v in got] == [type(v) for v in values]


@given(st.lists(st.floats(allow_nan=False), max_size=50))
@hypothesis_settings(max_examples=20, deadline=None)
def test_reals_keep_every_bit(tmp_path_factory: pytest.TempPathFactory, reals: list[float]) -> None:
    path = tmp_path_factory.mktemp("reals") / "shop.db"
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v REAL)") as db:
        with opened(path, "t") as s:
            db.executemany("INSERT INTO t(v) VALUES (?)", [(r,) for r in reals])
            got = [row["v"] for _, row in changes(drain(s))]
        held = [v for (v,) in db.execute("SELECT v FROM t ORDER BY id")]
    assert [struct.pack(">d", v) for v in got] == [struct.pack(">d", v) for v in held]


def test_an_update_has_the_row_before_and_after(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db, opened(path, "t") as s:
        db.execute("INSERT INTO t VALUES (1, 'a')")
        db.execute("UPDATE t SET v = 'b'")
        last = drain(s)[-1].changes[-1]
    assert (last.op.value, last.row, last.before) == (
        "update",
        {"id": 1, "v": "b"},
        {"id": 1, "v": "a"},
    )


def test_an_update_of_the_key_is_a_delete_and_an_insert(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db, opened(path, "t") as s:
        db.execute("INSERT INTO t VALUES (1, 'a')")
        db.execute("UPDATE t SET id = 2")
        got = changes(drain(s))
    assert got == [
        ("insert", {"id": 1, "v": "a"}),
        ("delete", {"id": 1, "v": "a"}),
        ("insert", {"id": 2, "v": "a"}),
    ]


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_a_row_replaced_by_another_unique_constraint_is_a_delete(
    path: Path, recursive: str
) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, u UNIQUE, w UNIQUE)") as db:
        db.execute(f"PRAGMA recursive_triggers = {recursive}")
        with opened(path, "t") as s:
            db.execute("INSERT INTO t VALUES (1, 'a', 'x'), (2, 'b', 'y')")
            db.execute("REPLACE INTO t VALUES (3, 'a', 'y')")
            got = changes(drain(s))
    assert sorted(row["id"] for op, row in got if op == "delete") == [1, 2]
    assert got[-1] == ("insert", {"id": 3, "u": "a", "w": "y"})


def test_a_row_that_stood_in_the_way_of_an_ignored_insert_stays(path: Path) -> None:
    script = "CREATE TABLE t(id INTEGER PRIMARY KEY, u UNIQUE)"
    with database(path, script) as db, opened(path, "t") as s:
        db.execute("INSERT INTO t VALUES (1, 'a')")
        db.execute("INSERT OR IGNORE INTO t VALUES (2, 'a')")
        db.execute("INSERT INTO t VALUES (3, 'a') ON CONFLICT(u) DO UPDATE SET id = 9")
        db.execute("INSERT INTO t VALUES (4, 'b')")
        got = changes(drain(s))
    assert [(op, row["id"]) for op, row in got] == [
        ("insert", 1),
        ("delete", 1),
        ("insert", 9),
        ("insert", 4),
    ]


def test_a_cascading_delete_logs_the_children(path: Path) -> None:
    script = """
        CREATE TABLE parent(id INTEGER PRIMARY KEY, u UNIQUE);
        CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES parent ON DELETE CASCADE);
    """
    with database(path, script) as db, opened(path, "parent", "child") as s:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("INSERT INTO parent VALUES (1, 'a'), (2, 'b')")
        db.execute("INSERT INTO child VALUES (10, 1), (20, 2)")
        db.execute("DELETE FROM parent WHERE id = 1")
        db.execute("REPLACE INTO parent VALUES (3, 'b')")
        state = apply(drain(s), {})
    assert applied_rows(state, "shop.parent") == [(3, "b")]
    assert applied_rows(state, "shop.child") == []


def test_deleting_every_row_logs_every_row(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY)") as db, opened(path, "t") as s:
        db.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(100)])
        db.execute("DELETE FROM t")
        assert [op for op, _ in changes(drain(s))].count("delete") == 100


@pytest.mark.parametrize("when", ["before the source", "after the source"])
def test_the_last_image_is_the_row_even_when_another_trigger_changes_it_again(
    path: Path, when: str
) -> None:
    stamp = """
        CREATE TRIGGER stamp AFTER INSERT ON t BEGIN
            UPDATE t SET v = v || ' stamped' WHERE id = NEW.id; END;
        CREATE TRIGGER purge AFTER INSERT ON t WHEN NEW.v = 'gone' BEGIN
            DELETE FROM t WHERE id = NEW.id; END;
    """
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db:
        if when.startswith("before"):
            db.executescript(stamp)
        with opened(path, "t") as s:
            if when.startswith("after"):
                db.executescript(stamp)
            db.execute("INSERT INTO t VALUES (1, 'a'), (2, 'gone')")
            state = apply(drain(s), {})
            assert applied_rows(state, "shop.t") == [(1, "a stamped")]


def test_names_that_need_quoting_are_quoted(path: Path) -> None:
    script = """
        CREATE TABLE "my ""odd"" ta'ble"("select" INTEGER PRIMARY KEY, "a ""b" TEXT UNIQUE, [c d]);
    """
    with database(path, script) as db, opened(path, 'my "odd" ta\'ble') as s:
        db.execute("""INSERT INTO "my ""odd"" ta'ble" VALUES (1, 'x', 2)""")
        db.execute("""REPLACE INTO "my ""odd"" ta'ble" VALUES (2, 'x', 3)""")
        got = changes(drain(s))
    assert got[-1] == ("insert", {"select": 2, 'a "b': "x", "c d": 3})
    assert ("delete", {"select": 1, 'a "b': "x", "c d": 2}) in got


def test_generated_columns_are_in_the_row(path: Path) -> None:
    script = "CREATE TABLE t(id INTEGER PRIMARY KEY, a, v AS (a * 2), s AS (a * 3) STORED)"
    with database(path, script) as db, opened(path, "t") as s:
        db.execute("INSERT INTO t(id, a) VALUES (1, 5)")
        assert changes(drain(s)) == [("insert", {"id": 1, "a": 5, "v": 10, "s": 15})]


def test_a_table_whose_replaced_rows_could_be_missed_is_refused(path: Path) -> None:
    script = "CREATE TABLE t(id INTEGER PRIMARY KEY, a NOT NULL DEFAULT 1, g AS (a) UNIQUE)"
    with database(path, script):
        refuse(path, "generated column")


@pytest.mark.parametrize("kind", ["VIEW t AS SELECT 1 AS x", "VIRTUAL TABLE t USING fts5(x)"])
def test_what_is_not_a_table_is_refused(path: Path, kind: str) -> None:
    with database(path, f"CREATE {kind}"):
        refuse(path, "only tables")


def refuse(path: Path, why: str) -> None:
    with pytest.raises(SourceStoppedError, match=why), opened(path, "t"):
        pass


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("CREATE UNIQUE INDEX i ON t(a, b DESC)", (["a", "b"], "")),
        ('CREATE UNIQUE INDEX "i(" ON t("a,b") WHERE c > 0', (['"a,b"'], "c > 0")),
        (
            "CREATE UNIQUE INDEX i ON t(lower(a), coalesce(b, ')')) where (c = ',') -- x(",
            (["lower(a)", "coalesce(b, ')')"], "(c = ',')"),
        ),
    ],
)
def test_the_parts_of_an_index_are_found(sql: str, parts: tuple[list[str], str]) -> None:
    assert split_index_sql(sql) == parts


# Each table, with the columns that a random statement sets. Few values, so that
# rows stand in each other's way all the time.
TABLES = {
    "plain": "CREATE TABLE plain(k INTEGER PRIMARY KEY, a TEXT UNIQUE, b UNIQUE)",
    "with_default": "CREATE TABLE with_default(k INTEGER PRIMARY KEY,"
    " a NOT NULL DEFAULT 'A' UNIQUE, b NOT NULL DEFAULT 2)",
    "by_text": "CREATE TABLE by_text(k TEXT COLLATE NOCASE PRIMARY KEY, a, b UNIQUE)",
    "untyped": "CREATE TABLE untyped(k PRIMARY KEY, a, b)",
    "pair": "CREATE TABLE pair(k, a TEXT COLLATE NOCASE, b UNIQUE, PRIMARY KEY(k, a))"
    " WITHOUT ROWID",
    "keyless": "CREATE TABLE keyless(k, a, b UNIQUE)",
    "replacing": "CREATE TABLE replacing(k INTEGER PRIMARY KEY ON CONFLICT REPLACE,"
    " a UNIQUE ON CONFLICT REPLACE, b)",
    "by_expression": "CREATE TABLE by_expression(k INTEGER PRIMARY KEY, a, b);"
    "CREATE UNIQUE INDEX by_lower ON by_expression(lower(a));"
    "CREATE UNIQUE INDEX some ON by_expression(b COLLATE NOCASE) WHERE b <> 2",
    "with_triggers": "CREATE TABLE with_triggers(k INTEGER PRIMARY KEY, a UNIQUE, b);"
    "CREATE TRIGGER count_up AFTER INSERT ON with_triggers WHEN NEW.b < 3 BEGIN"
    " UPDATE OR REPLACE with_triggers SET a = 'A', b = b + 1 WHERE k = NEW.k; END;"
    "CREATE TRIGGER touch BEFORE INSERT ON with_triggers BEGIN"
    " UPDATE with_triggers SET b = 7 WHERE a = NEW.a; END",
}
VALUES = st.sampled_from(["1", "1.0", "2", "'1'", "'a'", "'A'", "'b'", "x'31'", "NULL"])
CONFLICT = st.sampled_from(["", "OR REPLACE", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ROLLBACK"])
KEYS = st.sampled_from(["1", "2", "3", "4", "'a'", "'A'", "NULL"])


@st.composite
def statements(draw: st.DrawFn) -> str:
    table, key = draw(st.sampled_from(sorted(TABLES))), draw(KEYS)
    a, b, other = draw(VALUES), draw(VALUES), draw(KEYS)
    column = draw(st.sampled_from(["k", "a", "b"]))
    row_id = "rowid, " if table in ("by_text", "keyless", "untyped") and draw(st.booleans()) else ""
    of_row_id = f"{draw(st.sampled_from('123'))}, " if row_id else ""
    row = f"INTO {table}({row_id}k, a, b) VALUES ({of_row_id}{key}, {a}, {b})"
    return draw(
        st.sampled_from(
            [
                f"INSERT {draw(CONFLICT)} {row}",
                f"INSERT {row} ON CONFLICT DO UPDATE SET b = 'up'",
                f"INSERT {row} ON CONFLICT DO NOTHING",
                f"UPDATE {draw(CONFLICT)} {table} SET {column} = {other} WHERE b IS {b}",
                f"UPDATE {draw(CONFLICT)} {table} SET k = {other}, a = {a} WHERE k IS {key}",
                f"DELETE FROM {table} WHERE {column} IS {a}",
            ]
        )
    )


@given(st.data(), st.booleans())
@hypothesis_settings(max_examples=150, deadline=None)
def test_the_changes_applied_are_the_tables_whatever_statements_run(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, recursive: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "model.db"
    remove(path)
    state: State = {}
    with database(path, ";".join(TABLES.values())) as db, opened(path, *TABLES) as source:
        db.execute(f"PRAGMA recursive_triggers = {int(recursive)}")
        for step in data.draw(st.lists(statements(), min_size=1, max_size=40)):
            turn = data.draw(st.sampled_from(["", "", "", "BEGIN", "COMMIT", "ROLLBACK", "read"]))
            if turn == "read":
                apply(source.read_transactions() if not db.in_transaction else [], state)
            elif turn and (turn == "BEGIN") != db.in_transaction:
                db.execute(turn)
            try_to(db, step)
        if db.in_transaction:
            db.execute("COMMIT")
        apply(drain(source), state)
        for table in source.tables():
            rows = table_rows(db, f"SELECT * FROM {table.source.partition('.')[2]}")
            assert identified(table, state.get(table.source, {}).values()) == identified(
                table, (dict(zip("kab", row, strict=True)) for row in rows)
            ), table.source


def identified(table: Table, rows: Iterable[Mapping[str, Any]]) -> dict[int | bytes, object]:
    """Return rows by key, without what no consumer could tell apart.

    Rows with a NULL in the key are one row to a consumer, and it is left open
    which; so are equal rows of a table without a key, for which they need a NULL
    in the unique column.
    """
    found: dict[int | bytes, object] = {}
    for row in rows:
        if table.source == "shop.keyless" and row["b"] is None:
            continue
        is_whole = all(row[column.name] is not None for column in table.key_columns)
        found[event_key(table, row)] = row if is_whole else None
    return found


def try_to(db: sqlite3.Connection, statement: str) -> None:
    """Run a statement that may break a constraint."""
    with suppress(sqlite3.IntegrityError):
        db.execute(statement)
