"""Where reading begins and goes on: every SCN, GTIDs, rotation, purges, restarts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.sources.source import Transaction
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.scn import BinlogPosition, binlog_position
from tests.mariadb_server import Database, connect, purge_to
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_full,
    read_to_scn,
    read_until,
    row_changes_of,
    settings_for,
    watching,
)
from tests.relay.sources.read_back import ReadSource

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb


@pytest.fixture
def server() -> Iterator[PrivateMariaDB]:
    """A server of the test's own, to restart, purge and reset."""
    with PrivateMariaDB() as server:
        run(server, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        yield server


@pytest.fixture
def shared(mariadb: PrivateMariaDB) -> Iterator[PrivateMariaDB]:
    """The session's server, with the same table."""
    run(mariadb, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    yield mariadb
    run(mariadb, "DROP DATABASE d")


def run(server: PrivateMariaDB, *statements: str) -> list[tuple[object, ...]]:
    connection = connect(server)
    try:
        rows: list[tuple[object, ...]] = []
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
        return rows
    finally:
        connection.close()


def end_scn(server: PrivateMariaDB) -> int:
    name, offset, *_ = run(server, "SHOW MASTER STATUS")[0]
    assert isinstance(name, str)
    assert isinstance(offset, int)
    return BinlogPosition(0, int(name.split(".")[1]), offset).to_scn()


def write_randomly(server: PrivateMariaDB, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        kind = chance.randrange(6)
        key = chance.randrange(40)
        statements = [f"REPLACE INTO d.t VALUES ({key}, {number})"]
        if kind == 1:
            statements = [f"DELETE FROM d.t WHERE id = {key}"]
        elif kind == 2:
            statements = [
                "BEGIN",
                *statements,
                f"REPLACE INTO d.t VALUES ({key + 50}, 1)",
                "COMMIT",
            ]
        elif kind == 3:
            statements = [f"UPDATE IGNORE d.t SET id = id + 100 WHERE id = {key}"]
        elif kind == 4:
            statements = ["BEGIN", *statements, "ROLLBACK"]
        elif kind == 5 and chance.randrange(8) == 0:
            statements = ["FLUSH BINARY LOGS"]
        run(server, *statements)


def test_reading_resumed_at_every_scn_gives_the_same_rest(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    write_randomly(server, 60, seed=1)
    settings = settings_for(server, tmp_path, ["d.t"], start="earliest")
    end = end_scn(server)
    with opened(settings) as source:
        found = read_until(source, lambda found: bool(found) and found[-1].scn >= end)
    full = [t for t in found if row_changes_of(t)]
    assert len(full) > 20
    for seen in found:
        with opened(settings, seen.scn) as source:
            rest = [t for t in full if t.scn > seen.scn]
            assert (read_full(source, len(rest)) if rest else []) == rest


def test_two_sources_of_one_server_yield_identical_transactions_and_bytes(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    write_randomly(server, 30, seed=2)
    settings = settings_for(server, tmp_path, ["d.t"], start="earliest")
    with opened(settings) as first, opened(settings) as second:
        write_randomly(server, 30, seed=3)
        end = end_scn(server)
        ones, others = read_to_scn(first, end), read_to_scn(second, end)
        assert ones == others
        assert encoded(first, ones) == encoded(second, others)


def encoded(source: ReadSource, transactions: list[Transaction]) -> list[bytes]:
    registry = SchemaRegistry(MemoryStore())
    registry.add_source("d.t", 1)
    encoder = WindowEncoder(registry, {"d.t": 1})
    for table in source.tables():
        encoder.publish_first([table])
    return [encoder.encode(transaction).data for transaction in transactions]


def test_the_table_is_one_object_as_long_as_it_is_unchanged(
    shared: PrivateMariaDB, tmp_path: Path
) -> None:
    settings = settings_for(shared, tmp_path, ["d.t"])
    with opened(settings) as source:
        run(shared, "INSERT INTO d.t VALUES (1, 1)", "FLUSH BINARY LOGS")
        run(shared, "INSERT INTO d.t VALUES (2, 2)", "OPTIMIZE TABLE d.t")
        run(shared, "CREATE INDEX i ON d.t (v)", "INSERT INTO d.t VALUES (3, 3)")
        changes = read_changes(source, 3)
        assert {id(c.table) for c in changes} == {id(source.tables()[0])}


def test_latest_begins_after_what_is_there(shared: PrivateMariaDB, tmp_path: Path) -> None:
    run(shared, "INSERT INTO d.t VALUES (1, 1)")
    begin = end_scn(shared)
    with opened(settings_for(shared, tmp_path, ["d.t"])) as source:
        # Said at once, so that it is kept although nothing has happened yet.
        assert [t.scn for t in source.read_transactions()] == [begin]
        run(shared, "INSERT INTO d.t VALUES (2, 2)")
        assert read_changes(source, 1)[0].row["id"] == 2


def test_a_start_can_be_an_scn(shared: PrivateMariaDB, tmp_path: Path) -> None:
    begin = end_scn(shared)
    run(shared, "INSERT INTO d.t VALUES (1, 1)")
    with opened(settings_for(shared, tmp_path, ["d.t"], start=str(begin))) as source:
        assert read_changes(source, 1)[0].row["id"] == 1


def test_a_start_can_be_a_gtid_set(server: PrivateMariaDB, tmp_path: Path) -> None:
    run(server, "INSERT INTO d.t VALUES (1, 1)", "FLUSH BINARY LOGS")
    run(server, "INSERT INTO d.t VALUES (2, 2)")
    (gtid,) = run(server, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
    run(server, "INSERT INTO d.t VALUES (3, 3)", "FLUSH BINARY LOGS")
    run(server, "INSERT INTO d.t VALUES (4, 4)")
    with opened(settings_for(server, tmp_path, ["d.t"], start=f"gtid-set:{gtid}")) as source:
        by_gtid = read_full(source, 2)
    assert [t.changes[0].row["id"] for t in by_gtid] == [3, 4]
    with opened(settings_for(server, tmp_path, ["d.t"], start="earliest")) as source:
        assert read_full(source, 4)[2:] == by_gtid


def test_what_a_start_by_gtid_leaves_out_moves_the_scn_of_an_idle_source(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    for number in range(20):
        run(server, f"INSERT INTO d.t VALUES ({number}, 1)")
    (gtid,) = run(server, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
    end = end_scn(server)
    with opened(settings_for(server, tmp_path, ["d.t"], start=f"gtid-set:{gtid}")) as source:
        found = read_until(source, lambda found: bool(found) and found[-1].scn >= end)
    assert found[-1].scn == end
    assert not any(t.changes for t in found)


@pytest.mark.parametrize(
    "start", ["gtid:", "gtid:0-1", "gtid:3E11FA47:1-5", "newest", "beginning", "-5", "9" * 30]
)
def test_a_start_that_is_nonsense_is_refused_with_the_settings(
    shared: PrivateMariaDB, tmp_path: Path, start: str
) -> None:
    with pytest.raises(ValidationError, match="start"):
        settings_for(shared, tmp_path, ["d.t"], start=start)


def test_a_gtid_that_the_server_never_had_stops(shared: PrivateMariaDB, tmp_path: Path) -> None:
    settings = settings_for(shared, tmp_path, ["d.t"], start="gtid-set:0-99-1000")
    with opened(settings) as source, pytest.raises(SourceStoppedError, match="0-99-1000"):
        read_full(source, 1)


def test_a_purged_file_stops_and_says_what_the_server_has(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    begin = end_scn(server)
    run(server, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    purge_to(server, "binlog.000003")
    settings = settings_for(server, tmp_path, ["d.t"])
    with (
        pytest.raises(SourceStoppedError, match=r"from binlog\.000003:4 to binlog\.000003:\d+"),
        opened(settings, begin),
    ):
        pass


def test_a_position_beyond_the_log_stops(shared: PrivateMariaDB, tmp_path: Path) -> None:
    settings = settings_for(shared, tmp_path, ["d.t"])
    for scn in (
        end_scn(shared) + 1,
        BinlogPosition(0, 77, 4).to_scn(),
        BinlogPosition(0, 1, 3).to_scn(),
    ):
        with (
            pytest.raises(SourceStoppedError, match="not in the server's log"),
            opened(settings, scn),
        ):
            pass


def test_a_position_of_another_epoch_needs_a_start_of_this_one(
    shared: PrivateMariaDB, tmp_path: Path
) -> None:
    old = end_scn(shared)
    (gtid,) = run(shared, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
    settings = settings_for(shared, tmp_path, ["d.t"], epoch=1)
    with (
        pytest.raises(SourceStoppedError, match="epoch 0 and the settings say epoch 1"),
        opened(settings, old),
    ):
        pass
    switched = settings.model_copy(update={"start": f"gtid-set:{gtid}"})
    with opened(switched, old) as source:
        run(shared, "INSERT INTO d.t VALUES (1, 1)")
        assert binlog_position(read_full(source, 1)[0].scn).epoch == 1


def test_rotation_moves_the_scn_of_an_idle_source(server: PrivateMariaDB, tmp_path: Path) -> None:
    with opened(settings_for(server, tmp_path, ["d.t"])) as source:
        run(server, "FLUSH BINARY LOGS")
        found = read_until(
            source, lambda found: bool(found) and binlog_position(found[-1].scn).file_number == 2
        )
        purge_to(server, "binlog.000002")
        run(server, "INSERT INTO d.t VALUES (1, 1)")
    with opened(settings_for(server, tmp_path, ["d.t"]), found[-1].scn) as source:
        assert read_changes(source, 1)[0].row["id"] == 1


def test_an_idle_source_gets_to_an_end_of_the_log_that_is_no_transactions(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    run(server, "INSERT INTO d.t VALUES (1, 1)", "FLUSH BINARY LOGS")
    settings = settings_for(server, tmp_path, ["d.t"], start="earliest")
    # The server may add a BINLOG_CHECKPOINT a second later.
    with opened(settings) as source:
        found = read_until(source, lambda found: bool(found) and found[-1].scn == end_scn(server))
    with opened(settings, found[-1].scn) as source:
        assert source.read_transactions() == []
        run(server, "INSERT INTO d.t VALUES (2, 2)")
        assert read_changes(source, 1)[0].row["id"] == 2


def test_an_idle_source_comes_back_within_a_second_or_so(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)")
    settings = watching(database, tmp_path, "t")
    with opened(settings) as source:
        source.read_transactions()
        assert source.read_transactions() == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restarted_server_is_read_on_without_loss(
    server: PrivateMariaDB, tmp_path: Path, is_killed: bool
) -> None:
    settings = settings_for(server, tmp_path, ["d.t"], start="earliest")
    run(server, "INSERT INTO d.t VALUES (1, 1)")
    with opened(settings) as source:
        first = read_full(source, 1)
        server.kill() if is_killed else server.stop()
        with pytest.raises(SourceUnavailableError):
            read_full(source, 1)
        source.close()
        with pytest.raises(SourceUnavailableError, match="connect"):
            source.open(first[-1].scn)
        server.start()
        run(server, "INSERT INTO d.t VALUES (2, 2)")
        source.open(first[-1].scn)
        rest = read_full(source, 1)
    assert [t.changes[0].row["id"] for t in first + rest] == [1, 2]


def test_half_a_transaction_is_dropped_when_the_connection_breaks(
    server: PrivateMariaDB, tmp_path: Path
) -> None:
    run(
        server,
        "USE d",
        "CREATE TABLE w (id INT PRIMARY KEY, v TEXT)",
        "INSERT INTO w VALUES (0, '')",
    )
    run(server, "USE d", "INSERT INTO w SELECT seq, REPEAT('x', 1000) FROM seq_1_to_30000")
    # The clock lets each `read` take one chunk only: far less than the 30 MB.
    source = ReadSource(
        settings_for(server, tmp_path, ["d.w"], start="earliest"),
        clock=itertools.count(0, 2).__next__,
    )
    try:
        source.open(None)
        scn = read_full(source, 1)[-1].scn
        assert source.read_transactions() == []
        kill_dump(server)
        with pytest.raises(SourceUnavailableError):
            read_full(source, 1)
        source.open(scn)
        (whole,) = read_until_enough_chunks(source)
        assert len(whole.changes) == 30_000
    finally:
        source.close()


def read_until_enough_chunks(source: ReadSource) -> list[Transaction]:
    found: list[Transaction] = []
    for _ in range(10_000):
        found += [t for t in source.read_transactions() if t.changes]
        if found:
            break
    return found


def kill_dump(server: PrivateMariaDB) -> None:
    rows = run(server, "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog%'")
    for (number,) in rows:
        run(server, f"KILL {number}")


@pytest.mark.parametrize("checksum", ["NONE", "CRC32"])
def test_checksums_may_be_on_off_or_switched(tmp_path: Path, checksum: str) -> None:
    other = "CRC32" if checksum == "NONE" else "NONE"
    with PrivateMariaDB(options={"binlog-checksum": checksum}) as server:
        run(server, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        settings = settings_for(server, tmp_path, ["d.t"], start="earliest")
        with opened(settings) as source:
            run(server, "INSERT INTO d.t VALUES (1, 1)", f"SET GLOBAL binlog_checksum = {other}")
            run(server, "INSERT INTO d.t VALUES (2, 2)")
            assert [c.row["id"] for c in read_changes(source, 2)] == [1, 2]
        with opened(settings) as source:
            assert [c.row["id"] for c in read_changes(source, 2)] == [1, 2]


def test_settings_without_a_table_name_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"write DATABASE\.TABLE"):
        PhysicalSourceSettings(name="x", uri="mysql://u@h", sources=("orders",))
