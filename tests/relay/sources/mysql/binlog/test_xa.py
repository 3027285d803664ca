"""XA transactions on a real server: held until XA COMMIT, dropped at XA ROLLBACK, found again."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.binlog import xa
from databus.relay.sources.mysql.binlog.xa import Xid, parse_xa_end, parse_xa_prepare
from databus.relay.sources.source import Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.scn import BinlogPosition, binlog_position
from tests import PATIENCE_S
from tests.mariadb_server import Database, connect, prepare_xa
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_full,
    read_until,
    row_changes_of,
    settings_for,
    watching,
)

pytest_plugins = ["tests.mariadb"]
pytestmark = [pytest.mark.mariadb, pytest.mark.usefixtures("both_ways")]


@pytest.fixture
def shop(database: Database) -> Iterator[Database]:
    """Two tables; what a test left prepared is rolled back, or the database could not go."""
    database.run(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE m (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE TABLE unwatched (id INT PRIMARY KEY)",
    )
    yield database
    for *_, xid in database.run("XA RECOVER FORMAT = 'SQL'"):
        database.run(f"XA ROLLBACK {xid}")


def end_scn(database: Database) -> int:
    file, offset, *_ = database.run("SHOW MASTER STATUS")[0]
    return BinlogPosition(0, int(file.split(".")[1]), offset).to_scn()


def ids(transaction: Transaction) -> list[object]:
    return [change.row["id"] for change in row_changes_of(transaction)]


def test_rows_of_an_xa_transaction_come_at_its_commit_and_none_at_its_rollback(
    shop: Database, tmp_path: Path
) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        prepare_xa(shop, "'x','branch',7", "INSERT INTO a VALUES (1, 1)", "UPDATE a SET v = 2")
        prepare_xa(shop, "'y'", "INSERT INTO a VALUES (2, 2)")
        shop.run("INSERT INTO a VALUES (3, 3)", "XA ROLLBACK 'y'", "INSERT INTO a VALUES (4, 4)")
        shop.run("XA COMMIT 'x','branch',7")
        end = end_scn(shop)
        shop.run("INSERT INTO a VALUES (5, 5)")
        found = read_full(source, 4)
    assert [ids(t) for t in found] == [[3], [4], [1, 1], [5]]
    assert found[2].scn == end
    assert (
        binlog_position(end).offset
        > found[2].origin.offset
        > binlog_position(found[1].scn).offset - 1
    )
    assert [c.op.value for c in found[2].changes] == ["insert", "update"]


def test_an_xid_may_be_used_again(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        for number in range(4):
            prepare_xa(shop, "'same'", f"INSERT INTO a VALUES ({number}, 0)")
            shop.run(f"XA {'COMMIT' if number % 2 else 'ROLLBACK'} 'same'")
        assert [c.row["id"] for c in read_changes(source, 2)] == [1, 3]


def test_xa_in_one_phase_is_a_transaction_like_any_other(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run("XA START 'z'", "INSERT INTO a VALUES (1, 1)", "XA END 'z'")
        shop.run("XA COMMIT 'z' ONE PHASE")
        assert read_changes(source, 1)[0].row["id"] == 1


def test_savepoints_and_tables_without_transactions_inside_xa(
    shop: Database, tmp_path: Path
) -> None:
    with opened(watching(shop, tmp_path, "a", "m")) as source:
        statements = [
            "INSERT INTO a VALUES (1, 1)", "SAVEPOINT s", "INSERT INTO m VALUES (10)",
            "INSERT INTO a VALUES (2, 2)", "ROLLBACK TO s", "INSERT INTO a VALUES (3, 3)",
        ]  # fmt: skip
        prepare_xa(shop, "'x'", *statements)
        shop.run("XA COMMIT 'x'", "INSERT INTO a VALUES (4, 4)")
        # A row of MyISAM is there at once, whatever becomes of the transaction.
        assert [ids(t) for t in read_full(source, 3)] == [[10], [1, 3], [4]]
        assert shop.run("SELECT id FROM a ORDER BY id") == ((1,), (3,), (4,))


def test_xa_transactions_that_log_no_row_do_not_stop(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        for text in (
            "SELECT * FROM a",
            "INSERT INTO unwatched VALUES (1)",
            "INSERT INTO m SELECT 1",
        ):
            shop.run("XA START 'x'", text, "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
        shop.run("INSERT INTO a VALUES (1, 1)")
        assert read_changes(source, 1)[0].row["id"] == 1


@pytest.mark.parametrize("files", [0, 1, 3])
def test_a_transaction_prepared_before_the_start_is_found_in_the_log(
    shop: Database, tmp_path: Path, files: int
) -> None:
    settings = watching(shop, tmp_path, "a")
    shop.run("FLUSH BINARY LOGS")
    prepare_xa(shop, "'old'", "INSERT INTO a VALUES (0, 0)")
    shop.run("XA ROLLBACK 'old'")
    prepare_xa(shop, "'old'", "INSERT INTO a VALUES (1, 1), (2, 2)")
    prepare_xa(shop, "'other'", "INSERT INTO a VALUES (3, 3)")
    for number in range(files):
        shop.run("FLUSH BINARY LOGS", f"INSERT INTO unwatched VALUES ({number})")
    begin = end_scn(shop)
    with opened(settings, begin) as source:
        shop.run("XA COMMIT 'old'", "XA COMMIT 'other'", "INSERT INTO a VALUES (4, 4)")
        found = read_full(source, 3)
    assert [ids(t) for t in found] == [[1, 2], [3], [4]]


def test_reading_resumed_at_every_scn_gives_the_same_rest(tmp_path: Path) -> None:
    with PrivateMariaDB() as server, contextlib.closing(connect(server)) as connection:
        database = Database(server, "d", connection)
        database.run("CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY, v INT)")
        write_xa_randomly(database)
        settings = settings_for(server, tmp_path, ["d.a"], start="earliest")
        end = end_scn(database)
        with opened(settings) as source:
            found = read_until(source, lambda found: bool(found) and found[-1].scn >= end)
        full = [t for t in found if row_changes_of(t)]
        rows = {id_ for t in full for id_ in ids(t)}
        assert {row[0] for row in database.run("SELECT id FROM a")} == rows
        for seen in found:
            with opened(settings, seen.scn) as source:
                rest = [t for t in full if t.scn > seen.scn]
                assert (read_full(source, len(rest)) if rest else []) == rest


def write_xa_randomly(database: Database) -> None:
    chance = random.Random(7)
    open_: list[str] = []
    for number in range(40):
        kind = chance.randrange(5)
        if kind < 2:
            open_.append(f"'x{number % 7}','{number}'")
            prepare_xa(database, open_[-1], f"INSERT INTO a VALUES ({number}, 0)")
        elif kind < 4 and open_:
            xid = open_.pop(chance.randrange(len(open_)))
            database.run(f"XA {chance.choice(['COMMIT', 'ROLLBACK'])} {xid}")
        elif chance.randrange(3) == 0:
            database.run("FLUSH BINARY LOGS")
        else:
            database.run(f"INSERT INTO a VALUES ({number}, 0)")
    for xid in open_:
        database.run(f"XA ROLLBACK {xid}")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_transaction_prepared_before_the_server_restarts_is_delivered(
    tmp_path: Path, is_killed: bool
) -> None:
    with PrivateMariaDB(flush_log_at_commit=1, options={"sync-binlog": 1}) as server:
        with contextlib.closing(connect(server)) as connection:
            database = Database(server, "d", connection)
            database.run("CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY)")
            begin = end_scn(database)
            prepare_xa(database, "'x'", "INSERT INTO a VALUES (1)")
        server.restart(kill=is_killed)
        with contextlib.closing(connect(server)) as connection:
            database = Database(server, "d", connection)
            database.run("XA COMMIT 'x'", "INSERT INTO d.a VALUES (2)")
        for start in (begin, None):
            settings = settings_for(server, tmp_path, ["d.a"], start="earliest")
            with opened(settings, start) as source:
                assert [ids(t) for t in read_full(source, 2)] == [[1], [2]]


def test_more_rows_than_are_held_are_read_from_the_log_again(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xa.PreparedTransactions.__init__, "__defaults__", (None, 100))
    with opened(watching(shop, tmp_path, "a")) as source:
        prepare_xa(shop, "'small'", "INSERT INTO a SELECT seq, 0 FROM seq_1_to_90")
        prepare_xa(shop, "'large'", "INSERT INTO a SELECT seq, 0 FROM seq_101_to_2100")
        shop.run("XA COMMIT 'large'", "XA COMMIT 'small'")
        large, small = read_full(source, 2)
        assert ids(large) == list(range(101, 2101))
        assert ids(small) == list(range(1, 91))


def test_a_commit_whose_rows_were_purged_stops_and_can_be_passed(tmp_path: Path) -> None:
    with PrivateMariaDB() as server, contextlib.closing(connect(server)) as connection:
        database = Database(server, "d", connection)
        database.run("CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY)")
        prepare_xa(database, "'gone'", "INSERT INTO a VALUES (1)")
        database.run("FLUSH BINARY LOGS", "XA COMMIT 'gone'", "INSERT INTO a VALUES (2)")
        database.run("FLUSH BINARY LOGS")
        # The server keeps the file of a prepared transaction until InnoDB has flushed its end.
        give_up_s = time.monotonic() + PATIENCE_S
        while database.run("SHOW BINARY LOGS")[0][0] != "binlog.000002":
            database.run("PURGE BINARY LOGS TO 'binlog.000002'")
            assert time.monotonic() < give_up_s
        settings = settings_for(server, tmp_path, ["d.a"], start="earliest")
        says = r"XA COMMIT X'676f6e65'.*oldest file is binlog\.000002"
        with opened(settings) as source, pytest.raises(SourceStoppedError, match=says) as caught:
            read_full(source, 1)
        number = int(str(caught.value).split("acknowledged_scns = [")[1].split("]")[0])
        again = settings.model_copy(update={"acknowledged_scns": (number,)})
        with opened(again) as source:
            assert ids(read_full(source, 1)[0]) == [2]


def test_xids_are_read_as_the_server_writes_them() -> None:
    xid = Xid(7, b"r4", b"b")
    assert parse_xa_end("XA COMMIT X'7234',X'62',7") == xid
    assert parse_xa_end("xa rollback X'7234', X'62', 7") == xid
    assert parse_xa_end("XA COMMIT X'7234',X'62',7 ONE PHASE") is None
    assert str(xid) == "X'7234',X'62',7"
    body = bytes.fromhex("00 07000000 02000000 01000000 7234 62".replace(" ", ""))
    assert parse_xa_prepare(body) == xid
    assert parse_xa_prepare(b"\1" + body[1:]) is None
    for bad in ("XA COMMIT 'r4'", "XA COMMIT X'7',X'',1"):
        with pytest.raises(ValueError, match=r"."):
            parse_xa_end(bad)
