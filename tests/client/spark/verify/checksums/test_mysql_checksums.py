"""Checksums of MySQL and MariaDB hold at their place in the binlog, whoever writes meanwhile."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
import pytest

from databus.client.spark.verify.checksums import mysql_checksums
from databus.client.spark.verify.checksums.checksum_table import NAME, ChecksumTable
from databus.client.spark.verify.checksums.mysql_checksums import MysqlChecksums, session_problem
from databus.client.spark.verify.source_table import SourceTable, open_source_table
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import HOST
from databus.relay.sources.source import Transaction
from databus.schemas.errors import SettingsError, SourceUnavailableError
from tests.client.spark.verify.checksums.replica import Replica
from tests.mariadb_server import Database, connect
from tests.relay.sources.mysql.reading import opened, read_until, row_changes_of, watching

pytest_plugins = ["tests.mariadb", "tests.mysql"]

KEYS = 300
CHUNK_ROWS = 40
WRITERS = 6
TRANSACTIONS = 400  # of each writer
ORDERS = "CREATE TABLE orders (id BIGINT PRIMARY KEY, note VARCHAR(40), amount DECIMAL(8,2))"


def fill(shop: Database, engine: str = "InnoDB") -> None:
    shop.run(f"{ORDERS} ENGINE = {engine}")
    for key in range(0, KEYS, 2):
        shop.run(f"INSERT INTO orders VALUES ({key}, 'note {key}', {key}.5)")


@contextmanager
def checksums_of(
    shop: Database, physical: PhysicalSourceSettings, *, create: bool = True
) -> Iterator[tuple[SourceTable, ChecksumTable]]:
    with open_source_table(physical, f"{shop.name}.orders") as table:
        name = f"{shop.name}.{NAME}"
        with closing(table.checksums(name, name, "run")) as checksums:
            if create:
                checksums.create()
            checksums.check()
            yield table, checksums


def physical_of(shop: Database, folder: Path) -> PhysicalSourceSettings:
    return watching(shop, folder, "orders", NAME)


def statement(chance: random.Random) -> str:
    key, other = chance.randrange(KEYS), chance.randrange(KEYS)
    return chance.choice(
        [
            f"INSERT IGNORE INTO orders VALUES ({key}, 'new {other}', {other})",
            f"REPLACE INTO orders VALUES ({key}, 'replaced', {other})",
            f"UPDATE orders SET amount = amount + 1 WHERE id BETWEEN {key} AND {key + 5}",
            f"DELETE FROM orders WHERE id = {key}",
            f"UPDATE IGNORE orders SET id = {other} WHERE id = {key}",
        ]
    )


def write(shop: Database, seed: int) -> int:
    """Commit random transactions at a random isolation level; return how many were committed."""
    chance, committed = random.Random(seed), 0
    level = chance.choice(["READ COMMITTED", "REPEATABLE READ"])
    with closing(connect(shop.server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {shop.name}")
        cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        for _ in range(TRANSACTIONS):
            try:
                cursor.execute("BEGIN")
                for _ in range(chance.randint(1, 3)):
                    cursor.execute(statement(chance))
                cursor.execute("COMMIT" if chance.random() < 0.9 else "ROLLBACK")
                committed += 1
            except pymysql.err.OperationalError as error:
                # Writers deadlock with each other.
                if error.args[0] not in (1205, 1213):
                    raise
                cursor.execute("ROLLBACK")
    return committed


def write_checksums(
    table: SourceTable, checksums: ChecksumTable, futures: list[Future[int]]
) -> int:
    """Write checksums of the whole table again and again until the writers are done."""
    number, after = 0, None
    while not all(future.done() for future in futures):
        after = checksums.write(number, table.chunk_query(after, CHUNK_ROWS)).last
        number += 1
    return number


def check_every_checksum(shop: Database, folder: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    fill(shop)
    physical, name = physical_of(shop, folder), f"{shop.name}.{NAME}"
    with checksums_of(shop, physical) as (table, checksums), opened(physical) as source:
        replica = Replica(table, name, KEYS)
        with ThreadPoolExecutor(WRITERS) as pool:
            futures = [pool.submit(write, shop, seed + at) for at in range(WRITERS)]
            written = write_checksums(table, checksums, futures)
            committed = sum(future.result() for future in futures)
        assert committed > WRITERS * TRANSACTIONS // 2

        def is_enough(found: list[Transaction]) -> bool:
            for transaction in found:
                for change in row_changes_of(transaction):
                    replica.take(change)
            found.clear()
            return replica.seen == written

        read_until(source, is_enough)
        assert written > KEYS // CHUNK_ROWS
        assert replica.wrong == []
        checksums.delete()
    assert shop.run(f"SELECT COUNT(*) FROM {NAME}") == ((0,),)


@pytest.mark.mariadb
def test_every_checksum_of_mariadb_holds_at_its_place_in_the_binlog(
    database: Database, tmp_path: Path
) -> None:
    check_every_checksum(database, tmp_path)


@pytest.mark.mysql
def test_every_checksum_of_mysql_holds_at_its_place_in_the_binlog(
    mysql_database: Database, tmp_path: Path
) -> None:
    check_every_checksum(mysql_database, tmp_path)


def is_locked(shop: Database, change: str) -> bool:
    with closing(connect(shop.server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {shop.name}")
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        cursor.execute("BEGIN")
        try:
            cursor.execute(change)
        except pymysql.err.OperationalError as error:
            if error.args[0] != 1205:
                raise
            return True
        finally:
            cursor.execute("ROLLBACK")
    return False


def check_locks(shop: Database, folder: Path) -> None:
    fill(shop)
    with checksums_of(shop, physical_of(shop, folder)) as (table, checksums):
        assert isinstance(checksums, MysqlChecksums)
        checksums._connection.begin()
        last = checksums.write(0, table.chunk_query(9, 5)).last
        assert last == 18
        for change in (
            "UPDATE orders SET note = 'x' WHERE id = 10",
            "DELETE FROM orders WHERE id = 18",
            "INSERT INTO orders VALUES (9, 'a gap before the first row', 0)",
            "INSERT INTO orders VALUES (17, 'a gap', 0)",
            "UPDATE orders SET id = 13 WHERE id = 100",
        ):
            assert is_locked(shop, change), change
        for change in (
            "UPDATE orders SET note = 'x' WHERE id = 8",
            "INSERT INTO orders VALUES (19, 'behind the last row', 0)",
        ):
            assert not is_locked(shop, change), change
        checksums._connection.rollback()


@pytest.mark.mariadb
def test_nobody_changes_a_chunk_of_mariadb_before_its_checksum_is_committed(
    database: Database, tmp_path: Path
) -> None:
    check_locks(database, tmp_path)


@pytest.mark.mysql
def test_nobody_changes_a_chunk_of_mysql_before_its_checksum_is_committed(
    mysql_database: Database, tmp_path: Path
) -> None:
    check_locks(mysql_database, tmp_path)


@pytest.mark.mariadb
def test_a_locked_row_is_waited_for_without_holding_others(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_checksums, "_TRIES", 4)
    pauses: list[float] = []

    def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        # Between two tries nothing is locked.
        assert not is_locked(database, "UPDATE orders SET note = 'x' WHERE id = 4")

    fill(database)
    with checksums_of(database, physical_of(database, tmp_path)) as (table, checksums):
        monkeypatch.setattr(checksums, "_pause", pause)
        database.run("BEGIN", "UPDATE orders SET note = 'x' WHERE id = 10")
        with pytest.raises(SourceUnavailableError, match="keep rows behind key None locked"):
            checksums.write(0, table.chunk_query(None, 40))
        database.run("ROLLBACK")
        assert len(pauses) == 4
        assert checksums.write(0, table.chunk_query(None, 40)) == (78, 40)
        assert checksums.write(1, table.chunk_query(78, 1000)) == (None, KEYS // 2 - 40)


@pytest.mark.mariadb
def test_tables_whose_rows_no_lock_holds_are_refused(database: Database, tmp_path: Path) -> None:
    fill(database, "Aria")
    physical = physical_of(database, tmp_path)
    missing = pytest.raises(SettingsError, match=r"--create-table creates it.*CREATE TABLE t")
    with missing, checksums_of(database, physical, create=False):
        pass
    other_engine = pytest.raises(SettingsError, match="a table of Aria, not of InnoDB")
    with other_engine, checksums_of(database, physical):
        pass


@pytest.mark.mariadb
def test_a_missing_right_is_named(database: Database, tmp_path: Path) -> None:
    fill(database)
    name, user = f"{database.name}.{NAME}", f"reader_{database.name}"
    with checksums_of(database, physical_of(database, tmp_path)):
        pass
    database.run(
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}",
        f"GRANT SELECT ON {database.name}.* TO {user}",
    )
    password = tmp_path / "reader"
    password.write_text("secret")
    uri = f"mysql://{user}@{HOST}:{database.server.port}"
    physical = physical_of(database, tmp_path).model_copy(
        update={"uri": uri, "password_file": password}
    )
    refused = pytest.raises(SettingsError, match=f"GRANT SELECT, INSERT, DELETE ON {name}")
    with refused, checksums_of(database, physical, create=False) as (table, checksums):
        checksums.write(0, table.chunk_query(None, 40))
    database.run(f"DROP USER {user}")


GOOD = {"transaction_isolation": "REPEATABLE-READ", "sql_log_bin": "ON"}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "^$"),
        ({"transaction_isolation": "READ-COMMITTED"}, "level READ-COMMITTED, not REPEATABLE-READ"),
        ({"innodb_locks_unsafe_for_binlog": "ON"}, "gaps are not locked"),
        ({"sql_log_bin": "OFF"}, "no checksum is in the log"),
        ({"wsrep_on": "ON"}, "other servers of this cluster"),
        (
            {
                "group_replication_group_name": "a",
                "group_replication_single_primary_mode": "OFF",
            },
            "other servers of this cluster",
        ),
        (
            {"group_replication_group_name": "", "group_replication_single_primary_mode": "OFF"},
            "^$",
        ),
    ],
)
def test_a_session_whose_checksums_would_not_hold_is_refused(
    variables: dict[str, str], says: str
) -> None:
    assert re.search(says, session_problem({**GOOD, **variables}))
