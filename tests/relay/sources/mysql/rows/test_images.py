"""Row images that lack columns: what is refused, what is delivered, and what is said of it.

That nothing but what an image left out is absent is tested for every type in
`test_mysql_every_type`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.metadata import Notes
from databus.schemas.table_change import describes
from databus.schemas.table_schema import avro_schema
from tests.mariadb_server import Database, fresh_database
from tests.relay.sources.mysql.encoded import encoded
from tests.relay.sources.mysql.reading import opened, read_changes, read_seen, watching
from tests.relay.sources.mysql.test_table_scan import assert_written_alike, scanning

pytest_plugins = ["tests.mariadb", "tests.mysql"]


@pytest.fixture
def shop(database: Database) -> Database:
    """A table with defaults and generated columns, written to with minimal images."""
    database.run(
        "CREATE TABLE t (id INT NOT NULL DEFAULT 7 PRIMARY KEY, v INT DEFAULT 3,"
        " g INT AS (v + 1) VIRTUAL, s INT AS (v + 2) STORED, w TEXT, i INT DEFAULT 9 INVISIBLE)",
        "SET binlog_row_image = MINIMAL",
    )
    return database


@pytest.mark.mariadb
def test_what_an_image_lacks_is_absent_and_an_update_keeps_what_it_did_not_change(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "t", partial_rows="deliver")
    with opened(settings) as source, encoded(settings) as ring:
        shop.run("SET binlog_row_image = FULL", "INSERT INTO t (id, w) VALUES (1, 'x')")
        (whole,) = read_seen(source, 1)
        shop.run("SET binlog_row_image = NOBLOB", "UPDATE t SET i = 10")
        (without_blob,) = read_seen(source, 1)
        shop.run("SET binlog_row_image = MINIMAL", "UPDATE t SET i = NULL")
        (minimal,) = read_seen(source, 1)
        assert ring.read_seen(3) == [whole, without_blob, minimal]
    assert whole.row == {"id": 1, "v": 3, "g": 4, "s": 5, "w": "x", "i": 9}
    assert whole.notes == Notes()
    assert without_blob.row == {"id": 1, "v": 3, "g": 4, "s": 5, "i": 10}
    assert without_blob.notes.absent == without_blob.notes.before_absent == (4,)
    # The server writes stored columns that are generated whether or not they changed.
    assert minimal.row == {"id": 1, "s": 5, "i": None}
    assert minimal.before == {"id": 1}
    assert minimal.notes == Notes((1, 2, 4), (1, 2, 3, 4, 5))


@pytest.mark.mariadb
def test_a_row_under_another_key_is_deleted_and_inserted_each_with_notes_of_its_own(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("INSERT INTO t (id) VALUES (1)")
    with opened(watching(shop, tmp_path, "t", partial_rows="deliver")) as source:
        shop.run("UPDATE t SET id = 2, w = 'y'")
        deleted, inserted = read_seen(source, 2)
    assert (deleted.op.value, deleted.row) == ("delete", {"id": 1})
    assert deleted.notes == Notes((1, 2, 3, 4, 5))
    assert (inserted.op.value, inserted.row) == ("insert", {"id": 2, "s": 5, "w": "y"})
    assert inserted.notes == Notes((1, 2, 5))


@pytest.mark.mariadb
def test_a_row_without_its_key_stops(shop: Database, tmp_path: Path) -> None:
    settings = watching(shop, tmp_path, "t", partial_rows="deliver")
    with opened(settings) as source, encoded(settings) as ring:
        shop.run("INSERT INTO t (v) VALUES (1)")
        with pytest.raises(SourceStoppedError, match="row image lacks id, of the key"):
            read_seen(source, 1)
        with pytest.raises(SourceStoppedError, match="row image lacks id, of the key"):
            ring.read_seen(1)


@pytest.mark.mariadb
def test_a_row_of_a_table_without_a_key_is_all_there_or_stops(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE t (a INT, b TEXT)",
        "CREATE TABLE u (a INT NOT NULL UNIQUE, b TEXT)",
        "SET binlog_row_image = MINIMAL",
    )
    settings = watching(database, tmp_path, "t", "u", partial_rows="deliver")
    with opened(settings) as source, encoded(settings) as ring:
        database.run("INSERT INTO t VALUES (1, 'x')", "UPDATE t SET a = 2")
        assert [change.row for change in read_seen(source, 3)][1:] == [
            {"a": 1, "b": "x"}, {"a": 2, "b": "x"},
        ]  # fmt: skip
        database.run("INSERT INTO u (a) VALUES (1)")
        with pytest.raises(SourceStoppedError, match="lacks b, and the table has no primary key"):
            read_seen(source, 1)
        with pytest.raises(SourceStoppedError, match="lacks b, and the table has no primary key"):
            ring.read_seen(4)


@pytest.mark.mariadb
def test_the_servers_own_setting_is_refused_or_taken_as_the_settings_say(
    shop: Database, tmp_path: Path
) -> None:
    shop.run("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        with (
            pytest.raises(SourceStoppedError, match="binlog_row_image"),
            opened(watching(shop, tmp_path, "t")),
        ):
            pass
        with opened(watching(shop, tmp_path, "t", partial_rows="deliver")):
            pass
    finally:
        shop.run("SET GLOBAL binlog_row_image = FULL")


@pytest.mark.mariadb
def test_a_refused_image_names_the_setting(shop: Database, tmp_path: Path) -> None:
    with opened(watching(shop, tmp_path, "t")) as source:
        shop.run("INSERT INTO t (id) VALUES (1)")
        with pytest.raises(SourceStoppedError, match=r'lacks v.*partial_rows = "deliver"'):
            read_seen(source, 1)


@pytest.mark.mysql
def test_parts_of_json_need_the_value_before(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, j JSON, k JSON, n INT, m JSON)",
        "INSERT INTO t VALUES (1, '[1]', '[1, 2]', 3, '{\"a\": [1, 2]}')",
        "SET binlog_row_value_options = PARTIAL_JSON, binlog_row_image = NOBLOB",
    )
    with opened(watching(mysql_database, tmp_path, "t", partial_rows="deliver")) as source:
        mysql_database.run("UPDATE t SET m = JSON_SET(m, '$.a[1]', 'x'), n = 4")
        (change,) = read_seen(source, 1)
        assert change.row == {"id": 1, "j": "[1]", "k": "[1, 2]", "n": 4, "m": '{"a": [1, "x"]}'}
        mysql_database.run("SET binlog_row_image = MINIMAL", "UPDATE t SET k = '[3]', n = 5")
        (change,) = read_seen(source, 1)
        assert change.row == {"id": 1, "k": "[3]", "n": 5}
        mysql_database.run("UPDATE t SET m = JSON_SET(m, '$.a[1]', 'y')")
        with pytest.raises(SourceStoppedError, match=r"column 'm'.*before-image lacks the value"):
            read_seen(source, 1)


_MEMBERS = "e ENUM('a', '?', '😀'), s SET('x', '😀?') CHARACTER SET utf16"


@pytest.mark.mariadb
def test_members_that_the_catalogue_cannot_say_are_asked_of_the_server(
    database: Database, tmp_path: Path
) -> None:
    database.run(f"CREATE TABLE t (id INT PRIMARY KEY, {_MEMBERS})")
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("INSERT INTO t VALUES (1, 2, 2), (2, 3, 3)")
        assert [change.row for change in read_seen(source, 2)] == [
            {"id": 1, "e": "?", "s": "😀?"}, {"id": 2, "e": "😀", "s": "x,😀?"},
        ]  # fmt: skip


@pytest.mark.mysql
def test_a_scan_has_the_members_that_the_catalogue_cannot_show(
    mysql_database: Database, tmp_path: Path
) -> None:
    columns = "b ENUM('?', 'a') CHARACTER SET binary, g ENUM('😀') CHARACTER SET gb18030"
    mysql_database.run(
        "SET GLOBAL binlog_row_metadata = FULL",
        "SET sql_mode = ''",
        f"CREATE TABLE t (id INT PRIMARY KEY, {_MEMBERS}, {columns})",
    )
    settings = watching(mysql_database, tmp_path, "t")
    try:
        with opened(settings) as source, scanning(settings) as scan:
            mysql_database.run(
                "INSERT INTO t VALUES (1, 3, 3, 1, 1), (2, 2, 0, 2, NULL), (3, '', NULL, 1, 1)"
            )
            changes = read_changes(source, 3)
            (chunk,) = scan.chunks(settings.source_names[0], 10)
    finally:
        mysql_database.run("SET GLOBAL binlog_row_metadata = MINIMAL")
    assert list(chunk.rows) == [change.row for change in changes]
    assert chunk.rows[0] == {"id": 1, "e": "😀", "s": "x,😀?", "b": "?", "g": "😀"}
    assert describes(avro_schema(changes[0].table), avro_schema(chunk.table))
    assert_written_alike(chunk.table, [chunk])


@pytest.mark.mysql
def test_members_that_nobody_says_are_refused_until_the_log_says_them(
    mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.run(f"CREATE TABLE t (id INT PRIMARY KEY, {_MEMBERS})")
    with opened(watching(mysql_database, tmp_path, "t")) as source:
        mysql_database.run("INSERT INTO t VALUES (1, 2, 2)")
        with pytest.raises(SourceStoppedError, match="binlog_row_metadata = FULL"):
            read_seen(source, 1)
    mysql_database.run("SET GLOBAL binlog_row_metadata = FULL")
    try:
        with opened(watching(mysql_database, tmp_path, "t")) as source:
            mysql_database.run("INSERT INTO t VALUES (2, 3, 2)")
            assert read_seen(source, 1)[0].row == {"id": 2, "e": "😀", "s": "😀?"}
    finally:
        mysql_database.run("SET GLOBAL binlog_row_metadata = MINIMAL")


@pytest.mark.mariadb
def test_members_of_bytes_are_the_same_text_with_and_without_metadata(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a', 'ñ') CHARACTER SET binary)",
    )
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("INSERT INTO t VALUES (1, 2)", "SET GLOBAL binlog_row_metadata = FULL")
        try:
            database.run("INSERT INTO t VALUES (2, 2)")
            assert [change.row["e"] for change in read_seen(source, 2)] == ["ñ", "ñ"]
        finally:
            database.run("SET GLOBAL binlog_row_metadata = NO_LOG")


@pytest.mark.mariadb
def test_the_rows_of_sequences_beside_a_table_are_none_of_it(
    database: Database, tmp_path: Path
) -> None:
    database.run(
        "CREATE SEQUENCE q", "CREATE TABLE t (id INT PRIMARY KEY, v INT DEFAULT (NEXTVAL(q)))"
    )
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("SELECT NEXTVAL(q)", "INSERT INTO t (id) VALUES (1)", "SELECT SETVAL(q, 50)")
        database.run("INSERT INTO t (id) VALUES (2)")
        assert [change.row for change in read_seen(source, 2)] == [
            {"id": 1, "v": 2}, {"id": 2, "v": 51},
        ]  # fmt: skip


@pytest.mark.newer_mariadb
def test_an_image_that_leaves_out_what_the_one_before_has_lacks_nothing(
    newer_mariadb: PrivateMariaDB, tmp_path: Path
) -> None:
    with fresh_database(newer_mariadb) as shop:
        shop.run(
            "CREATE TABLE t (id INT PRIMARY KEY, v INT, w TEXT)",
            "INSERT INTO t VALUES (1, 2, 'x')",
            "SET binlog_row_image = FULL_NODUP",
        )
        settings = watching(shop, tmp_path, "t", partial_rows="deliver")
        with opened(settings) as source, encoded(settings) as ring:
            shop.run("UPDATE t SET v = 3")
            (change,) = read_seen(source, 1)
            assert ring.read_seen(1) == [change]
    assert change.row == {"id": 1, "v": 3, "w": "x"}
    assert change.before == {"id": 1, "v": 2, "w": "x"}
    assert change.notes == Notes()
