"""What is judged of a stock client of Canal."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.canal_clients.clients import Row, RunningClient
from benchmarks.canal_clients.run import figures_of, judge
from benchmarks.shared.every_type import Change
from tools.fetch_canal_clients import StockClient

KNOWN = StockClient("java", "a client", "*", lambda _: None, lambda _: ["true"])


def row(change: Change) -> Row:
    texts = (("id", str(change.id), 4), ("ver", str(change.ver), 4))
    return Row(change.kind, "shop.every_type", texts)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RunningClient:
    monkeypatch.setattr(StockClient, "find", lambda _: ["true"])
    return RunningClient(KNOWN, "127.0.0.1:1", tmp_path)


def test_what_is_lost_again_and_out_of_order_is_counted(client: RunningClient) -> None:
    wanted = [Change("INSERT", n, 0) for n in range(6)]
    client.rows = [row(wanted[n]) for n in (0, 1, 2, 1, 2, 4, 3)]
    found = judge(client, "java", wanted, 1)
    assert (found.lost, found.again, found.out_of_order, found.wrong_values) == (1, 2, 1, 7)
    assert [figure.is_met for figure in figures_of([found])][:3] == [False, False, False]


def test_what_a_client_prints_is_remembered(client: RunningClient) -> None:
    client._take("taken", 1, [["INSERT", "a.b", [["id", "5", 4]]], ["DDL", "a.b", "DROP TABLE b"]])
    client._take("error", "gone")
    client._take("rolledBack")
    assert (client.keys, client.statements) == ([5], ["DROP TABLE b"])
    assert (client.errors, client.rollbacks) == (["gone"], 1)
