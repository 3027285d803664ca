"""The orders: their table, the rows before the first change, and random changes."""

from __future__ import annotations

import random
from collections.abc import Iterator

from databus.demo.databases import Session

SOURCE = "shop.orders"
COLUMNS = ("id", "customer", "amount", "weight", "status", "note", "updated_at")
CREATE = """
CREATE TABLE orders (
    id BIGINT AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(40) NOT NULL,
    amount DECIMAL(12,2) NOT NULL, weight DOUBLE,
    status ENUM('new','paid','sent') NOT NULL, note VARCHAR(120), updated_at DATETIME(6)
)
"""
_FILL = """
INSERT INTO orders SELECT seq, CONCAT('customer ', seq MOD 5000), seq * 1.37, seq / 7,
    1 + seq MOD 3, IF(seq MOD 11, REPEAT('n', 20 + seq MOD 80), NULL), '2026-01-01'
FROM seq_{}_to_{}
"""
_FILL_ROWS = 50_000
HOT_SHARE = 10  # only the newest of this many keys are written to


def fill(session: Session, rows: int) -> None:
    """Make rows that are not in the change log."""
    session.execute("SET sql_log_bin = 0")
    for first in range(1, rows + 1, _FILL_ROWS):
        session.execute(_FILL.format(first, min(first + _FILL_ROWS - 1, rows)))
    session.execute("ANALYZE TABLE orders")
    session.execute("SET sql_log_bin = 1")


def first_hot(rows: int) -> int:
    """Return the least key that is changed."""
    return rows - rows // HOT_SHARE


def changes(rows: int, seed: int) -> Iterator[list[str]]:
    """Yield endless transactions: statements that change hot rows."""
    chance = random.Random(seed)
    newest = rows
    while True:
        statements = []
        for _ in range(chance.randint(1, 3)):
            key, turn = chance.randint(first_hot(rows) + 1, newest), chance.random()
            if turn < 0.1:
                newest += 1
                statements.append(
                    f"INSERT INTO orders VALUES ({newest}, 'new customer', {key}.5, {turn!r}, "
                    "'new', NULL, NOW(6))"
                )
            elif turn < 0.2:
                statements.append(f"DELETE FROM orders WHERE id = {key}")
            else:
                statements.append(
                    f"UPDATE orders SET amount = amount + 0.01, weight = {turn!r}, "
                    f"status = 1 + {key} MOD 3, updated_at = NOW(6) WHERE id = {key}"
                )
        yield statements
