"""A private PostgreSQL server, as a target of Spark jobs: on loopback, gone when closed."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from databus.demo.processes import free_port
from tests import PATIENCE_S

HOST = "127.0.0.1"
_numbers = itertools.count(1)
_OPTIONS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "autovacuum": "off",
}


class PrivatePostgres:
    """One server process and its files; a context manager."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.user, self.password, self.port = "databus", secrets.token_hex(12), 0
        self._folder = Path(tempfile.mkdtemp(prefix="databus-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivatePostgres:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def url(self, database: str = "postgres") -> str:
        """Return SQLAlchemy's URL of a database."""
        login = f"{self.user}:{self.password}@{HOST}:{self.port}"
        return f"postgresql+psycopg://{login}/{database}"

    def run(self, statement: str) -> None:
        """Run a statement that no transaction may have around it."""
        url = self.url().replace("+psycopg", "")
        with contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
            connection.execute(statement.encode())

    def close(self) -> None:
        """End the server and remove its files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # whoever is connected is turned away
            self._process.wait(PATIENCE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        # It refuses to run as root, and nobody else may look into root's folders.
        account = "nobody" if os.geteuid() == 0 else None
        folder = shutil.copytree(self._programs, self._folder / "programs", symlinks=True) / "bin"
        if account:
            shutil.chown(self._folder, account)
        password = self._folder / "password"
        password.write_text(self.password)
        if account:
            shutil.chown(password, account)
        data = self._folder / "data"
        made: list[str | Path] = [
            folder / "initdb", f"--pgdata={data}", f"--username={self.user}", "--encoding=UTF8",
            "--locale=C", "--auth=scram-sha-256", f"--pwfile={password}", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(made, capture_output=True, text=True, user=account, check=False)
        assert done.returncode == 0, done.stderr
        self.port = free_port()
        options = [f"--{name}={value}" for name, value in _OPTIONS.items()]
        command: list[str | Path] = [
            folder / "postgres",
            "-D",
            data,
            f"--port={self.port}",
            *options,
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=account, start_new_session=True
            )
        self._wait()

    def _wait(self) -> None:
        """Wait until it lets somebody in: it listens a moment before that."""
        assert self._process is not None
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.run("SELECT 1")
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise AssertionError((self._folder / "log").read_text()) from None
                time.sleep(0.05)
            else:
                return


@contextlib.contextmanager
def fresh_url(server: PrivatePostgres) -> Iterator[str]:
    """Make a database of a new name, dropped at the end; gives its URL."""
    name = f"t{next(_numbers)}"
    server.run(f"CREATE DATABASE {name}")
    yield server.url(name)
    server.run(f"DROP DATABASE {name} WITH (FORCE)")
