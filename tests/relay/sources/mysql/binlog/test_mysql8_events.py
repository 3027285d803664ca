"""Events of a running MySQL 8: compressed transactions, parts of JSON, XA, savepoints, idleness."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from databus.relay.sources.source import RowChange
from databus.schemas.event.metadata import Op
from databus.schemas.scn import BinlogPosition
from tests.mariadb_server import Database, connect, prepare_xa
from tests.mysql_server import PrivateMySQL
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_full,
    read_until,
    watching,
)
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mysql"]
pytestmark = [pytest.mark.mysql, pytest.mark.usefixtures("both_ways")]


@pytest.fixture
def shop(mysql_database: Database) -> Database:
    """Tables in InnoDB and MyISAM, and one that nobody watches."""
    mysql_database.run(
        "CREATE TABLE a (id INT PRIMARY KEY, v TEXT)",
        "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM",
        "CREATE TABLE j (id INT PRIMARY KEY, x JSON, n INT, y JSON)",
        "CREATE TABLE unwatched (id INT PRIMARY KEY)",
    )
    return mysql_database


def end_scn(database: Database) -> int:
    file, offset, *_ = database.run("SHOW MASTER STATUS")[0]
    return BinlogPosition(0, int(file.split(".")[1]), offset).to_scn()


def event_kinds(database: Database, scn: int) -> list[str]:
    file = f"binlog.{scn >> 32:06}"
    rows = database.run(f"SHOW BINLOG EVENTS IN '{file}' FROM {scn & 0xFFFFFFFF}")
    return [str(row[2]) for row in rows]


def test_a_compressed_transaction_is_delivered_and_can_be_resumed_at(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "a", "m")
    begin = end_scn(shop)
    ends = []
    with opened(settings, begin) as source:
        shop.run("SET binlog_transaction_compression = ON")
        for statements in (
            [
                "BEGIN",
                "INSERT INTO a VALUES (1, REPEAT('é', 9000))",
                "UPDATE a SET v = 'y'",
                "COMMIT",
            ],
            ["INSERT INTO m VALUES (1), (2)"],
            ["INSERT INTO unwatched VALUES (1)", "DELETE FROM a"],
            ["SET binlog_transaction_compression = OFF", "INSERT INTO a VALUES (2, 'z')"],
        ):
            shop.run(*statements)
            ends.append(end_scn(shop))
        found = read_full(source, 4)
    assert event_kinds(shop, begin).count("Transaction_payload") == 3
    assert [t.scn for t in found] == ends
    assert [[(c.op.value, c.row["id"]) for c in t.changes] for t in found] == [
        [("insert", 1), ("update", 1)],
        [("insert", 1), ("insert", 2)],
        [("delete", 1)],
        [("insert", 2)],
    ]
    assert found[0].changes[0].row["v"] == "é" * 9000
    assert len({t.origin.gtid for t in found}) == 4
    for place, seen in enumerate(found[:-1], 1):
        with opened(settings, seen.scn) as source:
            assert read_full(source, 4 - place) == found[place:]


def test_a_large_compressed_transaction_is_one_window(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        values = ", ".join(f"({number}, REPEAT('x', 1000))" for number in range(20_000))
        shop.run("SET binlog_transaction_compression = ON", f"INSERT INTO a VALUES {values}")
        (whole,) = read_full(source, 1)
        assert [c.row["id"] for c in whole.changes] == list(range(20_000))


UPDATES = (
    "UPDATE j SET x = JSON_SET(x, '$.a', {n}), n = {n}",
    "UPDATE j SET x = JSON_SET(x, '$.\"{n} q\"', 'ñ\"{n}')",
    "UPDATE j SET x = JSON_REPLACE(x, '$.list[1]', {n}.5e20)",
    "UPDATE j SET x = JSON_REPLACE(x, '$.deep.er', JSON_OBJECT('k', {n}, 'b', TRUE))",
    "UPDATE j SET x = JSON_REMOVE(x, '$.a'), y = JSON_SET(y, '$[0]', 'y{n}')",
    "UPDATE j SET x = JSON_SET(x, '$.deep', JSON_ARRAY({n}, NULL)), y = JSON_SET(y, '$[7]', {n})",
    "UPDATE j SET y = JSON_REMOVE(y, '$[0]')",
    "UPDATE j SET x = JSON_SET(x, '$.date', CAST('2020-01-{d:02}' AS DATE))",
    "UPDATE j SET x = JSON_SET(x, '$.number', CAST('{n}.50' AS DECIMAL(8,2)))",
    "UPDATE j SET x = JSON_SET(x, '$.long', REPEAT('w', {n} * 300))",
    "UPDATE j SET x = JSON_SET(JSON_REMOVE(x, '$.list[0]'), '$.list[5]', {n}, '$.a', '{n}')",
    "UPDATE j SET y = NULL, n = {n} WHERE id = 2",
    "UPDATE j SET y = '[1, 2, 3]' WHERE id = 2",
    "UPDATE j SET id = id + 10 WHERE id < 50",
)
DOCUMENT = {"a": 1, "list": [1, 2, 3], "deep": {"er": {"est": "x" * 200}}, "pad": "p" * 500}


@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_parts_of_json_make_the_values_that_the_server_has(
    shop: Database, tmp_path: Path, compression: str
) -> None:
    begin = end_scn(shop)
    with opened(watching(shop, tmp_path, "j"), begin) as source:
        shop.run(
            "SET binlog_row_value_options = PARTIAL_JSON",
            f"SET binlog_transaction_compression = {compression}",
        )
        document = json.dumps(DOCUMENT)
        shop.run(
            f"INSERT INTO j VALUES (1, '{document}', 0, '[1, [2]]'), (2, '{document}', 0, '[]')"
        )
        rows: dict[object, object] = {}
        apply(source, rows, 2)
        chance = random.Random(1)
        for number in range(1, 120):
            text = chance.choice(UPDATES).format(n=number, d=number % 28 + 1)
            with shop.connection.cursor() as cursor:
                changed = cursor.execute(text)
            apply(source, rows, changed * (2 if "id + 10" in text else 1))
            there = shop.run("SELECT id, x, n, y FROM j")
            assert rows == {id_: (x, n, y) for id_, x, n, y in there}, text
    kind = "Transaction_payload" if compression == "ON" else "Update_rows_partial"
    assert event_kinds(shop, begin).count(kind) > 50


def apply(source: ReadSource, rows: dict[object, object], count: int) -> None:
    """Read so many changes and make rows of them."""
    changes: list[RowChange] = read_changes(source, count) if count else []
    assert len(changes) == count
    for change in changes:
        row = change.row
        if change.op is Op.DELETE:
            del rows[row["id"]]
        else:
            rows[row["id"]] = (row["x"], row["n"], row["y"])


@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_xa_transactions_come_at_their_commit_wherever_reading_begins(
    shop: Database, tmp_path: Path, compression: str
) -> None:
    settings = watching(shop, tmp_path, "a")
    begin = end_scn(shop)
    compress = f"SET SESSION binlog_transaction_compression = {compression}"
    with contextlib.closing(connect(shop.server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET GLOBAL binlog_transaction_compression = {compression}")
        try:
            prepare_xa(
                shop,
                "'x','b',7",
                "INSERT INTO a VALUES (1, 'x')",
                "UPDATE a SET v = 'y' WHERE id = 1",
            )
            prepare_xa(shop, "'z'", "INSERT INTO a VALUES (2, 'z')")
            shop.run(
                compress, "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3, '')", "XA ROLLBACK 'z'"
            )
        finally:
            cursor.execute("SET GLOBAL binlog_transaction_compression = OFF")
    middle = end_scn(shop)
    shop.run("XA COMMIT 'x','b',7")
    end = end_scn(shop)
    shop.run(
        "XA START 'o'", "INSERT INTO a VALUES (4, '')", "XA END 'o'", "XA COMMIT 'o' ONE PHASE"
    )
    with opened(settings, begin) as source:
        found = read_full(source, 3)
    assert [[c.row["id"] for c in t.changes] for t in found] == [[3], [1, 1], [4]]
    assert found[1].scn == end
    with opened(settings, middle) as source:
        assert read_full(source, 2) == found[1:]


def test_savepoints_and_tables_without_transactions(
    new_mysql: Callable[..., PrivateMySQL], tmp_path: Path
) -> None:
    # With GTIDs the server refuses such a mixture.
    options = {"gtid-mode": "OFF", "enforce-gtid-consistency": "OFF"}
    with new_mysql(options=options) as server, contextlib.closing(connect(server)) as connection:
        shop = Database(server, "d", connection)
        shop.run("CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY)")
        shop.run("CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
        with opened(watching(shop, tmp_path, "a", "m")) as source:
            shop.run(
                "BEGIN", "INSERT INTO a VALUES (1)", "SAVEPOINT `S 1`", "INSERT INTO m VALUES (10)",
                "INSERT INTO a VALUES (2)", "ROLLBACK TO `s 1`", "INSERT INTO a VALUES (3)",
                "COMMIT", "BEGIN", "INSERT INTO a VALUES (4)", "INSERT INTO m VALUES (11)",
                "ROLLBACK", "BEGIN", "INSERT INTO a VALUES (5)",
                "CREATE TEMPORARY TABLE t (id INT)", "ROLLBACK", "INSERT INTO a VALUES (6)",
            )  # fmt: skip
            found = read_full(source, 4)
        assert shop.run("SELECT id FROM a ORDER BY id") == ((1,), (3,), (6,))
    seen = [[(c.table.source, c.row["id"]) for c in t.changes] for t in found]
    assert seen == [[("d.m", 10)], [("d.a", 1), ("d.a", 3)], [("d.m", 11)], [("d.a", 6)]]
    assert {t.origin.gtid for t in found} == {None}


def test_an_idle_source_gets_to_an_end_of_the_log_that_is_no_transactions(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("INSERT INTO a VALUES (1, 1)", "FLUSH BINARY LOGS")
    with opened(watching(shop, tmp_path, "a", start="earliest")) as source:
        read_until(source, lambda found: bool(found) and found[-1].scn == end_scn(shop))


def test_what_a_start_by_gtid_leaves_out_moves_the_scn_of_an_idle_source(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("FLUSH BINARY LOGS", *(f"INSERT INTO a VALUES ({n}, '')" for n in range(20)))
    (gtids,) = shop.run("SELECT @@GLOBAL.gtid_executed")[0]
    settings = watching(shop, tmp_path, "a", start=f"gtid-set:{gtids}")
    end = end_scn(shop)
    with opened(settings) as source:
        found = read_until(source, lambda found: bool(found) and found[-1].scn >= end)
        assert found[-1].scn == end
        assert not any(t.changes for t in found)
    with opened(settings, found[-1].scn) as source:
        shop.run("INSERT INTO a VALUES (100, '')")
        assert read_changes(source, 1)[0].row["id"] == 100
