"""When a relay that cannot read the database leaves capture to another one."""

from __future__ import annotations

from databus.relay.capture.standby.out_of_reach import OutOfReach


def times_held(reach: OutOfReach, until_s: int, *vain_s: range) -> list[int]:
    """Return the seconds at which the lease may be held; it is in vain in some spans."""
    return [
        now_s
        for now_s in range(until_s)
        if reach.may_capture(float(now_s), is_in_vain=any(now_s in span for span in vain_s))
    ]


def test_it_holds_the_lease_while_it_captures() -> None:
    assert times_held(OutOfReach(5.0, 3.0), 100) == list(range(100))


def test_it_leaves_the_lease_after_its_patience_and_contends_again_after_a_rest() -> None:
    held = times_held(OutOfReach(5.0, 3.0), 20, range(2, 7 + 1))
    assert held == [*range(7), *range(10, 20)]


def test_what_nobody_else_takes_is_tried_again_and_again() -> None:
    held = times_held(OutOfReach(5.0, 3.0), 24, range(24))
    assert held == [*range(5), *range(8, 13), *range(16, 21)]


def test_patience_begins_anew_whenever_the_database_is_read() -> None:
    spans = [range(0, 4), range(5, 9), range(10, 14)]
    assert times_held(OutOfReach(5.0, 3.0), 20, *spans) == list(range(20))
