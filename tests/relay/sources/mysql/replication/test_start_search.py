"""A first start at a time, after a GTID or at a place in a binlog: exactly what comes then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from databus.conf.named_places import TimePlace
from databus.demo.private_mariadb import PrivateMariaDB
from databus.doctor.checks import Verdict
from databus.relay.sources.kind import CheckRequest
from databus.relay.sources.mysql.doctor import check_server
from databus.relay.sources.source import Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.scn import binlog_position
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL
from tests.relay.sources.mysql.reading import opened, read_full, row_changes_of, watching

pytest_plugins = ["tests.mariadb", "tests.mysql"]

FILES = 3
PER_FILE = 5


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def own_server(
    request: pytest.FixtureRequest, new_mysql: Callable[..., PrivateMySQL]
) -> Iterator[Database]:
    """A database on a server whose log is this test's only."""
    made = PrivateMariaDB() if request.param == "mariadb" else new_mysql()
    with made as server, fresh_database(server) as database:
        yield database


@pytest.fixture
def logged(own_server: Database, tmp_path: Path) -> list[Transaction]:
    """Transactions of a watched table over three files, others between; all as they are read."""
    database = own_server
    database.run("CREATE TABLE a (id INT PRIMARY KEY, v TEXT)")
    database.run("CREATE TABLE unwatched (id INT PRIMARY KEY)")
    for file in range(FILES):
        for number in range(PER_FILE):
            key = file * PER_FILE + number
            database.run(f"INSERT INTO unwatched VALUES ({key})")
            database.run("BEGIN", f"INSERT INTO a VALUES ({key}, 'x'), ({-1 - key}, 'y')", "COMMIT")
            if number == PER_FILE // 2:
                time.sleep(1.05)  # MariaDB logs times in seconds
        database.run("FLUSH BINARY LOGS")
    with opened(watching(database, tmp_path, "a", start="earliest")) as source:
        return read_full(source, FILES * PER_FILE)


def read_from(
    database: Database, folder: Path, start: str, expected: list[Transaction]
) -> list[Transaction]:
    with opened(watching(database, folder, "a", start=start)) as source:
        return read_full(source, len(expected))


def test_a_start_at_any_time_gives_the_first_transaction_from_then_on_and_all_after_it(
    own_server: Database, logged: list[Transaction], tmp_path: Path
) -> None:
    times = sorted({t.timestamp_ns for t in logged})
    assert len(times) >= FILES
    assert [t.timestamp_ns for t in logged] == sorted(t.timestamp_ns for t in logged)
    for at in (0, *times, *(at - 1000 for at in times), *(at + 1000 for at in times[:-1])):
        first = next(i for i, t in enumerate(logged) if t.timestamp_ns >= at)
        found = read_from(own_server, tmp_path, str(TimePlace(at)), logged[first:])
        assert found == logged[first:], at


def test_a_start_after_any_transaction_by_its_gtid_or_its_end_gives_exactly_the_rest(
    own_server: Database, logged: list[Transaction], tmp_path: Path
) -> None:
    for number, transaction in enumerate(logged[:-1]):
        rest = logged[number + 1 :]
        assert read_from(own_server, tmp_path, f"gtid:{transaction.origin.gtid}", rest) == rest
        file, end = transaction.origin.file, binlog_position(transaction.scn).offset
        assert read_from(own_server, tmp_path, f"binlog:{file}:{end}", rest) == rest
        # Within it, and at the begin of what stands before it.
        inside = [transaction, *rest]
        found = read_from(own_server, tmp_path, f"binlog:{file}:{end - 1}", inside)
        assert found == inside


def test_a_start_after_the_newest_transaction_waits_for_the_next(
    own_server: Database, logged: list[Transaction], tmp_path: Path
) -> None:
    newest = logged[-1].origin.gtid
    with opened(watching(own_server, tmp_path, "a", start=f"gtid:{newest}")) as source:
        assert not [t for t in source.read_transactions() if row_changes_of(t)]
        own_server.run("INSERT INTO a VALUES (1000, 'next')")
        (found,) = read_full(source, 1)
    assert [change.row["id"] for change in row_changes_of(found)] == [1000]


def test_places_that_the_log_does_not_have_stop_with_a_way_on(
    own_server: Database, logged: list[Transaction], tmp_path: Path
) -> None:
    gtid = str(logged[0].origin.gtid)
    is_mysql = ":" in gtid
    never = gtid.rpartition(":" if is_mysql else "-")[0] + (":100000" if is_mysql else "-100000")
    other = "0-1-5" if is_mysql else "3e11fa47-71ca-11e1-9e33-c80aa9429562:5"
    file, beyond = logged[-1].origin.file, datetime.now(UTC).year + 1
    names = [name for name, *_ in own_server.run("SHOW BINARY LOGS")]
    own_server.run(f"PURGE BINARY LOGS TO '{names[1]}'")
    for start, says in (
        (f"gtid:{never}", f"is gtid:{never}$"),
        (f"gtid:{other}", "is not a GTID of M"),
        (f"gtid:{gtid}", "it was purged; use earliest, or gtid-set"),
        (f"time:{beyond}-01-01", "after the newest transaction of the log; use latest"),
        ("time:1999-01-01", "is before the oldest binlog"),
        (f"binlog:{names[0]}:400", "is not in the server's log, which reaches from"),
        (f"binlog:{file}:99999999", "is not in the server's log, which reaches from"),
        ("binlog:other.000002:4", "is not in the server's log, which reaches from"),
    ):
        settings = watching(own_server, tmp_path, "a", start=start)
        with pytest.raises(SourceStoppedError, match=says), opened(settings):
            pass
        checks = check_server(CheckRequest("shop", settings, time.time(), True, None))
        assert [c for c in checks if c.verdict is Verdict.ERROR and c.subject.endswith("start")], (
            start
        )
