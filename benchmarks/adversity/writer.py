"""Commits distinguishable transactions, and knows which of them are committed.

Table `orders`: `id` is unique; `tx` counts the transactions from 1, `tx_row` and `tx_rows` say
which row of how many it is, and `note` follows from these and the seed: a row that arrives can be
checked by itself.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from hashlib import blake2b

import pymysql

from databus.demo.databases import Database, Dialect, Session

SOURCE = "shop.orders"
ROWS_MOST = 1000
_RETRY_S = 0.1
_FAILURES = (pymysql.Error, sqlite3.Error, OSError)


def create_table(dialect: Dialect) -> str:
    """Return the CREATE TABLE statement."""
    big, text = ("INTEGER", "TEXT") if dialect == "sqlite" else ("BIGINT", "VARCHAR(4000)")
    return (
        f"CREATE TABLE orders (id {big} PRIMARY KEY, tx {big} NOT NULL, tx_row {big} NOT NULL,"
        f" tx_rows {big} NOT NULL, note {text} NOT NULL)"
    )


def id_of(tx: int, row: int) -> int:
    """Return the id of a transaction's row."""
    return tx * ROWS_MOST + row


def note_of(seed: int, tx: int, row: int, length: int) -> str:
    """Return the note of a row; notes of different lengths share a prefix."""
    digest = blake2b(f"{seed} {tx} {row}".encode(), digest_size=16).hexdigest()
    return f"{length}:{digest}".ljust(length, "x")


def wrong_row(seed: int, row: dict[str, object]) -> str:
    """Return the defect of a row that arrived, or ""."""
    try:
        tx, number, note = int(str(row["tx"])), int(str(row["tx_row"])), str(row["note"])
        wanted = note_of(seed, tx, number, len(note))
        is_right = row["id"] == id_of(tx, number) and note == wanted
    except (KeyError, ValueError) as error:
        return f"wrong row {row}: {error!r}"
    return "" if is_right else f"wrong row {row}"


class Writer:
    """Writes to one database. For one thread at a time.

    `committed` is the number of the newest transaction that is. Sizes are drawn
    from the seed; `is_equal` makes all transactions as long as each other.
    """

    def __init__(self, database: Database, seed: int, *, is_equal: bool = False) -> None:
        self.database = database
        self.committed = 0
        self.note_bytes = 100
        self._seed = seed
        self._is_equal = is_equal
        self._random = random.Random(f"writer {seed}")
        self._session: Session | None = None

    def write(self, transactions: int) -> None:
        """Commit a number of transactions; retry until the database accepts them."""
        for _ in range(transactions):
            self._commit_for_sure(self.committed + 1, self._shape(), threading.Event())

    def begin_another_history(self) -> None:
        """Continue with numbers that do not follow those of the old log."""
        self.close()  # both logs then have the events that a new session adds
        self.committed += 1_000_000

    def move_to(self, database: Database) -> None:
        """Write to another database from now on."""
        self.close()
        self.database = database

    @contextlib.contextmanager
    def flowing(self, rate: float = 100.0) -> Iterator[None]:
        """Commit in the background at a rate, for the length of a `with`."""
        over = threading.Event()
        thread = threading.Thread(target=self._flow, args=(rate, over))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(*_FAILURES):
                session.close()

    def _flow(self, rate: float, over: threading.Event) -> None:
        while not over.wait(1 / rate):
            self._commit_for_sure(self.committed + 1, self._shape(), over)
        self.close()

    def _shape(self) -> list[int]:
        """Return the lengths of the notes of the next transaction."""
        if self._is_equal:
            return [self.note_bytes] * 3
        draw = self._random
        return [
            draw.randrange(40, 2 * self.note_bytes) for _ in range(draw.choice((1, 1, 2, 3, 7)))
        ]

    def _commit_for_sure(self, tx: int, lengths: list[int], over: threading.Event) -> None:
        while True:
            try:
                session = self._connected()
                if not session.rows("SELECT 1 FROM orders WHERE tx = ? LIMIT 1", (tx,)):
                    self._commit(session, tx, lengths)
                self.committed = tx
            except _FAILURES:
                # The next try checks whether it was committed; the last one does not.
                self.close()
                if over.wait(_RETRY_S):
                    self._settle(tx)
                    return
            else:
                return

    def _settle(self, tx: int) -> None:
        """Find out whether a transaction whose COMMIT failed was committed."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(*_FAILURES):
                session = self._connected()
                if session.rows("SELECT 1 FROM orders WHERE tx = ? LIMIT 1", (tx,)):
                    self.committed = tx
                return
            self.close()
            time.sleep(_RETRY_S)

    def _connected(self) -> Session:
        if self._session is None:
            self._session = self.database.connect()
        return self._session

    def _commit(self, session: Session, tx: int, lengths: list[int]) -> None:
        session.begin()
        for row, length in enumerate(lengths, 1):
            note = note_of(self._seed, tx, row, length)
            values = (id_of(tx, row), tx, row, len(lengths), note)
            session.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", values)
        session.commit()
