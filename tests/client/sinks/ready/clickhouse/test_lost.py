"""The sink `clickhouse` does not go on in a database that has lost what it wrote."""

from __future__ import annotations

import shlex

import pytest

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.clickhouse.targets import OPENING, opened, put, rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]

ORDERS = Source({"id": "int", "v": "int"}, "shop.orders")
FIRST = [ORDERS.insert(1, 10, scn=1), ORDERS.insert(2, 20, scn=2)]
NEXT = [ORDERS.insert(3, 30, scn=3)]
GONE = r"has had rows of shop\.orders, is not there any more: to load them again, DELETE FROM"
EMPTY = r"the table orders has lost its rows of shop\.orders, which somebody else has removed"
DROP = "DROP TABLE shop.orders SYNC"


@pytest.mark.parametrize("mode", ["mirror", "append_history"])
def test_a_table_that_was_dropped_stops_the_sink(clickhouse: PrivateClickHouse, mode: str) -> None:
    write(clickhouse, FIRST, mode=mode)
    clickhouse.run(DROP)
    with pytest.raises(SinkError, match=GONE):
        write(clickhouse, NEXT, mode=mode)


def test_what_the_message_says_can_be_pasted(clickhouse: PrivateClickHouse) -> None:
    source = Source({"id": "int", "v": "int"}, "shop.o'd")
    write(clickhouse, [source.insert(1, 1, scn=1)])
    clickhouse.run("DROP TABLE shop.`o'd` SYNC")
    with pytest.raises(SinkError) as stopped:
        write(clickhouse, [source.insert(2, 2, scn=2)])
    told = str(stopped.value).partition("to load them again, ")[2]
    delete, _, commands = told.partition("; then ")
    retry, reload = commands.split(", and ")
    clickhouse.run(delete)
    assert shlex.split(retry)[2:4] == ["retry", "copy"]
    assert shlex.split(reload)[2:5] == ["reload", "copy", "shop.o'd"]
    write(clickhouse, [source.insert(2, 2, scn=2)])
    assert rows(clickhouse, "o'd") == [(2, 2)]


def test_a_table_that_is_dropped_while_the_sink_runs_stops_it(
    clickhouse: PrivateClickHouse,
) -> None:
    with opened(clickhouse) as sink:
        put(sink, *FIRST)
        clickhouse.run(DROP)
        with pytest.raises(SinkError, match="the table is not there"):
            put(sink, *NEXT)
        sink.close()
        sink.open(OPENING)
        with pytest.raises(SinkError, match=GONE):
            put(sink, *NEXT)


def test_a_table_that_was_emptied_or_made_again_stops_the_sink(
    clickhouse: PrivateClickHouse,
) -> None:
    write(clickhouse, FIRST)
    (made,) = clickhouse.rows("SELECT create_table_query FROM system.tables WHERE name = 'orders'")
    clickhouse.run("TRUNCATE TABLE shop.orders")
    with pytest.raises(SinkError, match=EMPTY):
        write(clickhouse, NEXT)
    clickhouse.run(DROP, made[0])
    with pytest.raises(SinkError, match=EMPTY):
        write(clickhouse, NEXT)
    clickhouse.run("DELETE FROM shop.databus_tables WHERE name = 'orders'")
    write(clickhouse, NEXT)
    assert rows(clickhouse, "orders") == [(3, 30)]


def test_rows_that_were_lost_are_no_duplicates_when_they_come_again(
    clickhouse: PrivateClickHouse,
) -> None:
    write(clickhouse, FIRST)
    clickhouse.run(
        # As replicated tables have it.
        "ALTER TABLE shop.orders MODIFY SETTING non_replicated_deduplication_window = 100"
    )
    write(clickhouse, NEXT)
    clickhouse.run(
        "DELETE FROM shop.orders WHERE id = 3",
        "DELETE FROM shop.databus_tables WHERE name = 'orders'",
    )
    write(clickhouse, NEXT)
    assert rows(clickhouse, "orders") == [(1, 10), (2, 20), (3, 30)]


def test_a_table_that_is_emptied_while_the_sink_runs_stops_it(
    clickhouse: PrivateClickHouse,
) -> None:
    with opened(clickhouse) as sink:
        put(sink, *FIRST)
        clickhouse.run("TRUNCATE TABLE shop.orders")
        with pytest.raises(SinkError, match=EMPTY):
            put(sink, *NEXT)
    assert rows(clickhouse, "orders") == []


def test_a_table_whose_rows_the_source_has_deleted_is_not_lost(
    clickhouse: PrivateClickHouse,
) -> None:
    write(clickhouse, FIRST)
    write(clickhouse, [ORDERS.delete(1, 10, scn=3), ORDERS.made("truncate", scn=4)])
    clickhouse.run("OPTIMIZE TABLE shop.orders FINAL")
    assert rows(clickhouse, "orders") == []
    write(clickhouse, [ORDERS.insert(5, 50, scn=5)])
    assert rows(clickhouse, "orders") == [(5, 50)]


def test_a_table_that_was_made_before_a_crash_and_has_no_rows_yet_is_filled(
    clickhouse: PrivateClickHouse,
) -> None:
    write(clickhouse, [ORDERS.insert(1, 10, scn=1)])
    # As if the process had been killed between CREATE TABLE and the first rows.
    clickhouse.run(
        "TRUNCATE TABLE shop.orders",
        "INSERT INTO shop.databus_tables SELECT * REPLACE ('' AS filled_by, noted + 1 AS noted) "
        "FROM shop.databus_tables FINAL",
    )
    write(clickhouse, FIRST)
    assert rows(clickhouse, "orders") == [(1, 10), (2, 20)]


def test_a_history_may_be_pruned(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, FIRST, mode="append_history")
    clickhouse.run("TRUNCATE TABLE shop.orders")
    write(clickhouse, NEXT, mode="append_history")
    assert rows(clickhouse, "orders", "id") == [(3,)]


def test_a_database_without_the_notes_is_not_the_one_that_was_left(
    clickhouse: PrivateClickHouse,
) -> None:
    at_2 = Opening("copy", "shop", Position("shop", Checkpoint.at(2)))
    write(clickhouse, FIRST)
    with opened(clickhouse, at_2):
        pass
    clickhouse.run("DROP TABLE shop.databus_tables SYNC")
    with (
        pytest.raises(SinkError, match=r"databus_tables` is not there any more"),
        opened(clickhouse, at_2),
    ):
        pass
    with opened(clickhouse, Opening("other", "shop")):
        pass


def test_a_sink_with_another_name_fills_the_tables_anew(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, FIRST)
    clickhouse.run(DROP)
    with opened(clickhouse, Opening("anew", "shop")) as sink:
        put(sink, *NEXT)
    assert rows(clickhouse, "orders") == [(3, 30)]
