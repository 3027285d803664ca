"""Keep who was what, and when: a table with each row before and after each change.

    python examples/audit_table.py http://127.0.0.1:11115 audit.db checkpoints

A change is known by its SCN and its place in the transaction: one that comes twice is there once.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from databus.client import DatabusClient, DataEvent

TABLE = """
CREATE TABLE IF NOT EXISTS audit (
    scn INTEGER, place INTEGER, at TEXT, source TEXT, op TEXT, before TEXT, after TEXT,
    PRIMARY KEY (scn, place)
)
"""
INSERT = "INSERT OR IGNORE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)"


def text(row: Mapping[str, Any] | None) -> str | None:
    """Return a row as JSON."""
    return None if not row else json.dumps(dict(row), default=str)


def note(audit: sqlite3.Connection, event: DataEvent) -> None:
    """Write one change down."""
    at = datetime.fromtimestamp(event.timestamp_ns / 1e9, UTC).isoformat()
    before, after = (event.row, None) if event.is_delete else (event.before, event.row)
    values = (event.scn, event.index, at, event.source, event.op, text(before), text(after))
    audit.execute(INSERT, values)


def main(relay: str, path: str, checkpoints: str) -> None:
    """Write down until Ctrl-C: one commit for each of the shop."""
    client = DatabusClient(relay, checkpoint_dir=checkpoints)
    with closing(sqlite3.connect(path)) as audit, client:
        audit.execute(TABLE)
        for window in client.windows("shop.customers", "shop.orders"):
            with audit:
                for event in window.events:
                    note(audit, event)


if __name__ == "__main__":
    main(*sys.argv[1:])
