"""What consumers are told when a table was altered: each version once, before its first event."""

from __future__ import annotations

from typing import Any

from databus.client.consumer import Consumer, DataEvent, Result
from databus.client.dispatcher.callbacks import Dispatch
from databus.client.dispatcher.schema_changes import SchemaWatch, with_seen
from databus.client.machines.position import Position
from databus.client.puller.buffer_items import ReadWindow
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.registry.former_schemas import ids_of_now
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.control import ddl_event
from databus.schemas.event.event import Event, Part
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema
from tests.client.shop import (
    CUSTOMERS,
    ORDERS,
    ORDERS_ID,
    SCHEMAS,
    SRC_IDS,
    WIDER_ORDERS,
    FakeClock,
    customer,
    order,
    registered,
    window,
)

WIDEST_ORDERS = Table("shop.orders", (*WIDER_ORDERS.columns, Column("paid", "text", 3)), "sqlite")
FIRST = SCHEMAS[ORDERS]
SECOND = with_change(SCHEMAS[WIDER_ORDERS], TableChange(8, shape_id(FIRST), added={"note": None}))
THIRD = with_change(avro_schema(WIDEST_ORDERS), TableChange.unknown(9, shape_id(SECOND)))
TO_SECOND = ("shop.orders", FIRST, SECOND, False)
TO_THIRD = ("shop.orders", SECOND, THIRD, True)


def altered(scn: int, text: str, key: int = 1) -> Event:
    """Return an order written in a version of its table."""
    row: dict[str, Any] = {"id": key, "item": "tea", "note": None}
    if text == THIRD:
        row["paid"] = None
    return order(scn, key)._replace(payload=Part(RowCodec(text).encode(row), schema_id(text)))


def read(scn: int, *events: Event) -> ReadWindow:
    """Return a window as the decoder hands it on, to one who has all versions."""
    known = registered(CUSTOMERS)
    orders = [
        RegisteredSchema(ORDERS_ID, version, text)
        for version, text in enumerate((FIRST, SECOND, THIRD), 1)
    ]
    decoder = WindowDecoder(1 << 20)
    decoder.use(bind(Subscription(tuple(SRC_IDS)), SRC_IDS, [*known, *orders]))
    decoder.begin(Position(Checkpoint.flexible()))
    (item,) = decoder.receive(window(scn, *events))
    assert isinstance(item, ReadWindow)
    return item


class ReportAnswer(Consumer):
    """Writes down what it is told of versions and rows; fails when it is told to."""

    def __init__(self, *fails_at: int) -> None:
        self.told: list[Any] = []
        self._fails_at = list(fails_at)

    def on_schema_change(self, source: str, before: str, after: str, needs_reload: bool) -> None:
        self.told.append((source, before, after, needs_reload))

    def on_data_event(self, event: DataEvent) -> Result | None:
        self.told.append(event.wire_key)
        if event.wire_key in self._fails_at:
            self._fails_at.remove(event.wire_key)
            return Result.ERROR
        return None


def deliver(consumer: Consumer, *windows: ReadWindow) -> Dispatch:
    dispatch = Dispatch([consumer], 1.0, 2, FakeClock())
    for item in windows:
        dispatch.deliver(item)
    return dispatch


def test_each_version_is_told_of_once_and_before_its_first_row() -> None:
    consumer = ReportAnswer()
    deliver(
        consumer,
        read(7, order(7, 1)),
        read(8, altered(8, SECOND, 2)),
        read(10, altered(10, THIRD, 3)),
        read(11, altered(11, THIRD, 4), customer(11, 5)),
        read(12, altered(12, THIRD, 6)),
    )
    assert consumer.told == [1, TO_SECOND, 2, TO_THIRD, 3, 4, 5, 6]


def test_a_version_that_no_row_was_written_in_is_told_of_on_the_way() -> None:
    consumer = ReportAnswer()
    deliver(consumer, read(7, order(7, 1)), read(10, altered(10, THIRD, 3)))
    assert consumer.told == [1, TO_SECOND, TO_THIRD, 3]


def test_a_statement_tells_of_its_version_though_no_row_follows() -> None:
    consumer = ReportAnswer()
    schemas = {"shop.orders": schema_id(SECOND).hex(), "shop.other": schema_id(THIRD).hex()}
    told = ddl_event(8, 1008, 0, ("shop.orders",), "shop", "ALTER", schemas)
    deliver(consumer, read(7, order(7, 1)), read(8, told), read(9, altered(9, SECOND, 2)))
    assert consumer.told == [1, TO_SECOND, 2]


def test_a_window_that_fails_tells_of_its_version_again_when_it_comes_again() -> None:
    consumer = ReportAnswer(2)
    item = read(8, altered(8, SECOND, 2))
    dispatch = deliver(consumer, read(7, order(7, 1)), item)
    assert dispatch.watch.seen == {"shop.orders": schema_id(FIRST).hex()}
    dispatch.deliver(item)
    dispatch.deliver(item)
    assert consumer.told == [1, TO_SECOND, 2, TO_SECOND, 2, 2]
    assert dispatch.watch.seen == {"shop.orders": schema_id(SECOND).hex()}


def test_what_was_never_taken_is_not_seen_by_the_next() -> None:
    watch = SchemaWatch()
    watch.due(read(7, order(7, 1)))
    watch.take()
    assert watch.due(read(8, altered(8, SECOND, 2)))
    assert watch.due(read(8, order(8, 2))) == []
    watch.take()
    assert watch.seen == {"shop.orders": schema_id(FIRST).hex()}


def test_a_row_of_an_older_version_takes_nothing_back() -> None:
    consumer = ReportAnswer()
    older, newer = read(9, order(9, 2)), read(10, altered(10, SECOND, 3))
    deliver(consumer, read(8, altered(8, SECOND, 1)), older, newer, older, newer)
    assert consumer.told == [1, 2, 3, 2, 3]


def test_what_was_seen_lasts_over_a_restart_and_is_forgotten_with_the_rows() -> None:
    kept = with_seen(Checkpoint.at(7), {"shop.orders": schema_id(FIRST).hex()})
    watch = SchemaWatch.of(Checkpoint.from_json(kept.to_json()))
    item = read(8, altered(8, SECOND, 2))
    assert [change.source for change in watch.due(item)] == ["shop.orders"]
    watch.take()
    watch.forget()
    assert watch.due(item) == []
    watch.take()
    assert watch.seen == {"shop.orders": schema_id(SECOND).hex()}
    assert with_seen(Checkpoint.at(7), {}) == Checkpoint.at(7)
    assert SchemaWatch.of(Checkpoint.at(7).with_extra(schemas_seen="nonsense")).seen == {}


def test_a_checkpoint_of_a_former_version_names_what_was_seen_by_its_former_id() -> None:
    ids = ids_of_now([FIRST, SECOND, THIRD])
    former_ids = [former for former, now in ids.items() if now == schema_id(FIRST)]
    assert former_ids
    for former in former_ids:
        watch = SchemaWatch.of(with_seen(Checkpoint.at(7), {"shop.orders": former.hex()}))
        assert [one.step.after for one in watch.due(read(8, altered(8, SECOND, 2)))] == [SECOND]
