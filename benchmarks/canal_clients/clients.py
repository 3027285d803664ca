"""Runs a stock client of Canal as a process, and remembers what it took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tools.fetch_canal_clients import StockClient

USER, PASSWORD = "canal", "canal"
PASSWORD_HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"
_END_S = 10.0


class Row(NamedTuple):
    """A row, as a client has it: kind of change, table, and columns as (name, text, sqlType)."""

    kind: str
    table: str
    columns: tuple[tuple[str, str | None, int], ...]

    @property
    def key(self) -> int:
        """The value of its first column."""
        return int(self.columns[0][1] or 0)


class RunningClient:
    """A stock client that consumes until it is ended; a context manager.

    `address` is that of a relay, or with `mode` "cluster" of ZooKeeper.
    """

    def __init__(
        self,
        client: StockClient,
        address: str,
        folder: Path,
        *,
        mode: str = "simple",
        destination: str = "example",
        filter_text: str = r".*\..*",
        size: int = 64,
        rollback_every: int = 0,
        outstanding: int = 1,
    ) -> None:
        command = client.find()
        assert command is not None, f"{client.title} was not fetched"
        shown = (mode, address, destination, USER, PASSWORD, filter_text)
        self._command: Sequence[str] = [
            *command,
            *shown,
            *map(str, (size, rollback_every, outstanding)),
        ]
        self._folder = folder
        self._log = folder / f"{client.name}.log"
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self.rows: list[Row] = []
        self.statements: list[str] = []
        self.kinds: list[str] = []  # of the statements
        self.errors: list[str] = []
        self.rollbacks = 0

    def __enter__(self) -> RunningClient:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def keys(self) -> list[int]:
        """The keys of all rows that it took, in order."""
        return [row.key for row in self.rows]

    def start(self) -> None:
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self._folder
            )
        self._thread = threading.Thread(target=self._read, args=(self._process,))
        self._thread.start()

    def kill(self) -> None:
        """Kill the process with SIGKILL, and take what it had printed. Idempotent."""
        process, self._process = self._process, None
        if process is None or self._thread is None:
            return
        os.kill(process.pid, signal.SIGKILL)
        process.wait(_END_S)
        self._thread.join(_END_S)
        assert process.stdout is not None
        process.stdout.close()

    def tell(self) -> str:
        """Return what is known of it, for the text of a failure."""
        log = self._log.read_text(errors="replace")[-1000:] if self._log.exists() else ""
        return f"{len(self.rows)} rows, errors {self.errors[-3:]}, {log}"

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n") and line.startswith("["):  # not the half line of a killed one
                self._take(*json.loads(line))

    def _take(self, what: str, *parts: Any) -> None:
        if what == "taken":
            _, rows = parts
            for kind, table, shown in rows:
                if kind in ("DDL", "SQL"):  # SQL: in place of the rows that it changed
                    self.statements.append(shown)
                    self.kinds.append(kind)
                else:
                    columns = tuple((name, value, int(sql)) for name, value, sql in shown)
                    self.rows.append(Row(kind, table, columns))
        elif what == "rolledBack":
            self.rollbacks += 1
        else:
            self.errors.append(str(parts[0]))


def canal_table(folder: Path, port: int, **more: Any) -> dict[str, Any]:
    """Return `[canal]` of a relay's settings, with the password of these clients."""
    hash_file = folder / "canal.hash"
    hash_file.write_text(PASSWORD_HASH)
    hash_file.chmod(0o600)
    return {
        "port": port,
        "user": USER,
        "password_hash_file": str(hash_file),
        "plain_passwords": True,
        "destinations": [{"name": "example", "physical_sources": ["shop"]}],
    } | more
