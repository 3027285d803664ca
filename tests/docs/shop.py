"""The SQLite shop of the pages, and commits to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests import PATIENCE_S
from tests.docs.markdown import block_for
from tests.docs.terminal import Reader
from tools.repository import ROOT

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
    with closing(sqlite3.connect(folder / "shop.db", timeout=PATIENCE_S)) as shop, shop:
        for statement in statements:
            shop.execute(statement)


@contextmanager
def reader_of_three_rows(folder: Path) -> Iterator[Reader]:
    """Yield somebody with a relay that holds one transaction of three rows."""
    reader = Reader(folder)
    try:
        make_shop(reader.folder)
        reader.do(block_for(ROOT / "README.md", "write relay.toml"))
        reader.start_relay()
        commit(
            reader.folder,
            "INSERT INTO customers VALUES (1, 'Ada')",
            "INSERT INTO orders VALUES (4, 1, 'paid')",
            "INSERT INTO orders VALUES (5, 1, 'paid')",
        )
        yield reader
    finally:
        reader.close()
