"""A materialized counter: how many orders are in each status, exact and always up to date.

    python examples/status_counts.py http://127.0.0.1:11115 counts.db

A count cannot take a change twice, so the SCN is kept in the same transaction as the counts, and
says where to go on: no checkpoint is needed, and after a kill each change is counted once.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

from databus.client import DatabusClient, DataEvent

TABLES = """
CREATE TABLE IF NOT EXISTS counts (status TEXT PRIMARY KEY, orders INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS applied (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), scn INTEGER);
"""
ADD = """
INSERT INTO counts VALUES (?, ?)
ON CONFLICT (status) DO UPDATE SET orders = orders + excluded.orders
"""


def apply(counts: sqlite3.Connection, event: DataEvent) -> None:
    """Take one change into account."""
    if event.is_truncate:
        counts.execute("DELETE FROM counts")
    elif event.is_delete:
        counts.execute(ADD, (event.row["status"], -1))
    else:
        if event.before:
            counts.execute(ADD, (event.before["status"], -1))
        counts.execute(ADD, (event.row["status"], 1))


def main(relay: str, path: str) -> None:
    """Count until Ctrl-C."""
    with closing(sqlite3.connect(path)) as counts:
        counts.executescript(TABLES)
        applied = counts.execute("SELECT scn FROM applied").fetchone()
        client = DatabusClient(relay, start=str(applied[0]) if applied else "earliest")
        with client:
            for window in client.windows("shop.orders"):
                with counts:
                    for event in window.events:
                        apply(counts, event)
                    counts.execute("INSERT OR REPLACE INTO applied VALUES (1, ?)", (window.scn,))


if __name__ == "__main__":
    main(*sys.argv[1:])
