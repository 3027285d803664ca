"""The programs of examples/, run as their docstrings say, and killed."""

from __future__ import annotations

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from databus.demo.processes import wait_until
from tests import PATIENCE_S
from tests.docs.markdown import (
    block_for,
)
from tests.docs.shop import commit, make_shop
from tests.docs.terminal import Reader, Terminal
from tools.repository import ROOT

EXAMPLE = ROOT / "examples" / "orders_to_sqlite.py"


@pytest.fixture
def relay(reader: Reader) -> Reader:
    """Somebody with a shop and a relay."""
    make_shop(reader.folder)
    reader.do(block_for(ROOT / "README.md", "write relay.toml"))
    reader.start_relay()
    return reader


def start(terminal: Terminal, relay: Reader) -> None:
    terminal.paste(f"python {EXAMPLE} {relay.url} copy.db\n")


def rows(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT id, customer, status FROM orders ORDER BY id").fetchall()


def scns(terminal: Terminal) -> set[str]:
    return set(re.findall(r"of scn (\d+)", terminal.output))


def test_the_copy_has_each_change_once_though_the_program_is_killed(relay: Reader) -> None:
    copy = relay.folder / "copy.db"
    commit(relay.folder, *(f"INSERT INTO orders VALUES ({n}, 1, 'placed')" for n in range(5)))
    with relay.opened("first") as first:
        start(first, relay)
        first.wait_for(["applied 5 changes of scn …"])
        first.interrupt(signal.SIGKILL)
    commit(relay.folder, "DELETE FROM orders WHERE id = 0", "UPDATE orders SET status = 'sent'")
    commit(relay.folder, "INSERT INTO customers VALUES (1, 'Ada')")
    commit(relay.folder, "INSERT INTO orders VALUES (9, 1, 'placed')")
    with relay.opened("second") as second:
        start(second, relay)
        shop = rows(relay.folder / "shop.db")
        wait_until(lambda: rows(copy) == shop, PATIENCE_S, "the copy")
        assert len(scns(first)) == 1
        assert not scns(first) & scns(second)


def test_a_transaction_that_is_not_applied_whole_is_not_applied_at_all(
    relay: Reader,
) -> None:
    copy = relay.folder / "copy.db"
    with closing(sqlite3.connect(copy)) as database:
        database.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, status TEXT"
            " CHECK (status <> 'bad'))"
        )
    commit(relay.folder, "INSERT INTO orders VALUES (1, 1, 'placed')")
    with relay.opened("program") as terminal:
        start(terminal, relay)
        terminal.wait_for(["applied 1 changes of scn …"])
        commit(
            relay.folder,
            "INSERT INTO orders VALUES (2, 1, 'placed')",
            "INSERT INTO orders VALUES (3, 1, 'bad')",
        )
        terminal.wait_for(["…CHECK constraint failed…"])
    assert rows(copy) == [(1, 1, "placed")]
