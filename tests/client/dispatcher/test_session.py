"""What is left of a window for a process that shares rows with its group."""

from __future__ import annotations

from databus.client.dispatcher.data_window import add_statements, group_events
from databus.client.dispatcher.session import selected
from databus.client.group.share import Share
from databus.schemas.event.control import ddl_event
from databus.schemas.filters import key_hash
from tests.client.shop import emptied, order, read

PARTITIONS = 4


def keys_of(partition: int, count: int) -> list[int]:
    return [key for key in range(1, 200) if key_hash(key) % PARTITIONS == partition][:count]


def test_a_window_that_nobody_has_consumed_stays_as_it_is() -> None:
    window = read(7, *(order(7, key) for key in keys_of(1, 3)))
    assert selected(window, Share.of(PARTITIONS, {1: 6})) is window


def test_rows_of_partitions_that_have_consumed_them_are_left_out_and_statements_stay_in_place() -> (
    None
):
    (first, second), (old,) = keys_of(1, 2), keys_of(2, 1)
    statement = ddl_event(7, 1007, 0, ("shop.orders",), "shop", "ALTER TABLE orders")
    window = read(7, order(7, first), order(7, old), statement, order(7, second), order(7, old))
    left = selected(window, Share.of(PARTITIONS, {1: 6, 2: 7}))
    shown = [
        None if source is None else [event.wire_key for event in events]
        for source, events in add_statements(group_events(left), left)
    ]
    assert shown == [[first], None, [second]]
    assert left.checkpoint().window_scn == 7


def test_the_removal_of_all_rows_stays_for_partitions_that_have_not_consumed_it() -> None:
    window = read(7, emptied(7))
    assert selected(window, Share.of(PARTITIONS, {1: 6, 2: 7})) is window
    assert selected(window, Share.of(PARTITIONS, {1: 7, 2: 8})).window.events == ()
