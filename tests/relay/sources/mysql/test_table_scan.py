"""Tables of a real MariaDB in chunks: the rows of the stream, in key order, beside writers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings as hypothesis_settings, strategies as st
from pymysql.connections import Connection

from databus.bootstrap.seeder.row_encoder import RowEvents
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.sources.mysql.scan.tables import MysqlTableScan
from databus.relay.sources.table_scan import Chunk, KeyRange
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.event.keys import key_maker
from databus.schemas.table import Table
from databus.schemas.table_schema import avro_schema
from tests.mariadb_server import Database, connect
from tests.relay.sources.mysql.reading import opened, read_changes, read_to_scn, watching
from tests.relay.sources.mysql.rows.test_values import TYPES

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb

# More that may be in a column, and that the tests of the stream need not try.
MORE_TYPES: dict[str, list[str]] = {
    "FLOAT(7,2)": ["1.15", "-99999.99"],
    "DOUBLE(20,3)": ["1.1235", "12345678901234567"],
    "FLOAT ZEROFILL": ["1.5"],
    "FLOAT NULL": ["-0e0", "1e-45", "3.4028234e38"],
    "DOUBLE NULL": ["-0e0", "2.2250738585072014e-308", "1e23", "9007199254740993"],
    "YEAR(2)": ["0", "24", "99", "'00'"],
    "DECIMAL(7,3) ZEROFILL": ["1.5"],
    "CHAR(4) CHARACTER SET ucs2": ["'a  '", "'é'"],
    "CHAR(4) CHARACTER SET utf32": ["' b '"],
    "CHAR(3) CHARACTER SET binary": ["'a'"],
    "VARCHAR(20) CHARACTER SET koi8r": ["'Ж'"],
    "VARCHAR(20) CHARACTER SET utf8mb3": ["'é'"],
    "ENUM('x','','ñ') CHARACTER SET ucs2": ["'x'", "''", "'ñ'"],
    "TIMESTAMP NULL": ["'2024-10-27 00:30:00'", "'2024-10-27 01:30:00'"],
    "TIME(5)": ["'-00:00:00.00001'"],
}
EVERY_TYPE = list({**TYPES, **MORE_TYPES}.items())
PER_TABLE = 15
PARTS = [EVERY_TYPE[at : at + PER_TABLE] for at in range(0, len(EVERY_TYPE), PER_TABLE)]
MOST_LITERALS = max(len(literals) for _, literals in EVERY_TYPE)

# By kind of key: its columns, and literals in an order that is not theirs.
KEYS: dict[str, tuple[str, list[str]]] = {
    "tinyint": ("k TINYINT", ["5", "-128", "127", "0", "-1"]),
    "mediumint unsigned": ("k MEDIUMINT UNSIGNED", ["16777215", "0", "9"]),
    "zerofill": ("k INT(5) ZEROFILL", ["42", "7", "4294967295"]),
    "bigint": ("k BIGINT", ["0", "-9223372036854775808", "9223372036854775807", "-1"]),
    "bigint unsigned": ("k BIGINT UNSIGNED", ["9223372036854775808", "0", "18446744073709551615"]),
    "decimal": ("k DECIMAL(30,10)", ["0", "-0.0000000001", "12345678901234567890.1", "-5"]),
    "date": ("k DATE", ["'2024-01-01'", "'1000-01-01'", "'9999-12-31'"]),
    "time": ("k TIME(3)", ["'00:00:00'", "'-00:00:00.5'", "'838:59:59'", "'-838:59:59'"]),
    "datetime": ("k DATETIME(6)", ["'2024-01-01 00:00:00.000001'", "'2024-01-01'", "'1000-1-1'"]),
    "timestamp": ("k TIMESTAMP(2)", ["'2024-10-27 01:30:00.01'", "'1970-01-01 00:00:01'"]),
    "char ci": ("k CHAR(9)", ["'b'", "'A'", "'aa'", "''", "'é'", "'z'", "'😀'", "'a\tb'"]),
    "varchar ci, int": (
        "k VARCHAR(20), l INT",
        ["'b', 1", "'a', 3", "'A', 2", "'B', 9", "'ä', 5", "'ss', 1", "'ß', 2", "'a ', 9"],
    ),
    "varchar bin": ("k VARCHAR(9) COLLATE utf8mb4_bin", ["'b'", "'B'", "'a'", "'é'", "''"]),
    "varchar uca": (
        "k VARCHAR(9) COLLATE utf8mb4_unicode_ci",
        ["'ch'", "'d'", "'ç'", "'Œ'", "'o'", "'p'"],
    ),
    "varchar nopad": ("k VARCHAR(9) COLLATE utf8mb4_nopad_bin", ["'a'", "'a '", "'a\t'", "''"]),
    "utf8mb3": ("k VARCHAR(9) CHARACTER SET utf8mb3", ["'é'", "'a'", "'漢'", "'z'"]),
    "latin1": ("k VARCHAR(9) CHARACTER SET latin1", ["'é'", "'a'", "'ÿ'", "'z'"]),
    "ucs2": ("k VARCHAR(9) CHARACTER SET ucs2", ["'é'", "'a'", "'漢'"]),
    "sjis": ("k VARCHAR(9) CHARACTER SET sjis", ["'日'", "'a'", "'ｱ'"]),
    "backslash and quote": ("k VARCHAR(9)", ["'\\\\'", "''''", "'%s'", "'\\0'"]),
    "binary": ("k BINARY(3)", ["x'ff'", "x''", "x'00ff'", "'a'"]),
    "varbinary": ("k VARBINARY(9)", ["x'ff'", "x''", "x'00'", "x'0000'", "'a'"]),
    "uuid": (
        "k UUID",
        ["'ffffffff-ffff-1fff-8fff-ffffffffffff'", "'00000000-0000-0000-0000-000000000000'",
         "'123e4567-e89b-12d3-a456-426655440000'", "'023e4567-e89b-42d3-a456-426655440000'"],
    ),
    "inet4": ("k INET4", ["'10.0.0.1'", "'9.0.0.1'", "'255.1.1.1'"]),
    "inet6": ("k INET6", ["'::1'", "'2001:db8::1'", "'::ffff:1.2.3.4'"]),
    "composite": (
        "k INT, l VARCHAR(5), m DECIMAL(5,2)",
        [f"{k}, '{t}', {m}" for k in (2, 1) for t in "yX" for m in (0.5, -1)],
    ),
    "enum": ("k ENUM('b','a','c')", ["'a'", "'b'", "'c'"]),
    "set": ("k SET('b','a','c')", ["'a'", "'b'", "'a,c'"]),
    "double": ("k DOUBLE", ["0.1", "-1e300", "5e-324"]),
    "float, int": ("k FLOAT, l INT", ["0.1, 1", "0.1, 2", "16777217, 1"]),
    "bit": ("k BIT(9)", ["b'1'", "b'100000000'"]),
    "year": ("k YEAR", ["0", "1901", "2155"]),
}  # fmt: skip
UNORDERED = {"enum", "set", "double", "float, int", "bit", "year"}


@contextmanager
def scanning(settings: PhysicalSourceSettings, **more: Any) -> Iterator[MysqlTableScan]:
    """Open a scan for the length of a `with`."""
    scan = MysqlTableScan(settings, **more)
    try:
        scan.open()
        yield scan
    finally:
        scan.close()


def all_rows(chunks: Iterator[Chunk]) -> list[dict[str, Any]]:
    return [dict(row) for chunk in chunks for row in chunk.rows]


def encoded(table: Table, rows: Any) -> list[tuple[Any, bytes]]:
    """Return the key and the Avro bytes of each row."""
    key, codec = key_maker(table), row_codec(avro_schema(table))
    return [(key(row), codec.encode(row)) for row in rows]


def assert_written_alike(table: Table, chunks: list[Chunk]) -> None:
    """Assert that a scan which writes events itself writes those that Python makes."""
    events = RowEvents(table, 40, 1000, 5_000)
    for chunk in chunks:
        made = events.encode(chunk.rows)
        assert events.encode_chunk(chunk) == made
        # A table without a key is read in one SELECT, by Python.
        if chunk.write_events is not None:
            assert chunk.write_events(events._form) == [(one.key, one.event) for one in made]


def make_keyed(database: Database, kind: str) -> list[str]:
    columns, keys = KEYS[kind]
    names = ", ".join(part.split()[0] for part in columns.split(", "))
    database.run(
        "SET time_zone = '+00:00', sql_mode = ''",
        f"CREATE TABLE t ({columns}, v INT, PRIMARY KEY({names}))",
    )
    return keys


def fill_keyed(database: Database, keys: list[str]) -> None:
    for number, literals in enumerate(keys):
        database.run(f"INSERT INTO t VALUES ({literals}, {number})")


@pytest.mark.parametrize("metadata", ["NO_LOG", "FULL"])
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_keys_and_bytes_of_every_type_are_those_of_the_stream(
    database: Database, tmp_path: Path, part: int, metadata: str
) -> None:
    columns = [(f"c{at}", sql_type, values) for at, (sql_type, values) in enumerate(PARTS[part])]
    defined = ", ".join(f"{name} {sql_type} NULL" for name, sql_type, _ in columns)
    database.run(
        "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', innodb_strict_mode = OFF",
        f"SET GLOBAL binlog_row_metadata = {metadata}",
        f"CREATE TABLE keyed (id INT PRIMARY KEY, {defined})",
        f"CREATE TABLE loose ({defined})",
    )
    settings = watching(database, tmp_path, "keyed", "loose")
    try:
        with opened(settings) as source, scanning(settings) as scan:
            for number in range(MOST_LITERALS + 1):
                values = [v[number % len(v)] if number else "NULL" for _, _, v in columns]
                text = ", ".join(values)
                database.run(f"INSERT INTO keyed VALUES ({number}, {text})")
                database.run(f"INSERT INTO loose VALUES ({text})")
            changes = read_changes(source, 2 * MOST_LITERALS + 2)
            for name in settings.sources:
                streamed = [c for c in changes if c.table.source == name]
                table = scan.table(str(name))
                found = all_rows(scan.chunks(str(name), 3))
                assert table == streamed[0].table
                assert found == [c.row for c in streamed]
                assert encoded(table, found) == encoded(table, [c.row for c in streamed])
                assert_written_alike(table, list(scan.chunks(str(name), 3)))
    finally:
        database.run("SET GLOBAL binlog_row_metadata = NO_LOG")


@hypothesis_settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.integers(-3_020_399_000_000, 3_020_399_999_999),
            st.datetimes(datetime(1000, 1, 1)),
            st.decimals(-(10**17), 10**17, places=4),
            st.one_of(st.uuids(version=1), st.uuids(version=4)),
            st.ip_addresses(v=6),
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
            st.binary(max_size=20),
            st.integers(0, 2**64 - 1),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_values_of_any_size_are_those_of_the_stream(
    database: Database, tmp_path: Path, rows: list[tuple[Any, ...]]
) -> None:
    database.run(
        "SET sql_mode = 'STRICT_ALL_TABLES'",
        "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, d DOUBLE, f FLOAT, h TIME(6),"
        " m DATETIME(6), n DECIMAL(40,4), u UUID, i INET6, v VARCHAR(20),"
        " b VARBINARY(20), s BIT(64))",
    )
    settings = watching(database, tmp_path, "t")
    with opened(settings) as source, scanning(settings) as scan:
        for number, (double, single, micros, moment, amount, uuid, address, *rest) in enumerate(
            rows
        ):
            took = f"SEC_TO_TIME({micros // 1_000_000}) + INTERVAL {micros % 1_000_000} MICROSECOND"
            values = (number, double, single, moment, amount, uuid, address, *rest)
            query = f"INSERT INTO t VALUES (%s, %s, %s, {took}, %s, %s, %s, %s, %s, %s, %s)"
            texts = tuple(str(v) if v in (uuid, address) else v for v in values)
            database.run(query, args=texts)
        streamed = [change.row for change in read_changes(source, len(rows))]
        name = str(settings.sources[0])
        found = all_rows(scan.chunks(name, 7))
        assert found == streamed
        assert encoded(scan.table(name), found) == encoded(scan.table(name), streamed)
        assert_written_alike(scan.table(name), list(scan.chunks(name, 7)))


@pytest.mark.parametrize("kind", KEYS)
def test_every_row_comes_once_and_in_key_order_whatever_the_key(
    database: Database, tmp_path: Path, kind: str
) -> None:
    keys = make_keyed(database, kind)
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    names = ", ".join(part.split()[0] for part in KEYS[kind][0].split(", "))
    with scanning(settings) as scan:
        fill_keyed(database, keys)
        assert scan.is_chunked(name) is (kind not in UNORDERED)
        order = f" ORDER BY {names}" if kind not in UNORDERED else ""
        wanted = [v for (v,) in database.run(f"SELECT v FROM t{order}")]
        for size in (1, 2, len(keys), 100):
            chunks = list(scan.chunks(name, size))
            found = [row["v"] for row in all_rows(iter(chunks))]
            assert found == wanted if order else sorted(found) == sorted(wanted)
            assert all(len(chunk.rows) == size for chunk in chunks[:-1])
            assert [chunk.resume is None for chunk in chunks] == [False] * (len(chunks) - 1) + [
                True
            ]
            assert len({id(chunk.table) for chunk in chunks}) == 1


@pytest.mark.parametrize("kind", sorted(KEYS.keys() - UNORDERED))
def test_reading_goes_on_after_any_chunk_by_the_primary_key_s_index(
    database: Database, tmp_path: Path, kind: str
) -> None:
    keys = make_keyed(database, kind)
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    fill_keyed(database, keys)
    found: list[int] = []
    resume: str | None = None
    while True:
        with scanning(settings) as scan:
            chunk = next(scan.chunks(name, 1, resume))
            explained = explain(database, scan, name, resume)
        found += [row["v"] for row in chunk.rows]
        assert explained["key"] == "PRIMARY"
        assert explained["type"] == ("range" if resume else "index")
        assert "filesort" not in explained["Extra"]
        resume = chunk.resume
        if resume is None:
            break
    assert sorted(found) == list(range(len(keys)))


@pytest.mark.parametrize("kind", ["tinyint", "zerofill", "bigint", "bigint unsigned"])
def test_ranges_of_an_integer_key_have_every_row_once(
    database: Database, tmp_path: Path, kind: str
) -> None:
    keys = make_keyed(database, kind)
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    with scanning(settings) as scan:
        assert scan.key_range(name) is None  # there is no row
        fill_keyed(database, keys)
        whole = scan.key_range(name)
        assert whole == (min(map(int, keys)), max(map(int, keys)))
        for size in (1, 2, 100):
            parts = [list(scan.chunks_within(name, size, part)) for part in whole.split(3)]
            found = [row["v"] for part in parts for row in all_rows(iter(part))]
            assert found == [v for (v,) in database.run("SELECT v FROM t ORDER BY k")]
            assert all(len(c.rows) <= size for part in parts for c in part)
            assert all(part[-1].resume is None for part in parts)


@pytest.mark.parametrize("kind", ["decimal", "composite", "year", "varchar bin"])
def test_another_key_has_no_ranges(database: Database, tmp_path: Path, kind: str) -> None:
    fill_keyed(database, make_keyed(database, kind))
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    with scanning(settings) as scan:
        assert scan.key_range(name) is None
        with pytest.raises(SourceStoppedError, match="not one integer"):
            next(scan.chunks_within(name, 10, KeyRange(0, 1)))


def explain(
    database: Database, scan: MysqlTableScan, name: str, resume: str | None
) -> dict[str, Any]:
    """Return what the server says of the query of a chunk."""
    reading = scan._read_now(name)
    with closing(connect(database.server)) as connection, connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + reading.select(scan._condition(reading, resume), 2))
        (row,) = cursor.fetchall()
        return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


def test_a_chunk_reads_its_own_rows_only_though_the_key_begins_alike(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE t (a INT, b VARCHAR(20), c INT, v INT, PRIMARY KEY(a, b, c))",
        "INSERT INTO t SELECT 1, CONCAT('é', seq DIV 10), seq MOD 10, seq FROM seq_1_to_20000",
    )
    settings = watching(database, tmp_path, "t")
    with scanning(settings) as scan:
        chunks = scan.chunks(str(settings.sources[0]), 500)
        counts = []
        for _ in range(20):
            before = rows_touched(scan)
            next(chunks)
            counts.append(rows_touched(scan) - before)
        chunks.close()
    assert max(counts) < 600


def rows_touched(scan: MysqlTableScan) -> int:
    status = scan._query(scan._connected(), "SHOW STATUS LIKE 'Handler_read%'")
    # What SHOW itself reads is counted as reads of a whole temporary table.
    return sum(int(value) for name, value in status if name != b"Handler_read_rnd_next")


@pytest.mark.parametrize(
    "key",
    ["PRIMARY KEY(k(3))", "PRIMARY KEY(id DESC)", "PRIMARY KEY(id, k DESC)", "UNIQUE(id)", ""],
)
def test_a_table_without_an_order_to_resume_in_is_one_consistent_read(
    database: Database, tmp_path: Path, key: str
) -> None:
    database.run(
        f"CREATE TABLE t (id INT, k VARCHAR(9) NOT NULL{', ' + key if key else ''})",
        "INSERT INTO t SELECT seq, seq FROM seq_1_to_999",
    )
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    with scanning(settings) as scan:
        assert not scan.is_chunked(name)
        pieces = scan.chunks(name, 100)
        first = next(pieces)
        # What is committed now is not in it.
        database.run("DELETE FROM t WHERE id > 500")
        rest = list(pieces)
        assert [c.resume for c in (first, *rest)] == [""] * 9 + [None]
        assert len(all_rows(iter([first, *rest]))) == 999
        assert len(all_rows(scan.chunks(name, 100, resume=""))) == 500


def test_a_read_that_is_given_up_leaves_nothing_and_the_next_one_is_whole(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE loose (k INT, v TEXT)", "CREATE TABLE t (id INT PRIMARY KEY)",
        "INSERT INTO loose SELECT seq, REPEAT('x', 5000) FROM seq_1_to_5000",
        "INSERT INTO t SELECT seq FROM seq_1_to_5",
    )  # fmt: skip
    settings = watching(database, tmp_path, "loose", "t")
    loose, keyed = map(str, settings.sources)
    with scanning(settings) as scan:
        pieces, chunks = scan.chunks(loose, 10), scan.chunks(keyed, 2)
        assert len(next(pieces).rows) == 10
        # While a table streams, others can be asked for.
        assert len(next(chunks).rows) == 2
        assert scan.visible_scn() <= scan.newest_scn()
        pieces.close()
        chunks.close()
        assert len(all_rows(scan.chunks(loose, 1000))) == 5000
        # Nothing of it holds the table.
        database.run("SET lock_wait_timeout = 5", "ALTER TABLE loose ADD COLUMN w INT")


def test_an_empty_table_is_one_chunk_without_rows(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE loose (id INT)")
    settings = watching(database, tmp_path, "t", "loose")
    with scanning(settings) as scan:
        for name in map(str, settings.sources):
            (chunk,) = scan.chunks(name, 10)
            assert (list(chunk.rows), chunk.resume, chunk.table.source) == ([], None, name)
            assert scan.estimate_rows(name) == 0


def test_a_table_altered_between_chunks_comes_as_a_new_object(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v INT)")
    database.run("INSERT INTO t SELECT seq, seq FROM seq_1_to_8")
    settings = watching(database, tmp_path, "t")
    with scanning(settings) as scan:
        chunks = scan.chunks(str(settings.sources[0]), 2)
        first = next(chunks)
        # Neither rows nor what is no column's business make it another table.
        database.run("INSERT INTO t VALUES (NULL, 9)", "ALTER TABLE t COMMENT 'new', ADD INDEX(v)")
        second = next(chunks)
        assert second.table is first.table
        database.run("ALTER TABLE t ADD COLUMN w VARCHAR(5) DEFAULT 'é' FIRST")
        third = next(chunks)
        assert [dict(row) for row in third.rows] == [{"w": "é", "id": n, "v": n} for n in (5, 6)]
        assert [column.name for column in third.table.columns] == ["w", "id", "v"]
        database.run("ALTER TABLE t MODIFY v VARCHAR(9)")
        assert [row["v"] for row in next(chunks).rows] == ["7", "8"]


@pytest.mark.parametrize(
    "change",
    [
        "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "DROP PRIMARY KEY, ADD PRIMARY KEY(v)",
        "DROP PRIMARY KEY",
        "DROP PRIMARY KEY, ADD PRIMARY KEY(k(1))",
    ],
)
def test_reading_begins_anew_when_the_order_of_the_key_is_another_one(
    database: Database, tmp_path: Path, change: str
) -> None:
    database.run(
        "CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, v INT NOT NULL)",
        "INSERT INTO t VALUES ('a', 6), ('B', 5), ('c', 4), ('D', 3), ('e', 2)",
    )
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    with scanning(settings) as scan:
        chunks = scan.chunks(name, 2)
        assert [row["k"] for row in next(chunks).rows] == ["a", "B"]
        database.run(f"ALTER TABLE t {change}")
        assert sorted(row["k"] for row in all_rows(chunks)) == ["B", "D", "a", "c", "e"]


def test_every_chunk_fits_its_table_while_somebody_alters_it_all_the_time(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT DEFAULT 1)",
        "INSERT INTO t (id) SELECT seq FROM seq_1_to_300",
    )
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    stop = threading.Event()
    thread = threading.Thread(target=alter_on, args=(database, stop))
    thread.start()
    tables = set()
    try:
        with scanning(settings) as scan:
            for _ in range(3):
                found = []
                for chunk in scan.chunks(name, 5):
                    tables.add(chunk.table)
                    encoded(chunk.table, chunk.rows)  # raises when they do not fit
                    found += [row["id"] for row in chunk.rows]
                assert found == list(range(1, 301))
    finally:
        stop.set()
        thread.join()
    assert len(tables) > 1


def alter_on(database: Database, stop: threading.Event) -> None:
    with closing(connect(database.server, database=database.name)) as connection:
        while not stop.is_set():
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE t MODIFY v VARCHAR(9) DEFAULT 'x', ADD COLUMN w INT")
                cursor.execute("ALTER TABLE t MODIFY v INT DEFAULT NULL, DROP COLUMN w")


@pytest.mark.parametrize(
    ("sql_type", "literal", "shown"),
    [
        ("DATE", "'0000-00-00'", "0000-00-00"),
        ("DATE", "'2020-00-15'", "2020-00-15"),
        ("DATETIME(3)", "'2020-01-00 00:00:00.5'", "2020-01-00 00:00:00.500"),
        ("TIMESTAMP(6)", "0", "0000-00-00 00:00:00.000000"),
    ],
)
def test_a_date_that_is_none_stops_or_is_null_as_the_settings_say(
    database: Database, tmp_path: Path, sql_type: str, literal: str, shown: str
) -> None:
    database.run(
        "SET sql_mode = ''", f"CREATE TABLE t (a INT, b INT, v {sql_type}, PRIMARY KEY(a, b))",
        f"INSERT INTO t VALUES (1, 1, '2024-01-01'), (1, 2, {literal})",
    )  # fmt: skip
    strict, lenient = (
        watching(database, tmp_path, "t", zero_dates=choice) for choice in ("stop", "null")
    )
    name = str(strict.sources[0])
    with scanning(lenient) as scan:
        assert all_rows(scan.chunks(name, 10))[1] == {"a": 1, "b": 2, "v": None}
    with scanning(strict) as scan:
        problem = (
            rf"table {name}, key \(1, 2\): column 'v' .*: {shown} is not a valid date.*\"null\""
        )
        with pytest.raises(SourceStoppedError, match=problem):
            all_rows(scan.chunks(name, 10))


def test_a_zero_date_in_the_key_is_a_place_to_go_on_after(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "SET sql_mode = ''", "CREATE TABLE t (d DATE, n INT, PRIMARY KEY(d, n))",
        "INSERT INTO t VALUES ('0000-00-00', 1), ('0000-00-00', 2), ('2020-00-00', 3),"
        " ('2024-01-01', 4)",
    )  # fmt: skip
    settings = watching(database, tmp_path, "t", zero_dates="null")
    with scanning(settings) as scan:
        found = all_rows(scan.chunks(str(settings.sources[0]), 1))
    assert [row["n"] for row in found] == [1, 2, 3, 4]


def test_a_table_of_a_pattern_that_was_dropped_has_no_rows_and_one_that_is_hidden_stops(
    database: Database, tmp_path: Path
) -> None:
    source, other = f"{database.name}.t", f"{database.name}.other"
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    settings = watching(database, tmp_path, "x").only([]).with_found([source, other])
    with scanning(settings) as scan:
        assert (scan.is_chunked(source), scan.is_chunked(other)) == (True, False)
        assert (scan.estimate_rows(other), all_rows(scan.chunks(other, 1))) == (0, [])
        chunks = scan.chunks(source, 1)
        next(chunks)
        database.run("DROP TABLE t")
        with pytest.raises(SourceUnavailableError, match=f"{source} was dropped just now"):
            next(chunks)
    with scanning(settings.only([source])) as scan:
        assert all_rows(scan.chunks(source, 1)) == []
        database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (4)")
        assert all_rows(scan.chunks(source, 1)) == [{"id": 4}]
    user = "few@'127.0.0.1'"
    database.run(f"CREATE USER {user}", f"GRANT REPLICATION SLAVE ON *.* TO {user}")
    try:
        hidden = settings.model_copy(update={"uri": settings.uri.replace("databus@", "few@")})
        hidden = hidden.model_copy(update={"password_file": None})
        refused = pytest.raises(SourceStoppedError, match=r"SELECT command denied")
        with refused, scanning(hidden.only([source])):
            pass
    finally:
        database.run(f"DROP USER {user}")


def test_a_table_that_is_missing_stops_at_open_and_between_chunks(
    database: Database, tmp_path: Path
) -> None:
    settings = watching(database, tmp_path, "t")
    with pytest.raises(SourceStoppedError, match="does not exist"), scanning(settings):
        pass
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    with scanning(settings) as scan:
        chunks = scan.chunks(str(settings.sources[0]), 1)
        next(chunks)
        database.run("DROP TABLE t")
        with pytest.raises(SourceStoppedError, match="does not exist"):
            next(chunks)


def test_a_lost_connection_is_unavailable_and_another_open_cures_it(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    with scanning(settings) as scan:
        chunks = scan.chunks(name, 2)
        first = next(chunks)
        for (thread,) in database.run(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"
            " AND user = 'databus'"
        ):
            database.run(f"KILL {thread}")
        with pytest.raises(SourceUnavailableError):
            next(chunks)
        with pytest.raises(SourceUnavailableError):
            scan.newest_scn()
        scan.open()
        assert all_rows(scan.chunks(name, 2, first.resume)) == [{"id": 3}]
    with pytest.raises(SourceUnavailableError, match="not open"):
        scan.visible_scn()


def test_only_statements_that_lock_and_write_nothing_are_sent(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE loose (id INT)",
        "INSERT INTO t SELECT seq FROM seq_1_to_10", "INSERT INTO loose SELECT 1",
        "SET GLOBAL log_output = 'TABLE'", "TRUNCATE mysql.general_log",
        "SET GLOBAL general_log = ON",
    )  # fmt: skip
    settings = watching(database, tmp_path, "t", "loose")
    (own,) = database.run("SELECT CONNECTION_ID()")[0]
    try:
        with scanning(settings) as scan:
            for name in map(str, settings.sources):
                scan.estimate_rows(name)
                list(scan.chunks(name, 3))
            scan.visible_scn()
            scan.newest_scn()
    finally:
        database.run("SET GLOBAL general_log = OFF")
    logged = database.run(
        "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log"
        f" WHERE command_type IN ('Query', 'Execute') AND thread_id <> {own}"
    )
    sent = [statement.strip().upper() for (statement,) in logged]
    allowed = ("SELECT ", "SHOW ", "SET SESSION ", "START TRANSACTION", "COMMIT")
    # The driver's own, for the connection that it opens.
    driver = ("SET NAMES UTF8MB4", "SET AUTOCOMMIT = 1")
    assert len(sent) > 20
    assert [s for s in sent if not s.startswith(allowed) and s not in driver] == []
    assert [s for s in sent if "FOR UPDATE" in s or "SHARE MODE" in s or "_LOCK(" in s] == []


def write_on(database: Database, first_id: int, stop: threading.Event) -> None:
    with closing(connect(database.server, database=database.name)) as connection:
        number = first_id
        while not stop.is_set():
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO t VALUES (%s)", (number,))
            number += 1


@contextmanager
def writers(database: Database, count: int) -> Iterator[None]:
    """Insert rows of their own from several threads for the length of a `with`."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=write_on, args=(database, n * 1_000_000, stop))
        for n in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("way", "times"), [("visible_scn", 100), ("_end_of_what_is_visible", 8)])
def test_whatever_is_up_to_the_visible_scn_is_there_to_be_read(
    database: Database, tmp_path: Path, way: str, times: int
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)")
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    seen: list[tuple[int, set[int]]] = []
    with opened(settings) as source:
        with scanning(settings) as scan:
            with writers(database, 4):
                for _ in range(times):
                    scn = getattr(scan, way)()
                    rows = all_rows(scan.chunks(name, 100_000))
                    seen.append((scn, {row["id"] for row in rows}))
            newest = scan.newest_scn()
        scns = {
            change.row["id"]: transaction.scn
            for transaction in read_to_scn(source, newest)
            for change in transaction.changes
        }
    assert len({scn for scn, _ in seen}) > times // 4
    for scn, ids in seen:
        missing = {number for number, at in scns.items() if at <= scn} - ids
        assert missing == set()
    # All that was read is in the log up to what is the newest after reading.
    assert {number for _, ids in seen for number in ids} <= scns.keys()


def test_the_visible_scn_is_that_of_the_newest_commit_on_a_quiet_server(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)")
    settings = watching(database, tmp_path, "t", epoch=3)
    with scanning(settings) as scan, opened(settings) as source:
        for number in range(3):
            database.run(f"INSERT INTO t VALUES ({number})")
            newest = scan.newest_scn()
            assert scan.visible_scn() == scan._end_of_what_is_visible() == newest
            assert read_to_scn(source, newest)[-1].scn == newest
            database.run("FLUSH BINARY LOGS")
            wait_for_binlog_checkpoint(database)


def wait_for_binlog_checkpoint(database: Database) -> None:
    """Wait until a new log file has the event that says so: a thread of the server writes it."""
    end_s = time.monotonic() + 60
    while True:
        (newest, *_), *_ = database.run("SHOW MASTER STATUS")
        events = database.run(f"SHOW BINLOG EVENTS IN '{newest}'")
        if any(event[2] == "Binlog_checkpoint" and event[5] == newest for event in events):
            return
        assert time.monotonic() < end_s, events
        time.sleep(0.01)


class Clock:
    """A clock of steps: a pause is one, and lets the server renew its list of transactions."""

    def __init__(self, database: Database, on_pause: dict[int, Any]) -> None:
        self.now = 0.0
        self.step_s = 0.1
        self.pauses = 0
        self._database = database
        self._on_pause = on_pause

    def __call__(self) -> float:
        return self.now

    def pause(self, _wait_s: float) -> None:
        self.now += self.step_s
        self.pauses += 1
        # It does not as long as it is asked for it all the time.
        self._database.run("DO SLEEP(0.15)")
        self._on_pause.get(self.pauses, lambda: None)()


def test_without_a_snapshot_s_position_open_writers_are_waited_for_and_readers_not(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    settings = watching(database, tmp_path, "t")
    with (
        closing(connect(database.server, database=database.name)) as writer,
        closing(connect(database.server, database=database.name)) as reader,
    ):
        clock = Clock(database, {4: writer.commit})
        with scanning(settings, clock=clock, pause=clock.pause) as scan:
            reader.begin()
            reader.cursor().execute("SELECT * FROM t")
            writer.begin()
            writer.cursor().execute("INSERT INTO t VALUES (2)")
            scn = scan.newest_scn()
            assert scan._end_of_what_is_visible() == scn
            assert 4 <= clock.pauses < 10
            clock.step_s = 25.0
            writer.begin()
            writer.cursor().execute("INSERT INTO t VALUES (3)")
            (thread,) = selected_one(writer, "SELECT CONNECTION_ID()")
            with pytest.raises(SourceUnavailableError, match=f"connections {thread} have been"):
                scan._end_of_what_is_visible()
            writer.rollback()


def selected_one(connection: Connection[Any], query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()


def test_missing_grants_are_named(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    settings = watching(database, tmp_path, "t")
    name = str(settings.sources[0])
    poor = settings.model_copy(update={"uri": settings.uri.replace("databus@", "poor@")})
    try:
        database.run(
            f"CREATE USER poor@'%' IDENTIFIED BY '{database.server.password}'",
            f"GRANT SELECT ON {database.name}.t TO poor@'%'",
        )
        with scanning(poor) as scan:
            # A snapshot and its position need none.
            assert scan.visible_scn() > 0
            assert all_rows(scan.chunks(name, 10)) == [{"id": 1}]
            with pytest.raises(SourceStoppedError, match="GRANT REPLICATION SLAVE, REPLICATION CL"):
                scan.newest_scn()
            database.run("GRANT BINLOG MONITOR ON *.* TO poor@'%'")
        grant = r"GRANT PROCESS ON \*\.\*"
        with scanning(poor) as scan, pytest.raises(SourceStoppedError, match=grant):
            scan._end_of_what_is_visible()
    finally:
        database.run("DROP USER poor@'%'")
