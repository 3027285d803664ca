"""What the demo says of the changes it was given."""

from __future__ import annotations

from databus.demo.arrivals import Arrivals, arrival_of
from databus.schemas.event.metadata import Op


def feed(arrivals: Arrivals, *numbers: int) -> Arrivals:
    for number in numbers:
        row = {"id": 1, "change_no": number, "changed_ns": 1_000_000}
        arrivals.add(arrival_of("shop.orders", Op.INSERT, 1, row, number, 3_500_000))
    return arrivals


def test_everything_in_order_is_the_promised_last_line() -> None:
    arrivals = feed(Arrivals(3), 1, 2, 3)
    assert arrivals.is_complete
    assert arrivals.is_right
    assert arrivals.last_line() == "delivered 3 of 3 changes, in order, p50 2.5 ms, p99 2.5 ms"


def test_a_deletion_is_the_change_after_its_rows_stamp() -> None:
    row = {"id": 1, "change_no": 6, "changed_ns": 0}
    assert arrival_of("shop.orders", Op.DELETE, 1, row, 1, 5).number == 7
    assert arrival_of("shop.orders", Op.UPDATE, 1, row, 1, 5).number == 6


def test_a_skipped_change_is_named() -> None:
    arrivals = feed(Arrivals(3), 1, 3)
    assert arrivals.is_complete
    assert not arrivals.is_right
    assert arrivals.last_line() == (
        "delivered 2 of 3 changes, NOT in order: change 3 came when 2 was due"
    )


def test_a_doubled_change_is_named() -> None:
    assert "change 1 came again when 2 was due" in feed(Arrivals(3), 1, 1).last_line()


def test_a_change_that_never_came_is_named() -> None:
    arrivals = feed(Arrivals(3), 1, 2)
    assert not arrivals.is_complete
    assert not arrivals.is_right
    assert arrivals.last_line() == "delivered 2 of 3 changes: change 3 never came"


def test_without_an_end_what_came_is_right() -> None:
    arrivals = feed(Arrivals(), 1, 2)
    assert not arrivals.is_complete
    assert arrivals.is_right
    assert arrivals.last_line().startswith("delivered 2 changes, in order, p50")


def test_percentiles_of_nothing_are_zero() -> None:
    assert Arrivals(1).percentile_ms(99) == 0.0
