"""Inserts rows at a rate."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager

from tests.mariadb_server import Database
from tests.promises.running import meanwhile


class Writer:
    """Inserts rows at a rate, on a thread, while its context lasts."""

    def __init__(self, database: Database, rate: float) -> None:
        self.rows = 0
        self._database, self.rate = database, rate

    def running(self) -> AbstractContextManager[None]:
        """Write meanwhile."""
        return meanwhile(self._run)

    def _run(self, ended: threading.Event) -> None:
        begin_s, before = time.monotonic(), self.rows
        while not ended.is_set():
            self.rows += 1
            self._database.run(f"INSERT INTO orders VALUES ({self.rows}, 'n{self.rows}', 1.5)")
            due_s = begin_s + (self.rows - before) / self.rate
            ended.wait(max(0.0, due_s - time.monotonic()))
