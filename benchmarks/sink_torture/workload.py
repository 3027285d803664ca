"""Transactions of every kind over three tables of MariaDB, and the rows that they leave."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from typing import Any

from databus.demo.databases import Database, Session

SOURCES = ("shop.orders", "shop.items", "shop.people")
TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, v INT, s VARCHAR(40))",
    "CREATE TABLE items (id INT PRIMARY KEY, v INT, s VARCHAR(40))",
    "CREATE TABLE people (id INT PRIMARY KEY, v INT, s VARCHAR(40))",
)
_NAMES = ("orders", "items", "people")
_KEYS = 200
_FREE = -1  # a key that is in use only within a swap
_TRUNCATE_OF = 400  # one transaction of so many

Rows = dict[tuple[str, int], dict[str, Any]]


def rows_of(session: Session) -> Rows:
    """Return all rows, by source and key."""
    return {
        (f"shop.{table}", key): {"id": key, "v": v, "s": s}
        for table in _NAMES
        for key, v, s in session.rows(f"SELECT id, v, s FROM {table}")
    }


class Writer:
    """Commits transactions on a thread of its own until it is ended."""

    def __init__(self, database: Database, seed: int, pause_s: float) -> None:
        self.transactions = 0
        self._database, self._pause_s = database, pause_s
        self._draw = random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._database.connect()) as session:
            while not self._ended.wait(self._pause_s):
                self.transactions += 1
                self._commit(session)

    def _commit(self, session: Session) -> None:
        draw = self._draw
        if draw.randrange(_TRUNCATE_OF) == 0:
            session.execute(f"TRUNCATE TABLE {draw.choice(_NAMES)}")
            return
        # One in three transactions is of several tables.
        tables = _NAMES if draw.random() < 0.33 else (draw.choice(_NAMES),)
        session.begin()
        for _ in range(draw.randint(1, 5)):
            self._change(session, draw.choice(tables))
        session.commit()

    def _change(self, session: Session, table: str) -> None:
        draw = self._draw
        key, kind = draw.randrange(_KEYS), draw.random()
        if kind < 0.2:
            session.execute(f"DELETE FROM {table} WHERE id = ?", [key])
        elif kind < 0.3:
            self._move(session, table, key, draw.randrange(_KEYS))
        elif kind < 0.5:
            session.execute(f"UPDATE {table} SET v = v + 1 WHERE id = ?", [key])
        else:
            row = [key, self.transactions, f"row {self.transactions}"]
            session.execute(f"REPLACE INTO {table} VALUES (?, ?, ?)", row)

    def _move(self, session: Session, table: str, old: int, new: int) -> None:
        """Change a key; if another row has the new one, the two swap their keys."""
        for key, to in ((new, _FREE), (old, new), (_FREE, old)):
            session.execute(f"UPDATE {table} SET id = ? WHERE id = ?", [to, key])
