"""Our entries are Canal's: the same log of a real server, read by Canal's own parser.

Where they differ, `DIFFERENCES` says how and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from databus.demo.private_mariadb import PrivateMariaDB
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL
from tests.relay.serving.canal.every_type import (
    COMMON,
    JSONS,
    SHAPES,
    ZERO_DATES,
    Typed,
    create,
    inserts,
    updates,
)
from tests.relay.serving.canal.reading import (
    Capture,
    Row,
    change_of,
    compile_reader,
    entries_of_canal,
    header_of,
    place_of,
    rows_of,
)
from tests.relay.sources.mysql.reading import watching
from tools import fetch_canal

pytest_plugins = ["tests.mariadb", "tests.mysql"]
pytestmark = pytest.mark.canal_java

OPTIONS: dict[str, str | int] = {"binlog-row-metadata": "FULL", "default-time-zone": "+00:00"}
# Canal's driver knows the old plugin only.
MYSQL_OPTIONS = OPTIONS | {"default-authentication-plugin": "mysql_native_password"}
TABLES = {"every": COMMON, "zeros": ZERO_DATES, "shapes": SHAPES, "jsons": JSONS}

# By column: what Canal makes of a value, and why ours is another.
DIFFERENCES: dict[str, tuple[Callable[[str], str], str]] = {
    "c_decimal": (
        lambda text: text[:-1] if text.endswith(".00") else text,
        "Canal's parser loses the scale of a whole number; ours has the type's",
    ),
    "c_large": (
        lambda text: text.removesuffix("000"),
        "Canal's parser drops a fraction's last digits, beyond groups of nine, if all are zeros",
    ),
    "c_latin": (
        lambda text: text if text.isascii() else "\ufffd",
        "Canal's parser reads every text in the charset of its connection; ours in the column's",
    ),
    "c_json": (
        lambda text: "1.0E10" if text == "10000000000.0" else text,
        "Canal's parser writes a JSON number as Java does; ours as the server does",
    ),
}


class Stretch(NamedTuple):
    """The entries of one stretch of a log."""

    ours: list[bytes]
    canals: list[bytes]
    database: str


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command of Canal's parser."""
    archives = fetch_canal.find()
    if archives is None:
        pytest.fail("Canal is not there: python -m tools.fetch_canal fetches it", False)
    return compile_reader(archives, tmp_path_factory.mktemp("canal"))


@pytest.fixture(
    params=[
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("mysql", marks=pytest.mark.mysql),
    ]
)
def server(request: pytest.FixtureRequest) -> Iterator[PrivateMariaDB]:
    """Run a server whose log both can read."""
    if request.param == "mysql":
        new_mysql: Callable[..., PrivateMySQL] = request.getfixturevalue("new_mysql")
        made: PrivateMariaDB = new_mysql(options=MYSQL_OPTIONS)
    else:
        made = PrivateMariaDB(options=OPTIONS)
    with made as started:
        yield started


def stretch(
    reader: list[str], database: Database, folder: Path, tables: Mapping[str, tuple[Typed, ...]],
    statements: list[str], **settings: Any,
) -> Stretch:  # fmt: skip
    """Run statements on new tables; return what both say of them."""
    database.run("SET sql_mode = ''")
    for name, columns in tables.items():
        database.run(create(name, columns))
    begin = place_of(database)
    capture = Capture(watching(database, folder, *tables, **settings))
    try:
        database.run(*statements)
        end = place_of(database)
        ours = [entry.data for entry in capture.read_to(end)]
    finally:
        capture.close()
    wanted = f"{database.name}\\..*"
    canals = entries_of_canal(reader, database.server, begin, end, wanted, folder)
    return Stretch(ours, canals, database.name)


def as_canals(row: Row) -> Row:
    """Return one of our rows with the values that Canal is known to make of them."""
    for columns in (row.before, row.after):
        for name, column in columns.items():
            if name in DIFFERENCES and "value" in column:
                column["value"] = DIFFERENCES[name][0](column["value"])
    return row


def differing(ours: Iterable[Row], canals: Iterable[Row]) -> list[Any]:
    """Return the columns in which rows differ, and the rows that have not the same columns."""
    found: list[Any] = []
    for mine, canal in zip(ours, canals, strict=True):
        if [*mine[:2], *map(list, mine[2:])] != [*canal[:2], *map(list, canal[2:])]:
            found.append([(row[:2], *map(list, row[2:])) for row in (mine, canal)])
        for images in zip(mine[2:], canal[2:], strict=True):
            named = zip(*(image.values() for image in images), strict=False)
            found += [_differing(*pair) for pair in named if pair[0] != pair[1]]
    return found


def _differing(mine: dict[str, Any], canal: dict[str, Any]) -> tuple[str, list[Any]]:
    names = sorted(mine.keys() | canal.keys())
    pairs = [(name, mine.get(name), canal.get(name)) for name in names]
    return mine["name"], [pair for pair in pairs if pair[1] != pair[2]]


def test_rows_of_every_type_are_canals(
    server: PrivateMariaDB, reader: list[str], tmp_path: Path
) -> None:
    statements = [
        statement
        for name, columns in TABLES.items()
        for statement in (*inserts(name, columns), *updates(name, columns))
    ]
    with fresh_database(server) as database:
        found = stretch(reader, database, tmp_path, TABLES, statements, zero_dates="null")
    ours, canals = rows_of(found.ours), rows_of(found.canals)
    assert len(ours) == len(canals) > 80
    assert differing(map(as_canals, ours), canals) == []


def test_images_of_changed_columns_only_are_canals(
    server: PrivateMariaDB, reader: list[str], tmp_path: Path
) -> None:
    tables = {"every": COMMON}
    statements = ["SET binlog_row_image = MINIMAL", *inserts("every", COMMON)]
    statements += updates("every", COMMON)
    with fresh_database(server) as database:
        found = stretch(reader, database, tmp_path, tables, statements, partial_rows="deliver")
    ours, canals = rows_of(found.ours), rows_of(found.canals)
    assert len(ours) == len(canals) > 10
    # Ours have what the row before tells of the row after: columns that were not changed.
    for mine, canal in zip(ours, canals, strict=True):
        for name in mine.after.keys() - canal.after.keys():
            assert mine.after.pop(name) == mine.before[name]
    assert differing(map(as_canals, ours), canals) == []


# No rows between them: Canal's parser reads rows by the definition that a table has now.
STATEMENTS = [
    "ALTER TABLE t ADD COLUMN b VARCHAR(20) DEFAULT 'ñ'",
    "CREATE INDEX i ON t (b)",
    "DROP INDEX i ON t",
    "TRUNCATE TABLE t",
    "RENAME TABLE t TO u",
    "DROP TABLE v",
    "ALTER TABLE w RENAME TO x",
]


def test_statements_are_canals(server: PrivateMariaDB, reader: list[str], tmp_path: Path) -> None:
    tables = dict.fromkeys("tvw", (Typed("a", "int", ()),))
    with fresh_database(server) as database:
        found = stretch(reader, database, tmp_path, tables, STATEMENTS)

    def told(entries: list[bytes]) -> list[Any]:
        ddl = []
        for entry in entries:
            header = header_of(entry)
            change = change_of(entry) if header["entryType"] == 2 else {}
            if change.get("isDdl"):
                names = header["schemaName"], header["tableName"], header["eventType"]
                ddl.append((*names, change["eventType"], change["sql"], change["ddlSchemaName"]))
        return ddl

    assert len(told(found.ours)) == 7
    assert told(found.ours) == told(found.canals)


def test_ends_of_transactions_are_where_canal_finds_them(
    server: PrivateMariaDB, reader: list[str], tmp_path: Path
) -> None:
    tables = {"t": (Typed("a", "int", ()),)}
    with fresh_database(server) as database:
        found = stretch(reader, database, tmp_path, tables, ["INSERT INTO t VALUES (1, 1)"])
    of_ends = [
        [
            (header["logfileName"], header["logfileOffset"], header["executeTime"] // 1000)
            for header in map(header_of, entries)
            if header["entryType"] == 3
        ]
        for entries in (found.ours, found.canals)
    ]
    assert of_ends[0] == of_ends[1]
