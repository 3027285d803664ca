"""A relay of its own for a test: a real process on a real port, over an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from databus.demo.stage import Stage


class RelayForTests:
    """The relay of one database; `url` is for `DatabusClient`, `execute` changes the database."""

    def __init__(self, stage: Stage, sources: list[str]) -> None:
        self.url = stage.url
        self.sources = sources
        self.database = Path(stage.database.uri.removeprefix("sqlite:"))
        self._stage = stage
        self._session = stage.database.connect()

    def start(self) -> None:
        """Start it, or start it again; return when clients may read. Raises ChildError."""
        self._stage.start_relay()

    def stop(self) -> None:
        """Stop it, as an operator does; what it has stays, for `start`."""
        self._stage.relay.stop()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._stage.relay.kill()

    def execute(self, *statements: str) -> None:
        """Commit SQL statements as one transaction: one window for the clients."""
        self._session.begin()
        try:
            for statement in statements:
                self._session.execute(statement)
        except BaseException:
            self._session.rollback()
            raise
        self._session.commit()

    def close(self) -> None:
        """Stop it, and close the database."""
        self.stop()
        self._session.close()


@contextmanager
def running_relay(
    *tables: str, name: str = "shop", folder: Path | None = None
) -> Iterator[RelayForTests]:
    """Run a relay over a new SQLite database with tables made by these CREATE TABLE statements.

    Its sources are named `<name>.<table>`. Everything lies in `folder`, by default a temporary one
    that is removed at the end. Raises ChildError, with the end of the relay's log.
    """
    sources = [f"{name}.{table}" for table in _names(tables)]
    with (
        Stage("sqlite", tables, sources, physical_source=name, folder=folder) as stage,
        closing(RelayForTests(stage, sources)) as relay,
    ):
        relay.start()
        yield relay


def _names(tables: Sequence[str]) -> list[str]:
    """Return the names of the tables that statements make."""
    with closing(sqlite3.connect(":memory:")) as scratch:
        for statement in tables:
            scratch.execute(statement)
        rows = scratch.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return sorted(name for (name,) in rows if not name.startswith("sqlite_"))
