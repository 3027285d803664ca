"""Keep a copy of `shop.orders` in another SQLite file, each change applied exactly once.

    python examples/orders_to_sqlite.py http://127.0.0.1:11115 copy.db

Changes are delivered at least once: after a crash the last of them come again.
Here each transaction is applied together with its SCN, in one transaction of
the copy, so that the copy itself says what it has, and what comes again is
known by its SCN. The checkpoint file of the client is not needed for that: the
copy's own SCN says where to start.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

from databus.client import DatabusClient, DataWindow

TABLES = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer INTEGER, status TEXT);
CREATE TABLE IF NOT EXISTS applied (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), scn INTEGER);
"""
UPSERT = """
INSERT INTO orders (id, customer, status) VALUES (:id, :customer, :status)
ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, status = excluded.status
"""
DELETE = "DELETE FROM orders WHERE id = :id"
DELETE_ALL = "DELETE FROM orders"
APPLIED = "INSERT OR REPLACE INTO applied VALUES (1, ?)"


def applied_scn(copy: sqlite3.Connection) -> int | None:
    """Return the SCN of the newest transaction in the copy; None when it is new."""
    row = copy.execute("SELECT scn FROM applied").fetchone()
    return None if row is None else row[0]


def apply(copy: sqlite3.Connection, window: DataWindow) -> None:
    """Apply one transaction and its SCN, both or neither."""
    with copy:
        for event in window.events:
            if event.is_truncate:
                copy.execute(DELETE_ALL)
            else:
                copy.execute(DELETE if event.is_delete else UPSERT, event.row)
        copy.execute(APPLIED, (window.scn,))


def follow(relay: str, path: str) -> None:
    """Apply what comes, until Ctrl-C."""
    with closing(sqlite3.connect(path)) as copy:
        copy.executescript(TABLES)
        scn = applied_scn(copy)
        # A new copy begins with the oldest change held. One that slept too long
        # is told so (ScnNotFoundError), and has to be filled from the shop again.
        client = DatabusClient(relays=[relay], start="earliest" if scn is None else str(scn))
        with client:
            for window in client.windows("shop.orders"):
                apply(copy, window)
                print(f"applied {len(window.events)} changes of scn {window.scn}", flush=True)


if __name__ == "__main__":
    follow(*sys.argv[1:])
