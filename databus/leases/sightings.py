"""What somebody who only looks at leases knows of them: whether their owners renew them. Pure.

A lease that is seen for the first time may have been left an hour ago: that is known once it was
renewed under the looker's eyes, or has stood unchanged for as long as `expiry.py` asks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from databus.leases.clock import Moment
from databus.leases.expiry import MARGIN, Sighting, look_again, runs_out_in_s
from databus.leases.lease_record import LeaseRecord


class Holding(StrEnum):
    """Whether a lease is held, as far as the looker knows."""

    FREE = "free"  # nobody has it
    HELD = "held"  # it was renewed while it was looked at
    RUN_OUT = "run_out"  # it was not, for longer than it lasts
    UNKNOWN = "unknown"  # it has not been looked at for long enough


class _Seen(NamedTuple):
    sighting: Sighting
    renewed: Moment | None  # when a renewal was seen last


class LeaseSightings:
    """The leases that one looker has seen. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def look(self, record: LeaseRecord, version: object, now: Moment) -> Holding:
        """Return what is known of a lease after one more look at it."""
        last, name = self._seen.get(record.lease), record.lease
        if not record.owner:
            self._seen.pop(name, None)
            return Holding.FREE
        sighting = look_again(last and last.sighting, version, now, record.ttl_s)
        is_renewed = last is not None and last.sighting.version != version
        renewed = now if is_renewed else last and last.renewed
        self._seen[name] = _Seen(sighting, renewed)
        if runs_out_in_s(sighting, record.ttl_s) <= 0:
            return Holding.RUN_OUT
        # What was seen long ago says nothing: nobody may have looked since.
        is_fresh = renewed is not None and renewed.steps_back == now.steps_back
        if renewed is None or not is_fresh or now.at_s - renewed.at_s > (1 + MARGIN) * record.ttl_s:
            return Holding.UNKNOWN
        return Holding.HELD

    def keep(self, names: set[str]) -> None:
        """Forget all other leases."""
        self._seen = {name: seen for name, seen in self._seen.items() if name in names}
