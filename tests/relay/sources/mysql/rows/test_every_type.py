"""Every type of column, in every form that a server logs it, is what SELECT says of the same row.

A table of each family of types is written to with values at their edges, on
each server, with each `binlog_row_image`, with and without full metadata, with
and without compression (MariaDB's of events, MySQL's of transactions). What is
captured is compared with what the server prints, over another driver than the
one that the relay has; what is absent must be what the image left out. The same
is read back from the bytes that the relay would append to its ring, which the
compiled decoder writes where it was built.

Not run, for no server here has it: VECTOR (MariaDB 11.7 and MySQL 9 have it).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import mysql.connector
import pytest

from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.sources.source import Row
from databus.schemas.event.metadata import Op
from tests.mariadb_server import Database, fresh_database
from tests.relay.sources.mysql.encoded import encoded
from tests.relay.sources.mysql.reading import Seen, opened, read_seen, watching
from tests.relay.sources.mysql.rows.every_type import (
    OLD_TIMES,
    Family,
    as_compared,
    expression,
    families,
    printed,
)

pytest_plugins = ["tests.mariadb", "tests.mysql"]

MARIADBS = [
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("newer_mariadb", marks=pytest.mark.newer_mariadb),
]
SERVERS = [*MARIADBS, pytest.param("mysql_server", marks=pytest.mark.mysql)]
Printed = Mapping[str, bytes | None]


class Server(NamedTuple):
    """A running server, and the settings that make it log otherwise."""

    database: Database
    is_mariadb: bool

    def log_as(self, image: str, metadata: str, *, compressed: bool) -> None:
        """Say what the log is to hold."""
        switch = "ON" if compressed else "OFF"
        self.database.run(
            f"SET SESSION binlog_row_image = {image}",
            f"SET GLOBAL binlog_row_metadata = {metadata}",
            f"SET GLOBAL log_bin_compress = {switch}"
            if self.is_mariadb
            else f"SET SESSION binlog_transaction_compression = {switch}",
        )

    @property
    def families(self) -> dict[str, Family]:
        return families(is_mariadb=self.is_mariadb)


@pytest.fixture(scope="module", params=SERVERS)
def running(request: pytest.FixtureRequest) -> tuple[str, PrivateMariaDB]:
    """A running server of each kind, and its fixture's name."""
    return request.param, request.getfixturevalue(request.param)


@pytest.fixture
def server(running: tuple[str, PrivateMariaDB]) -> Iterator[Server]:
    """A fresh database on a server of each kind, whose settings are put back."""
    name, process = running
    is_mariadb = name != "mysql_server"
    with fresh_database(process) as database:
        before = database.run("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
        database.run("SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES'")
        if is_mariadb:
            database.run("SET GLOBAL log_bin_compress_min_len = 10")
        yield Server(database, is_mariadb)
        database.run(f"SET GLOBAL binlog_row_metadata = {before}")
        if is_mariadb:
            database.run(
                "SET GLOBAL log_bin_compress = OFF, log_bin_compress_min_len = 256,"
                " mysql56_temporal_format = ON"
            )


class OtherDriver:
    """What another driver than PyMySQL gets: the text that the server prints, as it is."""

    def __init__(self, database: Database, types: Mapping[str, str]) -> None:
        server = database.server
        self._types = types
        self._connection = mysql.connector.connect(
            host=HOST,
            port=server.port,
            user=server.user,
            password=server.password,
            database=database.name,
            charset="utf8mb4",
            collation="utf8mb4_general_ci",
            autocommit=True,
        )
        self._cursor = self._connection.cursor(raw=True)
        self._cursor.execute("SET time_zone = '+00:00'")

    def rows(self) -> dict[bytes, Printed]:
        """Return the rows of table t as printed, by what is printed of the key."""
        columns = ", ".join(expression(of, f"`{name}`") for name, of in self._types.items())
        self._cursor.execute(f"SELECT {columns} FROM t ORDER BY id")
        found: dict[bytes, Printed] = {}
        for values in self._cursor.fetchall():
            texts = [
                bytes(value) if isinstance(value, (bytes, bytearray)) else None for value in values
            ]
            row = {
                name: as_compared(of, text)
                for (name, of), text in zip(self._types.items(), texts, strict=True)
            }
            found[row["id"] or b""] = row
        return found

    def close(self) -> None:
        self._cursor.close()
        self._connection.close()


class Change(NamedTuple):
    """A change as it is to be delivered, with all columns; `before` as of an update."""

    op: Op
    row: Printed
    before: Printed | None = None


class Written:
    """Table t, written to statement by statement, and the changes that SELECT shows."""

    def __init__(self, database: Database, types: Mapping[str, str]) -> None:
        self._database = database
        self._driver = OtherDriver(database, types)
        self._rows = self._driver.rows()
        self.changes: list[Change] = []

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *exception: object) -> None:
        self._driver.close()

    def run(self, *statements: str) -> None:
        """Run statements that change each row at most once, and look at what changed."""
        self._database.run(*statements)
        before, after = self._rows, self._driver.rows()
        self._rows = after
        for key in sorted(before.keys() | after.keys(), key=int):
            old, new = before.get(key), after.get(key)
            if old is None and new is not None:
                self.changes.append(Change(Op.INSERT, new))
            elif new is None and old is not None:
                self.changes.append(Change(Op.DELETE, old))
            elif old is not None and new is not None and old != new:
                self.changes.append(Change(Op.UPDATE, new, old))


def shown(types: Mapping[str, str], row: Row, raw: Mapping[str, str]) -> Printed:
    """Return a captured row as the server prints it."""
    for name in raw:
        assert row[name] is None
    return {name: printed(types[name], value, raw.get(name)) for name, value in row.items()}


def check(types: Mapping[str, str], seen: Sequence[Seen], wanted: Sequence[Change]) -> None:
    """Compare what was captured with what was to be; absent columns are named and not there."""
    assert [change.op for change in seen] == [change.op for change in wanted]
    for found, change in zip(seen, wanted, strict=True):
        row = shown(types, found.row, found.notes.raw)
        compare(types, row, change.row, found.notes.absent)
        assert (found.before is None) == (change.before is None)
        if found.before is not None and change.before is not None:
            before = shown(types, found.before, found.notes.before_raw)
            compare(types, before, change.before, found.notes.before_absent)


def compare(types: Mapping[str, str], row: Printed, wanted: Printed, absent: Sequence[int]) -> None:
    names = list(types)
    assert [names.index(name) for name in names if name not in row] == list(absent)
    assert "id" in row
    differing = {n: (types[n], row[n], wanted[n]) for n in row if row[n] != wanted[n]}
    assert not differing


def check_absent(
    types: Mapping[str, str], image: str, seen: Sequence[Seen], wanted: Sequence[Change]
) -> None:
    """Check that no more is absent than the image leaves out, and nothing that changed."""
    blobs = {name for name, of in types.items() if is_blob(of)}
    for found, change in zip(seen, wanted, strict=True):
        absent, before_absent = types.keys() - found.row.keys(), set[str]()
        if found.before is not None and change.before is not None:
            before_absent = types.keys() - found.before.keys()
            assert not absent & {n for n, value in change.row.items() if value != change.before[n]}
        if image == "FULL":
            assert not absent | before_absent
        elif image == "NOBLOB":
            assert absent | before_absent <= blobs


def check_minimal(seen: Sequence[Seen], count: int) -> None:
    """Check what a minimal image of each of the statements holds, of so many rows."""
    inserts, updates, of_z = (seen[start : start + count] for start in range(0, 3 * count, count))
    assert {name for found in inserts for name in found.notes.absent} <= {len(inserts[0].row)}
    assert all(found.before is not None and found.before.keys() == {"id"} for found in updates)
    assert all(found.row.keys() == {"id", "z"} for found in of_z)
    removed = seen[3 * count :]
    assert {found.op for found in removed} == {Op.INSERT, Op.DELETE}
    assert all(found.row.keys() == {"id"} for found in removed)


def is_blob(sql_type: str) -> bool:
    words = ("TEXT", "BLOB", "JSON", "GEOMETRY", "POINT", "POLYGON")
    return any(word in sql_type.split(" CHARACTER")[0] for word in words)


def literal(literals: Sequence[str], turn: int) -> str:
    return [*literals, "NULL"][turn % (len(literals) + 1)]


FAMILIES = sorted(families(is_mariadb=False))
every_image = pytest.mark.parametrize("image", ["FULL", "NOBLOB", "MINIMAL"])
every_metadata = pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"], ids=["some", "names"])
packed_or_not = pytest.mark.parametrize("compressed", [False, True], ids=["plain", "compressed"])


@packed_or_not
@every_metadata
@every_image
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_captured_is_what_select_prints(
    server: Server, tmp_path: Path, family: str, image: str, metadata: str, compressed: bool
) -> None:
    server.log_as(image, metadata, compressed=compressed)
    check_family(server, tmp_path, server.families[family], image)


@packed_or_not
@every_metadata
@every_image
@pytest.mark.parametrize("running", MARIADBS, indirect=True)
def test_times_in_the_formats_before_5_6_are_what_select_prints(
    server: Server, tmp_path: Path, image: str, metadata: str, compressed: bool
) -> None:
    server.database.run("SET GLOBAL mysql56_temporal_format = OFF")
    server.log_as(image, metadata, compressed=compressed)
    check_family(server, tmp_path, {**server.families["temporal"], **OLD_TIMES}, image)


def check_family(server: Server, folder: Path, family: Family, image: str) -> None:
    columns = {f"c{n}": pair for n, pair in enumerate(family.items())}
    types = {"id": "INT", **{name: of for name, (of, _) in columns.items()}, "z": "INT"}
    database = server.database
    declared = ", ".join(f"{name} {nullable(of)}" for name, (of, _) in columns.items())
    database.run(f"CREATE TABLE t (id INT PRIMARY KEY, {declared}, z INT DEFAULT 0)")
    settings = watching(database, folder, "t", partial_rows="deliver", zero_dates="null")
    rows = 1 + max(len(literals) for _, literals in columns.values())
    with (
        opened(settings) as source,
        encoded(settings) as ring,
        Written(database, types) as written,
    ):
        for turn in range(rows):
            values = ", ".join(literal(of, turn) for _, of in columns.values())
            written.run(f"INSERT INTO t (id, {', '.join(columns)}) VALUES ({turn}, {values})")
        for turn in range(rows):
            every_second = itertools.islice(columns.items(), turn % 2, None, 2)
            changes = ", ".join(f"{n} = {literal(of, turn + 1)}" for n, (_, of) in every_second)
            written.run(f"UPDATE t SET {changes}, z = z + 1 WHERE id = {turn}")
        written.run("UPDATE t SET z = z + 1 ORDER BY id")
        written.run("UPDATE t SET id = id + 1000 WHERE id = 0")
        written.run("DELETE FROM t ORDER BY id")
        seen = read_seen(source, len(written.changes))
        events = ring.read_seen(len(written.changes))
    check(types, seen, written.changes)
    check_absent(types, image, seen, written.changes)
    if image == "MINIMAL":
        check_minimal(seen, rows)
    check(types, events, written.changes)
    assert [event.notes for event in events] == [change.notes for change in seen]


def nullable(sql_type: str) -> str:
    return sql_type if sql_type.endswith("NULL") else f"{sql_type} NULL"
