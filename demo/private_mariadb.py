"""A private MariaDB server with its own folder, socket and port, removed when it is closed.

For the demo, the tests and the benchmarks. It listens on loopback only, reads no option
file and does not touch the system's servers. The account that it creates has a random
password; root can log in only through the socket.

A start takes about a second: no name look-ups, small buffers, and no flush to disk at each
commit unless `flush_log_at_commit` is set.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from databus.demo.processes import free_port
from databus.schemas.errors import SettingsError, SourceUnavailableError

INSTALL_HINT = "apt install mariadb-server-core mariadb-client-core"
HOST = "127.0.0.1"

# mariadbd is in /usr/sbin, which may not be on PATH.
_SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
PREFIX = "databus-mariadb-"
SOCKET = "socket"
LONGEST_SOCKET_PATH = 107  # bytes, on Linux
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 30.0

_OPTIONS: Mapping[str, str | int] = {
    "bind-address": HOST,
    "binlog-format": "ROW",
    "innodb-buffer-pool-size": "16M",
    "innodb-log-file-size": "16M",
    "log-bin": "binlog",
    "performance-schema": "OFF",
    "server-id": 1,
    "skip-name-resolve": "ON",
}


class PrivateMariaDB:
    """One server process and its files; a context manager.

    `directory` keeps the data if given, and existing data in it is used; otherwise the data
    is in a temporary folder that is removed with the server. `options` are server options
    (`{"binlog-checksum": "NONE"}`) on top of a small configuration that logs rows.
    `basedir` is the folder of a server that is not installed, with its `bin` and `share`;
    without it the installed server is run.
    """

    defaults: ClassVar[Mapping[str, str | int]] = _OPTIONS
    templates: ClassVar[Path | None] = None
    """A folder that keeps a fresh data folder of each kind of server, for others to copy."""

    def __init__(
        self,
        directory: Path | None = None,
        *,
        options: Mapping[str, str | int] | None = None,
        flush_log_at_commit: int = 0,
        basedir: Path | None = None,
    ) -> None:
        self.basedir = basedir
        self.options: dict[str, str | int] = {
            **self.defaults,
            "innodb-flush-log-at-trx-commit": flush_log_at_commit,
            **(options or {}),
        }
        self.user = "databus"
        self.password = secrets.token_hex(12)
        self.port = 0
        # Apart from the data: a socket's path must be short, a data folder's need not be.
        self._run_dir = _folder_for_a_socket()
        self.directory = directory or self._run_dir / "data"
        self.socket = self._run_dir / SOCKET
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrivateMariaDB:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """The settings' `uri` of this server; the password is in `password`."""
        return f"mysql://{self.user}@{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id, or None when the server is down."""
        return self._process.pid if self._process is not None else None

    @property
    def error_log(self) -> Path:
        """The server's own log."""
        return self._run_dir / "error.log"

    def start(self) -> None:
        """Start the server and wait until it answers; does nothing if it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        server = self._find_server()
        self._install()
        # Another process may take the port between choosing and using it.
        for attempt in range(5):
            self.port = self.port or free_port()
            self._launch(server)
            try:
                self._wait_until_ready()
            except SourceUnavailableError:
                if attempt == 4 or "Address already in use" not in self._last_log_lines():
                    raise
                self.port = 0
            else:
                return

    def stop(self) -> None:
        """Shut the server down cleanly; the data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server, as a power cut would; the data stays."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill) and start again, on the same port with the same account."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove the temporary files. May be called twice."""
        if self.directory.is_relative_to(self._run_dir):
            self.kill()
        else:
            self.stop()
        shutil.rmtree(self._run_dir, ignore_errors=True)

    def _install(self) -> None:
        if (self.directory / "mysql").is_dir():
            return
        if self.templates is None:
            self._make_data(self.directory)
            return
        # To make one takes longer than all the rest of a start.
        template = self.templates / (self.basedir.name if self.basedir else "installed")
        if not template.exists():
            made = Path(tempfile.mkdtemp(dir=self.templates))
            self._make_data(made)
            made.rename(template)
        shutil.copytree(template, self.directory, dirs_exist_ok=True)

    def _make_data(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        size = self.defaults["innodb-log-file-size"]
        command = [
            _find_program("mariadb-install-db", "mysql_install_db", basedir=self.basedir),
            "--no-defaults",
            *self._basedir_option(),
            f"--datadir={directory}",
            f"--tmpdir={self._run_dir}",
            f"--innodb-log-file-size={size}",  # else the first start makes it anew
            "--auth-root-authentication-method=socket",
            "--skip-test-db",
            "--skip-name-resolve",
            *_user_option(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            tail = (done.stdout + done.stderr).strip().splitlines()[-5:]
            raise SourceUnavailableError(f"mariadb-install-db failed: {' '.join(tail)}")

    def _find_server(self) -> str:
        """Return the server program."""
        return _find_program("mariadbd", "mysqld", basedir=self.basedir)

    def _account_sql(self) -> str:
        """Return the SQL that creates the account: one statement a line, run at each start."""
        # Not written to the change log.
        return (
            "SET sql_log_bin = 0;\n"
            f"CREATE OR REPLACE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
        )

    def _basedir_option(self) -> list[str]:
        return [f"--basedir={self.basedir}"] if self.basedir is not None else []

    def _launch(self, server: str) -> None:
        account = self._run_dir / "account.sql"
        with os.fdopen(os.open(account, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as out:
            out.write(self._account_sql())
        command = [
            server,
            "--no-defaults",
            *self._basedir_option(),
            f"--datadir={self.directory}",
            f"--socket={self.socket}",
            f"--port={self.port}",
            f"--pid-file={self._run_dir / 'pid'}",
            # Of its own: names there have only a process id in them, and a server that
            # is killed leaves its files to the next one of that id.
            f"--tmpdir={self._run_dir}",
            f"--log-error={self.error_log}",
            f"--init-file={account}",
            *_user_option(),
            *(f"--{name}={value}" for name, value in self.options.items()),
        ]
        # A session of its own: Ctrl-C in a terminal is for us, and we then stop
        # the server when nothing reads from it any more.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise SourceUnavailableError(
                    f"the server did not start: {self._last_log_lines() or 'no log'}"
                )
            time.sleep(0.01)

    def _answers(self) -> bool:
        # The server sends its greeting only after it has run the init file.
        with (
            contextlib.suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=5) as link,
        ):
            return link.recv(1) != b""
        return False

    def _last_log_lines(self) -> str:
        if not self.error_log.exists():
            return ""
        lines = self.error_log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " | ".join(line for line in lines[-30:] if "[ERROR]" in line)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def private_mariadb(
    directory: Path | None = None, **options: str | int
) -> Iterator[PrivateMariaDB]:
    """Run a server for the duration of a `with` block; options have `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in options.items()}
    with PrivateMariaDB(directory, options=named) as server:
        yield server


def _user_option() -> list[str]:
    # The server refuses to run as root without this option.
    return ["--user=root"] if os.geteuid() == 0 else []


def _find_program(*names: str, basedir: Path | None) -> str:
    path = f"{basedir}/bin{os.pathsep}{basedir}/scripts" if basedir is not None else _SEARCH_PATH
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    raise SettingsError(f"no {names[0]} on this machine; install it: {INSTALL_HINT}")


def _folder_for_a_socket() -> Path:
    """Create a folder with a short path: not in TMPDIR when its path is too long."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    if len(os.fsencode(folder / SOCKET)) <= LONGEST_SOCKET_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
