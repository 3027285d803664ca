"""The SQLite shop of the pages, and commits to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

TABLES = (
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INT, status TEXT NOT NULL)",
)


def make_shop(folder: Path) -> Path:
    """Make `shop.db` in a folder."""
    commit(folder, *TABLES)
    return folder / "shop.db"


def commit(folder: Path, *statements: str) -> None:
    """Run statements in one transaction."""
    with closing(sqlite3.connect(folder / "shop.db", timeout=10)) as shop, shop:
        for statement in statements:
            shop.execute(statement)
