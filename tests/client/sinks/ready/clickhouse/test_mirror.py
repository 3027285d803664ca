"""The sink `clickhouse`, mode `mirror`: what is read with FINAL is the source's rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from databus.client.sinks.contract import TransactionInfo
from databus.client.sinks.errors import SinkError, SinkRefusedError
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import opened, put, rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]

SCN = (1 << 62) + 7  # as large as SCNs become
ORDERS = Source({"id": "int", "status": "varchar(20)", "n": "bigint"}, "shop.orders")


def test_rows_are_there_after_a_flush_and_not_before(clickhouse: PrivateClickHouse) -> None:
    with opened(clickhouse) as sink:
        put(sink, ORDERS.insert(1, "new", 1, scn=SCN), ORDERS.insert(2, "new", None, scn=SCN + 1))
        assert rows(clickhouse, "orders") == [(1, "new", 1), (2, "new", None)]
        put(
            sink,
            ORDERS.update(1, "paid", 2, scn=SCN + 2),
            ORDERS.delete(2, "new", None, scn=SCN + 3),
            ORDERS.made("snapshot", 3, "old", 9, scn=SCN),
            ORDERS.delete(99, "never", 1, scn=SCN + 3),
        )
        assert rows(clickhouse, "orders") == [(1, "paid", 2), (3, "old", 9)]
        sink.write([ORDERS.insert(4, "lost", 1, scn=SCN + 4)])
    assert len(rows(clickhouse, "orders")) == 2


def test_what_comes_again_or_too_late_changes_nothing(clickhouse: PrivateClickHouse) -> None:
    changes = [
        ORDERS.insert(1, "a", 1, scn=10),
        ORDERS.update(1, "b", 2, scn=12),
        ORDERS.insert(2, "a", 1, scn=13),
        ORDERS.delete(2, "a", 1, scn=14),
        ORDERS.update(1, "c", 3, scn=15, index=0),
        ORDERS.update(1, "d", 4, scn=15, index=1),  # of the same transaction
        ORDERS.made("snapshot", 1, "d", 4, scn=15),  # a reload
    ]
    write(clickhouse, changes)
    assert rows(clickhouse, "orders") == [(1, "d", 4)]
    with opened(clickhouse) as sink:
        for change in changes:  # one by one, as for a row that is looked for
            put(sink, change)
            assert rows(clickhouse, "orders") == [(1, "d", 4)]
        put(sink, *changes[:3])  # another process, which is late
        put(sink, ORDERS.made("snapshot", 1, "b", 2, scn=12), ORDERS.insert(2, "a", 1, scn=13))
    assert rows(clickhouse, "orders") == [(1, "d", 4)]
    clickhouse.run("OPTIMIZE TABLE shop.orders FINAL")
    assert rows(clickhouse, "orders") == [(1, "d", 4)]


def test_of_two_changes_of_a_row_in_one_transaction_the_later_one_counts_in_any_order(
    clickhouse: PrivateClickHouse,
) -> None:
    first = ORDERS.insert(1, "first", 1, scn=SCN, index=8)
    second = ORDERS.update(1, "second", 2, scn=SCN, index=9)
    gone = ORDERS.delete(1, "second", 2, scn=SCN, index=10)
    write(clickhouse, [second])
    write(clickhouse, [first])
    assert rows(clickhouse, "orders") == [(1, "second", 2)]
    write(clickhouse, [gone])
    write(clickhouse, [second])
    assert rows(clickhouse, "orders") == []


def test_in_pages_of_a_bootstrap_the_change_that_came_last_counts(
    clickhouse: PrivateClickHouse,
) -> None:
    page = TransactionInfo(20, 20, phase="catch_up")
    # They have other places in another page.
    older = replace(ORDERS.insert(1, "older", 1, scn=20, index=7), transaction=page)
    newer = replace(ORDERS.update(1, "newer", 2, scn=20, index=0), transaction=page)
    write(clickhouse, [older])
    write(clickhouse, [newer])
    assert rows(clickhouse, "orders") == [(1, "newer", 2)]
    write(clickhouse, [ORDERS.update(1, "older", 1, scn=20, index=5)])
    assert rows(clickhouse, "orders") == [(1, "newer", 2)]


def test_a_key_moves_and_two_keys_swap_in_one_transaction(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, [ORDERS.insert(1, "a", 1), ORDERS.insert(2, "b", 2)])
    swap = []
    for at, (old, new, status, n) in enumerate(((1, 99, "a", 1), (2, 1, "b", 2), (99, 2, "a", 1))):
        swap.append(replace(ORDERS.delete(old, status, n, scn=5, index=at), is_move=True))
        swap.append(replace(ORDERS.insert(new, status, n, scn=5, index=at), is_move=True))
    write(clickhouse, swap)
    assert rows(clickhouse, "orders") == [(1, "b", 2), (2, "a", 1)]
    for change in swap:
        write(clickhouse, [change])
    assert rows(clickhouse, "orders") == [(1, "b", 2), (2, "a", 1)]


def test_a_truncate_deletes_what_was_there_and_nothing_newer(
    clickhouse: PrivateClickHouse,
) -> None:
    truncate, later = ORDERS.made("truncate", scn=11), ORDERS.insert(5, "new", 1, scn=12)
    write(clickhouse, [ORDERS.made("truncate", scn=9)])  # there is no such table yet
    before = [ORDERS.insert(key, "old", 1, scn=10) for key in range(20)]
    write(clickhouse, [*before, ORDERS.insert(1, "a", 1, scn=10)])
    write(clickhouse, [ORDERS.insert(20, "old", 1, scn=10), truncate, later])
    for _ in range(2):
        assert rows(clickhouse, "orders") == [(5, "new", 1)]
        write(clickhouse, [*before, truncate, later])  # after a restart
    write(clickhouse, [truncate])  # by another process, which is late
    write(clickhouse, before)
    assert rows(clickhouse, "orders") == [(5, "new", 1)]


def test_a_composite_key_is_the_order_of_the_table(clickhouse: PrivateClickHouse) -> None:
    source = Source({"a": "int", "b": "varchar(9)", "v": "int"}, keys=2)
    write(clickhouse, [source.insert(1, "x", 1), source.insert(1, "y", 2)])
    write(clickhouse, [source.update(1, "x", 3, scn=2), source.delete(1, "y", 2, scn=3)])
    assert rows(clickhouse) == [(1, "x", 3)]


def test_a_table_of_nothing_but_its_key_is_followed(clickhouse: PrivateClickHouse) -> None:
    source = Source({"id": "int"})
    write(clickhouse, [source.insert(1), source.insert(2), source.delete(1, scn=2)])
    assert rows(clickhouse) == [(2,)]
    write(clickhouse, [source.made("truncate", scn=3)])
    assert rows(clickhouse) == []


def test_each_flush_is_one_insert_for_a_table_and_larger_ones_are_several(
    clickhouse: PrivateClickHouse,
) -> None:
    other = Source({"id": "int", "v": "int"}, "shop.others")
    put_count = "SELECT count() FROM system.parts WHERE database = 'shop' AND table = '{}'"
    changes = []
    for key in range(200):
        changes += [ORDERS.insert(key, "x" * 20, 1), other.insert(key, 1)]
    write(clickhouse, changes)
    for table in ("orders", "others"):
        clickhouse.run(f"SYSTEM STOP MERGES shop.{table}")
        assert clickhouse.rows(put_count.format(table)) == [(1,)]
    write(clickhouse, changes, batch_bytes=2000)
    assert 4 <= clickhouse.rows(put_count.format("orders"))[0][0] <= 9
    assert len(rows(clickhouse, "orders")) == 200


def test_a_row_of_which_columns_are_not_logged_is_refused(clickhouse: PrivateClickHouse) -> None:
    partial = ORDERS.update(1, "paid")
    with pytest.raises(SinkRefusedError, match="has not logged n, and the sink") as refused:
        write(clickhouse, [ORDERS.insert(2, "a", 1), partial])
    assert refused.value.change is partial
    # After an insert in the same flush the row is whole.
    write(clickhouse, [ORDERS.insert(1, "new", 7), ORDERS.update(1, "paid", scn=2)])
    assert rows(clickhouse, "orders") == [(1, "paid", 7)]


def test_two_sources_for_one_table_and_a_table_without_a_key_are_refused(
    clickhouse: PrivateClickHouse,
) -> None:
    north = Source({"id": "int", "v": "int"}, "north.orders")
    south = Source({"id": "int", "v": "int"}, "south.orders")
    changes = [north.insert(1, 1), south.insert(1, 2)]
    with pytest.raises(SinkError, match="would both be written to the table orders"):
        write(clickhouse, changes)
    write(clickhouse, changes, table="{schema}_{table}")
    assert (rows(clickhouse, "north_orders"), rows(clickhouse, "south_orders")) == (
        [(1, 1)],
        [(1, 2)],
    )
    keyless = Source({"a": "int"}, keys=0)
    with pytest.raises(SinkError, match="has no primary key, and mode = 'mirror'"):
        write(clickhouse, [keyless.insert(1)])


def test_several_lanes_may_write_one_table(clickhouse: PrivateClickHouse) -> None:
    with opened(clickhouse) as first, opened(clickhouse) as second:
        put(first, ORDERS.insert(1, "new", 1, scn=5))
        put(second, ORDERS.insert(1, "old", 1, scn=4))  # overtaken
        put(second, ORDERS.insert(2, "b", 1, scn=6))
        put(first, ORDERS.delete(2, "b", 1, scn=7))
    assert rows(clickhouse, "orders") == [(1, "new", 1)]
