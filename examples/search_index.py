"""Keep a full-text index of the customers' names, in SQLite.

    python examples/search_index.py http://127.0.0.1:11115 index.db checkpoints
    sqlite3 index.db "SELECT rowid, name FROM customers WHERE customers MATCH 'ada'"

A change is applied by the row's id, so that one which comes twice changes nothing.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

from databus.client import DatabusClient, DataEvent

TABLE = "CREATE VIRTUAL TABLE IF NOT EXISTS customers USING fts5(name)"


def apply(index: sqlite3.Connection, event: DataEvent) -> None:
    """Bring one customer up to date."""
    if event.is_truncate:
        index.execute("DELETE FROM customers")
        return
    index.execute("DELETE FROM customers WHERE rowid = :id", event.row)
    if not event.is_delete:
        index.execute("INSERT INTO customers (rowid, name) VALUES (:id, :name)", event.row)


def main(relay: str, path: str, checkpoints: str) -> None:
    """Index until Ctrl-C: one commit of the index for each of the shop."""
    client = DatabusClient(relay, checkpoint_dir=checkpoints)
    with closing(sqlite3.connect(path)) as index, client:
        index.execute(TABLE)
        for window in client.windows("shop.customers"):
            with index:
                for event in window.events:
                    apply(index, event)


if __name__ == "__main__":
    main(*sys.argv[1:])
