"""System-versioned tables: the current rows' changes, and nothing of the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database, fresh_database
from tests.relay.sources.mysql.encoded import encoded
from tests.relay.sources.mysql.reading import Seen, opened, read_seen, watching

pytest_plugins = ["tests.mariadb"]

_PERIOD = (
    "s TIMESTAMP(6) GENERATED ALWAYS AS ROW START INVISIBLE,"
    " e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)"
)
KINDS = {
    "own columns of the server": "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
    "declared columns": f"(id INT PRIMARY KEY, v INT, {_PERIOD}) WITH SYSTEM VERSIONING",
    "declared in front": f"({_PERIOD}, id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
    "partitions": "(id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING"
    " PARTITION BY SYSTEM_TIME (PARTITION p HISTORY, PARTITION n CURRENT)",
    "no key": "(id INT, v INT) WITH SYSTEM VERSIONING",
    "a column that is left out": "(id INT PRIMARY KEY, v INT, w INT DEFAULT 4"
    " WITHOUT SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
}
SERVERS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("newer_mariadb", marks=pytest.mark.newer_mariadb),
]


@pytest.fixture(scope="module", params=SERVERS)
def running(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["NO_LOG", "FULL"])
def shop(running: PrivateMariaDB, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A fresh database on a server that logs names of columns, or does not."""
    with fresh_database(running) as database:
        database.run(f"SET GLOBAL binlog_row_metadata = {request.param}")
        yield database
        database.run("SET GLOBAL binlog_row_metadata = NO_LOG")


def told(seen: list[Seen]) -> list[tuple[str, Any, Any]]:
    return [(c.op.value, c.row["id"], c.row.get("v", "absent")) for c in seen]


@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_current_rows_are_delivered_and_their_history_is_not(
    shop: Database, tmp_path: Path, kind: str
) -> None:
    shop.run(f"CREATE TABLE t {KINDS[kind]}")
    settings = watching(shop, tmp_path, "t")
    with opened(settings) as source, encoded(settings) as ring:
        shop.run(
            "INSERT INTO t (id, v) VALUES (1, 1), (2, 2)",
            "UPDATE t SET v = 10 WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 2",
            "DELETE FROM t WHERE id = 1",
            "DELETE HISTORY FROM t",
            "INSERT INTO t (id, v) VALUES (1, 5)",
            "DELETE FROM t ORDER BY id",
        )
        count = 9 if kind == "no key" else 8
        seen = read_seen(source, count)
        assert ring.read_seen(count) == seen
        columns = [column.name for column in source.tables()[0].columns]
    moved = [("delete", 2, 2), ("insert", 3, 2)]
    changed = [("update", 1, 10)]
    if kind == "no key":  # where any change makes another row of it
        changed = [("delete", 1, 1), ("insert", 1, 10)]
    assert told(seen) == [
        ("insert", 1, 1), ("insert", 2, 2), *changed, *moved, ("delete", 1, 10),
        ("insert", 1, 5), ("delete", 1, 5), ("delete", 3, 2),
    ]  # fmt: skip
    assert all(list(change.row) == columns for change in seen)
    assert "row_end" not in columns


def test_an_update_says_what_was_before_and_a_replaced_row_is_replaced(
    shop: Database, tmp_path: Path
) -> None:
    shop.run(f"CREATE TABLE t {KINDS['own columns of the server']}")
    with opened(watching(shop, tmp_path, "t")) as source:
        shop.run(
            "INSERT INTO t VALUES (1, 1)",
            "INSERT INTO t VALUES (1, 7) ON DUPLICATE KEY UPDATE v = 2",
        )
        seen = read_seen(source, 2)
        assert told(seen) == [("insert", 1, 1), ("update", 1, 2)]
        assert seen[1].before == {"id": 1, "v": 1}
        shop.run("REPLACE INTO t VALUES (1, 3)")
        # A delete and an insert, or an update, as the server has it.
        assert told(read_seen(source, 1))[-1][1:] == (1, 3)


@pytest.mark.parametrize("kind", ["own columns of the server", "declared columns", "no key"])
def test_minimal_images_say_enough(shop: Database, tmp_path: Path, kind: str) -> None:
    shop.run(f"CREATE TABLE t {KINDS[kind]}", "SET binlog_row_image = MINIMAL")
    with opened(watching(shop, tmp_path, "t", partial_rows="deliver")) as source:
        shop.run(
            "INSERT INTO t (id, v) VALUES (1, 1)",
            "UPDATE t SET v = 10 WHERE id = 1",
            "DELETE FROM t",
        )
        seen = read_seen(source, 4 if kind == "no key" else 3)
    last = seen[-1]
    if kind == "no key":
        assert told(seen)[1:] == [("delete", 1, 1), ("insert", 1, 10), ("delete", 1, 10)]
    else:
        assert told(seen) == [("insert", 1, 1), ("update", 1, 10), ("delete", 1, "absent")]
        assert 1 in last.notes.absent
        assert seen[1].before is not None
        assert "v" not in seen[1].before


def test_columns_can_be_added_and_versioning_itself(shop: Database, tmp_path: Path) -> None:
    shop.run(
        "SET system_versioning_alter_history = KEEP", "CREATE TABLE t (id INT PRIMARY KEY, v INT)"
    )
    with opened(watching(shop, tmp_path, "t")) as source:
        shop.run("INSERT INTO t VALUES (1, 1)", "ALTER TABLE t ADD SYSTEM VERSIONING")
        found = read_seen(source, 1)
        shop.run(
            "UPDATE t SET v = 2",
            "ALTER TABLE t ADD COLUMN at TIMESTAMP(6) NOT NULL DEFAULT '2001-01-01'",
        )
        found += read_seen(source, 1)
        shop.run("UPDATE t SET v = 3", "ALTER TABLE t DROP SYSTEM VERSIONING")
        found += read_seen(source, 1)
        shop.run("UPDATE t SET v = 4")
        found += read_seen(source, 1)
    assert told(found) == [("insert", 1, 1), ("update", 1, 2), ("update", 1, 3), ("update", 1, 4)]
    assert [len(change.row) for change in found] == [2, 2, 3, 3]
