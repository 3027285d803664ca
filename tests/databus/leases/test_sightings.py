"""What one who only looks knows of a lease: nothing, before it has looked for long enough."""

from __future__ import annotations

from databus.leases.clock import Moment
from databus.leases.lease_record import LeaseRecord
from databus.leases.sightings import Holding, LeaseSightings

HELD = LeaseRecord("a").taken("host:1", 10.0, 0, 0.0)


def test_a_lease_is_held_once_a_renewal_was_seen() -> None:
    seen = LeaseSightings()
    assert seen.look(HELD, 1, Moment(0, 0.0)) is Holding.UNKNOWN
    assert seen.look(HELD, 1, Moment(0, 2.0)) is Holding.UNKNOWN
    assert seen.look(HELD, 2, Moment(0, 4.0)) is Holding.HELD
    assert seen.look(HELD, 2, Moment(0, 6.0)) is Holding.HELD


def test_one_that_is_not_renewed_has_run_out_after_a_quarter_more_than_it_lasts() -> None:
    seen, found = LeaseSightings(), {}
    for at_s in range(0, 20, 2):
        found[at_s] = seen.look(HELD, 1, Moment(0, float(at_s)))
    assert [at_s for at_s, one in found.items() if one is Holding.RUN_OUT] == [14, 16, 18]
    assert set(found.values()) == {Holding.UNKNOWN, Holding.RUN_OUT}


def test_after_a_pause_in_looking_nothing_is_known() -> None:
    seen = LeaseSightings()
    seen.look(HELD, 1, Moment(0, 0.0))
    assert seen.look(HELD, 2, Moment(0, 2.0)) is Holding.HELD
    assert seen.look(HELD, 2, Moment(0, 500.0)) is Holding.UNKNOWN
    # And after the clock has gone back.
    seen.look(HELD, 3, Moment(0, 501.0))
    assert seen.look(HELD, 3, Moment(1, 100.0)) is Holding.UNKNOWN


def test_one_without_an_owner_is_free() -> None:
    seen = LeaseSightings()
    assert seen.look(HELD.released(0.0), 1, Moment(0, 0.0)) is Holding.FREE
    assert seen.look(HELD, 2, Moment(0, 1.0)) is Holding.UNKNOWN
    seen.keep(set())
    assert seen.look(HELD, 3, Moment(0, 2.0)) is Holding.UNKNOWN
