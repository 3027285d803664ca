"""The sink `sql`, mode `mirror`: the table has the rows of the source."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.ready.sql.targets import OPENING, Source, Target, write

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

ORDERS = Source({"id": "int", "status": "varchar(20)", "n": "bigint"}, "shop.orders")


def test_rows_and_position_are_there_after_a_flush(target: Target) -> None:
    changes = [
        ORDERS.insert(1, "new", 1, scn=1),
        ORDERS.insert(2, "new", None, scn=2),
        ORDERS.update(1, "paid", 2, scn=3),
        ORDERS.delete(2, "new", None, scn=4),
        ORDERS.made("snapshot", 3, "old", 9, scn=5),
    ]
    assert write(target, changes) == Position("shop", Checkpoint.at(5))
    assert target.table("orders", "id", "status", "n") == [(1, "paid", 2), (3, "old", 9)]
    with target.opened() as sink:
        assert sink.flush() == Position("shop", Checkpoint.at(5))
    other = target.sink()
    assert other.open(Opening("copy", "elsewhere")) is None
    other.close()


def test_what_was_not_flushed_is_not_there(target: Target) -> None:
    write(target, [ORDERS.insert(1, "new", 1, scn=1)])
    with target.opened() as sink:
        sink.write([ORDERS.insert(2, "new", 1, scn=2)])
    assert target.table("orders", "id") == [(1,)]


def test_an_update_of_some_columns_leaves_the_others(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    write(target, [ORDERS.insert(1, "new", 1), ORDERS.insert(2, "new", 2)])
    partial = ORDERS.update(1, "paid")
    nowhere = ORDERS.update(7, "paid")
    inserted = ORDERS.insert(3, "new", 3)
    write(target, [partial, inserted, ORDERS.update(3, "paid"), nowhere])
    held = target.table("orders", "id", "status", "n")
    assert held == [(1, "paid", 1), (2, "new", 2), (3, "paid", 3)]
    (warning,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert "1 rows that were changed are not in the table orders" in warning.getMessage()


def test_a_truncate_empties_the_table_between_changes(target: Target) -> None:
    write(target, [ORDERS.insert(1, "new", 1), ORDERS.insert(2, "new", 1)])
    write(target, [ORDERS.insert(3, "a", 1), ORDERS.made("truncate"), ORDERS.insert(4, "b", 1)])
    assert target.table("orders", "id") == [(4,)]


def test_a_key_moves_and_two_keys_swap_in_one_transaction(target: Target) -> None:
    write(target, [ORDERS.insert(1, "a", 1), ORDERS.insert(2, "b", 2)])
    swap = []
    for old, new, status, n in ((1, 99, "a", 1), (2, 1, "b", 2), (99, 2, "a", 1)):
        swap.append(replace(ORDERS.delete(old, status, n), is_move=True))
        swap.append(replace(ORDERS.insert(new, status, n), is_move=True))
    write(target, swap)
    assert target.table("orders", "id", "status", "n") == [(1, "b", 2), (2, "a", 1)]


def test_unique_values_swap_in_one_transaction(target: Target) -> None:
    target.run(
        "CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20) UNIQUE, n BIGINT, more INT)"
    )
    write(target, [ORDERS.insert(1, "a", 1), ORDERS.insert(2, "b", 2)])
    target.run("UPDATE orders SET more = id * 10")
    swap = [ORDERS.update(1, None, 1), ORDERS.update(2, "a", 2), ORDERS.update(1, "b")]
    write(target, swap)
    held = target.table("orders", "id", "status", "n", "more")
    assert held == [(1, "b", 1, 10), (2, "a", 2, 20)]
    with target.opened() as sink:
        assert sink.unique_keys("shop.orders") == (("status",),)
        assert sink.unique_keys("shop.elsewhere") == ()


def test_several_lanes_may_repeat_what_they_wrote(target: Target) -> None:
    target.run("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20) UNIQUE, n BIGINT)")
    first = [ORDERS.insert(1, "a", 1), ORDERS.insert(2, "b", 2)]
    then = [ORDERS.update(1, None, 1), ORDERS.update(2, "a", 2), ORDERS.update(1, "b", 1)]
    for changes in (first, then, first, then):
        assert write(target, changes, exactly_once=False) is None
    assert target.table("orders", "id", "status") == [(1, "b"), (2, "a")]


def test_rows_of_several_sources_have_one_table(target: Target) -> None:
    north = Source({"id": "int", "v": "int"}, "north.orders")
    south = Source({"id": "int", "v": "int"}, "south.orders")
    one = {"source_column": "_src"}
    write(target, [north.insert(1, 1), south.insert(1, 2), north.insert(2, 3)], **one)
    write(target, [north.delete(1, 1)], **one)
    held = target.table("orders", "_src", "id", "v")
    assert held == [("north.orders", 2, 3), ("south.orders", 1, 2)]
    write(target, [south.made("truncate")], **one)
    assert target.table("orders", "_src", "id") == [("north.orders", 2)]


def test_two_sources_for_one_table_are_refused(target: Target) -> None:
    north = Source({"id": "int", "v": "int"}, "north.orders")
    south = Source({"id": "int", "v": "int"}, "south.orders")
    with pytest.raises(SinkError, match="would both be written to the table orders"):
        write(target, [north.insert(1, 1), south.insert(1, 2)])
    rows = [north.insert(1, 1), south.insert(1, 2)]
    write(target, rows, table="{schema}_{table}")
    assert (target.table("north_orders"), target.table("south_orders")) == ([(1, 1)], [(1, 2)])


def test_a_table_without_a_key_is_refused(target: Target) -> None:
    keyless = Source({"a": "int"}, keys=0)
    with pytest.raises(SinkError, match="has no primary key, and mode = 'mirror'"):
        write(target, [keyless.insert(1)])


def test_a_table_that_is_there_is_used_or_it_is_said_what_it_lacks(target: Target) -> None:
    target.run("CREATE TABLE orders (id INT PRIMARY KEY, status VARCHAR(20), more INT)")
    with pytest.raises(SinkError, match="the table orders was there and lacks n, which"):
        write(target, [ORDERS.insert(1, "a", 1)])
    target.run("DROP TABLE orders", "CREATE TABLE orders (id INT, status VARCHAR(20), n BIGINT)")
    with pytest.raises(SinkError, match="was there and has no unique key of id"):
        write(target, [ORDERS.insert(1, "a", 1)])
    target.run("DROP TABLE orders")
    target.run("CREATE TABLE orders (id INT UNIQUE NOT NULL, status VARCHAR(20), n BIGINT)")
    write(target, [ORDERS.insert(1, "a", 1), ORDERS.insert(1, "b", 2)])
    assert target.table("orders", "id", "status", "n") == [(1, "b", 2)]


def test_the_second_process_of_a_sink_stops(target: Target) -> None:
    first, second = target.sink(), target.sink()
    first.open(OPENING)
    second.open(OPENING)
    first.write([ORDERS.insert(1, "first", 1, scn=1)])
    first.flush()
    second.write([ORDERS.insert(1, "second", 1, scn=1)])
    with pytest.raises(SinkError, match="another process writes as the sink copy over shop"):
        second.flush()
    second.close()
    # It may begin anew, and then it is the first one that stops: for good, also if it tries again.
    third = target.sink()
    assert third.open(OPENING) == Position("shop", Checkpoint.at(1))
    third.write([ORDERS.update(1, "third", 1, scn=2)])
    third.flush()
    first.write([ORDERS.update(1, "fourth", 1, scn=2)])
    with pytest.raises(SinkError, match="another process"):
        first.flush()
    first.close()
    with pytest.raises(SinkError, match="another process"):
        first.open(OPENING)
    first.close()
    third.close()
    assert target.table("orders", "id", "status") == [(1, "third")]
