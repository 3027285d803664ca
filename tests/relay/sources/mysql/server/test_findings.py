"""What is said at start of a server whose log cannot show everything."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.relay import Relay
from databus.relay.sources.mysql.server.checks import (
    LogFilters,
    Replication,
    filter_problems,
    replication_problem,
    variable_problems,
)
from databus.relay.sources.mysql.server.findings import ServerFacts, findings_of
from databus.relay.sources.source import Findings, TableEmptied, Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.table import Column, Table
from tests import PATIENCE_S
from tests.mariadb_server import Database, connect
from tests.mysql_server import PrivateMySQL
from tests.relay.fakes import relay_settings, wait_until
from tests.relay.sources.mysql.reading import (
    opened,
    read_changes,
    read_until,
    settings_for,
    watching,
)

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]

KEYED = Table("d.t", (Column("id", "int", 0, key_position=0),))
DOUBTFUL = Table("d.t", (*KEYED.columns, Column("e", "enum('\ufffd')", 1)))
KEYLESS = Table("d.loose", (Column("id", "int", 0),))


@pytest.mark.parametrize(
    ("filters", "left_out"),
    [
        (LogFilters(), []),
        (LogFilters(only=frozenset({"d"})), ["e.t"]),
        (LogFilters(ignored=frozenset({"d"})), ["d.t"]),
        # Which are ignored counts only when none is named.
        (LogFilters(only=frozenset({"d"}), ignored=frozenset({"d"})), ["e.t"]),
        (LogFilters(only=frozenset({"D"})), ["d.t", "e.t"]),
    ],
)
def test_a_source_in_a_database_that_is_not_logged_is_a_problem(
    filters: LogFilters, left_out: list[str]
) -> None:
    problems = filter_problems(["d.t", "e.t"], filters)
    assert [text.split()[0] for text in problems] == left_out


def test_databases_are_compared_as_the_server_compares_them() -> None:
    assert filter_problems(["d.t"], LogFilters(only=frozenset({"D"})), fold_case=True) == []


@pytest.mark.parametrize(
    ("variables", "replication", "is_problem"),
    [
        ({"log_slave_updates": "OFF"}, Replication.RUNNING, True),
        ({"log_slave_updates": "OFF"}, Replication.SET_UP, False),
        ({"log_slave_updates": "OFF"}, Replication.NONE, False),
        ({"log_slave_updates": "OFF"}, Replication.UNKNOWN, False),
        ({"log_slave_updates": "ON"}, Replication.RUNNING, False),
        ({"log_replica_updates": "ON"}, Replication.RUNNING, False),
        ({"log_replica_updates": "0", "log_slave_updates": "0"}, Replication.RUNNING, True),
    ],
)
def test_a_replica_that_does_not_log_what_it_gets_is_a_problem(
    variables: dict[str, str], replication: Replication, is_problem: bool
) -> None:
    assert bool(replication_problem(variables, replication)) is is_problem


def test_rows_may_lack_columns_where_they_are_delivered_so() -> None:
    variables = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "MINIMAL"}
    assert variable_problems(variables, any_row_image=True) == []
    assert len(variable_problems({**variables, "binlog_format": "MIXED"}, any_row_image=True)) == 1


def findings(
    variables: dict[str, str] | None = None,
    tables: tuple[Table, ...] = (KEYED,),
    *,
    filters: LogFilters | None = None,
    replication: Replication = Replication.NONE,
    engines: dict[str, str] | None = None,
) -> Findings:
    facts = ServerFacts(
        variables or {}, filters or LogFilters(), replication, engines or {"d.t": "INNODB"}
    )
    return findings_of(facts, tables, "b.000003:4", 24.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tables": (KEYED, KEYLESS)}, "d.loose has no primary key"),
        ({"engines": {"d.t": "MEMORY"}}, "d.t has ENGINE = MEMORY: it is emptied"),
        ({"engines": {"d.t": "MRG_MYISAM"}}, "shows rows of other tables"),
        ({"engines": {"d.t": "FEDERATED"}}, "has its rows elsewhere"),
        ({"tables": (DOUBTFUL,)}, "d.t: information_schema shows members of column 'e' with a ?"),
        ({"filters": LogFilters(ignored=frozenset({"x"}))}, "log is filtered"),
        (
            {"variables": {"binlog_expire_logs_seconds": "3600"}},
            "keeps its log for 1 h only",
        ),
        (
            {"variables": {"log_slave_updates": "OFF"}, "replication": Replication.SET_UP},
            "not running, with log_slave_updates OFF",
        ),
        (
            {"variables": {"gtid_slave_pos": "0-1-5"}, "replication": Replication.UNKNOWN},
            "GRANT REPLICA MONITOR",
        ),
    ],
)
def test_what_somebody_should_know_is_a_warning(changes: dict[str, Any], says: str) -> None:
    (warning,) = findings(**changes).warnings
    assert says in warning


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tables": (DOUBTFUL,), "variables": {"binlog_row_metadata": "FULL"}},
        {"variables": {"binlog_expire_logs_seconds": "864000"}},
        {"variables": {"log_slave_updates": "ON"}, "replication": Replication.UNKNOWN},
        # A MariaDB primary, asked by an account that may not see replication.
        {"variables": {"gtid_slave_pos": ""}, "replication": Replication.UNKNOWN},
    ],
)
def test_a_server_that_is_in_order_is_no_warning(changes: dict[str, Any]) -> None:
    assert findings(**changes).warnings == ()


def test_the_summary_is_one_line_with_what_was_found() -> None:
    variables = {
        "version": "8.0.31",
        "server_id": "7",
        "binlog_format": "ROW",
        "binlog_row_image": "FULL",
        "binlog_row_metadata": "MINIMAL",
        "binlog_checksum": "CRC32",
        "binlog_transaction_compression": "ON",
        "gtid_mode": "ON",
        "binlog_expire_logs_seconds": "2592000",
    }
    assert findings(variables, (KEYED, KEYLESS)).summary == (
        "MySQL 8.0.31, server id 7, binlog_format ROW, row image FULL, row metadata MINIMAL, "
        "checksum CRC32, binlog_transaction_compression ON, gtid_mode ON, log kept for 720 h, "
        "replication none, 2 tables from b.000003:4; changes of sessions with sql_log_bin = 0 "
        "cannot be seen"
    )


def run(server: PrivateMariaDB, *statements: str) -> tuple[Any, ...]:
    with contextlib.closing(connect(server)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return tuple(cursor.fetchall())


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def new_server(request: pytest.FixtureRequest) -> Callable[..., PrivateMariaDB]:
    """Return what makes a server of each kind, given options; not started."""
    if request.param == "mysql":
        made: Callable[..., PrivateMySQL] = request.getfixturevalue("new_mysql")
        return made
    return PrivateMariaDB


def test_a_filtered_log_stops_what_is_left_out_and_warns_of_the_rest(
    new_server: Callable[..., PrivateMariaDB], tmp_path: Path
) -> None:
    with new_server(options={"binlog-ignore-db": "hidden"}) as server:
        for name in ("hidden", "d"):
            run(server, f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
        settings = settings_for(server, tmp_path, ["d.t", "hidden.t"])
        with (
            pytest.raises(SourceStoppedError, match=r"hidden\.t is not in the log: binlog_ignore"),
            opened(settings),
        ):
            pass
        with opened(settings.model_copy(update={"sources": ("d.t",)})) as source:
            assert "log is filtered" in " ".join(source.findings.warnings)
            run(server, "INSERT INTO hidden.t VALUES (1)", "INSERT INTO d.t VALUES (2)")
            assert [c.row["id"] for c in read_changes(source, 1)] == [2]


def follow(replica: PrivateMariaDB, primary: PrivateMariaDB, *, is_mysql: bool) -> None:
    verb, word = ("REPLICATION SOURCE", "SOURCE") if is_mysql else ("MASTER", "MASTER")
    extra = f", GET_{word}_PUBLIC_KEY = 1" if is_mysql else ""
    run(
        replica,
        f"CHANGE {verb} TO {word}_HOST = '{HOST}', {word}_PORT = {primary.port}, "
        f"{word}_USER = '{primary.user}', {word}_PASSWORD = '{primary.password}'{extra}",
        "START REPLICA",
    )


def test_a_replica_whose_log_lacks_what_it_gets_stops_until_it_logs_it(
    new_server: Callable[..., PrivateMariaDB], tmp_path: Path
) -> None:
    off = {"server-id": 2, "log-slave-updates": "OFF"}
    with new_server() as primary, new_server(options=off) as replica:
        run(primary, "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        follow(replica, primary, is_mysql=isinstance(primary, PrivateMySQL))
        wait_for_table(replica)
        settings = settings_for(replica, tmp_path, ["d.t"])
        with pytest.raises(SourceStoppedError, match="capture its primary"), opened(settings):
            pass
        run(replica, "STOP REPLICA")
        with opened(settings) as source:
            assert "set up as a replica" in " ".join(source.findings.warnings)
        replica.stop()
        replica.options["log-slave-updates"] = "ON"
        replica.start()
        run(replica, "START REPLICA")
        with opened(settings) as source:
            run(primary, "INSERT INTO d.t VALUES (5)")
            assert [c.row["id"] for c in read_changes(source, 1)] == [5]


def wait_for_table(server: PrivateMariaDB) -> None:
    deadline = time.monotonic() + PATIENCE_S
    query = "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'd'"
    while run(server, query) != ((1,),):
        assert time.monotonic() < deadline, "the replica does not follow"


def test_tables_without_a_key_and_in_memory_are_told_at_start(
    either_database: Database, tmp_path: Path
) -> None:
    either_database.run(
        "CREATE TABLE a (id INT PRIMARY KEY)",
        "CREATE TABLE loose (id INT)",
        "CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MEMORY",
    )
    with opened(watching(either_database, tmp_path, "a", "loose", "m")) as source:
        told = source.findings
    assert [warning.split()[0] for warning in told.warnings] == [
        f"{either_database.name}.loose",
        f"{either_database.name}.m",
    ]
    assert "3 tables from binlog." in told.summary
    assert "log kept" in told.summary


def test_a_table_in_memory_that_a_restart_empties_is_emptied_in_the_stream(
    new_server: Callable[..., PrivateMariaDB], tmp_path: Path
) -> None:
    with new_server() as server:
        run(server, "CREATE DATABASE d", "CREATE TABLE d.m (id INT PRIMARY KEY) ENGINE = MEMORY")
        settings = settings_for(server, tmp_path, ["d.m"], start="earliest")
        run(server, "INSERT INTO d.m VALUES (1)")
        server.restart()
        assert run(server, "SELECT * FROM d.m") == ()
        with opened(settings) as source:
            found = read_until(source, lambda found: any(is_emptied(t) for t in found))
        assert [is_emptied(t) for t in found if t.changes][-2:] == [False, True]


def is_emptied(transaction: Transaction) -> bool:
    return any(isinstance(change, TableEmptied) for change in transaction.changes)


def test_a_temporary_table_of_the_same_name_is_not_the_watched_one(
    either_database: Database, tmp_path: Path
) -> None:
    either_database.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with opened(watching(either_database, tmp_path, "t")) as source:
        either_database.run(
            "CREATE TEMPORARY TABLE t (id INT PRIMARY KEY, other INT)",
            "INSERT INTO t VALUES (1, 1)",
            "ALTER TABLE t ADD COLUMN more INT",
            "TRUNCATE TABLE t",
            "DROP TEMPORARY TABLE t",
            "INSERT INTO t VALUES (2)",
        )
        assert [dict(c.row) for c in read_changes(source, 1)] == [{"id": 2}]


@pytest.mark.parametrize("verb", ["EXCHANGE PARTITION p WITH TABLE other", "TRUNCATE PARTITION p"])
def test_rows_that_come_and_go_with_a_partition_stop_capture(
    either_database: Database, tmp_path: Path, verb: str
) -> None:
    either_database.run(
        "CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id)"
        " (PARTITION p VALUES LESS THAN (10), PARTITION q VALUES LESS THAN MAXVALUE)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "INSERT INTO other VALUES (5)",
    )
    for watched in ("t", "other") if verb.startswith("EXCHANGE") else ("t",):
        with opened(watching(either_database, tmp_path, watched)) as source:
            either_database.run(f"ALTER TABLE t {verb}")
            with pytest.raises(SourceStoppedError, match=f"{either_database.name}.{watched}"):
                read_changes(source, 1)


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return what capture has logged so far."""
    with caplog.at_level(logging.INFO, "databus.relay.capture.capture"):
        yield lambda: [f"{r.levelname} {r.getMessage()}" for r in caplog.records]


@pytest.mark.mariadb
def test_a_relay_tells_once_what_was_found_and_keeps_it_in_its_status(
    database: Database, tmp_path: Path, log_lines: Callable[[], list[str]]
) -> None:
    database.run("CREATE TABLE loose (id INT)")
    source = watching(database, tmp_path, "loose")
    settings = relay_settings(tmp_path, physical_sources=[source.model_dump()])
    relay = Relay(settings)
    relay.start()
    try:
        capture = relay.physical_sources["shop"].capture
        for _ in range(2):
            wait_until(lambda: relay.status()["shop"]["warnings"] != [])
            capture.pause()
            wait_until(lambda: capture.status.state.value == "paused")
            capture.start()
            wait_until(lambda: capture.status.state.value == "running")
        (warning,) = relay.status()["shop"]["warnings"]
        wait_until(lambda: relay.status()["shop"]["log"]["holding"] == "held")
    finally:
        relay.stop()
    assert "has no primary key" in warning
    assert [line for line in log_lines() if line.startswith("WARNING")] == [
        f"WARNING shop: {warning}"
    ]
    assert log_lines()[0].startswith("INFO shop: MariaDB 10.11")
