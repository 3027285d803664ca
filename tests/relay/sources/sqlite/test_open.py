"""Opening an SQLite source: what it needs, and what it says when it is not so."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.relay.sources.kind import open_source
from databus.relay.sources.sqlite.connection import connect
from databus.relay.sources.sqlite.source import SqliteSource
from databus.schemas.errors import (
    SettingsError,
    SourceStoppedError,
    SourceUnavailableError,
)
from tests.relay.sources.sqlite.shop import (
    bounds,
    database,
    drain,
    opened,
    settings,
    table_rows,
)

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with database(path, TABLE) as connection:
        yield connection


def test_a_database_in_another_journal_mode_is_switched_to_wal(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(TABLE)
    with opened(path, "t"), closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_is_not_there_may_come(path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match="unable to open"), opened(path, "t"):
        pass
    assert not path.exists()


def test_a_locked_database_may_be_free_later(path: Path, db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(SourceUnavailableError, match="locked"), opened(path, "t"):
        pass
    db.execute("ROLLBACK")


def test_a_file_that_is_no_database_stops_the_source(path: Path) -> None:
    path.write_bytes(b"something else altogether" * 100)
    with pytest.raises(SourceStoppedError, match="is this an SQLite database"), opened(path, "t"):
        pass


def test_a_table_that_does_not_exist_is_named_with_those_that_do(
    path: Path, db: sqlite3.Connection
) -> None:
    with pytest.raises(SourceStoppedError, match="no table u; tables: t"), opened(path, "u"):
        pass
    assert table_rows(db, "SELECT name FROM sqlite_master WHERE name LIKE '%databus%'") == []


def test_a_file_replaced_under_the_source_is_noticed(path: Path, tmp_path: Path) -> None:
    clock = iter(range(0, 1000, 2))
    with database(path, TABLE):
        source = SqliteSource(settings(path, "t"), clock=lambda: float(next(clock)))
        source.open(None)
        path.rename(tmp_path / "moved.db")
        with pytest.raises(SourceUnavailableError, match="moved, removed or replaced"):
            source.read_transactions()
        source.close()
        source.close()


def test_bounds_that_vanish_are_noticed_and_made_again(
    path: Path, db: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(0, 1000, 2))
    source = SqliteSource(settings(path, "t"), clock=lambda: float(next(clock)))
    source.open(None)
    db.execute("INSERT INTO t VALUES (1, 'x')")
    assert [window.scn for window in source.read_transactions()] == [1]
    Path(f"{path}-databus").unlink()
    with pytest.raises(SourceUnavailableError, match=r"shop\.db-databus was moved, removed"):
        source.read_transactions()
    source.close()
    db.execute("INSERT INTO t VALUES (2, 'y')")
    source.open(1)
    assert [window.scn for window in source.read_transactions()] == [2]
    source.close()
    assert "window bounds were lost" in caplog.text
    assert bounds(path) == [1, 2]


def test_a_database_made_again_does_not_go_on_with_the_old_ones_bounds(path: Path) -> None:
    with database(path, TABLE), opened(path, "t"):
        pass
    path.unlink()
    problem = "belongs to another database"
    with database(path, TABLE), pytest.raises(SourceStoppedError, match=problem):
        SqliteSource(settings(path, "t")).open(None)


def test_a_database_restored_to_an_earlier_state_stops_the_source(
    path: Path, tmp_path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        with closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
            db.backup(backup)
            db.execute("INSERT INTO t VALUES (2, 'y')")
            drain(source)
            source.close()
            backup.backup(db)
        with pytest.raises(SourceStoppedError, match="restored to an earlier state"):
            source.open(2)


def test_a_source_that_is_not_open_says_so(path: Path) -> None:
    with pytest.raises(SourceUnavailableError, match="not open"):
        SqliteSource(settings(path, "t")).read()


def test_a_change_log_of_another_layout_is_refused(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t"):
        db.execute("UPDATE _databus_layout SET version = 99")
    with pytest.raises(SourceStoppedError, match="layout 99"), opened(path, "t"):
        pass


def test_the_connection_leaves_checkpoints_to_the_application(
    path: Path, db: sqlite3.Connection
) -> None:
    connection = connect(path)
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"uri": "sqlite:"}, "must name a file"),
        ({"uri": "sqlite:x.db?fsnyc=off"}, "fsnyc"),
        ({"uri": "sqlite:x.db?fsync=maybe"}, "on.*or.*off"),
        ({"uri": "oracle:x"}, "scheme must be one of"),
        ({"uri": "x.db"}, "begin with a scheme"),
        ({"start": "gtid:1-1-1"}, "an SCN or `time:…` for SQLite"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(changed: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        open_source(settings(Path("x.db"), "t", **changed))


def test_a_table_listed_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match="listed twice"):
        open_source(settings(Path("x.db"), "t", "T"))


def test_a_window_is_flushed_before_it_is_closed_only_when_asked_for(
    path: Path, db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds_when_flushed: list[list[int]] = []
    monkeypatch.setattr(os, "fsync", lambda _: bounds_when_flushed.append(bounds(path)))
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
    assert bounds_when_flushed == []
    with opened(path, "t", uri=f"sqlite:{path}?fsync=on") as source:
        db.execute("INSERT INTO t VALUES (2, 'y')")
        drain(source)
    assert bounds_when_flushed == [[1]]


@pytest.mark.parametrize("uri", ["sqlite:{}", "sqlite://{}", "sqlite:{}?fsync=on"])
def test_the_uri_names_the_file(path: Path, db: sqlite3.Connection, uri: str) -> None:
    source = open_source(settings(path, "t", uri=uri.format(path)))
    source.open(None)
    (table,) = source.tables()
    source.close()
    assert (table.source, table.dialect) == ("shop.t", "sqlite")


def test_a_key_that_does_not_tell_rows_apart_is_warned_of(path: Path) -> None:
    script = (
        "CREATE TABLE keyless(a); CREATE TABLE loose(a INT, b TEXT NOT NULL, PRIMARY KEY (a, b));"
    )
    with (
        database(path, f"{TABLE}; {script}"),
        opened(path, "t", "keyless", "loose") as source,
    ):
        keyless, loose = source.findings.warnings
    assert "shop.keyless has no primary key" in keyless
    assert "shop.loose has a primary key that may be NULL" in loose
    assert "declare its columns NOT NULL" in loose
