"""When a lease of somebody else has run out. Pure.

A contender never compares its clock with another machine's. It measures, by its own clock, for
how long the record has stood unchanged while it was looking. The owner measures its `ttl_s` from
before it sent its last renewal, which is earlier than any look that found that renewal. So the
owner's time is over first, whatever the two clocks show, as long as they run at about one speed.

Two allowances are made. A contender waits for `1 + MARGIN` of the `ttl_s`, for clocks that do not
run at one speed. And the time between two looks counts as `MARGIN` of it at most: a clock that
jumps ahead, or a contender that was stopped itself, makes no lease look older than that.
"""

from __future__ import annotations

from typing import NamedTuple

from databus.leases.clock import Moment

MARGIN = 0.25


class Sighting(NamedTuple):
    """The version of a record, when it was last looked at and how long it has stood until then."""

    version: object
    seen: Moment
    stood_s: float


def look_again(last: Sighting | None, version: object, now: Moment, ttl_s: float) -> Sighting:
    """Return what is known after one more look; `last` is the look before it."""
    if last is None or last.version != version:
        return Sighting(version, now, 0.0)
    gap_s = now.at_s - last.seen.at_s if now.steps_back == last.seen.steps_back else 0.0
    return Sighting(version, now, last.stood_s + min(gap_s, MARGIN * ttl_s))


def runs_out_in_s(sighting: Sighting, ttl_s: float) -> float:
    """Return for how long the record must still stand unchanged; 0 or less = it has run out."""
    return (1 + MARGIN) * ttl_s - sighting.stood_s
