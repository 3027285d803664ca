"""A database whose log is followed statement by statement, and compared with the server.

What a relay would know of every table of the database is `known`, what the
server says of them is `now`; `rows` are the row changes of the watched ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from databus.relay.sources.mysql.replication.assembler import Assembler
from databus.relay.sources.mysql.replication.dump import BinlogDump
from databus.relay.sources.mysql.rows.layout import Definition
from databus.relay.sources.mysql.server.catalog import ServerCatalog
from databus.relay.sources.mysql.server.connection import address_of
from databus.relay.sources.mysql.server.initial_history import (
    first_record,
    rules_of,
    table_versions,
)
from databus.relay.sources.mysql.server.start_position import start_at_position
from databus.relay.sources.mysql.tables.captured_tables import WatchedTables
from databus.relay.sources.mysql.tables.history import History
from databus.relay.sources.mysql.tables.names import Names
from databus.relay.sources.source import Change, RowChange
from databus.schemas.scn import binlog_position
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import watching

_server_ids = itertools.count(7701)


class _Everything(frozenset[int]):
    """Every place of the log is let pass, so that what follows is seen too."""

    def __contains__(self, _: object) -> bool:
        return True


class Follower:
    """Follows the log of one database, one table of which is watched for its rows."""

    def __init__(
        self, database: Database, folder: Path, table: str, zero_dates_are_null: bool
    ) -> None:
        self.database = database
        self.changes: list[Change] = []
        settings = watching(database, folder, table)
        self.source = settings.source_names[0]
        address = address_of(settings)
        self._catalog = catalog = ServerCatalog(address, settings, 0)
        names = catalog.names = Names(settings.source_names)
        variables = catalog.variables()
        self.is_mariadb = "mariadb" in variables["version"].lower()
        dialect = catalog.dialect(
            is_mariadb=self.is_mariadb, zero_dates_are_null=zero_dates_are_null
        )
        self.history = History()
        self.history.begin(first_record(catalog, names, lambda _begin, _end: {}))
        scn = self.history.begin_scn or 0
        rules = rules_of(variables, dialect)
        tables = WatchedTables(names, rules, self.history, lambda _begin, _end: {})
        self._assembler = Assembler(tables, dialect)
        self._assembler._acknowledged = _Everything()
        self._dump = BinlogDump(
            address,
            start_at_position(binlog_position(scn), 0, catalog.log_files()),
            next(_server_ids),
            source=self.source,
            scn=scn,
            is_mariadb=self.is_mariadb,
        )
        self.close = self._dump.close

    def run(self, *statements: str, args: tuple[Any, ...] | None = None) -> None:
        """Run statements and follow them; raises what the server says."""
        self.database.run(*statements, args=args)
        self.catch_up()

    def catch_up(self) -> None:
        """Read to the log's end."""
        with self._catalog.session():
            status = self._catalog.log_status()
        file, offset = status["File"], status["Position"]
        while self._assembler.position != f"{file}:{offset}":
            for event in self._dump.receive(5.0) or ():
                transaction = self._assembler.receive(event)
                self.changes += transaction.changes if transaction is not None else ()

    @property
    def rows(self) -> list[RowChange]:
        """The row changes so far."""
        return [change for change in self.changes if isinstance(change, RowChange)]

    def known(self) -> dict[str, Definition | str]:
        """Return each table's definition as it is followed, or why there is none."""
        name, newest = self.database.name, (1 << 63) - 1
        found = {
            key[1]: self.history.table(key, newest) for key in self.history.tables_of(name, newest)
        }
        return {key: v.definition or v.problem for key, v in found.items() if v is not None}

    def now(self) -> dict[str, Definition | str]:
        """Return each table's definition as the server has it."""
        with self._catalog.session():
            found = table_versions(self._catalog, self.database.name)
        return {key[1]: v.definition or v.problem for key, v in found.items()}


@contextmanager
def following(
    database: Database, folder: Path, table: str = "t", *, zero_dates_are_null: bool = True
) -> Iterator[Follower]:
    """Follow a database's log for the length of a `with`."""
    follower = Follower(database, folder, table, zero_dates_are_null)
    try:
        yield follower
    finally:
        follower.close()
