"""The sink `sql` does not go on in a database that has lost what it wrote."""

from __future__ import annotations

import shlex

import pytest

from databus.client.sinks.contract import Opening, Position
from databus.client.sinks.errors import SinkError
from databus.schemas.checkpoint import Checkpoint
from tests.client.sinks.ready.sql.targets import OPENING, Source, Target, write

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]

ORDERS = Source({"id": "int", "v": "int"}, "shop.orders")
FIRST = [ORDERS.insert(1, 10, scn=1), ORDERS.insert(2, 20, scn=2)]
NEXT = [ORDERS.insert(3, 30, scn=3)]
FORGET = "UPDATE databus_tables SET filled_by = ''"
GONE = "has had rows of shop.orders, is not there any more: to load them again, UPDATE databus_tab"
EMPTY = "the table orders has lost its rows of shop.orders, which somebody else has removed"


def truncate(target: Target) -> str:
    return f"{'DELETE FROM' if target.dialect == 'sqlite' else 'TRUNCATE TABLE'} orders"


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_table_that_was_dropped_stops_the_sink(target: Target, exactly_once: bool) -> None:
    write(target, FIRST, exactly_once=exactly_once)
    target.run("DROP TABLE orders")
    with pytest.raises(SinkError, match=GONE):
        write(target, NEXT, exactly_once=exactly_once)
    target.run(FORGET)
    write(target, NEXT, exactly_once=exactly_once)
    assert target.table("orders") == [(3, 30)]


def test_what_the_message_says_can_be_pasted(target: Target) -> None:
    source = Source({"id": "int", "v": "int"}, "shop.o'd")
    write(target, [source.insert(1, 1, scn=1)])
    table = target.quoted("o'd")
    target.run(f"DROP TABLE {table}")
    with pytest.raises(SinkError) as stopped:
        write(target, [source.insert(2, 2, scn=2)])
    told = str(stopped.value).partition("to load them again, ")[2]
    update, _, commands = told.partition("; then ")
    retry, reload = commands.split(", and ")
    target.run(update)
    assert shlex.split(retry)[2:4] == ["retry", "copy"]
    assert shlex.split(reload)[2:5] == ["reload", "copy", "shop.o'd"]
    write(target, [source.insert(2, 2, scn=2)])
    assert target.table("o'd") == [(2, 2)]


def test_a_table_that_is_dropped_while_the_sink_runs_stops_it(target: Target) -> None:
    with target.opened() as sink:
        sink.write(FIRST)
        sink.flush()
        target.run("DROP TABLE orders")
        sink.write(NEXT)
        with pytest.raises(SinkError):
            sink.flush()
        sink.close()
        sink.open(OPENING)
        sink.write(NEXT)
        with pytest.raises(SinkError, match=GONE):
            sink.flush()


def test_a_table_that_was_emptied_or_made_again_stops_the_sink(target: Target) -> None:
    write(target, FIRST)
    target.run(truncate(target))
    with pytest.raises(SinkError, match=EMPTY):
        write(target, NEXT)
    target.run("DROP TABLE orders", "CREATE TABLE orders (id INT PRIMARY KEY, v INT)")
    with pytest.raises(SinkError, match=EMPTY):
        write(target, NEXT)
    target.run(FORGET)
    write(target, NEXT)
    assert target.table("orders") == [(3, 30)]


def test_a_table_that_is_emptied_while_the_sink_runs_stops_it(target: Target) -> None:
    with target.opened() as sink:
        sink.write(FIRST)
        sink.flush()
        target.run(truncate(target))
        sink.write(NEXT)
        with pytest.raises(SinkError, match=EMPTY):
            sink.flush()
    assert target.table("orders") == []


def test_a_table_that_the_source_has_emptied_may_be_empty_or_gone(target: Target) -> None:
    write(target, FIRST)
    write(target, [ORDERS.delete(1, 10, scn=3), ORDERS.delete(2, 20, scn=4)])
    write(target, [ORDERS.insert(5, 50, scn=5)])
    write(target, [ORDERS.made("truncate", scn=6)])
    target.run("DROP TABLE orders")
    write(target, [ORDERS.insert(7, 70, scn=7)])
    assert target.table("orders") == [(7, 70)]


def test_sources_of_one_table_lose_their_rows_each_for_itself(target: Target) -> None:
    north = Source({"id": "int", "v": "int"}, "north.orders")
    south = Source({"id": "int", "v": "int"}, "south.orders")
    one = {"source_column": "src"}
    write(target, [north.insert(1, 1, scn=1), south.insert(1, 2, scn=2)], **one)
    target.run("DELETE FROM orders WHERE src = 'north.orders'")
    write(target, [south.insert(2, 2, scn=3)], **one)
    with pytest.raises(SinkError, match=r"has lost its rows of north\.orders"):
        write(target, [north.insert(2, 2, scn=4)], **one)


def test_a_history_may_be_pruned_but_not_dropped(target: Target) -> None:
    write(target, FIRST, mode="append_history")
    target.run("DELETE FROM orders")
    write(target, NEXT, mode="append_history")
    assert len(target.table("orders")) == 1
    target.run("DROP TABLE orders")
    with pytest.raises(SinkError, match=GONE):
        write(target, NEXT, mode="append_history")


def opened(target: Target, opening: Opening, **options: object) -> Position | None:
    sink = target.sink(**options)
    try:
        return sink.open(opening)
    finally:
        sink.close()


def test_a_database_without_the_position_or_the_tables_is_not_the_one_that_was_left(
    target: Target,
) -> None:
    at_2 = Opening("copy", "shop", Position("shop", Checkpoint.at(2)))
    write(target, FIRST)
    assert opened(target, at_2) == at_2.position
    target.run("DELETE FROM databus_positions")
    with pytest.raises(SinkError, match="no row of the sink copy over shop, which has been there"):
        opened(target, at_2)
    target.run("DROP TABLE databus_tables")
    for options in ({"exactly_once": False}, {"exactly_once": True}):
        with pytest.raises(
            SinkError, match=r"which has been there|databus_tables is not there any"
        ):
            opened(target, at_2, **options)
    # Under another name it begins anew, also where nothing was written before the next start.
    assert opened(target, Opening("other", "shop")) is None
    assert opened(target, Opening("other", "shop", at_2.position)) is None


def test_a_sink_with_another_name_fills_the_tables_anew(target: Target) -> None:
    write(target, FIRST)
    target.run("DROP TABLE orders")
    sink = target.sink()
    sink.open(Opening("anew", "shop"))
    sink.write(NEXT)
    sink.flush()
    sink.close()
    assert target.table("orders") == [(3, 30)]
