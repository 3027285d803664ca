"""MariaDB from 11.4 on, in whose log the events inside a transaction do not say where they end.

Only those that begin and end a transaction do, unless `binlog_legacy_event_pos` is
on. Nothing that the relay delivers may depend on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from databus.schemas.errors import SourceStoppedError
from databus.schemas.scn import binlog_position
from tests.mariadb_server import Database, connect
from tests.relay.sources.mysql.reading import opened, read_changes, read_full, watching

pytest_plugins = ["tests.mariadb"]
pytestmark = [pytest.mark.newer_mariadb, pytest.mark.usefixtures("both_ways")]

_numbers = itertools.count(1)


@pytest.fixture(params=["OFF", "ON"])
def shop(newer_mariadb: PrivateMariaDB, request: pytest.FixtureRequest) -> Iterator[Database]:
    """Tables of two engines, in a log that has all positions or only some."""
    connection = connect(newer_mariadb)
    try:
        name = f"n{next(_numbers)}"
        database = Database(newer_mariadb, name, connection)
        database.run(
            f"CREATE DATABASE {name} CHARACTER SET utf8mb4",
            f"USE {name}",
            f"SET GLOBAL binlog_legacy_event_pos = {request.param}",
            "CREATE TABLE a (id INT PRIMARY KEY, v TEXT)",
            "CREATE TABLE plain (id INT PRIMARY KEY) ENGINE = MyISAM",
        )
        yield database
        database.run(f"DROP DATABASE {name}", "SET GLOBAL binlog_legacy_event_pos = OFF")
    finally:
        connection.close()


def last_end(database: Database) -> tuple[str, int]:
    """Return where the last transaction of the log ends; other events may follow it."""
    (name, *_) = database.run("SHOW MASTER STATUS")[0]
    events = database.run(f"SHOW BINLOG EVENTS IN '{name}'")
    return name, [row[4] for row in events if row[2] in ("Xid", "Query")][-1]


def test_transactions_end_where_the_server_says_and_can_be_resumed_at_each(
    shop: Database, tmp_path: Path
) -> None:
    settings = watching(shop, tmp_path, "a", "plain")
    ends = []
    with opened(settings) as source:
        for statements in (
            ["INSERT INTO a VALUES (1, 'x'), (2, 'y')"],
            ["BEGIN", "UPDATE a SET v = 'z'", "INSERT INTO a VALUES (3, 'w')", "COMMIT"],
            ["INSERT INTO plain VALUES (5), (6)"],
            ["ALTER TABLE a ADD COLUMN n INT DEFAULT 7", "DELETE FROM a WHERE id = 1"],
            ["FLUSH BINARY LOGS", "INSERT INTO a SELECT seq, 'many', 1 FROM seq_10_to_5000"],
        ):
            shop.run(*statements)
            ends.append(last_end(shop))
        found = read_full(source, 5)
    places = [binlog_position(t.scn) for t in found]
    assert [(f"binlog.{p.file_number:06}", p.offset) for p in places] == ends
    assert [len(t.changes) for t in found] == [2, 3, 2, 1, 4991]
    for place, seen in enumerate(found[2:-1], 3):
        with opened(settings, seen.scn) as source:
            assert read_full(source, 5 - place) == found[place:]


def test_a_stop_names_a_place_that_can_be_passed(shop: Database, tmp_path: Path) -> None:
    settings = watching(shop, tmp_path, "a")
    with opened(settings) as source:
        shop.run(
            "INSERT INTO a VALUES (1, 'x')",
            "SET STATEMENT binlog_format = 'STATEMENT' FOR DELETE FROM a",
            "INSERT INTO a VALUES (2, '')",
        )
        assert read_changes(source, 1)[0].row["id"] == 1
        with pytest.raises(SourceStoppedError, match="statement format") as caught:
            read_full(source, 1)
    number = int(str(caught.value).split("acknowledged_scns = [")[1].split("]")[0])
    again = settings.model_copy(update={"acknowledged_scns": (number,)})
    with opened(again, caught.value.scn) as source:
        assert read_changes(source, 1)[0].row["id"] == 2
