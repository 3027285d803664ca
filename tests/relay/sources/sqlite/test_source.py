"""The SQLite source: windows, SCNs, restarts, several relays, locks, retention."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from databus.conf.named_places import TimePlace
from databus.relay.sources.source import Newest, Transaction
from databus.relay.sources.sqlite.source import SqliteSource
from databus.relay.sources.sqlite.window_bounds import bounds_path
from databus.schemas.avro_rows import RowCodec
from databus.schemas.errors import (
    RowError,
    SourceStoppedError,
)
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.relay.sources.sqlite.shop import (
    State,
    applied_rows,
    apply,
    bounds,
    changes,
    database,
    drain,
    lose_bounds,
    opened,
    remove,
    run,
    settings,
    table_rows,
)

TABLE = "CREATE TABLE t(id INTEGER PRIMARY KEY, a)"

WRITER = """
import random, sqlite3, sys
path, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
db = sqlite3.connect(path, isolation_level=None, timeout=30)
print("ready", flush=True)
for n in range(int(sys.argv[3])):
    db.execute("BEGIN IMMEDIATE")
    for _ in range(rng.randint(1, 4)):
        key = rng.randint(1, 50)
        db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (key, f"{seed}.{n}"))
        db.execute("DELETE FROM t WHERE id = ?", (rng.randint(1, 50),))
    db.execute("ROLLBACK" if rng.random() < 0.1 else "COMMIT")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with database(path, TABLE) as connection:
        yield connection


def start_writer(path: Path, seed: int, count: int) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", WRITER, str(path), str(seed), str(count)]
    writer = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    return writer


def end_writer(writer: subprocess.Popen[bytes]) -> None:
    assert writer.stdout is not None
    writer.stdout.close()
    writer.wait(PATIENCE_S)


def test_each_transaction_seen_by_itself_is_a_window(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        for n in (1, 2, 3):
            run(db, [f"INSERT INTO t VALUES ({n}, 'x')", f"INSERT INTO t VALUES (-{n}, 'y')"])
            (window,) = drain(source)
            # Its SCN is the number of its last row in the change log.
            assert (window.scn, [c.row["id"] for c in window.changes]) == (2 * n, [n, -n])


def test_rows_from_before_the_log_give_it_an_empty_first_window(
    path: Path, db: sqlite3.Connection
) -> None:
    db.execute("INSERT INTO t VALUES (1, 'older than any relay')")
    for start in ("latest", "earliest"):
        with opened(path, "t", start=start) as source:
            assert [(w.scn, w.changes) for w in source.read_transactions()] == [(1, [])]
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (2, 'new')")
        assert [w.scn for w in drain(source) if w.changes] == [2]


def test_a_first_start_at_the_latest_hands_over_where_that_is(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        assert source.read_transactions() == []  # nothing was ever there, and nothing is
        db.execute("INSERT INTO t VALUES (1, 'x')")
        (window,) = drain(source)
    with opened(path, "t", start="latest") as source:
        (announced,) = source.read_transactions()
        assert (announced.scn, announced.changes) == (window.scn, [])
        assert announced.timestamp_ns == window.timestamp_ns
    with opened(path, "t", after_scn=window.scn) as source:
        assert source.read_transactions() == []


def test_a_window_has_the_time_of_its_commit(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        (window,) = drain(source)
        assert abs(window.timestamp_ns - time.time_ns()) < 60 * 10**9
        assert window.origin.file == "_databus_log"


def test_transactions_between_two_polls_are_one_window(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        db.execute("INSERT INTO t VALUES (2, 'x')")
        (window,) = drain(source)
        assert len(window.changes) == 2


def test_what_is_rolled_back_is_never_seen(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.executescript("BEGIN; INSERT INTO t VALUES (1, 'x'); ROLLBACK")
        db.execute("BEGIN")
        run_all(db, ["SAVEPOINT s", "INSERT INTO t VALUES (2, 'x')", "ROLLBACK TO s"])
        run_all(db, ["INSERT INTO t VALUES (3, 'x')", "COMMIT"])
        assert drain(source)[0].changes[0].row["id"] == 3


def test_half_a_transaction_is_never_seen(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (1, 'x')")
        assert source.read_transactions() == []
        db.execute("INSERT INTO t VALUES (2, 'x')")
        db.execute("COMMIT")
        assert len(drain(source)[0].changes) == 2


def test_a_long_transaction_keeps_back_nothing_that_was_committed_before_it(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("INSERT INTO t VALUES (2, 'x')")
        assert changes(source.read_transactions()) == [("insert", {"id": 1, "a": "x"})]
        with opened(path, "t", after_scn=0) as late:
            assert changes(late.read_transactions()) == [("insert", {"id": 1, "a": "x"})]
        db.execute("COMMIT")
        assert [row["id"] for _, row in changes(drain(source))] == [2]


def test_a_relay_that_finds_another_closing_a_window_tries_again(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source, closing(sqlite3.connect(f"{path}-databus")) as other:
        other.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO t VALUES (1, 'x')")
        started = time.monotonic()
        assert source.read_transactions() == []
        assert time.monotonic() - started < 4  # SQLite itself would wait for 5 s
        other.execute("ROLLBACK")
        assert len(drain(source)) == 1


def test_an_empty_table_that_nobody_writes_has_an_scn_all_the_same(
    path: Path, db: sqlite3.Connection
) -> None:
    source = SqliteSource(settings(path, "t"))
    with closing(source):
        source.open(None)
        db.execute("BEGIN IMMEDIATE")
        # An application holds the lock: it is not waited for, and nothing is wrong.
        reads = [source.read_transactions() for _ in range(2)]
        assert (reads, source.is_at_end) == ([[], []], True)
        db.execute("ROLLBACK")
        found = [item for _ in range(3) for item in source.read_transactions()]
        assert [(one.scn, list(one.changes)) for one in found] == [(1, [])]
        db.execute("INSERT INTO t VALUES (1, 'a')")
        (first,) = drain(source)
        assert (first.scn, first.origin.offset) == (2, 2)
    with opened(path, "t", after_scn=None, start="earliest") as again:
        assert [one.scn for one in drain(again)] == [1, 2]


class Pauses(threading.Event):
    """Is never set before it is told, and lets no time pass but that of its pauses."""

    now_s = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        """Pause; return whether it is set."""
        self.now_s += 0.0 if self.is_set() or timeout is None else timeout
        return self.is_set()


def test_reading_comes_back_within_a_second_and_at_once_when_stopped(
    path: Path, db: sqlite3.Connection
) -> None:
    stop = Pauses()
    source = SqliteSource(settings(path, "t"), lambda: stop.now_s, stop)
    source.open(None)
    db.execute("INSERT INTO t VALUES (1, 'a')")
    assert len(source.read_transactions()) == 1
    started_s = stop.now_s
    assert source.read_transactions() == []
    assert 0.3 < stop.now_s - started_s < 1
    started_s = stop.now_s
    stop.set()
    assert source.read_transactions() == []
    assert stop.now_s == started_s
    source.close()


def test_a_change_that_comes_while_reading_waits_is_returned(
    path: Path, db: sqlite3.Connection
) -> None:
    source = SqliteSource(settings(path, "t"))
    source.open(None)
    writer = threading.Thread(target=run_apart, args=(path, "INSERT INTO t VALUES (1, 'x')"))
    writer.start()
    found = next(got for got in iter(source.read, None) if got)
    writer.join()
    source.close()
    assert len(found) == 1


def run_all(connection: sqlite3.Connection, statements: list[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def run_apart(path: Path, statement: str) -> None:
    with database(path) as connection:
        connection.execute(statement)


def test_two_relays_of_one_file_give_the_same_scns_to_the_same_transactions(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as one, opened(path, "t") as two:
        writers = [start_writer(path, seed, 150) for seed in (1, 2)]
        first: list[Transaction] = []
        second: list[Transaction] = []
        while any(writer.poll() is None for writer in writers):
            first += one.read_transactions()
            second += two.read_transactions()
        for writer in writers:
            end_writer(writer)
        first += drain(one)
        second += drain(two)
    assert first == second
    assert all(one.scn < two.scn for one, two in pairwise(first))
    held = table_rows(db, "SELECT * FROM t")
    assert applied_rows(apply(first, {}), "shop.t") == held


def test_a_writer_killed_in_its_transactions_leaves_whole_windows(
    path: Path, db: sqlite3.Connection
) -> None:
    state: State = {}
    with opened(path, "t") as source:
        for seed in range(4):
            writer = start_writer(path, seed, 1_000_000)
            wanted = 20
            while wanted > 0:
                got = source.read_transactions()
                apply(got, state)
                wanted -= len(got)
            writer.kill()
            end_writer(writer)
        apply(drain(source), state)
    assert applied_rows(state, "shop.t") == table_rows(db, "SELECT * FROM t")


STATEMENTS = st.sampled_from(
    [
        "INSERT OR REPLACE INTO t(id, a) VALUES (1, 'x')",
        "INSERT OR REPLACE INTO t(id, a) VALUES (2, 'y'), (3, 'z')",
        "UPDATE t SET a = a || '+'",
        "UPDATE OR IGNORE t SET id = id + 1",
        "DELETE FROM t WHERE id = 2",
    ]
)


@given(st.lists(st.lists(STATEMENTS, min_size=1, max_size=3), min_size=1, max_size=12))
@hypothesis_settings(max_examples=25, deadline=None)
def test_a_restart_at_any_scn_gives_the_same_rest(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[list[str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "restart.db"
    remove(path)
    with database(path, TABLE) as db, opened(path, "t") as source:
        reference: list[Transaction] = []
        for number, statements in enumerate(transactions):
            run(db, statements)
            if number == len(transactions) // 2:
                db.execute("ALTER TABLE t ADD COLUMN b DEFAULT 7")
            reference += source.read_transactions()
        reference += drain(source)
        for scn in {0, *(t.scn for t in reference), *(t.scn - 1 for t in reference)}:
            with opened(path, "t", after_scn=scn) as again:
                # An SCN inside a window is followed by the window, whole.
                assert drain(again) == [t for t in reference if t.scn > scn]


@given(transactions=st.lists(STATEMENTS, min_size=1, max_size=12), data=st.data())
@hypothesis_settings(max_examples=25, deadline=None)
def test_bounds_that_are_lost_lose_no_change_for_any_consumer(
    tmp_path_factory: pytest.TempPathFactory, transactions: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "lost.db"
    remove(path)
    with database(path, TABLE) as db, opened(path, "t") as source:
        before: list[Transaction] = []
        for statement in transactions:
            db.execute(statement)
            before += source.read_transactions()
        source.close()
        scns = [0, *(t.scn for t in before)]
        lose_bounds(path, after_scn=data.draw(st.sampled_from(scns)))
        for statement in data.draw(st.lists(STATEMENTS, max_size=4)):
            db.execute(statement)
        held = table_rows(db, "SELECT * FROM t")
        for scn in data.draw(st.permutations(scns)):
            with opened(path, "t", after_scn=scn) as again:
                after = drain(again)
            state = apply(after, apply([t for t in before if t.scn <= scn], {}))
            assert applied_rows(state, "shop.t") == held
            assert all(t.scn > scn for t in after)


def test_changes_made_while_no_relay_runs_come_as_one_window(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t"):
        pass
    for number in range(10):
        db.execute(f"INSERT INTO t VALUES ({number}, 'x')")
    with opened(path, "t", after_scn=0) as source:
        (window,) = drain(source)
        assert len(window.changes) == 10


@pytest.mark.parametrize(
    ("start", "ids"),
    [("latest", [9]), ("earliest", [1, 2, 3, 9]), ("2", [3, 9]), ("0", [1, 2, 3, 9])],
)
def test_a_first_start_begins_where_the_settings_say(
    path: Path, db: sqlite3.Connection, start: str, ids: list[int]
) -> None:
    with opened(path, "t") as source:
        for number in (1, 2):
            db.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            drain(source)
    db.execute("INSERT INTO t VALUES (3, 'x')")  # in no window yet
    with opened(path, "t", start=start) as source:
        db.execute("INSERT INTO t VALUES (9, 'x')")
        assert [row["id"] for _, row in changes(drain(source))] == ids


def test_a_first_start_at_any_time_begins_with_the_first_window_from_then_on(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        for number in range(5):
            db.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            drain(source)
        source.open(0)
        windows = drain(source)
    assert len(windows) == 5
    for first, window in enumerate(windows):
        # Names of places have microseconds.
        at = TimePlace(window.timestamp_ns // 1000 * 1000)
        expected = [w for w in windows if w.scn >= windows[first].scn]
        if any(w.timestamp_ns >= at.time_ns for w in windows[:first]):
            continue  # in the same microsecond
        with opened(path, "t", start=str(at)) as source:
            assert drain(source) == expected
    with opened(path, "t", start="time:1999-01-01") as source:
        assert drain(source) == windows


def test_a_time_that_the_log_does_not_have_stops_with_a_way_on(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        for number in range(3):
            db.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            drain(source)
    with (
        pytest.raises(SourceStoppedError, match="after the newest window of the log; use latest"),
        opened(path, "t", start="time:2200-01-01"),
    ):
        pass
    db.execute("DELETE FROM _databus_log WHERE id = 1")  # as trimming does
    with (
        pytest.raises(SourceStoppedError, match="before the oldest window of the log, which was"),
        opened(path, "t", start="time:1999-01-01"),
    ):
        pass


def test_an_scn_that_was_never_given_stops_the_source(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(source)
        with pytest.raises(SourceStoppedError, match="the log ends with 1: the database was made"):
            source.open(2)


def test_a_log_that_lost_its_end_and_grew_beyond_it_stops_the_source(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        for number in range(3):
            run(db, [f"INSERT INTO t VALUES ({number}, 'x')"])
        newest = Newest(*[(t.scn, t.timestamp_ns) for t in drain(source)][-1])
        source.open(newest.scn, newest)  # the same log: nothing to say
    # As after a backup was put back: two transactions are gone, and others came instead.
    db.execute("DELETE FROM _databus_log WHERE id > 1")
    db.execute("UPDATE sqlite_sequence SET seq = 1 WHERE name = '_databus_log'")
    bounds_path(path).unlink()
    run(db, [f"INSERT INTO t VALUES ({number}, 'y')" for number in range(10, 15)])
    db.execute("UPDATE _databus_log SET at = at + 1000000000 WHERE id > 1")
    with opened(path, "t", after_scn=1) as source:
        with pytest.raises(SourceStoppedError, match=r"log row 3, .* is another one now"):
            source.open(1, newest)
        with pytest.raises(SourceStoppedError, match="the log ends with 6"):
            source.open(1, Newest(7, newest.timestamp_ns))


def test_what_is_older_than_the_retention_is_trimmed_and_asking_for_it_stops(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t", retention_rows=1000) as source:
        for number in range(6):
            run(db, [f"INSERT INTO t VALUES ({number * 1000 + i}, 'x')" for i in range(1000)])
            drain(source)
        for _ in range(20):
            source.read_transactions()
        held = bounds(path)
        (rows,) = db.execute("SELECT count(*) FROM _databus_log").fetchone()
        # The row before the oldest window shows that nothing of the window is gone.
        assert (held, rows) == ([6000], 1001)
        source.open(2000)
        with pytest.raises(SourceStoppedError, match="after 2000 are gone, the next one is 5000"):
            source.read_transactions()
        source.open(5000)
        assert [window.scn for window in drain(source)] == [6000]


def test_trimming_keeps_what_this_relay_has_not_read(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t", retention_rows=1000) as one, opened(path, "t") as two:
        for number in range(3):
            run(db, [f"INSERT INTO t VALUES ({number * 1000 + i}, 'x')" for i in range(1000)])
            assert len(drain(two)) == 1
        assert [window.scn for window in drain(one)] == [1000, 2000, 3000]


def test_a_reader_whose_next_window_was_trimmed_stops(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as slow:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        drain(slow)
        with opened(path, "t") as source:
            for number in (2, 3):
                db.execute(f"INSERT INTO t VALUES ({number}, 'x')")
                drain(source)
        with closing(sqlite3.connect(f"{path}-databus")) as other:
            other.execute("DELETE FROM seal WHERE scn = 2")
            other.commit()
        with pytest.raises(SourceStoppedError, match="log rows after 1 are gone") as stopped:
            drain(slow)
        assert stopped.value.scn == 1


def test_rows_missing_from_the_log_stop_the_source(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        drain(source)
        db.execute("DELETE FROM _databus_log WHERE id = 2")
        with pytest.raises(SourceStoppedError, match=r"log row 2.*ends with row 1.*restored"):
            source.open(0)


def test_rows_missing_in_the_middle_stop_the_source(path: Path, db: sqlite3.Connection) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        drain(source)
        db.execute("DELETE FROM _databus_log WHERE id = 1")
        source.open(0)
        with pytest.raises(SourceStoppedError, match="after 0 are gone, the next one is 2"):
            drain(source)


def test_rows_trimmed_by_a_transaction_that_outlived_the_one_on_the_bounds_are_gone(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        for number in range(4):
            db.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            drain(source)
        source.close()
        lose_bounds(path, after_scn=2)
        db.execute("DELETE FROM _databus_log WHERE id < 4")
        source.open(4)
        assert drain(source) == []
        source.open(3)
        assert [window.scn for window in drain(source)] == [4]
        source.open(1)
        with pytest.raises(SourceStoppedError, match="after 1 are gone, the next one is 4"):
            drain(source)
    with opened(path, "t", start="earliest") as first:
        assert [window.scn for window in drain(first)] == [4]


def test_a_log_that_became_shorter_stops_the_source_while_it_runs(
    path: Path, db: sqlite3.Connection
) -> None:
    with opened(path, "t") as source:
        db.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        drain(source)
        db.execute("DELETE FROM _databus_log WHERE id = 2")
        with pytest.raises(SourceStoppedError, match="lost its last commits in a power failure"):
            source.read_transactions()


def test_only_the_tables_of_the_settings_are_yielded(path: Path, db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE u(id INTEGER PRIMARY KEY)")
    with opened(path, "t") as one, opened(path, "u") as other:
        run(db, ["INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (5)"])
        assert changes(drain(one)) == [("insert", {"id": 1, "a": "x"})]
        assert changes(drain(other)) == [("insert", {"id": 5})]
        db.execute("INSERT INTO t VALUES (2, 'x')")
        drain(one)
        assert [(t.scn, t.changes) for t in drain(other)] == [(3, [])]


def test_rows_are_in_the_value_space_of_the_tables_schema(path: Path) -> None:
    script = "CREATE TABLE v(id INTEGER PRIMARY KEY, n NUMERIC, r REAL, t TEXT NOT NULL, b BLOB)"
    with database(path, script) as db, opened(path, "v") as source:
        db.execute("INSERT INTO v VALUES (1, 2.5, 3, 'ä', x'00'), (2, NULL, NULL, '', NULL)")
        (window,) = drain(source)
        for change in window.changes:
            codec = RowCodec(avro_schema(change.table))
            assert codec.decode(codec.encode(change.row)) == change.row


def test_text_that_is_not_utf8_reaches_the_encoder_which_names_the_column(path: Path) -> None:
    script = "CREATE TABLE v(id INTEGER PRIMARY KEY, t TEXT)"
    with database(path, script) as db, opened(path, "v") as source:
        db.execute("INSERT INTO v VALUES (1, CAST(x'ff41' AS TEXT))")
        change = drain(source)[0].changes[0]
        with pytest.raises(RowError, match="column 't'"):
            RowCodec(avro_schema(change.table)).encode(change.row)
        db.execute("INSERT INTO v VALUES (2, 'good')")
        assert drain(source)[0].changes[0].row["t"] == "good"
