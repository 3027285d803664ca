"""Tables of an SQLite file in chunks: the rows of the stream, in order, beside a writer."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from databus.relay.sources.kind import open_scan
from databus.relay.sources.sqlite.table_scan import SqliteTableScan
from databus.relay.sources.table_scan import Chunk, KeyRange
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import SettingsError, SourceStoppedError, SourceUnavailableError
from databus.schemas.event.keys import key_maker
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.relay.sources.sqlite.shop import apply, database, drain, opened, settings

WIDE = """
CREATE TABLE wide(
    id INTEGER PRIMARY KEY, i INT, b BIGINT, r REAL, d DOUBLE PRECISION, t TEXT, v VARCHAR(9),
    x BLOB, n NUMERIC, m DECIMAL(9, 2), dt DATETIME, bo BOOLEAN, a ANY, untyped,
    g INT GENERATED ALWAYS AS (i + 1) VIRTUAL, s TEXT AS (t || '!') STORED
)
"""
WIDE_COLUMNS = ("i", "b", "r", "d", "t", "v", "x", "n", "m", "dt", "bo", "a", "untyped")

# By kind of key: the table, and values for the key in an order that is not theirs.
KEYS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "integer": ("k INTEGER PRIMARY KEY, v)", [(n,) for n in (5, -(2**63), 2**63 - 1, 0, -1, 7)]),
    "hidden rowid": ("k TEXT PRIMARY KEY, v)", [("b",), ("a",), ("",), ("é",), ("B",)]),
    "no key": ("k, v)", [(1,), (1,), (None,), ("x",), (b"x",)]),
    "key with nulls": ("k INT, l INT, v, PRIMARY KEY(k, l))", [(None, 1), (None, 1), (2, None)]),
    "text": ("k TEXT PRIMARY KEY, v) WITHOUT ROWID", [(t,) for t in ("b", "a", "", "é", "B")]),
    "nocase": (
        "k TEXT COLLATE NOCASE, l INT, v, PRIMARY KEY(k, l)) WITHOUT ROWID",
        [("b", 1), ("A", 3), ("a", 2), ("B", 4), ("a", 9)],
    ),
    "binary": ("k BLOB PRIMARY KEY, v) WITHOUT ROWID", [(b"\xff",), (b"",), (b"\0",), (b"a",)]),
    "mixed": (
        "k, v, PRIMARY KEY(k)) WITHOUT ROWID",
        [(1,), (1.5,), ("1",), (b"1",), (-3e300,), (2**62,), (float("inf"),), ("",)],
    ),
    "composite": (
        "k INT, l TEXT, m REAL, v, PRIMARY KEY(m, k, l)) WITHOUT ROWID",
        [(a, t, r) for a in (2, 1) for t in ("y", "x") for r in (0.5, -1.0)],
    ),
    "descending": (
        "k INT, l INT, v, PRIMARY KEY(k DESC, l DESC)) WITHOUT ROWID",
        [(1, 2), (2, 1), (1, 1), (2, 2)],
    ),
    "both directions": (
        "k INT, l INT, v, PRIMARY KEY(k DESC, l)) WITHOUT ROWID",
        [(1, 2), (2, 1), (1, 1), (2, 2)],
    ),
    "other collation": (
        "k TEXT COLLATE NOCASE, v, PRIMARY KEY(k COLLATE BINARY)) WITHOUT ROWID",
        [("b",), ("A",), ("a",), ("B",)],
    ),
}
NOT_CHUNKED = {"both directions", "other collation"}


@contextmanager
def scanning(path: Path, *tables: str) -> Iterator[SqliteTableScan]:
    """Open a scan for the length of a `with`."""
    scan = SqliteTableScan(settings(path, *tables))
    try:
        scan.open()
        yield scan
    finally:
        scan.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def install(path: Path, *tables: str) -> None:
    """Run a relay's source once, for the change log."""
    with opened(path, *tables):
        pass


def all_rows(chunks: Iterator[Chunk]) -> list[dict[str, Any]]:
    return [dict(row) for chunk in chunks for row in chunk.rows]


def encoded(table: Table, rows: Any) -> list[tuple[Any, bytes]]:
    """Return the key and the Avro bytes of rows, sorted."""
    key, codec = key_maker(table), row_codec(avro_schema(table))
    return sorted(((key(row), codec.encode(row)) for row in rows), key=repr)


def insert_into(connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    width = len(rows[0])
    for number, row in enumerate(rows):
        marks = ", ".join("?" * (width + 1))
        names = ", ".join(("k", "l", "m")[:width])
        connection.execute(f"INSERT INTO t({names}, v) VALUES ({marks})", (*row, number))


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**53 + 1])
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    INTEGERS,
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(["1", "1.0", " 12 ", "1e3", "0x10", "2024-01-02", "-0.0", "a\0b"]),
    st.binary(max_size=8),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(*[VALUES] * len(WIDE_COLUMNS)), min_size=1, max_size=4))
def test_scanned_rows_and_keys_are_those_of_the_stream(rows: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with database(path, WIDE) as db, opened(path, "wide") as source:
            names, marks = ", ".join(WIDE_COLUMNS), ", ".join("?" * len(WIDE_COLUMNS))
            db.executemany(f"INSERT INTO wide({names}) VALUES ({marks})", rows)
            changes = [change for t in drain(source) for change in t.changes]
            with scanning(path, "wide") as scan:
                table = scan.table("shop.wide")
                found = all_rows(scan.chunks("shop.wide", 3))
    assert table == changes[0].table
    # Stored so in a column of another type, both are the same misfit.
    assert repr(found) == repr([dict(change.row) for change in changes])
    key = key_maker(table)
    assert [key(row) for row in found] == [key(change.row) for change in changes]


def test_the_bytes_of_every_type_are_those_of_the_stream(path: Path) -> None:
    fitting = [
        (1, -(2**63), 1, 2.5, "é\0", "v", b"\0\xff", 1.5, "12.50", "2024-01-02", 1, b"a", 7),
        (None,) * len(WIDE_COLUMNS),
        (2**31, 0, -0.0, 1e308, "", "", b"", 2**62, 3, 20240102, 0, "text", 1e-320),
    ]
    with database(path, WIDE) as db, opened(path, "wide") as source:
        names, marks = ", ".join(WIDE_COLUMNS), ", ".join("?" * len(WIDE_COLUMNS))
        db.executemany(f"INSERT INTO wide({names}) VALUES ({marks})", fitting)
        streamed = [change.row for t in drain(source) for change in t.changes]
        with scanning(path, "wide") as scan:
            table = scan.table("shop.wide")
            found = all_rows(scan.chunks("shop.wide", 2))
    assert encoded(table, found) == encoded(table, streamed)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_every_row_comes_once_whatever_the_key(path: Path, kind: str, size: int) -> None:
    columns, rows = KEYS[kind]
    with database(path, f"CREATE TABLE t({columns}") as db, opened(path, "t") as source:
        insert_into(db, rows)
        streamed = [dict(change.row) for t in drain(source) for change in t.changes]
        with scanning(path, "t") as scan:
            assert scan.is_chunked("shop.t") is (kind not in NOT_CHUNKED)
            assert scan.estimate_rows("shop.t") == len(rows)
            chunks = list(scan.chunks("shop.t", size))
    assert sorted(map(repr, all_rows(iter(chunks)))) == sorted(map(repr, streamed))
    assert [len(chunk.rows) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    assert all(chunk.resume is not None for chunk in chunks[:-1])
    assert chunks[-1].resume is None
    assert len({id(chunk.table) for chunk in chunks}) == 1


@pytest.mark.parametrize("kind", sorted(KEYS.keys() - NOT_CHUNKED))
def test_reading_goes_on_after_any_chunk_in_another_process(path: Path, kind: str) -> None:
    columns, rows = KEYS[kind]
    with database(path, f"CREATE TABLE t({columns}") as db:
        install(path, "t")
        insert_into(db, rows)
        found: list[dict[str, Any]] = []
        resume: str | None = None
        while True:
            with scanning(path, "t") as scan:
                chunk = next(scan.chunks("shop.t", 2, resume))
            found += [dict(row) for row in chunk.rows]
            resume = chunk.resume
            if resume is None:
                break
    assert sorted(row["v"] for row in found) == list(range(len(rows)))


def test_a_table_that_is_not_chunked_has_no_place_to_resume_from(path: Path) -> None:
    columns, rows = KEYS["both directions"]
    with database(path, f"CREATE TABLE t({columns}") as db:
        install(path, "t")
        insert_into(db, rows)
        with scanning(path, "t") as scan:
            pieces = scan.chunks("shop.t", 3)
            first = next(pieces)
            # One consistent read: what is committed now is not in it.
            db.execute("DELETE FROM t")
            assert first.resume == ""
            assert [c.resume for c in pieces] == [None]
            assert len(all_rows(scan.chunks("shop.t", 3, resume=""))) == 0


@pytest.mark.parametrize("size", [1, 2, 100])
def test_ranges_of_an_integer_key_have_every_row_once(path: Path, size: int) -> None:
    columns, rows = KEYS["integer"]
    with database(path, f"CREATE TABLE t({columns}") as db:
        install(path, "t")
        insert_into(db, rows)
        with scanning(path, "t") as scan:
            whole = scan.key_range("shop.t")
            assert whole == (-(2**63), 2**63 - 1)
            parts = [list(scan.chunks_within("shop.t", size, p)) for p in whole.split(3)]
            (empty,) = scan.chunks_within("shop.t", size, KeyRange(100, 2**40))
    found = [row["k"] for part in parts for row in all_rows(iter(part))]
    assert found == sorted(k for (k,) in rows)
    assert empty.rows == []
    for part in parts:
        assert [chunk.resume for chunk in part] == [""] * (len(part) - 1) + [None]
        assert all(len(chunk.rows) <= size for chunk in part)


@pytest.mark.parametrize("kind", sorted(KEYS.keys() - {"integer"}))
def test_another_key_has_no_ranges(path: Path, kind: str) -> None:
    columns, rows = KEYS[kind]
    with database(path, f"CREATE TABLE t({columns}") as db:
        install(path, "t")
        insert_into(db, rows)
        with scanning(path, "t") as scan:
            assert scan.key_range("shop.t") is None
            with pytest.raises(SourceStoppedError, match="not one integer"):
                next(scan.chunks_within("shop.t", 10, KeyRange(0, 1)))


def test_the_range_of_an_empty_table_is_none(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)"):
        install(path, "t")
        with scanning(path, "t") as scan:
            assert scan.key_range("shop.t") is None


def test_ranges_are_split_without_a_gap_whatever_their_width() -> None:
    for whole in (KeyRange(0, 0), KeyRange(-5, 5), KeyRange(-(2**63), 2**63 - 1), KeyRange(1, 7)):
        for parts in (1, 2, 3, 16):
            found = whole.split(parts)
            assert (found[0].first, found[-1].last) == whole
            assert all(a.last + 1 == b.first for a, b in itertools.pairwise(found))
            assert all(one.first <= one.last for one in found)
            assert len(found) == min(parts, whole.last - whole.first + 1)


def test_an_empty_table_is_one_chunk_without_rows(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)"):
        install(path, "t")
        with scanning(path, "t") as scan:
            (chunk,) = scan.chunks("shop.t", 10)
    assert (chunk.rows, chunk.resume) == ([], None)
    assert chunk.table.source == "shop.t"


def test_chunks_use_the_key_and_sort_nothing(path: Path) -> None:
    for kind in sorted(KEYS.keys() - NOT_CHUNKED):
        file = path.with_name(kind)
        with database(file, f"CREATE TABLE t({KEYS[kind][0]}"):
            install(file, "t")
            with scanning(file, "t") as scan:
                reading = scan._read_now("shop.t")
                connection = scan._opened()
                marks = [None] * len(reading.order) + [1]
                query = f"EXPLAIN QUERY PLAN {reading.select(is_after=True)}"
                (step,) = connection.execute(query, marks).fetchall()
        assert step[3].startswith("SEARCH t USING ")
        assert "PRIMARY KEY" in step[3]


def test_a_row_is_in_the_scan_or_in_the_log_after_it_while_an_application_writes(
    path: Path,
) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db:
        install(path, "t")
        db.executemany("INSERT INTO t VALUES (?, 0)", [(n,) for n in range(400)])
        stop = threading.Event()
        writer = threading.Thread(target=write_on, args=(path, stop))
        writer.start()
        try:
            with scanning(path, "t") as scan:
                scn = scan.visible_scn()
                rows = {row["id"]: dict(row) for row in all_rows(scan.chunks("shop.t", 7))}
        finally:
            stop.set()
            writer.join()
        with opened(path, "t", after_scn=scn) as source:
            # Rows up to the SCN are in the tables; what is after it comes from the log.
            final = apply(drain(source), {"shop.t": dict(rows)})["shop.t"]
        kept = db.execute("SELECT id, v FROM t").fetchall()
        seen = {(row["id"], row["v"]) for row in final.values()}
        # Rows deleted before the scan's SCN never came; those deleted after did in the log.
        assert seen == set(kept)


def write_on(path: Path, stop: threading.Event) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_S)) as db:
        number = 0
        while not stop.is_set() and number < 20_000:
            number += 1
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", (number * 7 % 500, number))
            db.execute("DELETE FROM t WHERE id = ?", (number * 13 % 500,))
            db.execute("COMMIT")


def test_the_scn_is_that_of_the_newest_committed_change(path: Path) -> None:
    with (
        database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db,
        opened(path, "t") as source,
        scanning(path, "t") as scan,
    ):
        assert scan.visible_scn() == 0
        db.execute("INSERT INTO t VALUES (1, 1)")
        db.execute("UPDATE t SET v = 2")
        db.execute("BEGIN")
        db.execute("UPDATE t SET v = 3")
        newest = drain(source)[-1].scn
        assert scan.visible_scn() == scan.newest_scn() == newest
        assert all_rows(scan.chunks("shop.t", 10)) == [{"id": 1, "v": 2}]
        db.execute("ROLLBACK")


def test_a_table_altered_between_chunks_comes_as_a_new_object(path: Path) -> None:
    with (
        database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db,
        opened(path, "t") as source,
    ):
        db.executemany("INSERT INTO t VALUES (?, 0)", [(n,) for n in range(6)])
        with scanning(path, "t") as scan:
            chunks = scan.chunks("shop.t", 2)
            first = next(chunks)
            db.execute("CREATE TABLE other(x)")
            second = next(chunks)
            assert second.table is first.table
            db.execute("ALTER TABLE t ADD COLUMN w INT DEFAULT 5")
            third = next(chunks)
        drain(source)
    assert [dict(row) for row in third.rows] == [{"id": n, "v": 0, "w": 5} for n in (4, 5)]
    assert [column.name for column in third.table.columns] == ["id", "v", "w"]


def test_hidden_row_ids_are_read_anew_when_a_vacuum_may_have_changed_them(path: Path) -> None:
    with database(path, "CREATE TABLE t(k TEXT PRIMARY KEY, v)") as db:
        install(path, "t")
        db.executemany("INSERT INTO t VALUES (?, 0)", [(f"{n}",) for n in range(6)])
        with scanning(path, "t") as scan:
            chunks = scan.chunks("shop.t", 4)
            first = next(chunks)
            db.execute("DELETE FROM t WHERE rowid < 3")
            db.execute("VACUUM")
            assert [row["k"] for row in next(chunks).rows] == ["2", "3", "4", "5"]
        with scanning(path, "t") as scan:
            assert len(all_rows(scan.chunks("shop.t", 10, first.resume))) == 4


def test_a_scan_writes_nothing(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db:
        install(path, "t")
        db.execute("INSERT INTO t VALUES (1, 1)")
        (version,) = db.execute("PRAGMA data_version").fetchone()
        before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
        with scanning(path, "t") as scan:
            scan.visible_scn()
            assert len(all_rows(scan.chunks("shop.t", 10))) == 1
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                scan._opened().execute("DELETE FROM t")
        assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before
        assert db.execute("PRAGMA data_version").fetchone() == (version,)


def test_a_file_that_nobody_has_open_is_read(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v)") as db:
        install(path, "t")
        db.execute("INSERT INTO t VALUES (1, 1)")
    with scanning(path, "t") as scan:
        assert len(all_rows(scan.chunks("shop.t", 10))) == 1


def test_a_database_that_no_relay_has_seen_stops_and_says_so(path: Path) -> None:
    with database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY); CREATE TABLE u(id)"):
        with (
            pytest.raises(SourceStoppedError, match="no change log yet: start the relay"),
            scanning(path, "t"),
        ):
            pass
        install(path, "t")
        with (
            pytest.raises(SourceStoppedError, match=r"u is not captured yet.* with shop\.u"),
            scanning(path, "t", "u"),
        ):
            pass
        with pytest.raises(SourceStoppedError, match="no table nowhere"), scanning(path, "nowhere"):
            pass


def test_a_missing_file_may_come_yet(path: Path) -> None:
    with pytest.raises(SourceUnavailableError), scanning(path, "t"):
        pass
    assert not path.exists()


def test_text_that_is_not_utf_8_comes_as_the_stream_has_it(path: Path) -> None:
    with (
        database(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT)") as db,
        opened(path, "t") as source,
    ):
        db.execute("INSERT INTO t VALUES (1, CAST(x'61ff' AS TEXT)), (2, 'é')")
        streamed = [dict(change.row) for t in drain(source) for change in t.changes]
        with scanning(path, "t") as scan:
            assert all_rows(scan.chunks("shop.t", 10)) == streamed


def test_the_scheme_says_what_is_scanned(path: Path) -> None:
    assert isinstance(open_scan(settings(path, "t")), SqliteTableScan)
    with pytest.raises(SettingsError, match="has no tables to read"):
        open_scan(settings(path, "t", uri="generator:"))
