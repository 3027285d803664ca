"""The GTIDs that a source keeps while it reads are those that its server would tell."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from databus.relay.sources.epochs import Executed, Lineage
from databus.relay.sources.mysql.binlog.gtid_set import MysqlGtidSet, parse_mariadb_position
from databus.relay.sources.mysql.source import MysqlSource
from tests.mariadb_server import Database, prepare_xa
from tests.relay.sources.mysql.encoded import EncodedSource
from tests.relay.sources.mysql.reading import watching

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.both_servers"]


@pytest.fixture
def database(either_database: Database) -> Database:
    either_database.run("CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(20))")
    return either_database


def write(database: Database) -> None:
    """Write transactions of all kinds: what the decoder reads, and what Python reads."""
    for number in range(50):
        database.run(f"INSERT INTO t VALUES ({number}, 'a')")
    database.run("ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t VALUES (50, 'b', 1)")
    database.run("BEGIN", "UPDATE t SET note = 'c' WHERE id < 9", "COMMIT")
    prepare_xa(database, "'x'", "INSERT INTO t VALUES (51, 'd', 2)")
    database.run("XA COMMIT 'x'", "FLUSH BINARY LOGS")
    database.run("CREATE TABLE other (id INT)", "INSERT INTO other VALUES (1)", "DROP TABLE other")
    database.run("DELETE FROM t WHERE id = 3")


def said_by(database: Database) -> object:
    """Return what the server has executed, in a form that can be compared."""
    variable = "gtid_binlog_pos" if is_mariadb(database) else "gtid_executed"
    ((text,),) = database.run(f"SELECT @@GLOBAL.{variable}")
    return parsed(database, str(text))


def parsed(database: Database, text: str | None) -> object:
    assert text is not None
    if is_mariadb(database):
        return parse_mariadb_position(text)
    return dict(MysqlGtidSet.parse(text).intervals)


def is_mariadb(database: Database) -> bool:
    ((version,),) = database.run("SELECT VERSION()")
    return "MariaDB" in str(version)


def read_to_the_end(source: MysqlSource) -> int:
    """Read until nothing follows; return the last SCN."""
    last = 0
    while True:
        for item in source.read():
            last = getattr(item, "last_scn", 0) or getattr(item, "scn", last)
        if source.is_at_end:
            return last


def test_read_by_the_decoder_or_in_python_from_a_position_in_a_file(
    database: Database, tmp_path: Path
) -> None:
    settings = watching(database, tmp_path, "t", start="latest")
    encoded, plain = EncodedSource(settings), MysqlSource(settings)
    with closing(encoded.source), closing(plain):
        for source in (encoded.source, plain):
            source.follow(Lineage())
        encoded.open()
        plain.open(None)
        for source in (encoded.source, plain):
            assert parsed(database, source.executed) == said_by(database)
        write(database)
        for source in (encoded.source, plain):
            read_to_the_end(source)
            assert parsed(database, source.executed) == said_by(database)


def test_read_on_from_what_was_kept(database: Database, tmp_path: Path) -> None:
    settings = watching(database, tmp_path, "t", start="latest")
    source = MysqlSource(settings)
    source.follow(Lineage())
    with closing(source):
        source.open(None)
        write(database)
        scn, kept = read_to_the_end(source), source.executed
        assert parsed(database, kept) == said_by(database)
    database.run("DELETE FROM t WHERE id < 20")
    again = MysqlSource(settings)
    assert kept is not None
    again.follow(Lineage(None, Executed(scn, kept)))
    with closing(again):
        again.open(scn)
        read_to_the_end(again)
        assert parsed(database, again.executed) == said_by(database)
