"""A first start at a time, after a GTID or at a place in a binlog: exactly what comes then."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from pymysqlreplication.constants import BINLOG

from benchmarks.capture_fuzz.searching import walk_along
from databus.conf.named_places import TimePlace
from databus.demo.private_mariadb import PrivateMariaDB
from databus.doctor.checks import Verdict
from databus.relay.sources.kind import CheckRequest
from databus.relay.sources.mysql.doctor import check_server
from databus.relay.sources.mysql.search.transaction_walk import NO_END
from databus.relay.sources.source import Transaction
from databus.schemas.errors import SourceStoppedError
from databus.schemas.scn import binlog_position
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL
from tests.relay.sources.mysql.binlog import events_made as made
from tests.relay.sources.mysql.reading import opened, read_full, row_changes_of, watching
from tests.relay.sources.mysql.replication.test_decoder import packets
from tests.relay.sources.mysql.search.test_definition_scan import ROWS, mariadb_gtid, stream

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


def events_within(database: Database, file: str, end: int) -> list[int]:
    """Return where the events of the transaction begin that ends at `end`, but the first."""
    found: list[int] = []
    for _, at, kind, _, event_end, *_ in database.run(f"SHOW BINLOG EVENTS IN '{file}'"):
        if str(kind).lower() in ("gtid", "anonymous_gtid"):
            found.clear()
        else:
            found.append(int(str(at)))
        if event_end == end:
            return found
    raise AssertionError(f"no event ends at {file}:{end}")


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
        assert read_from(own_server, tmp_path, str(transaction.scn), rest) == rest
        # Within it: at each event, and in the middle of the last one.
        inside = [transaction, *rest]
        for place in [*events_within(own_server, file, end), end - 1]:
            for start in (f"binlog:{file}:{place}", str(transaction.scn - end + place)):
                assert read_from(own_server, tmp_path, start, inside) == inside, start


def test_a_start_after_the_newest_transaction_waits_for_the_next(
    own_server: Database, logged: list[Transaction], tmp_path: Path
) -> None:
    newest = logged[-1]
    for key, form in enumerate(("gtid:{gtid}", "{scn}", "binlog:{file}:{end}"), 1000):
        at = newest.origin
        end = binlog_position(newest.scn).offset
        start = form.format(gtid=at.gtid, scn=newest.scn, file=at.file, end=end)
        with opened(watching(own_server, tmp_path, "a", start=start)) as source:
            # Its place is told at once, and stored: `start` is not looked for again, perhaps in
            # another log.
            first, *more = source.read_transactions()
            assert (first.scn, first.changes) == (newest.scn, ())
            assert not [t for t in more if row_changes_of(t)]
            own_server.run(f"INSERT INTO a VALUES ({key}, 'next')")
            newest = read_full(source, 1)[0]
        assert [change.row["id"] for change in row_changes_of(newest)] == [key]


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
        ("time:1999-01-01", "is before the oldest transaction of the log, in"),
        (f"binlog:{names[0]}:400", "is not in the server's log, which reaches from"),
        (f"binlog:{file}:99999999", "is not in the server's log, which reaches from"),
        ("binlog:other.000002:4", "is not in the server's log, which reaches from"),
    ):
        settings = watching(own_server, tmp_path, "a", start=start)
        with pytest.raises(SourceStoppedError, match=says), opened(settings):
            pass
        if start.startswith("time:"):
            continue  # the doctor does not read the whole log
        checks = check_server(CheckRequest("shop", settings, time.time(), True, None))
        assert [c for c in checks if c.verdict is Verdict.ERROR and c.subject.endswith("start")], (
            start
        )


@pytest.mark.mariadb
def test_a_start_at_a_time_finds_the_first_one_in_the_order_of_the_log_where_times_go_back(
    tmp_path: Path,
) -> None:
    with PrivateMariaDB() as server, fresh_database(server) as database:
        database.run("CREATE TABLE a (id INT PRIMARY KEY, v TEXT)")
        now_s = int(time.time())
        # A clock that was set back, and a session that sets it ahead: over the ends of files, too.
        offsets = (-50, 17, 18, 24, 24, None, 19, None, 21, 25, None, 18, 30, None, 17)
        for key, offset in enumerate(offsets):
            if offset is None:
                database.run("FLUSH BINARY LOGS")
            else:
                database.run(
                    f"SET TIMESTAMP = {now_s + offset}", f"INSERT INTO a VALUES ({key}, 'x')"
                )
        database.run("SET TIMESTAMP = DEFAULT")
        with opened(watching(database, tmp_path, "a", start="earliest")) as source:
            logged = read_full(source, len(offsets) - offsets.count(None))
        seconds = [t.timestamp_ns // 10**9 - now_s for t in logged]
        assert seconds == [offset for offset in offsets if offset is not None]
        for at in (17, 18, 19, 21, 23, 24, 25, 26, 30):
            first = next(i for i, second in enumerate(seconds) if second >= at)
            start = str(TimePlace((now_s + at) * 10**9))
            found = read_from(database, tmp_path, start, logged[first:])
            assert found == logged[first:], at
        settings = watching(database, tmp_path, "a", start=str(TimePlace((now_s + 31) * 10**9)))
        with pytest.raises(SourceStoppedError, match="after the newest"), opened(settings):
            pass


@pytest.mark.mariadb
def test_a_start_after_a_gtid_finds_it_where_numbers_do_not_increase(tmp_path: Path) -> None:
    with PrivateMariaDB() as server, fresh_database(server) as database:
        database.run("CREATE TABLE a (id INT PRIMARY KEY)", "SET GLOBAL gtid_strict_mode = 0")
        numbers = (100, 50, None, 60, 200, None, 40, None, 300, 45)
        for key, number in enumerate(numbers):
            if number is None:
                database.run("FLUSH BINARY LOGS")
            else:
                database.run(f"SET gtid_seq_no = {number}", f"INSERT INTO a VALUES ({key})")
        with opened(watching(database, tmp_path, "a", start="earliest")) as source:
            logged = read_full(source, len(numbers) - numbers.count(None))
        for place, transaction in enumerate(logged[:-1]):
            start, rest = f"gtid:{transaction.origin.gtid}", logged[place + 1 :]
            assert read_from(database, tmp_path, start, rest) == rest, start


def timed_gtid(microseconds: int) -> bytes:
    """Return a GTID event of MySQL 8 that has the time of the commit."""
    body = bytes(25) + b"\x02" + bytes(16) + microseconds.to_bytes(7, "little")
    return made.event(BINLOG.GTID_LOG_EVENT, body)


@given(st.data())
def test_compiled_code_walks_as_python_does_over_damaged_logs_too(data: st.DataObject) -> None:
    pieces = {
        "mysql": [made.mysql_gtid(), made.query("BEGIN"), made.xid()],
        "ddl": [made.mysql_gtid(), made.query("CREATE TABLE o (a INT)")],
        "mariadb": [mariadb_gtid(), *ROWS[2:]],
        "flags": [mariadb_gtid(more=b"\x02"), made.query("ALTER TABLE t ADD b INT")],
        "rows": ROWS,
        "short": [made.event(BINLOG.GTID_LOG_EVENT, bytes(20)), made.xid()],
        "timed": [timed_gtid(1003_500_000), made.xid()],
        "between": [made.event(BINLOG.MARIADB_BINLOG_CHECKPOINT_EVENT, b"\x04\0\0\0file")],
    }
    names = data.draw(st.lists(st.sampled_from(sorted(pieces)), min_size=1, max_size=8))
    events = [
        struct.pack("<I", 1000 + data.draw(st.integers(0, 5))) + event[4:]
        for name in names
        for event in pieces[name]
    ]
    has_checksum = data.draw(st.booleans())
    sent = bytearray(packets(stream(*events, checksum=has_checksum)))
    if data.draw(st.booleans()):
        sent[data.draw(st.integers(0, len(sent) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(sent)))
    chunks = [bytes(sent[:cut]), bytes(sent[cut:])]
    until_ns = data.draw(st.sampled_from([1, 1003 * 10**9, 1 << 62]))
    end = data.draw(st.sampled_from([700, 900, NO_END]))
    compiled = walk_along(chunks, until_ns, end, is_compiled=True)
    assert compiled == walk_along(chunks, until_ns, end, is_compiled=False)
