"""A private folder with a database and a relay that reads it: demo, tests, benchmarks.

    with Stage("sqlite", statements, ("shop.orders",)) as stage:
        stage.relay.kill(); stage.start_relay()

Everything is in one folder, by default a temporary one, which is removed when the block ends. All
processes that were started through the stage are stopped then.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from databus.daemon.http.client import FAILURES, HttpClient
from databus.demo.databases import Database, Dialect, private_database
from databus.demo.processes import (
    Child,
    ChildError,
    free_port,
    python_module,
    wait_until,
)

READY_TIMEOUT_S = 120.0
HTTP_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 16 << 20


class Stage:
    """Database and relay on a free port; a context manager.

    `statements` create the tables; `ring_bytes` is the ring's size as in the settings;
    `command_module` is run as `databus`; `physical_source` names the database. A given `folder`
    stays. Raises ChildError when the relay does not start.
    """

    def __init__(
        self,
        dialect: Dialect,
        statements: Sequence[str],
        sources: Sequence[str],
        *,
        port: int = 0,
        bootstrap_port: int = 0,
        ring_bytes: str = "16MiB",
        command_module: str = "databus.cli.main",
        physical_source: str = "shop",
        folder: Path | None = None,
    ) -> None:
        self.dialect: Dialect = dialect
        self.port = port or free_port()
        self.children: list[Child] = []
        self._statements = statements
        self._sources = sources
        self._ring_bytes = ring_bytes
        self._command_module = command_module
        self._physical_source = physical_source
        self._given_folder = folder
        self._stack = ExitStack()
        self._bootstrap: Child | None = None
        self._bootstrap_port = bootstrap_port

    @property
    def url(self) -> str:
        """The relay's URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def bootstrap_url(self) -> str:
        """The bootstrap server's URL; valid after `start_bootstrap`."""
        return f"http://127.0.0.1:{self._bootstrap_port}"

    def child(self, name: str, arguments: Sequence[str]) -> Child:
        """Create a child that is stopped with the stage. The caller starts it."""
        made = Child(name, arguments, self.folder)
        self.children.append(made)
        return made

    def __enter__(self) -> Stage:
        self.folder = self._given_folder or Path(tempfile.mkdtemp(prefix="databus-demo-"))
        self.settings_file = self.folder / "relay.toml"
        command = python_module(self._command_module, "relay", "run", "-c", self.settings_file)
        self.relay = self.child("relay", command)
        try:
            self.database = self._stack.enter_context(private_database(self.dialect, self.folder))
            self._make_tables()
            settings = relay_settings(
                self.database, self._sources, self.port, self._ring_bytes, self._physical_source
            )
            self.settings_file.write_text(settings, encoding="utf-8")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start_relay(self) -> None:
        """Start the relay (again) and wait until it captures and serves every source."""
        self.relay.start()
        try:
            wait_until(self._is_ready, READY_TIMEOUT_S, "the relay")
        except TimeoutError as error:
            raise ChildError(f"{error}; it said:\n{self.relay.log_tail()}") from None

    def start_bootstrap(self) -> None:
        """Start a bootstrap pair that reads the relay, and wait until it answers.

        It serves a source once the source has a change and was seeded: see `is_seeded`.
        """
        self._bootstrap_port = self._bootstrap_port or free_port()
        settings = bootstrap_settings(
            self.database, self._sources, self.url, self._bootstrap_port, self._physical_source
        )
        file = self.folder / "bootstrap.toml"
        file.write_text(settings, encoding="utf-8")
        command = python_module(self._command_module, "bootstrap", "run", "-c", file)
        self._bootstrap = self.child("bootstrap", command)
        self._bootstrap.start()
        self._await_bootstrap(lambda: self.bootstrap_status() is not None, "the bootstrap pair")

    def get(self, path: str) -> bytes:
        """Return the body at a path of the relay; raises OSError when there is none."""
        return _get(self.url, path)

    def view(self) -> dict[str, Any]:
        """Return the physical source as the relay's API shows it; raises OSError."""
        found: dict[str, Any] = json.loads(
            self.get(f"/api/v1/physicalSources/{self._physical_source}")
        )
        return found

    def check(self) -> None:
        """Raise ChildError when a child ended with an error."""
        for child in self.children:
            child.check()

    def close(self) -> None:
        """Stop the children, latest first, then the database, then remove the folder."""
        for child in reversed(self.children):
            child.stop()
        self._stack.close()
        if self._given_folder is not None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.folder.exists():
            sys.stderr.write(f"left behind: {self.folder}\n")

    def _make_tables(self) -> None:
        session = self.database.connect()
        try:
            for statement in self._statements:
                session.execute(statement)
        finally:
            session.close()

    @property
    def is_seeded(self) -> bool:
        """Whether the bootstrap server serves every source."""
        return (self.bootstrap_status() or "").count('"active"') == len(self._sources)

    def await_seeded(self) -> None:
        """Wait until the bootstrap server serves every source; raises ChildError when it fails."""
        self._await_bootstrap(lambda: self.is_seeded, "the bootstrap server to serve every source")

    def _await_bootstrap(self, condition: Callable[[], bool], what: str) -> None:
        assert self._bootstrap is not None
        try:
            wait_until(condition, READY_TIMEOUT_S, what)
        except TimeoutError as error:
            raise ChildError(f"{error}; it said:\n{self._bootstrap.log_tail()}") from None

    def bootstrap_status(self) -> str | None:
        """Return the bootstrap server's status, as JSON; None while it does not answer."""
        assert self._bootstrap is not None
        self._bootstrap.check()
        try:
            return _get(self.bootstrap_url, "/bootstrapStatus").decode()
        except OSError:
            return None

    def _is_ready(self) -> bool:
        self.relay.check()
        ids = ",".join(str(number + 1) for number in range(len(self._sources)))
        try:
            self.get("/health")
            schemas = json.loads(self.get(f"/register?sources={ids}"))
        except (OSError, ValueError):
            return False
        # A table's schema is published once the source is open.
        return len(schemas) >= len(self._sources)


def _get(url: str, path: str) -> bytes:
    client = HttpClient(
        url,
        connect_timeout_s=HTTP_TIMEOUT_S,
        response_timeout_s=HTTP_TIMEOUT_S,
        max_bytes=MAX_ANSWER_BYTES,
    )
    try:
        with closing(client):
            response = client.get(path)
    except FAILURES as error:
        raise OSError(f"{url}{path}: {error}") from error
    if response.status != 200:
        raise OSError(f"{url}{path}: {response.status} {response.reason}")
    return bytes(response.body)


def relay_settings(
    database: Database,
    sources: Sequence[str],
    port: int,
    ring_bytes: str = "16MiB",
    physical_source: str = "shop",
) -> str:
    """Return the TOML of a relay that reads these sources from their first change on.

    A JSON string of plain text is a TOML string too.
    """
    lines = [
        'data_dir = "relay"',
        "",
        "[http]",
        f"port = {port}",
        "",
        *_physical_source(database, sources, physical_source),
        'start = "earliest"',
        f"ring_bytes = {json.dumps(ring_bytes)}",
    ]
    return "\n".join(lines) + "\n"


def bootstrap_settings(
    database: Database,
    sources: Sequence[str],
    relay_url: str,
    port: int,
    physical_source: str = "shop",
) -> str:
    """Return the TOML of a bootstrap pair over a relay of these sources."""
    lines = [
        'data_dir = "bootstrap"',
        f"relays = {json.dumps([relay_url])}",
        "",
        "[http]",
        f"port = {port}",
        "",
        *_physical_source(database, sources, physical_source),
    ]
    return "\n".join(lines) + "\n"


def _physical_source(database: Database, sources: Sequence[str], name: str) -> list[str]:
    lines = [
        "[[physical_sources]]",
        f"name = {json.dumps(name)}",
        f"uri = {json.dumps(database.uri)}",
        f"sources = {json.dumps(list(sources))}",
    ]
    if database.password_file is not None:
        lines.append(f"password_file = {json.dumps(str(database.password_file))}")
    return lines
