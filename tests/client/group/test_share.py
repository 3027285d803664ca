"""What a process delivers of a stream that it reads for several partitions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from databus.client.group.deliveries import Delivery, Move
from databus.client.group.share import Share
from databus.groups.generations import Vector
from databus.schemas.errors import InvalidParameterError
from databus.schemas.filters import ModFilter, PartitionFilter, key_hash
from databus.schemas.partitions.row_hashes import hash_of_columns


@dataclass
class Event:
    scn: int
    wire_key: int = 1
    row: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] | None = None
    source: str = "shop.orders"
    is_truncate: bool = False


def partition_of(key: int, partitions: int = 4) -> int:
    return key_hash(key) % partitions


def test_it_asks_servers_for_its_partitions() -> None:
    share = Share.of(4, {1: 10, 3: 20}, ("customer",))
    assert share.filter == PartitionFilter(4, frozenset((1, 3)), ("customer",))
    assert share.newest_consumed == 20


def test_what_a_partition_has_consumed_is_dropped_and_what_others_have_not_is_delivered() -> None:
    keys = {partition_of(key): key for key in range(50)}
    share = Share.of(4, {0: 10, 1: 20})
    assert share.delivery(Event(15, keys[0])) == Delivery((0,))
    assert share.delivery(Event(15, keys[1])) is None
    assert share.delivery(Event(21, keys[1])) == Delivery((1,))
    assert share.delivery(Event(99, keys[2])) is None
    assert share.delivery(Event(15, is_truncate=True)) == Delivery((0,))


def test_by_columns_a_row_that_may_have_been_here_before_has_left() -> None:
    rows = {
        hash_of_columns("shop.orders", ("customer",), row) % 4: row
        for row in ({"customer": number} for number in range(50))
    }
    share = Share.of(4, {0: -1, 1: -1}, ("customer",))
    assert share.delivery(Event(9, row=rows[1])) == Delivery((1,))
    assert share.delivery(Event(9, row=rows[1], before=rows[2])) == Delivery((1,), Move.ENTERED)
    assert share.delivery(Event(9, row=rows[2], before=rows[1])) == Delivery((1,), Move.LEFT)
    snapshot = replace(share, known_scn=8)
    assert snapshot.delivery(Event(8, row=rows[1])) == Delivery((1,))
    assert snapshot.delivery(Event(9, row=rows[1], before=rows[2])) == Delivery((0, 1))
    assert snapshot.delivery(Event(9, row=rows[2])) == Delivery((0, 1), Move.LEFT)


def test_what_a_former_partition_had_consumed_is_dropped_until_a_bootstrap() -> None:
    key = next(key for key in range(50) if partition_of(key, 2) == 1)
    share = Share.of(4, dict.fromkeys(range(4), 5), former=(Vector((5, 30)),))
    assert share.newest_consumed == 30
    assert share.delivery(Event(30, key)) is None
    share.forget_consumed()
    assert share.delivery(Event(1, key)) is not None


def test_the_filters_of_the_application_are_applied_to_rows() -> None:
    share = Share.of(1, {0: -1}, filters={"shop.orders": ModFilter(10, 0, 5)})
    assert share.delivery(Event(1, 3)) is not None
    assert share.delivery(Event(1, 7)) is None
    assert share.delivery(Event(1, 7, source="shop.items")) is not None
    assert share.delivery(Event(1, 7, is_truncate=True)) is not None


def test_an_update_that_moves_a_row_by_its_column_is_marked_on_both_sides() -> None:
    rows = [{"customer": number} for number in range(20)]
    hashes = [hash_of_columns("shop.orders", ("customer",), row) % 2 for row in rows]
    here, there = rows[hashes.index(0)], rows[hashes.index(1)]
    event = Event(1, row=there, before=here)
    assert Share.of(2, {0: -1}, ("customer",)).delivery(event) == Delivery((0,), Move.LEFT)
    assert Share.of(2, {1: -1}, ("customer",)).delivery(event) == Delivery((1,), Move.ENTERED)
    both = Share.of(2, {0: -1, 1: -1}, ("customer",)).delivery(event)
    assert both == Delivery((0, 1))


def test_a_column_that_was_not_logged_is_an_error() -> None:
    with pytest.raises(InvalidParameterError, match="binlog_row_image"):
        Share.of(2, {0: -1}, ("customer",)).delivery(Event(1, row={"id": 1}))
