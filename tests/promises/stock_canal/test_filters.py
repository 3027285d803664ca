"""What a stock client's filter and a destination's own leave of the tables of a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.canal_clients.clients import RunningClient, canal_table
from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.mariadb_server import Database
from tests.promises.running import RunningRelay, mysql_source, running, wait_until
from tests.promises.stock_canal.test_stock_clients import address_of
from tools.fetch_canal_clients import GO, JAVA, PYTHON, StockClient

pytestmark = pytest.mark.mariadb

# `_` and `%` are plain here: `order_` is a table, and `border_1` ends as a wanted one does.
TABLES = ("order_1", "order_2", "order_tmp", "order_", "border_1", "ORDER_3")
WANTED = ["ORDER_3", "order_1", "order_2"]


@pytest.mark.parametrize(
    "stock",
    [
        pytest.param(JAVA, marks=pytest.mark.canal_client_java),
        pytest.param(GO, marks=pytest.mark.canal_client_go),
        pytest.param(PYTHON, marks=pytest.mark.canal_client_python),
    ],
)
@pytest.mark.parametrize(
    ("filter_text", "black_filter"),
    [
        pytest.param(r"{}\.order_.+", r".*\.order_tmp", id="black filter"),
        # The same without it, for there is no look-around: any end but `tmp`.
        pytest.param(r"{}\.order_([0-9]+)", "", id="the tables' own pattern"),
    ],
)
def test_a_pattern_selects_whole_names_of_tables_but_for_those_of_the_black_filter(
    stock: StockClient, database: Database, tmp_path: Path, filter_text: str, black_filter: str
) -> None:
    sources = [f"{database.name}.{table}" for table in TABLES]
    database.run(*(f"CREATE TABLE {table} (id INT PRIMARY KEY)" for table in TABLES))
    destination = {"name": "example", "physical_sources": ["shop"], "black_filter": black_filter}
    canal = canal_table(tmp_path, free_port(), destinations=[destination])
    settings = mysql_source(database, tmp_path, sources=sources)
    with running(RunningRelay(tmp_path, settings, canal=canal)) as relay:
        relay.start()
        filter_text = filter_text.format(database.name)
        with RunningClient(stock, address_of(relay), tmp_path, filter_text=filter_text) as client:
            for number in (1, 2):
                database.run(*(f"INSERT INTO {table} VALUES ({number})" for table in TABLES))
            wait_until(lambda: len(client.rows) >= 6, "the rows", client.tell, PATIENCE_S)
    rows = [(row.table.partition(".")[2], row.key) for row in client.rows]
    assert sorted(rows) == [(table, number) for table in WANTED for number in (1, 2)]
