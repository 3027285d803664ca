"""Events and windows that tests of applications make."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from databus.client.consumer import Op
from databus.testing import change, make_event, make_window

NOW = datetime(2026, 11, 28, 20, 30, 1, 250_000)


@dataclass
class Order:
    id: int
    item: str | None


def test_an_event_is_what_a_relay_sends() -> None:
    one = change("shop.orders", {"id": 7, "item": "tea"})
    event = make_event(one, scn=40, committed_s=1.5)
    assert (event.source, event.op, event.scn, event.index) == ("shop.orders", Op.INSERT, 40, 0)
    assert (event.row, event.key, event.wire_key) == ({"id": 7, "item": "tea"}, {"id": 7}, 7)
    assert event.timestamp_ns == 1_500_000_000
    assert event.into(Order) == Order(7, "tea")
    assert (event.is_delete, event.is_truncate, event.before) == (False, False, None)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -(1 << 63), 2.5, "", "a,\\b\0é", b"\x00\xff"),
        *(timedelta(hours=-838, microseconds=7), timedelta(0)),
        *(Decimal("-12.340"), date(2026, 2, 28), NOW, NOW.replace(tzinfo=UTC)),
    ],
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    event = make_event(change("s.t", {"id": 1, "value": value}))
    assert event.row == {"id": 1, "value": value}
    assert type(event.row["value"]) is type(value)


def test_all_kinds_of_changes_make_one_window_in_their_order() -> None:
    old, new = {"id": 7, "item": "tea"}, {"id": 7, "item": "milk"}
    window = make_window(
        change("shop.orders", new, "update", before=old),
        change("shop.customers", {"id": 1}),
        change("shop.orders", new, "delete"),
        change("shop.customers", {}, "truncate"),
        scn=9,
    )
    assert (window.scn, window.phase, window.transactions) == (9, "live", 1)
    assert [(one.source, one.op.value, one.index) for one in window.events] == [
        ("shop.orders", "update", 0),
        ("shop.customers", "insert", 1),
        ("shop.orders", "delete", 2),
        ("shop.customers", "truncate", 3),
    ]
    update, _, delete, truncate = window.events
    assert (update.row, update.before) == (new, old)
    assert (delete.row, delete.is_delete) == (new, True)
    assert (truncate.row, truncate.is_truncate) == ({}, True)
    assert window.to_pylist("shop.customers")[0] == {"id": 1}


def test_a_window_without_changes_and_a_page_of_a_snapshot() -> None:
    assert make_window(scn=3).events == ()
    page = make_window(change("shop.orders", {"id": 1}, "snapshot"), phase="snapshot")
    assert (page.phase, page.events[0].op) == ("snapshot", Op.SNAPSHOT)


def test_a_key_has_the_columns_that_it_is_told() -> None:
    row = {"line": 2, "order": "a,b", "item": "tea"}
    event = make_event(change("shop.lines", row, key=("order", "line")))
    assert list(event.key.items()) == [("order", "a,b"), ("line", 2)]
    assert make_event(change("shop.lines", row)).key == {"line": 2}
    assert make_event(change("shop.lines", row, key="item")).key == {"item": "tea"}
    with pytest.raises(ValueError, match="'nope' is not a column"):
        change("shop.lines", row, key="nope")


def test_a_column_that_a_change_lacks_is_null() -> None:
    first, second = make_window(
        change("s.t", {"id": 1, "note": None}), change("s.t", {"id": 2, "note": "x", "more": 1})
    ).events
    assert first.row == {"id": 1, "note": None, "more": None}
    assert second.row == {"id": 2, "note": "x", "more": 1}


def test_values_that_no_row_has_are_refused() -> None:
    with pytest.raises(TypeError, match=r"s\.t\.value = \{1\}: no row has"):
        make_event(change("s.t", {"id": 1, "value": {1}}))
    with pytest.raises(TypeError, match="values of two types"):
        make_window(change("s.t", {"id": 1}), change("s.t", {"id": "one"}))
