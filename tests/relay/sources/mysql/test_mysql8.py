"""The MySQL source against a running MySQL 8: what its log has that MariaDB's has not.

What both servers have in common is tested in detail against MariaDB; here are
the same sentences once more, in short, and GTIDs with UUIDs, binary JSON, the
commit's own time, hidden columns, and logins with caching_sha2_password.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.sources.mysql.scan.tables import MysqlTableScan
from databus.relay.sources.mysql.source import MysqlSource
from databus.relay.sources.source import RowChange
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.event.metadata import Op
from databus.schemas.scn import BinlogPosition, binlog_position
from tests.mariadb_server import Database, connect
from tests.mysql_server import PrivateMySQL
from tests.relay.sources.certificates import write_certificates
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_full,
    read_to_scn,
    settings_for,
    watching,
)
from tests.relay.sources.mysql.rows.test_values import TYPES, as_delivered, check_avro_round_trip

pytest_plugins = ["tests.mysql"]
pytestmark = pytest.mark.mysql

# What MySQL has not, or bounds otherwise.
MARIADB_ONLY = {"UUID", "INET4", "INET6", "TIME(6)", "TIMESTAMP(6)"}
MYSQL_TYPES = {
    **{name: of for name, of in TYPES.items() if name not in MARIADB_ONLY | {"JSON"}},
    "TIME(6)": ["'-838:59:58.999999'", "'-00:00:00.000001'", "'838:59:59.000000'"],
    "TIMESTAMP(6)": ["'2038-01-19 03:14:07.499999'", "'1970-01-01 00:00:01.000001'"],
    "GEOMETRYCOLLECTION": ["ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')"],
    "VARCHAR(20) COLLATE utf8mb4_0900_as_cs": ["'aé漢😀'"],
    "VARCHAR(20) CHARACTER SET gb18030": ["'中文'"],
}
JSON_LITERALS = [
    "'1'", "'-1'", "'70000'", "'-5000000000'", "'18446744073709551615'", "'1.5'", "'-0.0'",
    "'true'", "'null'", "'[]'", "'{}'", r"""'"ñ😀\\"\\n\\u0001/"'""",
    "CAST(12345678901234567890.12345 AS JSON)", "CAST(YEAR('2020-01-01') AS JSON)",
    "JSON_ARRAY(CAST(1.5 AS DECIMAL(10,3)), DATE'2020-01-02', TIME'-12:00:01.5', x'00ff', b'101')",
    "JSON_ARRAY(TIMESTAMP'2020-01-02 03:04:05.000006', POINT(1, 2))",
    "JSON_OBJECT('b', 1, 'a', JSON_ARRAY(1, 2.5), 'aa', NULL)",
    "JSON_ARRAY(REPEAT('x', 70000), 1, 70000, JSON_OBJECT('k', REPEAT('y', 300)))",
]  # fmt: skip


@pytest.fixture(params=["MINIMAL", "FULL"])
def metadata(mysql_database: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that logs names of columns, or does not; the session's server is put back."""
    mysql_database.run(f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield request.param
    mysql_database.run("SET GLOBAL binlog_row_metadata = MINIMAL")


@pytest.fixture
def shop(mysql_database: Database) -> Database:
    """Two tables, one with a text key, and one that nobody watches."""
    mysql_database.run(
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (k VARCHAR(10) PRIMARY KEY, v INT)",
        "CREATE TABLE unwatched (id INT PRIMARY KEY)",
    )
    return mysql_database


@pytest.fixture(scope="module")
def own_server(
    new_mysql: Callable[..., PrivateMySQL], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrivateMariaDB]:
    """A server that offers TLS, whose log the tests purge, and write without GTIDs."""
    folder = tmp_path_factory.mktemp("tls")
    write_certificates(folder)
    options = {f"ssl-{name}": str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}
    with new_mysql(options=options) as server:
        run(server, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        yield server


def run(server: PrivateMariaDB, *statements: str) -> tuple[Any, ...]:
    connection = connect(server)
    try:
        return Database(server, "", connection).run(*statements)
    finally:
        connection.close()


def log_end(server: PrivateMariaDB) -> tuple[str, int]:
    name, size = run(server, "SHOW BINARY LOGS")[-1][:2]
    return name, size


def end_scn(server: PrivateMariaDB) -> int:
    name, offset = log_end(server)
    return BinlogPosition(0, int(name.split(".")[1]), offset).to_scn()


def executed(server: PrivateMariaDB) -> str:
    return str(run(server, "SELECT @@GLOBAL.gtid_executed")[0][0])


def told(changes: list[RowChange]) -> list[tuple[str, dict[str, object]]]:
    return [(change.op.value, dict(change.row)) for change in changes]


def test_values_of_every_type_are_what_select_says(
    metadata: str, mysql_database: Database, tmp_path: Path
) -> None:
    types = [name for name in MYSQL_TYPES if "COMPRESSED" not in name]
    tables = {f"t{number}": name for number, name in enumerate(types)}
    mysql_database.run("SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'")
    for table, name in tables.items():
        mysql_database.run(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v {name} NULL, z INT DEFAULT 7)"
        )
    settings = watching(mysql_database, tmp_path, *tables)
    with opened(settings) as source:
        for table, name in tables.items():
            for number, literal in enumerate([*MYSQL_TYPES[name], "NULL"]):
                mysql_database.run(f"INSERT INTO {table} (id, v) VALUES ({number}, {literal})")
        count = sum(len(MYSQL_TYPES[name]) + 1 for name in types)
        changes = read_changes(source, count)
        found: dict[str, list[RowChange]] = {}
        for change in changes:
            found.setdefault(tables[change.table.source.split(".")[1]], []).append(change)
        assert {name: [c.row["v"] for c in rows] for name, rows in found.items()} == {
            name: selected(mysql_database, table, name) for table, name in tables.items()
        }
        # What follows a value shows that it was neither too long nor too short.
        assert {change.row["z"] for change in changes} == {7}
        assert scanned(source, settings) == [dict(change.row) for change in changes]


def scanned(source: MysqlSource, settings: PhysicalSourceSettings) -> list[dict[str, object]]:
    """Return the rows of all watched tables as seeding reads them, after a look at the tables."""
    scan = MysqlTableScan(settings)
    try:
        scan.open()
        names = [table.source for table in source.tables()]
        assert [scan.table(name) for name in names] == source.tables()
        return [dict(row) for name in names for chunk in scan.chunks(name, 3) for row in chunk.rows]
    finally:
        scan.close()


def selected(database: Database, table: str, sql_type: str) -> list[Any]:
    # SELECT prints a FLOAT with six digits; as a DOUBLE it is what it is.
    column = "v + 0e0" if sql_type.startswith("FLOAT") else "v"
    rows = database.run(f"SELECT {column} FROM {table} ORDER BY id")
    return [as_delivered(sql_type, row[0]) for row in rows]


def test_binary_json_is_the_text_that_select_shows(
    metadata: str, mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.run("CREATE TABLE t (id INT PRIMARY KEY, v JSON)")
    settings = watching(mysql_database, tmp_path, "t")
    with opened(settings) as source:
        for number, literal in enumerate([*JSON_LITERALS, "NULL"]):
            mysql_database.run(f"INSERT INTO t VALUES ({number}, {literal})")
        changes = read_changes(source, len(JSON_LITERALS) + 1)
        shown = [row[0] for row in mysql_database.run("SELECT v FROM t ORDER BY id")]
        assert [change.row["v"] for change in changes] == shown
        assert scanned(source, settings) == [dict(change.row) for change in changes]
        check_avro_round_trip(source, changes)


def test_numbers_in_json_have_the_servers_digits(mysql_database: Database, tmp_path: Path) -> None:
    chance = random.Random(8)
    numbers = [0.0, 1e15, 999999999999999.0, 1e16, 1e-14, 1e-15, 1.5e-15, 1e300, 5e-324]
    numbers += [chance.uniform(-10, 10) * 10.0 ** chance.randint(-30, 30) for _ in range(500)]
    numbers += [float(chance.randint(1, 9) * 10 ** chance.randint(0, 20)) for _ in range(50)]
    mysql_database.run("CREATE TABLE t (id INT PRIMARY KEY, v JSON)")
    with opened(watching(mysql_database, tmp_path, "t")) as source:
        mysql_database.run("INSERT INTO t VALUES (1, %s)", args=(json.dumps(numbers),))
        (change,) = read_changes(source, 1)
        assert change.row["v"] == mysql_database.run("SELECT v FROM t")[0][0]


def test_a_transaction_over_several_tables_is_one_window_in_statement_order(
    metadata: str, shop: Database, tmp_path: Path
) -> None:
    with opened(watching(shop, tmp_path, "a", "b")) as source:
        shop.run("BEGIN", "INSERT INTO a VALUES (9, 9)", "ROLLBACK")
        shop.run(
            "BEGIN",
            "INSERT INTO a VALUES (1, 10), (2, 20)",
            "INSERT INTO unwatched VALUES (1)",
            "INSERT INTO b VALUES ('x', 1)",
            "SAVEPOINT s",
            "INSERT INTO a VALUES (3, 3)",
            "ROLLBACK TO s",
            "UPDATE a SET v = 11 WHERE id = 1",
            "UPDATE b SET k = 'y'",
            "DELETE FROM a WHERE id = 2",
            "COMMIT",
        )
        (transaction,) = read_full(source, 1)
        assert told(list(transaction.changes)) == [
            ("insert", {"id": 1, "v": 10}),
            ("insert", {"id": 2, "v": 20}),
            ("insert", {"k": "x", "v": 1}),
            ("update", {"id": 1, "v": 11}),
            ("delete", {"k": "x", "v": 1}),
            ("insert", {"k": "y", "v": 1}),
            ("delete", {"id": 2, "v": 20}),
        ]
        assert transaction.changes[3].before == {"id": 1, "v": 10}


def test_replace_upsert_triggers_and_tables_without_transactions_arrive_as_what_they_did(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("CREATE TABLE plain (id INT PRIMARY KEY) ENGINE = MyISAM")
    shop.run("CREATE TRIGGER g AFTER INSERT ON b FOR EACH ROW DELETE FROM a WHERE id = NEW.v")
    with opened(watching(shop, tmp_path, "a", "plain")) as source:
        shop.run(
            "INSERT INTO a VALUES (1, 1)",
            "REPLACE INTO a VALUES (1, 2)",
            "INSERT INTO a VALUES (1, 3) AS new ON DUPLICATE KEY UPDATE v = new.v",
            "CREATE TABLE copy AS SELECT * FROM a",
            "INSERT INTO plain VALUES (5), (6)",
            "INSERT INTO a VALUES (2, 2)",
            "INSERT INTO b VALUES ('k', 2)",
            "UPDATE a, copy SET a.v = 4, copy.v = 4 WHERE a.id = copy.id",
        )
        assert told(read_changes(source, 8)) == [
            ("insert", {"id": 1, "v": 1}),
            ("update", {"id": 1, "v": 2}),
            ("update", {"id": 1, "v": 3}),
            ("insert", {"id": 5}),
            ("insert", {"id": 6}),
            ("insert", {"id": 2, "v": 2}),
            ("delete", {"id": 2, "v": 2}),
            ("update", {"id": 1, "v": 4}),
        ]


def test_one_statement_of_many_rows_is_one_window(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run("SET cte_max_recursion_depth = 20000")
        shop.run(
            "INSERT INTO a WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
            " WHERE i < 20000) SELECT i, i * 2 FROM n",
            "DELETE FROM a",
        )
        insert, delete = read_full(source, 2)
        assert [c.row["id"] for c in insert.changes] == list(range(1, 20001))
        assert {c.row["v"] for c in delete.changes} == set(range(2, 40001, 2))


def test_the_origin_has_the_gtid_and_the_time_is_the_commits(
    shop: Database, tmp_path: Path
) -> None:
    with opened(watching(shop, tmp_path, "a", epoch=3)) as source:
        file, offset = log_end(shop.server)
        begun_at_ns = time.time_ns()
        # MySQL has the time of the commit in its log, to the microsecond.
        shop.run("SET timestamp = 1234567890", "INSERT INTO a VALUES (1, 1)")
        (transaction,) = read_full(source, 1)
        uuid, number = executed(shop.server).split(":1-")
        origin = transaction.origin
        assert (origin.gtid, origin.server_id) == (f"{uuid}:{number}", 1)
        assert (origin.file, origin.offset, origin.epoch) == (file, offset, 3)
        assert binlog_position(transaction.scn).offset == log_end(shop.server)[1]
        assert begun_at_ns - 1000 <= transaction.timestamp_ns <= time.time_ns()


def test_transactions_without_gtids_are_read(own_server: PrivateMariaDB, tmp_path: Path) -> None:
    modes = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF", "OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"]
    with opened(settings_for(own_server, tmp_path, ["d.t"])) as source:
        for number, mode in enumerate(modes, 100):
            statement = f"INSERT INTO d.t VALUES ({number}, 0)"
            run(own_server, f"SET GLOBAL gtid_mode = {mode}", statement)
        found = read_full(source, len(modes))
        assert [t.changes[0].row["id"] for t in found] == list(range(100, 106))
        assert [t.origin.gtid is None for t in found] == [False, True, True, True, False, False]


def test_a_comment_is_kept_where_the_server_logs_statements(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "a")) as source:
        shop.run("SET binlog_rows_query_log_events = ON")
        shop.run("/* trace=7 */ INSERT INTO a VALUES (1, 1)", "INSERT INTO a VALUES (2, 2)")
        assert [c.comment for c in read_changes(source, 2)] == ["trace=7", None]


def test_columns_that_the_server_hides_or_makes_are_told_apart(
    metadata: str, mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.run("SET sql_generate_invisible_primary_key = ON", "CREATE TABLE g (v INT)")
    # An index over an expression is a hidden column; over an array in JSON, one of many values.
    mysql_database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), s INT AS (id * 2) STORED, j JSON,"
        " i INT INVISIBLE DEFAULT 5, KEY f ((LOWER(v))),"
        " KEY m ((CAST(j->'$.a' AS UNSIGNED ARRAY))))"
    )
    with opened(watching(mysql_database, tmp_path, "g", "t")) as source:
        mysql_database.run("INSERT INTO g VALUES (1)", "UPDATE g SET v = 2")
        mysql_database.run("""INSERT INTO t (id, v, j) VALUES (10, 'A', '{"a": [1, 2]}')""")
        mysql_database.run("DELETE FROM t")
        row = {"id": 10, "v": "A", "s": 20, "j": '{"a": [1, 2]}', "i": 5}
        assert told(read_changes(source, 4)) == [
            ("insert", {"my_row_id": 1, "v": 1}),
            ("update", {"my_row_id": 1, "v": 2}),
            ("insert", row),
            ("delete", row),
        ]


def test_altered_tables_are_new_ones_from_their_scn_on(
    metadata: str, mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    with opened(watching(mysql_database, tmp_path, "t")) as source:
        rows = []
        for number, alter in enumerate(
            [
                "ADD COLUMN b VARCHAR(10) FIRST, ALGORITHM = INSTANT",
                "DROP COLUMN a, ALGORITHM = INSTANT",
                "RENAME COLUMN b TO c, ALGORITHM = INSTANT",
                "ADD COLUMN u BIGINT UNSIGNED NOT NULL DEFAULT 5, ALGORITHM = INPLACE",
                "DROP PRIMARY KEY, ADD PRIMARY KEY (u, id)",
                "PARTITION BY HASH (id) PARTITIONS 3",
            ]
        ):
            mysql_database.run(f"ALTER TABLE t {alter}", f"INSERT INTO t (id) VALUES ({number})")
            rows += read_changes(source, 1)
        assert [[f"{c.name} {c.sql_type}" for c in r.table.columns] for r in rows] == [
            ["b varchar(10)", "id int", "a int"],
            ["b varchar(10)", "id int"],
            ["c varchar(10)", "id int"],
            *[["c varchar(10)", "id int", "u bigint unsigned"]] * 3,
        ]
        keys = [[c.name for c in r.table.key_columns] for r in rows]
        assert keys == [*[["id"]] * 4, ["u", "id"], ["u", "id"]]


def test_a_lagging_source_reads_rows_of_every_age_where_the_log_names_columns(
    metadata: str, mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.run("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    settings = watching(mysql_database, tmp_path, "t")
    seen = []
    with opened(settings) as live:
        begin = live.read_transactions()[-1].scn
        for statement in (
            "INSERT INTO t VALUES (1, 1)",
            "ALTER TABLE t CHANGE a x INT UNSIGNED",
            "INSERT INTO t VALUES (2, 2)",
            "ALTER TABLE t ADD COLUMN e ENUM('ñ', 'it''s') CHARACTER SET latin1 FIRST",
            "INSERT INTO t VALUES ('ñ', 3, 3)",
        ):
            mysql_database.run(statement)
            if statement.startswith("INSERT"):
                seen += read_changes(live, 1)
    with opened(settings, begin) as late:
        if metadata == "FULL":
            assert read_changes(late, 3) == seen
        else:
            with pytest.raises(SourceStoppedError, match="--create-table FILE"):
                read_changes(late, 1)
    rows = [{"id": 1, "a": 1}, {"id": 2, "x": 2}, {"e": "ñ", "id": 3, "x": 3}]
    assert [dict(change.row) for change in seen] == rows


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("RENAME TABLE a TO z; CREATE TABLE y LIKE z; RENAME TABLE y TO a", "RENAME TABLE"),
        ("SET binlog_format = STATEMENT; DELETE FROM a", "statement format"),
        ("SET binlog_row_image = MINIMAL; UPDATE a SET v = 5", "lacks"),
    ],
)
def test_changes_that_are_not_in_the_log_as_rows_stop_capture_and_can_be_passed(
    shop: Database, tmp_path: Path, statement: str, says: str
) -> None:
    settings = watching(shop, tmp_path, "a", "b")
    with opened(settings) as source:
        shop.run("INSERT INTO a VALUES (1, 1)", *statement.split("; "))
        shop.run("SET binlog_format = ROW, binlog_row_image = FULL")
        shop.run("INSERT INTO b VALUES ('k', 3)")
        assert read_changes(source, 1)[0].row["id"] == 1
        with pytest.raises(SourceStoppedError, match=says) as caught:
            read_full(source, 1000)
    number = int(str(caught.value).split("acknowledged_scns = [")[1].split("]")[0])
    again = settings.model_copy(update={"acknowledged_scns": (number,)})
    with opened(again, caught.value.scn) as source:
        assert told(read_changes(source, 1)) == [("insert", {"k": "k", "v": 3})]


def test_reading_resumed_at_every_scn_gives_the_same_rest(shop: Database, tmp_path: Path) -> None:
    settings = watching(shop, tmp_path, "a")
    with opened(settings) as source:
        for number in range(6):
            shop.run(
                f"INSERT INTO a VALUES ({number}, 1)", f"INSERT INTO unwatched VALUES ({number})"
            )
            shop.run("BEGIN", f"UPDATE a SET v = {number}", f"REPLACE INTO a VALUES (9, {number})")
            shop.run("COMMIT", *(["FLUSH BINARY LOGS"] if number % 3 == 0 else []))
        full = read_to_scn(source, end_scn(shop.server))
    assert len(full) == 12
    for place, seen in enumerate(full[:-1]):
        with opened(settings, seen.scn) as source:
            assert read_full(source, 11 - place) == full[place + 1 :]


def test_a_start_can_be_a_gtid_set(shop: Database, tmp_path: Path) -> None:
    shop.run("INSERT INTO a VALUES (1, 1)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2, 2)")
    gtids = executed(shop.server)
    shop.run("INSERT INTO a VALUES (3, 3)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (4, 4)")
    with opened(watching(shop, tmp_path, "a", start=f"gtid-set:{gtids}")) as source:
        by_gtid = read_full(source, 2)
    with opened(watching(shop, tmp_path, "a", start="earliest")) as source:
        assert read_full(source, 4)[2:] == by_gtid
    assert [t.changes[0].row["id"] for t in by_gtid] == [3, 4]
    # A set may have holes and other servers: all that is not in it is read.
    uuid, last = gtids.split(":1-")
    holed = f"{uuid}:1-{int(last) - 1}:{int(last) + 1},{'0' * 8}{uuid[8:]}:1-3"
    with opened(watching(shop, tmp_path, "a", start=f"gtid-set:{holed}")) as source:
        assert [t.changes[0].row["id"] for t in read_full(source, 2)] == [2, 4]


def test_a_restarted_server_is_read_on_without_loss(
    new_mysql: Callable[..., PrivateMySQL], tmp_path: Path
) -> None:
    with new_mysql(options={"innodb-flush-log-at-trx-commit": 1}) as server:
        run(server, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        settings = settings_for(server, tmp_path, ["d.t"], start="earliest")
        scn = None
        for number, is_killed in enumerate([False, True]):
            run(server, f"INSERT INTO d.t VALUES ({number}, 1)")
            # The first login after a start, in which the account's hash is not yet cached.
            with opened(settings, scn) as source:
                (transaction,) = read_full(source, 1)
                assert told(list(transaction.changes)) == [("insert", {"id": number, "v": 1})]
                server.kill() if is_killed else server.stop()
                with pytest.raises(SourceUnavailableError):
                    read_full(source, 1)
            scn = transaction.scn
            server.start()
        run(server, "DELETE FROM d.t")
        with opened(settings, scn) as source:
            assert [c.op for c in read_changes(source, 2)] == [Op.DELETE] * 2


def test_purged_files_stop_and_say_what_the_server_has(
    own_server: PrivateMariaDB, tmp_path: Path
) -> None:
    begin, gtids = end_scn(own_server), executed(own_server)
    run(own_server, "INSERT INTO d.t VALUES (7, 7)", "FLUSH BINARY LOGS")
    name, _ = log_end(own_server)
    run(own_server, f"PURGE BINARY LOGS TO '{name}'")
    settings = settings_for(own_server, tmp_path, ["d.t"])
    with (
        pytest.raises(SourceStoppedError, match=f"from {name}:4 to {name}:"),
        opened(settings, begin),
    ):
        pass
    by_gtid = settings.model_copy(update={"start": f"gtid-set:{gtids}"})
    with pytest.raises(SourceStoppedError, match=r"begins with .*, which the server has purged"):
        opened(by_gtid).__enter__()


@pytest.mark.parametrize("is_tls", [False, True])
def test_an_account_with_caching_sha2_password_and_just_the_grants_is_enough(
    own_server: PrivateMariaDB, tmp_path: Path, is_tls: bool
) -> None:
    user = f"just_{'tls' if is_tls else 'plain'}"
    run(
        own_server,
        f"CREATE USER {user} IDENTIFIED WITH caching_sha2_password BY 'pass ñ'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}",
        f"GRANT SELECT ON d.t TO {user}",
        "DELETE FROM d.t",
    )
    uri = f"mysql://{user}@127.0.0.1:{own_server.port}"
    more = {"tls_ca": own_server.options["ssl-ca"]} if is_tls else {}
    settings = settings_for(own_server, tmp_path, ["d.t"], uri=uri, **more)
    assert settings.password_file is not None
    settings.password_file.write_text("pass ñ")
    # The first login proves the password, the second is by the cached hash.
    for number in range(2):
        with opened(settings) as source:
            run(own_server, f"INSERT INTO d.t VALUES ({number}, 1)")
            assert [c.op for c in read_changes(source, 1)] == [Op.INSERT]
    settings.password_file.write_text("another")
    with pytest.raises(SourceUnavailableError, match="Access denied"), opened(settings):
        pass


@pytest.mark.parametrize(
    ("variable", "bad", "good"),
    [("binlog_format", "MIXED", "ROW"), ("binlog_row_image", "NOBLOB", "FULL")],
)
def test_a_variable_that_is_wrong_is_named_with_what_to_set(
    shop: Database, tmp_path: Path, variable: str, bad: str, good: str
) -> None:
    shop.run(f"SET GLOBAL {variable} = {bad}")
    try:
        with (
            pytest.raises(SourceStoppedError, match=f"{variable} is {bad}, and must be {good}"),
            opened(watching(shop, tmp_path, "a")),
        ):
            pass
    finally:
        shop.run(f"SET GLOBAL {variable} = {good}")


def test_two_sources_of_one_server_yield_identical_transactions(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "a")
    with opened(settings) as first, opened(settings) as second:
        for number in range(20):
            shop.run(f"INSERT INTO a VALUES ({number}, {number})")
        assert read_full(first, 20) == read_full(second, 20)
