"""The relay's own file beside an SQLite database comes to harm: it is made again, nothing is lost.

Nobody is told then that the watched database is damaged, which is to be restored.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from databus.relay.sources.source import Transaction
from databus.relay.sources.sqlite.source import SqliteSource
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from tests.relay.sources.sqlite.shop import bounds, database, drain, opened, settings

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a)"


def truncate(side: Path) -> None:
    os.truncate(side, 4919)


def forbid_writing(side: Path) -> None:
    write_at(side, 18, b"\xff")


def be_of_another_kind(side: Path) -> None:
    write_at(side, 0, b"X")


def be_zeros(side: Path) -> None:
    write_at(side, 0, bytes(side.stat().st_size))


def be_garbage(side: Path) -> None:
    write_at(side, 100, b"\xa5\x5a" * ((side.stat().st_size - 100) // 2))


def garble_a_definition(side: Path) -> None:
    # SQLite quotes the name in what it says, which is no UTF-8 then.
    content = side.read_bytes()
    at = content.index(b"CREATE TABLE", 100)
    write_at(side, at, b"\xfe" * 16)


def write_at(side: Path, at: int, data: bytes) -> None:
    with side.open("r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGES = [truncate, forbid_writing, be_of_another_kind, be_zeros, be_garbage, garble_a_definition]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def side(path: Path) -> Path:
    return path.with_name("shop.db-databus")


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with database(path, TABLE) as connection:
        yield connection


def fill(db: sqlite3.Connection, source: SqliteSource, first: int) -> int:
    for number in range(first, first + 5):
        db.execute("INSERT INTO t VALUES (?, 'x')", (number,))
        drain(source)
    return first + 4


def ids(windows: list[Transaction]) -> list[int]:
    return [change.row["id"] for window in windows for change in window.changes]


def check_healed(path: Path, side: Path, db: sqlite3.Connection, after_scn: int) -> None:
    """Check that it goes on by itself, and that what was damaged is kept."""
    with opened(path, "t", after_scn=after_scn) as source:
        db.execute("INSERT INTO t VALUES (100, 'y')")
        assert ids(drain(source))[-1] == 100
    assert side.with_name("shop.db-databus.damaged").exists()
    assert bounds(path)[-1] == after_scn + 1
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_side_file_damaged_while_the_relay_was_down_is_named_and_made_again(
    path: Path, side: Path, db: sqlite3.Connection, damage: Callable[[Path], None]
) -> None:
    with opened(path, "t") as source:
        last = fill(db, source, 1)
    damage(side)
    with pytest.raises(SourceUnavailableError) as caught:
        SqliteSource(settings(path, "t")).open(last)
    assert f"{side}, the relay's own file beside the database, is damaged" in str(caught.value)
    assert "restore" not in str(caught.value)
    check_healed(path, side, db, last)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_side_file_damaged_under_a_running_relay_is_never_blamed_on_the_database(
    path: Path, side: Path, db: sqlite3.Connection, damage: Callable[[Path], None]
) -> None:
    with opened(path, "t") as source:
        last = fill(db, source, 1)
        with closing(sqlite3.connect(side)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        damage(side)
        # What it has in memory may do for a while; then it is noticed at the next opening.
        with suppress(SourceUnavailableError):
            last = fill(db, source, 6)
    for _ in range(2):
        with suppress(SourceUnavailableError), opened(path, "t", after_scn=last):
            pass
    with opened(path, "t", after_scn=last) as source:
        db.execute("INSERT INTO t VALUES (100, 'y')")
        assert ids(drain(source))[-1] == 100
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_watched_database_that_is_damaged_itself_is_still_the_one_that_is_named(
    path: Path, side: Path
) -> None:
    with database(path, TABLE) as db, opened(path, "t") as source:
        fill(db, source, 1)
    write_at(path, 100, b"\xa5" * 4000)
    with pytest.raises(SourceStoppedError, match=r"shop\.db: .*the database is damaged; restore"):
        SqliteSource(settings(path, "t")).open(5)
    assert side.exists()
    assert not side.with_name("shop.db-databus.damaged").exists()
