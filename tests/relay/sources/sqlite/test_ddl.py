"""A watched table may change its form: nothing is lost, or the source stops and says why."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from databus.relay.sources.source import TableDefined, Transaction
from databus.relay.sources.sqlite.ddl import change_tables, main, uninstall
from databus.relay.sources.sqlite.install import CaptureGapError
from databus.relay.sources.sqlite.source import SqliteSource
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from tests.relay.sources.sqlite.shop import (
    applied_rows,
    apply,
    bounds,
    changes,
    database,
    drain as drain_all,
    opened,
    run,
    table_rows,
)


def drain(source: SqliteSource) -> list[Transaction]:
    """Read to the end; what is told of ALTER TABLE itself is left out."""
    return [
        replace(t, changes=[c for c in t.changes if not isinstance(c, TableDefined)])
        for t in drain_all(source)
    ]


TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with database(path, TABLE) as connection:
        yield connection


def test_a_row_written_before_an_added_column_was_noticed_has_the_column(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z')")
        first = drain(source)
        db.execute("ALTER TABLE t ADD COLUMN b DEFAULT 'new'")
        db.execute("INSERT INTO t VALUES (4, 'w', 'filled')")
        db.execute("UPDATE t SET b = 'seen' WHERE id = 1")
        db.execute("DELETE FROM t WHERE id = 2")
        second = drain(source)
        state = apply(second, apply(first, {}))
        assert [c.name for c in source.tables()[0].columns] == ["id", "a", "b"]
    got = state["shop.t"]
    assert got[1] == {"id": 1, "a": "x", "b": "seen"}
    assert got[4] == {"id": 4, "a": "w", "b": "filled"}
    assert set(got) == {1, 3, 4}
    assert len(second) == 1  # rows and their full images are one window


def test_each_change_has_the_columns_of_its_time_after_a_restart(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        db.execute("ALTER TABLE t ADD COLUMN b")
        drain(source)
        db.execute("INSERT INTO t VALUES (2, 'y', 'z')")
        drain(source)
    with opened(path, "t", after_scn=0) as source:
        got = [c for t in drain(source) for c in t.changes]
    assert [tuple(c.row) for c in got] == [("id", "a"), ("id", "a", "b")]
    assert [len(c.table.columns) for c in got] == [2, 3]


def test_a_renamed_column_goes_on_under_its_new_name(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("ALTER TABLE t RENAME COLUMN a TO b")
        db.execute("INSERT INTO t VALUES (1, 'x')")
        got = changes(drain(source))
        db.execute("INSERT INTO t VALUES (2, 'y')")
        after = changes(drain(source))
    assert got[-1] == ("update", {"id": 1, "b": "x"})
    assert after == [("insert", {"id": 2, "b": "y"})]


def test_a_renamed_key_column_with_unseen_rows_keeps_every_row(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        db.execute("ALTER TABLE t RENAME COLUMN id TO number")
        db.execute("INSERT INTO t VALUES (2, 'y')")
        state = apply(drain(source), {})
    assert applied_rows(state, "shop.t") == [(1, "x"), (2, "y")]
    assert list(state["shop.t"][2]) == ["number", "a"]


def test_a_table_without_key_gets_its_rows_anew_with_an_added_column(path: Path) -> None:
    with database(path, "CREATE TABLE k(a, b)") as db, opened(path, "k") as source:
        db.execute("INSERT INTO k VALUES (1, 'x')")
        db.execute("ALTER TABLE k ADD COLUMN c DEFAULT 5")
        db.execute("INSERT INTO k VALUES (2, 'y', 6)")
        state = apply(drain(source), {})
        assert applied_rows(state, "shop.k") == [(1, "x", 5), (2, "y", 6)]


def test_a_change_made_while_no_relay_runs_is_followed(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        scn = drain(source)[-1].scn
    db.execute("ALTER TABLE t ADD COLUMN b")
    db.execute("INSERT INTO t VALUES (2, 'y', 'z')")
    with opened(path, "t", after_scn=scn) as source:
        assert apply(drain(source), {})["shop.t"][2] == {"id": 2, "a": "y", "b": "z"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DROP TRIGGER _databus_update_t", "lost the trigger _databus_update_t"),
        ("DROP TABLE t", "table t is gone"),
        ("ALTER TABLE t RENAME TO u", "table t is gone"),
        (f"DROP TABLE t; {TABLE}", "lost the trigger"),
        (f"ALTER TABLE t RENAME TO u; {TABLE}", "lost the trigger"),
    ],
)
@pytest.mark.parametrize("is_running", [True, False])
def test_what_may_have_been_changed_unseen_stops_the_source_until_it_is_given_up(
    path: Path, db: sqlite3.Connection, change: str, says: str, is_running: bool
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        db.executescript(change)
        with pytest.raises(SourceStoppedError, match=says) as stopped:
            drain(source) if is_running else source.open(1)
    assert "DELETE FROM _databus_table WHERE name = 't'" in str(stopped.value)

    with pytest.raises(SourceStoppedError, match=says), opened(path, "t", after_scn=1):
        pass
    db.execute("DELETE FROM _databus_table WHERE name = 't'")
    db.execute("CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, a)")
    with opened(path, "t", after_scn=1) as source:
        db.execute("INSERT INTO t VALUES (7, 'again')")
        assert changes(drain(source))[-1] == ("insert", {"id": 7, "a": "again"})


def test_nothing_of_a_transaction_with_an_unseen_part_is_handed_over(
    path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY)")
    with opened(path, "t", "u") as source:
        db.execute("DROP TRIGGER _databus_insert_t")
        run(db, ["INSERT INTO t VALUES (1, 'unseen')", "INSERT INTO u VALUES (1)"])
        with pytest.raises(SourceStoppedError, match="lost the trigger"):
            drain(source)
        assert bounds(path) == []


def test_a_lost_trigger_stops_only_the_relay_that_watches_the_table(
    path: Path, db: sqlite3.Connection
) -> None:
    db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY)")
    with opened(path, "t") as other, opened(path, "u") as source:
        db.execute("DROP TRIGGER _databus_insert_t")
        db.execute("INSERT INTO u VALUES (1)")
        assert changes(drain(source)) == [("insert", {"id": 1})]
        with pytest.raises(SourceStoppedError, match="lost the trigger"):
            drain(other)


def test_another_relays_table_is_followed_for_it(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY)")
    with opened(path, "t"):
        pass
    with opened(path, "u") as source:
        db.execute("ALTER TABLE t ADD COLUMN b")
        db.execute("INSERT INTO t VALUES (1, 'x', 'y')")
        drain(source)
    with opened(path, "t", after_scn=0) as source:
        assert changes(drain(source))[-1] == ("update", {"id": 1, "a": "x", "b": "y"})


def test_a_unique_index_made_while_rows_were_written_stops_the_source(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        db.execute("CREATE UNIQUE INDEX one_a ON t(a)")
        db.execute("REPLACE INTO t VALUES (2, 'x')")
        with pytest.raises(SourceStoppedError, match=r"unique index one_a.*REPLACE"):
            drain(source)


def test_a_unique_index_made_in_a_quiet_moment_is_followed(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        db.execute("CREATE UNIQUE INDEX one_a ON t(a)")
        drain(source)
        db.execute("REPLACE INTO t VALUES (2, 'x')")
        assert ("delete", {"id": 1, "a": "x"}) in changes(drain(source))


def test_indexes_on_expressions_survive_a_renamed_column(path: Path) -> None:
    script = """
        CREATE TABLE e(id INTEGER PRIMARY KEY, mail TEXT);
        CREATE UNIQUE INDEX one_mail ON e(lower(mail)) WHERE mail <> '';
    """
    with database(path, script) as db, opened(path, "e") as source:
        db.execute("INSERT INTO e VALUES (1, 'A')")
        db.execute("ALTER TABLE e RENAME COLUMN mail TO address")
        db.execute("REPLACE INTO e VALUES (2, 'a')")
        drain(source)
        db.execute("REPLACE INTO e VALUES (3, 'A')")
        state = apply(drain(source), {})
        assert list(state["shop.e"]) == [3]
        assert table_rows(db, "SELECT id FROM e") == [(3,)]


def test_a_column_that_triggers_name_is_dropped_by_the_command_without_a_gap(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        with pytest.raises(sqlite3.OperationalError, match="after drop column"):
            db.execute("ALTER TABLE t DROP COLUMN a")
        result = CliRunner().invoke(main, [str(path), "ALTER TABLE t DROP COLUMN a"])
        assert result.exit_code == 0, result.output
        db.execute("INSERT INTO t VALUES (2)")
        got = changes(drain(source))
    assert got == [("insert", {"id": 1, "a": "x"}), ("insert", {"id": 2})]


def test_a_column_dropped_with_legacy_rules_makes_writes_fail_until_the_triggers_are_renewed(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("PRAGMA legacy_alter_table = ON")
        db.execute("ALTER TABLE t DROP COLUMN a")
        with pytest.raises(sqlite3.OperationalError, match="no such column"):
            db.execute("INSERT INTO t VALUES (1)")
        drain(source)
        db.execute("SELECT * FROM t")  # SQLite notices a changed schema when a statement runs
        db.execute("INSERT INTO t VALUES (1)")
        assert changes(drain(source)) == [("insert", {"id": 1})]


def test_a_unique_index_made_by_the_command_leaves_no_moment(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        change_tables(path, ["CREATE UNIQUE INDEX one_a ON t(a)"])
        db.execute("REPLACE INTO t VALUES (2, 'x')")
        assert applied_rows(apply(drain(source), {}), "shop.t") == [(2, "x")]


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("UPDATE t SET a = 1", CaptureGapError),
        ("ALTER TABLE t RENAME TO u", CaptureGapError),
        ("ALTER TABLE t DROP COLUMN nothing", sqlite3.OperationalError),
    ],
)
def test_a_statement_that_cannot_be_followed_changes_nothing(
    path: Path, db: sqlite3.Connection, statement: str, error: type[Exception]
) -> None:
    with opened(path, "t") as source:
        with pytest.raises(error):
            change_tables(path, ["ALTER TABLE t ADD COLUMN b", statement])
        db.execute("INSERT INTO t VALUES (1, 'x')")
        assert changes(drain(source)) == [("insert", {"id": 1, "a": "x"})]


def test_a_statement_that_fails_takes_back_what_was_logged_again_for_it(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        run(db, ["ALTER TABLE t ADD COLUMN b DEFAULT 5", "INSERT INTO t VALUES (1, 'x', 6)"])
        with pytest.raises(sqlite3.OperationalError, match="no such column"):
            change_tables(path, ["ALTER TABLE t DROP COLUMN absent"])
        db.execute("INSERT INTO t VALUES (2, 'y', 7)")
        assert applied_rows(apply(drain(source), {}), "shop.t") == [(1, "x", 6), (2, "y", 7)]


def test_uninstalling_leaves_the_applications_tables_only(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t"):
        pass
    uninstall(path)
    uninstall(path)
    db.execute("INSERT INTO t VALUES (1, 'x')")
    assert table_rows(db, "SELECT name FROM sqlite_master WHERE name LIKE '%databus%'") == []
    assert not list(path.parent.glob("*-databus*"))


def test_a_database_that_is_not_watched_or_not_there_is_said_so(
    path: Path, db: sqlite3.Connection, tmp_path: Path
) -> None:
    with pytest.raises(CaptureGapError, match="not watched"):
        change_tables(path, ["ALTER TABLE t ADD COLUMN b"])
    with pytest.raises(SourceUnavailableError, match="nowhere"):
        uninstall(tmp_path / "nowhere.db")
    result = CliRunner().invoke(main, [str(path), "DELETE FROM t"])
    assert (result.exit_code, "only ALTER TABLE" in result.output) == (1, True)


def told_of(path: Path, db: sqlite3.Connection, *statements: str) -> list[Any]:
    """Run statements one by one on a watched table, and return what is told of its rows."""
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        for statement in statements:
            if "DROP" in statement:
                change_tables(path, [statement])
            else:
                db.execute(statement)
            # With nothing written: somebody's rows are others by the statement alone.
            found: list[Any] = [c for t in drain_all(source) for c in t.changes]
            assert [type(c) for c in found] == [TableDefined]
        (altered,) = found[0].altered
        return [altered.change.renamed, altered.change.added, altered.change.reload]


@pytest.mark.parametrize(
    ("statements", "told"),
    [
        (["ALTER TABLE t ADD COLUMN b DEFAULT 'new'"], [{}, {"b": "new"}, {}]),
        (["ALTER TABLE t ADD COLUMN b INT NOT NULL DEFAULT -7"], [{}, {"b": -7}, {}]),
        (["ALTER TABLE t ADD COLUMN b REAL"], [{}, {"b": None}, {}]),
        (["ALTER TABLE t ADD COLUMN b REAL DEFAULT 3"], [{}, {"b": 3.0}, {}]),
        (["ALTER TABLE t RENAME COLUMN a TO c"], [{"c": "a"}, {}, {}]),
        (["ALTER TABLE t ADD COLUMN b TEXT", "ALTER TABLE t DROP COLUMN a"], [{}, {}, {}]),
        (["ALTER TABLE t ADD COLUMN g AS (id * 2)"], [{}, {}, {"g": "it is generated"}]),
    ],
)
def test_an_alteration_says_what_rows_are_that_nobody_writes(
    path: Path, db: sqlite3.Connection, statements: list[str], told: list[Any]
) -> None:
    assert told_of(path, db, *statements) == told
