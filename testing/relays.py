"""A relay of its own for a test: a real process on a real port, over an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from databus.daemon.http.client import FAILURES, HttpClient
from databus.demo.processes import Child, free_port, python_module, wait_until

START_S = 60.0
_REQUEST_S = 5.0
_MAX_ANSWER_BYTES = 1 << 20
_SETTINGS = """\
data_dir = {data_dir}

[http]
port = {port}

[[physical_sources]]
name = {name}
uri = {uri}
sources = {sources}
ring_bytes = "16 MiB"
start = "earliest"
"""


class RelayForTests:
    """The relay of one database; `url` is for `DatabusClient`, `execute` changes the database."""

    def __init__(self, folder: Path, name: str, tables: Sequence[str]) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.database = folder / f"{name}.db"
        self._connection = sqlite3.connect(self.database, isolation_level=None, timeout=20)
        self._connection.execute("PRAGMA journal_mode = WAL")
        for statement in tables:
            self._connection.execute(statement)
        self.sources = [f"{name}.{table}" for table in self._tables()]
        settings = folder / "relay.toml"
        values: dict[str, Any] = {
            "data_dir": str(folder / "relay-data"),
            "name": name,
            "uri": f"sqlite:{self.database}?fsync=off",
            "sources": self.sources,
        }
        # What JSON writes for texts and lists of them, TOML reads.
        written = {key: json.dumps(value) for key, value in values.items()}
        settings.write_text(_SETTINGS.format(port=port, **written), "utf-8")
        command = python_module("databus.cli.main", "relay", "run", "-c", settings)
        self._child = Child("relay", command, folder)

    def start(self) -> None:
        """Start it, or start it again; return when clients may read. Raises ChildError."""
        self._child.start()
        wait_until(self._is_ready, START_S, "the relay; see relay.log")

    def stop(self) -> None:
        """Stop it, as an operator does; what it has stays, for `start`."""
        self._child.stop()

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._child.kill()

    def execute(self, *statements: str) -> None:
        """Commit SQL statements as one transaction: one window for the clients."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                self._connection.execute(statement)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Stop it, and close the database."""
        self.stop()
        self._connection.close()

    def _tables(self) -> list[str]:
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        with closing(rows):
            return sorted(name for (name,) in rows if not name.startswith("sqlite_"))

    def _is_ready(self) -> bool:
        self._child.check()
        client = HttpClient(
            self.url,
            connect_timeout_s=_REQUEST_S,
            response_timeout_s=_REQUEST_S,
            max_bytes=_MAX_ANSWER_BYTES,
        )
        try:
            with closing(client):
                return client.get("/ready").status == HTTPStatus.OK
        except FAILURES:
            return False


@contextmanager
def running_relay(
    *tables: str, name: str = "shop", folder: Path | None = None
) -> Iterator[RelayForTests]:
    """Run a relay over a new SQLite database with tables made by these CREATE TABLE statements.

    Its sources are named `<name>.<table>`. Everything lies in `folder`, by default a temporary one
    that is removed at the end. Raises ChildError, with the end of the relay's log.
    """
    with TemporaryDirectory(prefix="databus-test-") as temporary:
        relay = RelayForTests(folder or Path(temporary), name, tables)
        try:
            relay.start()
            yield relay
        finally:
            relay.close()
