"""Batches have whole windows, and are delivered, replayed and checkpointed like one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.dispatcher.batch import join_waiting
from databus.client.dispatcher.data_window import DataWindow
from databus.client.machines.position import Position
from databus.client.puller.buffer import Buffer
from databus.client.puller.buffer_items import BufferItem, ReadWindow, RolledBack
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import UnknownSourceError
from databus.schemas.event.control import ddl_event
from databus.schemas.event.event import Event
from databus.schemas.table_schema import avro_schema
from tests.client.dispatcher.test_dispatcher import Running
from tests.client.shop import (
    CUSTOMERS,
    CUSTOMERS_ID,
    ORDERS,
    ORDERS_ID,
    WIDER_ORDERS,
    change,
    customer,
    order,
    registered,
    wait_until,
    window,
)

BOUND = bind(
    Subscription(("shop.orders", "shop.customers")),
    {"shop.orders": ORDERS_ID, "shop.customers": CUSTOMERS_ID},
    [*registered(ORDERS, CUSTOMERS), RegisteredSchema(ORDERS_ID, 2, avro_schema(WIDER_ORDERS))],
)


def windows(*events: Sequence[Event]) -> list[ReadWindow]:
    """Return windows 5, 6, … as the decoder hands them on."""
    decoder = WindowDecoder(1 << 20)
    decoder.use(BOUND)
    decoder.begin(Position(Checkpoint.at(4)))
    stream = b"".join(window(scn, *one) for scn, one in enumerate(events, 5))
    return [item for item in decoder.receive(stream) if isinstance(item, ReadWindow)]


def batches(items: Sequence[BufferItem], rows: int) -> list[ReadWindow]:
    """Return the batches that are made of what waits."""
    buffer: Buffer[BufferItem] = Buffer(1 << 20)
    buffer.put(items)
    found = []
    while (item := buffer.take()) is not None:
        if isinstance(item, ReadWindow):
            item = join_waiting(item, buffer, rows)
            found.append(item)
        buffer.done(item)
    assert buffer.held_bytes == 0
    return found


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 9))
def test_a_batch_has_whole_windows_in_order_and_no_more_rows_than_wanted(
    sizes: list[int], rows: int
) -> None:
    items = windows(*[[order(scn, n) for n in range(size)] for scn, size in enumerate(sizes, 5)])
    found = batches(items, rows)
    single = [event for item in items for event in item.window.events]
    assert [event for one in found for event in one.window.events] == single
    for one in found:
        assert len(one.window.events) <= rows or one.transactions == 1
        last = next(i for i in items if i.window.scn == one.window.scn)
        assert one.checkpoint() == last.checkpoint()
    # Two neighbours that would fit are not apart.
    with_rows = [one for one in found if one.window.events]
    for one, two in pairwise(with_rows):
        first = next(i for i in items if i.window.scn > one.window.scn and i.window.events)
        assert len(one.window.events) + len(first.window.events) > rows
        assert two.since.scn <= one.window.scn


def test_events_keep_their_scn_and_their_number_in_the_transaction() -> None:
    (one,) = batches(windows([order(5, 1), customer(5, 2)], [customer(6, 3)], [], [order(8, 4)]), 9)
    shown = DataWindow(one)
    assert (shown.scn, shown.timestamp_ns, shown.transactions) == (8, 1008, 3)
    assert [(e.scn, e.index, e.wire_key) for e in shown.events] == [
        (5, 0, 1),
        (5, 1, 2),
        (6, 0, 3),
        (8, 0, 4),
    ]
    assert [row["id"] for row in shown.to_pylist("shop.customers")] == [2, 3]
    assert [row["id"] for row in shown.to_pylist()] == [1, 2, 3, 4]
    with pytest.raises(UnknownSourceError, match=r"'shop.typo'; known: .*shop.orders"):
        shown.to_pylist("shop.typo")


def test_a_new_version_of_a_schema_begins_a_batch() -> None:
    wide = change(7, {"id": 3, "item": "tea", "note": None}, WIDER_ORDERS)
    found = batches(windows([order(5, 1)], [customer(6, 2)], [wide], [customer(8, 4)]), 9)
    assert [(one.window.scn, one.transactions) for one in found] == [(6, 2), (8, 2)]


def test_a_window_with_ddl_is_alone() -> None:
    ddl = ddl_event(6, 1006, 0, ("shop.orders",), "shop", "ALTER TABLE orders")
    found = batches(windows([order(5, 1)], [ddl, order(6, 2)], [order(7, 3)], [order(8, 4)]), 9)
    assert [one.window.scn for one in found] == [5, 6, 8]


def test_a_batch_ends_where_reading_went_back() -> None:
    first, second, third = windows([order(5, 1)], [order(6, 2)], [order(7, 3)])
    assert len(batches([first, second, RolledBack(6), third], 9)) == 2


class Runs(Consumer):
    """Takes runs; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.calls: list[tuple[str, object]] = []

    def on_data_events(self, events: Sequence[DataEvent]) -> Result | None:
        self.calls.append(("events", [event.wire_key for event in events]))
        self.failures -= 1
        return Result.ERROR if self.failures >= 0 else None

    def on_checkpoint(self, scn: int) -> None:
        self.calls.append(("checkpoint", scn))

    def on_rollback(self, scn: int) -> None:
        self.calls.append(("rollback", scn))


@pytest.fixture
def running() -> Iterator[list[Running]]:
    started: list[Running] = []
    yield started
    for one in started:
        one.stop()


def test_a_failing_batch_is_rolled_back_and_delivered_again_whole(running: list[Running]) -> None:
    consumer = Runs(failures=1)
    one = Running(consumer, batch_rows=2)
    running.append(one)
    one.buffer.put(windows([order(5, 1)], [order(6, 2)], [order(7, 3)]))
    wait_until(lambda: one.dispatcher.scn == 7)
    wait_until(lambda: one.buffer.held_bytes == 0)
    assert consumer.calls == [
        ("events", [1, 2]),
        ("rollback", 4),
        ("events", [1, 2]),
        ("checkpoint", 6),
        ("events", [3]),
        ("checkpoint", 7),
    ]
    assert one.kept is not None
    assert one.kept.window_scn == 7
