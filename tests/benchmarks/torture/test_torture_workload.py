"""The torture's transactions, and what the client's log makes of their changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.torture.log import Change, Log
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import STAMPS, TABLES, End, Workload


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(":memory:", isolation_level=None)
    for table in TABLES:
        db.execute(table.create("sqlite"))
    yield db
    db.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = Log(tmp_path / "client.db")
    yield opened
    opened.close()


def test_equal_seeds_make_equal_transactions() -> None:
    assert list(Workload(5).transactions(50)) == list(Workload(5).transactions(50))
    assert list(Workload(5).transactions(50)) != list(Workload(6).transactions(50))


def test_every_statement_changes_one_row_and_no_ghost_stays(database: sqlite3.Connection) -> None:
    kinds = set()
    for work in Workload(1).transactions(400):
        database.execute("BEGIN")
        changes = database.total_changes
        for sql, parameters in work.statements:
            database.execute(sql, parameters)
        kinds.add(work.end)
        assert database.total_changes - changes >= len(work.statements) - 2
        database.execute(work.end.value)
    assert kinds == {End.COMMIT, End.ROLLBACK}
    for table in TABLES:
        (lowest,) = database.execute(f"SELECT min(tx) FROM {table.name}").fetchone()
        assert lowest > 0


def test_transactions_are_of_every_kind() -> None:
    works = list(Workload(1).transactions(400))
    text = "\n".join(sql for work in works for sql, _ in work.statements)
    assert all(word in text for word in ("INSERT", "UPDATE", "DELETE", "ROLLBACK TO", "SET id"))
    assert max(len(work.statements) for work in works) >= 100


ROW = {"id": 1, "owner": "a", "balance": 5} | dict.fromkeys(STAMPS, 1)


def test_a_changed_key_moves_the_row(log: Log) -> None:
    log.start(-1)
    log.apply(10, [Change("shop.accounts", False, ROW, None)])
    log.apply(20, [Change("shop.accounts", False, ROW | {"id": 2}, ROW)])
    assert log.rows(TABLES[0]) == [(2, "a", 5, 1, 1, 1)]


def test_a_changed_key_said_as_deletion_and_insertion_is_one_change(log: Log) -> None:
    moved = ROW | {"id": 2, "tx_row": 2}
    log.start(-1)
    log.apply(10, [Change("shop.accounts", False, ROW, None)])
    log.apply(
        20, [Change("shop.accounts", True, ROW, None), Change("shop.accounts", False, moved, None)]
    )
    assert log.rows(TABLES[0]) == [(2, "a", 5, 1, 2, 1)]
    assert [line.stamps for line in log.deliveries()][2] == [(1, 2, 1)]


def test_a_change_that_comes_twice_is_two_changes(log: Log) -> None:
    log.start(-1)
    log.apply(10, [Change("shop.accounts", False, ROW, None)] * 2)
    assert [line.stamps for line in log.deliveries()][1] == [(1, 1, 1)] * 2


def test_a_deleted_row_goes_and_counts_as_its_stamps_next_change(log: Log) -> None:
    log.start(-1)
    deletion = Change("shop.accounts", True, ROW, None)
    log.apply(10, [Change("shop.accounts", False, ROW, None), deletion])
    assert log.rows(TABLES[0]) == []
    assert [line.stamps for line in log.deliveries()] == [[], [(1, 1, 1), (1, 2, 1)]]


def test_the_log_goes_on_where_a_killed_client_left_it(tmp_path: Path) -> None:
    for checkpoint in (-1, 10):
        log = Log(tmp_path / "client.db")
        log.start(checkpoint)
        log.apply(10, [Change("shop.accounts", False, ROW, None)])
        log.rollback(0)
        log.close()
    log = Log(tmp_path / "client.db")
    lines = [(line.run, line.kind, line.scn) for line in log.deliveries()]
    log.close()
    assert [kind for _, kind, _ in lines] == ["start", "window", "rollback"] * 2
    assert lines[0][0] != lines[3][0]
    assert lines[3][2] == 10


def test_tables_are_read_in_the_order_of_their_number() -> None:
    assert TABLES[1].select().endswith("FROM stock ORDER BY branch")


def test_a_shared_number_is_seen_by_another_mapping_and_outlives_both(tmp_path: Path) -> None:
    with SharedNumber(tmp_path / "p") as one, SharedNumber(tmp_path / "p") as other:
        one.set(-7)
        assert other.get() == -7
    with SharedNumber(tmp_path / "p") as again:
        assert again.get() == -7
