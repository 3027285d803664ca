"""Statements that a source logged instead of their rows, as stock clients have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.canal_clients.clients import RunningClient, canal_table
from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import wait_until
from tests.promises.statements.unlogged import (
    LONG_BYTES,
    MIXED,
    ROW,
    STATEMENT,
    delivering_relay,
    session,
)
from tests.promises.stock_canal.test_stock_clients import address_of
from tools.fetch_canal_clients import GO, JAVA, PYTHON, StockClient

pytestmark = pytest.mark.mariadb


@pytest.mark.parametrize(
    "stock",
    [
        pytest.param(JAVA, marks=pytest.mark.canal_client_java),
        pytest.param(GO, marks=pytest.mark.canal_client_go),
        pytest.param(PYTHON, marks=pytest.mark.canal_client_python),
    ],
)
def test_a_statement_is_a_row_change_with_sql_and_no_rows_among_the_others(
    stock: StockClient, database: Database, tmp_path: Path
) -> None:
    shop = database
    texts = [
        "UPDATE orders SET note = 'é' WHERE id = 1",
        "DELETE FROM people",
        f"DELETE FROM orders WHERE note = '{'n' * LONG_BYTES}'",
    ]
    canal = canal_table(tmp_path, free_port())
    with delivering_relay(shop, tmp_path, options={"canal": canal}) as relay:
        filter_text = rf"{shop.name}\.orders"
        with RunningClient(
            stock, address_of(relay), tmp_path, filter_text=filter_text, size=1, rollback_every=5
        ) as client:
            with session(shop.server, shop.name) as writer:
                writer.run("INSERT INTO orders VALUES (1, 'a', 1)", MIXED, "BEGIN")
                writer.run("INSERT INTO orders VALUES (2, UUID(), 1)", texts[0])
                writer.run("INSERT INTO orders VALUES (3, UUID(), 1)", "COMMIT")
                # Of a table that the filter leaves out, as rows of it are.
                writer.run(STATEMENT, *texts[1:], ROW, "INSERT INTO orders VALUES (4, 'z', 1)")
            wait_until(lambda: 4 in client.keys, "row 4", client.tell, PATIENCE_S)
    told = [
        text for text, kind in zip(client.statements, client.kinds, strict=True) if kind == "SQL"
    ]
    assert told == [texts[0], texts[2]]
    assert client.keys == [1, 2, 3, 4]
