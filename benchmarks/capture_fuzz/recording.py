"""Recorded binlogs, with everything needed to read them without their server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pymysql
from pymysqlreplication.constants import BINLOG as B

from benchmarks.capture_fuzz import statements
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.relay.sources.mysql.binlog import events
from databus.relay.sources.mysql.replication.dump import BinlogDump, events_to_the_end
from databus.relay.sources.mysql.rows.layout import Dialect
from databus.relay.sources.mysql.search.definition_scan import last_definition_changes
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.initial_history import first_record
from databus.relay.sources.mysql.server.start_position import FIRST_OFFSET, Start
from databus.relay.sources.mysql.tables.column_spec import Rules
from databus.relay.sources.mysql.tables.ddl_tokens import TableName
from databus.relay.sources.mysql.tables.history import History, Record
from databus.relay.sources.mysql.tables.names import Names
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir
from tools.fetch_test_servers import NEWER_MARIADB

SERVER_ID = 4243
_TYPE_AT = 4
_BEGINNINGS = frozenset(
    {B.MARIADB_GTID_EVENT, B.GTID_LOG_EVENT, B.ANONYMOUS_GTID_LOG_EVENT, events.GTID_TAGGED}
)


@dataclass(frozen=True)
class Recording:
    """One server's log: its events in order, the artificial ROTATE first."""

    name: str
    events: Sequence[bytes]
    definitions: Record
    dialect: Dialect

    @cached_property
    def beginnings(self) -> Sequence[int]:
        """Which events begin a transaction or a statement of its own."""
        return [n for n, event in enumerate(self.events) if event[_TYPE_AT] in _BEGINNINGS]

    @cached_property
    def rules(self) -> Rules:
        """The server's rules for parsing statements."""
        return Rules(self.dialect)

    @cached_property
    def altered(self) -> Mapping[TableName, int]:
        """The position of each table's last ALTER."""
        names = Names(statements.SOURCES)
        return last_definition_changes(self.events, names, self.rules, 0, self.definitions.scn)

    def history(self) -> History:
        """Return a new history that begins with the server's final definitions."""
        history = History()
        history.begin(self.definitions)
        return history

    def scan(self, begin: int, end: int) -> Mapping[TableName, int]:  # noqa: ARG002
        """Return where tables were last altered after a position."""
        return {name: scn for name, scn in self.altered.items() if scn > begin}


def record_all() -> list[Recording]:
    """Record the logs of this machine's servers."""
    return [*_record_mariadb(), *_record_mysql()]


def _record_mariadb() -> Iterator[Recording]:
    for metadata in ("FULL", "NO_LOG"):
        options: dict[str, str | int] = {"binlog-row-metadata": metadata}
        with PrivateMariaDB(options=options) as server:
            yield _record(f"mariadb {metadata}", server, _mariadb_statements(metadata), True)
    newer = NEWER_MARIADB.find()
    if newer is not None:
        options = {"binlog-row-metadata": "FULL", "ssl": "OFF"}
        with PrivateMariaDB(options=options, basedir=newer) as server:
            yield _record("newer mariadb FULL", server, _mariadb_statements("FULL"), True)


def _record_mysql() -> Iterator[Recording]:
    basedir = mysql_basedir()
    if basedir is None:
        return
    with tempfile.TemporaryDirectory(prefix="databus-fuzz-") as folder, ExitStack() as stack:
        template = Path(folder) / "data"
        initialize(basedir, template)
        options: dict[str, str | int] = {
            "binlog-row-metadata": "FULL",
            "binlog-rows-query-log-events": "ON",
        }
        server = stack.enter_context(PrivateMySQL(basedir, template, options=options))
        # GTIDs do not go with a transaction that also writes to a table without any.
        script = (s for s in _mysql_statements() if "'kept'" not in s)
        yield _record("mysql FULL", server, script, False)


def _mariadb_statements(metadata: str) -> Iterator[str]:
    columns = statements.MARIADB_COLUMNS
    yield from (statements.SCHEMA, *statements.tables(columns))
    for first, compressed in ((1, "OFF"), (100, "ON")):
        yield f"SET GLOBAL log_bin_compress = {compressed}"
        yield f"SET GLOBAL log_bin_compress_min_len = {10 if compressed == 'ON' else 256}"
        yield from _rounds(columns, first, with_ddl=metadata == "FULL")


def _mysql_statements() -> Iterator[str]:
    columns = statements.COLUMNS
    yield from (statements.SCHEMA, *statements.tables(columns))
    for first, compressed in ((1, "OFF"), (100, "ON")):
        yield f"SET binlog_transaction_compression = {compressed}"
        yield from _rounds(columns, first, with_ddl=True)
    yield "SET binlog_transaction_compression = OFF, binlog_row_value_options = PARTIAL_JSON"
    at = list(columns).index("JSON")
    values = ", ".join("NULL" for _ in columns)
    yield f"INSERT INTO f.types VALUES (500, {values})"
    yield f"UPDATE f.types SET c{at} = JSON_OBJECT('a', REPEAT('x', 200), 'b', 1) WHERE id = 500"
    yield f"UPDATE f.types SET c{at} = JSON_SET(c{at}, '$.b', 2, '$.a', 'y') WHERE id = 500"


def _rounds(columns: dict[str, tuple[str, ...]], first: int, *, with_ddl: bool) -> Iterator[str]:
    for number, image in enumerate(("FULL", "FULL", "NOBLOB", "MINIMAL")):
        yield f"SET binlog_row_image = {image}"
        begin = first + 20 * number
        yield from statements.rows(columns, begin)
        yield from statements.shapes(begin)
    yield "SET binlog_row_image = FULL"
    yield from statements.ddl(first) if with_ddl else ()


def _record(
    name: str, server: PrivateMariaDB, script: Iterator[str], is_mariadb: bool
) -> Recording:
    settings = PhysicalSourceSettings(name="fuzz", uri=server.uri, sources=statements.SOURCES)
    with _session(server) as cursor:
        for statement in script:
            cursor.execute(statement)
        cursor.execute("SHOW BINARY LOGS")
        first = str(cursor.fetchall()[0][0])
    with tempfile.TemporaryDirectory(prefix="databus-fuzz-") as folder:
        password = Path(folder) / "password"
        password.write_text(server.password)
        address = address_of(settings.model_copy(update={"password_file": password}))
    catalog = ServerCatalog(address, settings, 0)
    catalog.names = Names(statements.SOURCES)
    dump = BinlogDump(
        address, Start(first, FIRST_OFFSET), SERVER_ID, source="fuzz", is_mariadb=is_mariadb,
        follows=False,
    )  # fmt: skip
    with closing(dump):
        found = list(events_to_the_end(dump))
    dialect = catalog.dialect(is_mariadb=is_mariadb, zero_dates_are_null=True)
    definitions = first_record(catalog, catalog.names, lambda _begin, _end: {})
    return Recording(name, found, definitions, dialect)


@contextmanager
def _session(server: PrivateMariaDB) -> Iterator[Any]:
    connection = pymysql.connect(
        host=HOST, port=server.port, user=server.user, password=server.password, autocommit=True
    )
    with closing(connection), connection.cursor() as cursor:
        yield cursor
