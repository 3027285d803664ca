"""The processes of a scene: database, proxy, relay, bootstrap pair, consumer."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.adversity.disks import SmallDisk
from benchmarks.adversity.liar import LyingRelay
from benchmarks.adversity.monitor import Monitor
from benchmarks.adversity.proxy import WireProxy
from benchmarks.adversity.servers import Kind, Options, Servers
from benchmarks.adversity.writer import SOURCE, Writer, create_table
from benchmarks.torture.shared_number import SharedNumber
from databus.demo.databases import Database, Dialect
from databus.demo.private_mariadb import HOST, PrivateMariaDB
from databus.demo.processes import Child, ChildError, free_port, python_module
from databus.demo.stage import bootstrap_settings

PHYSICAL = "shop"


@dataclass(frozen=True)
class Setting:
    """The choices that define a scene."""

    kind: Kind = "mariadb"
    seed: int = 1
    is_equal: bool = False  # all transactions as long as each other
    server_options: Options = field(default_factory=dict)
    relay_options: Mapping[str, Any] = field(default_factory=dict)
    http_options: Mapping[str, Any] = field(default_factory=dict)
    source_options: Mapping[str, Any] = field(default_factory=dict)
    has_bootstrap: bool = False
    has_liar: bool = False  # the consumer reaches the relay by one that lies
    disks_mib: Mapping[str, int] = field(default_factory=dict)  # folders with a disk of their own
    relay_files: int = 0  # most that the relay, and a bootstrap pair, may have open
    without: str = ""  # the check of the product that is switched off


class Processes:
    """All processes; a context manager that starts only database and proxy."""

    def __init__(self, setting: Setting, servers: Servers) -> None:
        self.setting = setting
        self.monitor = Monitor()
        self.server: PrivateMariaDB | None = None
        self.proxy: WireProxy | None = None
        self.disks: dict[str, SmallDisk] = {}
        self.liar: LyingRelay | None = None
        self._servers = servers
        self._stack = ExitStack()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="databus-adversity-"))
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _set_up(self) -> None:
        self.data_dir = self.folder / "relay"
        self.checkpoints = self.folder / "checkpoints"
        for name, size_mib in self.setting.disks_mib.items():
            self.disks[name] = disk = SmallDisk(self.folder / name, size_mib)
            self._stack.callback(disk.close)
        self.relay_port, self.bootstrap_port, self.client_port = (free_port() for _ in range(3))
        if self.setting.has_liar:
            self.liar = self._stack.enter_context(LyingRelay(self.relay_port))
        self.database = self._make_database()
        session = self.database.connect()
        session.execute(create_table(self.dialect))
        session.close()
        self.writer = Writer(self.database, self.setting.seed, is_equal=self.setting.is_equal)
        self._stack.callback(self.writer.close)
        (self.folder / "relay.toml").write_text(self._relay_settings(), encoding="utf-8")
        text = bootstrap_settings(
            self._as_seen_by_the_relay(), (SOURCE,), self.relay_url, self.bootstrap_port, PHYSICAL
        )
        (self.folder / "bootstrap.toml").write_text(text, encoding="utf-8")
        self.relay = self._daemon("relay", "relay", "run", files=self.setting.relay_files)
        self.bootstrap = self._daemon(
            "bootstrap", "bootstrap", "run", files=self.setting.relay_files
        )
        self.consumer = self._child("consumer", self._consumer_command())
        self._applied = self._stack.enter_context(SharedNumber(self.folder / "applied"))
        self._stack.enter_context(self.monitor)

    @property
    def dialect(self) -> Dialect:
        """The writer's SQL dialect."""
        return "sqlite" if self.setting.kind == "sqlite" else "mysql"

    @property
    def relay_url(self) -> str:
        """URL of the relay."""
        return f"http://{HOST}:{self.relay_port}"

    @property
    def bootstrap_url(self) -> str:
        """URL of the bootstrap server."""
        return f"http://{HOST}:{self.bootstrap_port}"

    @property
    def client_url(self) -> str:
        """URL of the consumer's own HTTP server, which reports its status."""
        return f"http://{HOST}:{self.client_port}"

    def new_server(self, name: str, **options: str | int) -> PrivateMariaDB:
        """Start a server of the scene's kind, with the relay's account."""
        wanted = {**self.setting.server_options, **options}
        server = self._servers.make(self.setting.kind, self.folder / name, wanted)
        if self.server is not None:
            server.password = self.server.password
        self._stack.callback(_end_server, server)
        server.start()
        return server

    def database_of(self, server: PrivateMariaDB) -> Database:
        """Return the writer's access to a server."""
        return Database("mysql", server.uri, self.folder / "password")

    def the_server(self) -> PrivateMariaDB:
        """Return the server; SQLite has none."""
        assert self.server is not None, "an attack for servers alone"
        return self.server

    def the_proxy(self) -> WireProxy:
        """Return the proxy; SQLite has none."""
        assert self.proxy is not None, "an attack for servers alone"
        return self.proxy

    def the_liar(self) -> LyingRelay:
        """Return the lying relay."""
        assert self.liar is not None, "an attack with a liar"
        return self.liar

    def keep_logs(self, folder: Path) -> None:
        """Copy the processes' logs."""
        folder.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.log", "*.toml", "*.jsonl"):
            for file in self.folder.glob(pattern):
                shutil.copy(file, folder / file.name)

    def close(self) -> None:
        """End everything, and remove the folder."""
        for child in reversed(self._children):
            with contextlib.suppress(ChildError, OSError):
                child.kill()
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_database(self) -> Database:
        if self.setting.kind == "sqlite":
            (self.folder / "database").mkdir(exist_ok=True)
            return Database("sqlite", f"sqlite:{self.folder / 'database' / 'shop.db'}")
        self.server = server = self.new_server("database/server")
        password = self.folder / "password"
        password.touch(0o600)
        password.write_text(server.password)
        self.proxy = self._stack.enter_context(WireProxy(server.port))
        return self.database_of(server)

    def _as_seen_by_the_relay(self) -> Database:
        if self.proxy is None or self.server is None:
            return self.database
        uri = f"mysql://{self.server.user}@{HOST}:{self.proxy.port}"
        return Database("mysql", uri, self.folder / "password")

    def _relay_settings(self) -> str:
        database = self._as_seen_by_the_relay()
        physical = {
            "name": PHYSICAL,
            "uri": database.uri,
            "sources": [SOURCE],
            "start": "earliest",
            "ring_bytes": "16MiB",
            "reconnect_min_s": 0.05,
            "reconnect_max_s": 1.0,
            **({"password_file": str(database.password_file)} if database.password_file else {}),
            **self.setting.source_options,
        }
        top = {"data_dir": str(self.data_dir), **self.setting.relay_options}
        http = {"port": self.relay_port, **self.setting.http_options}
        parts: Sequence[tuple[str, Mapping[str, Any]]] = (
            ("", top),
            ("[http]", http),
            ("[[physical_sources]]", physical),
        )
        lines = []
        for title, table in parts:
            lines += [title, *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
        return "\n".join([*lines, ""])

    def _daemon(self, name: str, *words: str, files: int = 0) -> Child:
        command = self.command(*words, "-c", self.folder / f"{words[0]}.toml")
        limit = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"] if files else []
        return self._child(name, [*limit, *command])

    def command(self, *words: object) -> list[str]:
        """Return the command line of `databus`, with the scene's check switched off."""
        if not self.setting.without:
            return python_module("databus.cli.main", *words)
        off = ("--without", self.setting.without, "--module", "databus.cli.main", "--")
        return python_module("benchmarks.adversity.disarmed", *off, *words)

    def _consumer_command(self) -> list[str]:
        arguments = [
            *(
                "--relay",
                self._relay_of_the_consumer(),
                "--port",
                self.client_port,
                "--folder",
                self.folder,
            ),
            *("--seed", self.setting.seed, "--checkpoints", self.checkpoints),
            *(("--bootstrap", self.bootstrap_url) if self.setting.has_bootstrap else ()),
        ]
        module = "benchmarks.adversity.consumer"
        if not self.setting.without:
            return python_module(module, *arguments)
        off = ("--without", self.setting.without, "--module", module, "--")
        return python_module("benchmarks.adversity.disarmed", *off, *arguments)

    def _relay_of_the_consumer(self) -> str:
        return self.relay_url if self.liar is None else f"http://{HOST}:{self.liar.port}"

    def _child(self, name: str, command: Sequence[str]) -> Child:
        made = Child(name, command, self.folder)
        self._children.append(made)
        return made


def _end_server(server: PrivateMariaDB) -> None:
    server.kill()
    server.close()
