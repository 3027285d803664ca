"""Before the history begins, the log is searched only for what rows of watched tables need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from databus.relay.sources.mysql.binlog.events import Query
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition, Dialect
from databus.relay.sources.mysql.tables.alter import TableVersion
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from tests.relay.sources.mysql.binlog import events_made as made

INT = 3
T, OTHER = ("d", "t"), ("d", "o")
BEGIN = 1000
DIALECT = Dialect(False, {45: "utf8mb4"}, {"utf8mb4": 4})
DEFINED = Definition(
    (DefinedColumn("id", "int", False), DefinedColumn("now", "int", True)), ("id",)
)
CREATE = "CREATE TABLE t (id INT NOT NULL PRIMARY KEY, a INT)"


class Log:
    """A log behind the beginning of a history, whose searches are counted."""

    def __init__(self, path: Path | None = None, **changes: int) -> None:
        self.changes = {("d", name): scn for name, scn in changes.items()}
        self.searches: list[tuple[int, int]] = []
        self.history = History(path)
        if self.history.begin_scn is None:
            version = TableVersion(DEFINED, "utf8mb4")
            tables = {T: version, OTHER: version}
            self.history.begin(Record(BEGIN, tables, {"d": "utf8mb4"}, is_beginning=True))
        self.tables = WatchedTables(Names(["d.t"]), Rules(DIALECT), self.history, self.search)

    def search(self, begin: int, end: int) -> Mapping[TableName, int]:
        self.searches.append((begin, end))
        return {name: scn for name, scn in self.changes.items() if begin < scn <= end}

    def apply(self, text: str, position: int, database: str = "d") -> list[tuple[str, bool | None]]:
        """Apply a statement; return each change and, if it is told, whether no row is left."""
        found = self.tables.apply(Query(database, text), position)
        return [
            (c.kind.name, c.altered.change.is_emptied if c.altered is not None else None)
            for c in found
        ]

    def columns(self, position: int, *names: str) -> list[str]:
        """Return the columns of a row at a position, whose log may name them."""
        named = b"".join(bytes([len(name)]) + name.encode() for name in names)
        optional = bytes([4, len(named)]) + named if names else b""
        event = made.table_map(bytes([INT, INT]), nullable=0b10, optional=optional)
        layout = self.tables.layout(event[19:], position)
        assert layout is not None
        return [column.name for column in layout.table.columns]


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE o ADD b INT",
        "ALTER TABLE o CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE o CONVERT TO CHARACTER SET DEFAULT",
        "CREATE TABLE x (a VARCHAR(10))",
        "CREATE TABLE x LIKE o",
        "CREATE DATABASE IF NOT EXISTS d",
        "ALTER DATABASE d CHARACTER SET latin1",
        "RENAME TABLE o TO p, x TO o",
        "DROP TABLE o",
        "ALTER TABLE o ADD (",
    ],
)
def test_a_statement_on_a_table_that_nobody_watches_searches_nothing(text: str) -> None:
    log = Log()
    assert log.apply(text, 500) == []
    assert log.apply("DROP TABLE nothing.x", 510, "e") == []
    assert log.columns(520, "id", "a") == ["id", "a"]
    assert log.searches == []


def test_rows_whose_log_names_their_columns_need_no_search() -> None:
    log = Log(t=600)
    assert log.columns(500, "id", "a") == ["id", "a"]
    assert log.apply("ALTER TABLE t CHANGE a b INT", 510) == [("ALTERED", None)]
    assert log.columns(520, "id", "b") == ["id", "b"]
    assert log.apply("TRUNCATE t", 530) == [("EMPTIED", None), ("ALTERED", None)]
    assert log.searches == []


def test_rows_without_names_are_read_by_the_statement_that_made_their_table() -> None:
    log = Log(t=600)
    assert log.apply("DROP TABLE t", 490) == [("EMPTIED", None), ("ALTERED", None)]
    assert log.apply(f"{CREATE} DEFAULT CHARSET utf8mb4", 500) == [("ALTERED", True)]
    assert log.columns(510) == ["id", "a"]
    assert log.apply("ALTER TABLE t CHANGE a b INT", 520) == [("ALTERED", False)]
    assert log.columns(530) == ["id", "b"]
    assert log.searches == []


def test_rows_without_names_of_an_unknown_table_search_the_log_once() -> None:
    log = Log(t=600)
    assert log.apply("ALTER TABLE t CHANGE a now INT", 600) == [("ALTERED", None)]
    assert log.columns(610) == ["id", "now"]
    assert log.apply("ALTER TABLE o ADD b INT", 620) == []
    assert log.columns(630) == ["id", "now"]
    assert log.searches == [(610, BEGIN)]


def test_rows_whose_table_is_altered_later_are_not_guessed() -> None:
    log = Log(t=600)
    with pytest.raises(ValueError, match="altered later, at scn 600"):
        log.columns(500)
    assert log.columns(600) == ["id", "now"]


def test_a_watched_table_whose_text_the_database_determines_searches_for_it() -> None:
    log = Log(t=500)
    assert log.apply(CREATE, 500) == [("ALTERED", True)]
    assert log.searches == [(500, BEGIN)]
    assert log.columns(510) == ["id", "now"]


def test_what_statements_said_outlives_a_search_and_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "history"
    log = Log(path, t=700, x=600, o=650)
    assert log.apply(CREATE.replace(" t ", " x ") + " CHARSET utf8mb4", 500) == []
    log = Log(path, t=700, x=600, o=650)
    assert log.columns(510, "id", "a") == ["id", "a"]
    kinds = log.apply("RENAME TABLE t TO old, x TO t", 600)
    assert kinds[-1] == ("ALTERED", False)
    assert log.columns(610) == ["id", "a"]
    assert log.searches == []
    assert log.apply("ALTER TABLE o CONVERT TO CHARACTER SET latin1", 650) == []
    assert log.apply("RENAME TABLE t TO older, o TO t", 700)[-1] == ("ALTERED", False)
    assert log.searches == [(700, BEGIN)]
    assert Log(path).columns(710) == ["id", "now"]


def test_rows_of_a_table_that_was_not_known_are_not_said_to_be_gone() -> None:
    log = Log(t=500)
    assert log.apply("ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", 500) == [("ALTERED", False)]
