"""The load, and the consumer that notes what comes of it."""

from __future__ import annotations

import threading
import time
from contextlib import closing

from databus.client.consumer import Consumer, DataEvent
from databus.demo.databases import Database
from databus.demo.writer import RateLimiter

TABLES = ("orders", "people", "items")
CREATE = "CREATE TABLE {} (id BIGINT PRIMARY KEY, sent_ns BIGINT NOT NULL)"
RATE = 300.0
_ALTER = (
    "SET SESSION sql_log_bin = 0",
    "ALTER TABLE items ADD COLUMN extra INT NOT NULL DEFAULT 7 AFTER id",
    "SET SESSION sql_log_bin = 1",
)


class Load:
    """Inserts a row into each table in one transaction, at a rate, until it is stopped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.committed = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def alter(self) -> None:
        """Alter a table between two transactions, without a trace in the server's log."""
        with self._lock, closing(self._database.connect()) as session:
            for statement in _ALTER:
                session.execute(statement)

    def stop(self) -> None:
        """Stop after the current transaction."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        limiter = RateLimiter(RATE, time.monotonic())
        with closing(self._database.connect()) as session:
            while not self._stopping.is_set():
                number = self.committed + 1
                with self._lock:
                    session.begin()
                    for table in TABLES:
                        values = (number, time.time_ns())
                        sql = f"INSERT INTO {table} (id, sent_ns) VALUES (?, ?)"
                        session.execute(sql, values)
                    session.commit()
                self.committed = number
                time.sleep(limiter.delay_s(1, time.monotonic()))


class Reader(Consumer):
    """Notes the ids of each table in the order of their arrival, and the longest lag."""

    def __init__(self) -> None:
        self.ids: dict[str, list[int]] = {table: [] for table in TABLES}
        self.longest_ns = 0
        self.problems: list[str] = []

    def on_data_event(self, event: DataEvent) -> None:
        """Note a row."""
        row = event.row
        self.longest_ns = max(self.longest_ns, time.time_ns() - row["sent_ns"])
        self.ids[event.source.rpartition(".")[2]].append(row["id"])

    def on_error(self, error: BaseException) -> None:
        """Note why the client stops."""
        self.problems.append(str(error))

    def take_longest_ms(self) -> float:
        """Return the longest lag since the last call, in ms."""
        longest_ns, self.longest_ns = self.longest_ns, 0
        return longest_ns / 1e6
