"""The record of a lease, and what may become of it. Pure.

    {"lease": "billing/7", "owner": "host-a:4711", "term": 12, "ttl_s": 10.0, "renewals": 345,
     "renewed": "2026-11-27T18:41:55Z", "crc": "…"}

A record is never removed, so that its term never goes back: a released lease has no owner, and
its term. `renewals` makes each renewal another record. `renewed` is for people; nothing depends
on it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from databus.leases.checked_json import decode_checked, encode_checked
from databus.leases.errors import LeaseError

_MOST_TERM = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease as it is stored; `owner` is "" while nobody has it."""

    lease: str
    owner: str = ""
    term: int = 0
    ttl_s: float = 0.0
    renewals: int = 0
    renewed: str = ""

    def taken(self, owner: str, ttl_s: float, above: int, wall_s: float) -> LeaseRecord:
        """Return the record with a new owner, and a term that no owner had before."""
        term = max(self.term, above) + 1
        return LeaseRecord(self.lease, owner, term, ttl_s, 0, _date(wall_s))

    def renewed_at(self, wall_s: float) -> LeaseRecord:
        """Return the record after one more renewal."""
        return replace(self, renewals=self.renewals + 1, renewed=_date(wall_s))

    def released(self, wall_s: float) -> LeaseRecord:
        """Return the record without its owner."""
        return replace(self, owner="", renewed=_date(wall_s))

    def encode(self) -> bytes:
        """Return the record's JSON."""
        return encode_checked(asdict(self))

    @classmethod
    def decode(cls, data: bytes, lease: str | None, store: str) -> LeaseRecord:
        """Read a record; raise LeaseError if it is damaged, or the record of another lease.

        Without `lease` it may be the record of any.
        """
        try:
            found = cls(**decode_checked(data))
            _check(found, lease)
        except (ValueError, TypeError) as error:
            raise LeaseError(
                f"the record of lease {lease!r} in {store} cannot be read: {error}; restore it "
                "from a copy. Without one, remove it while no owner runs: terms then go on from "
                "the greatest that the positions written under the lease have"
            ) from error
        return found


def _check(found: LeaseRecord, lease: str | None) -> None:
    if lease is not None and found.lease != lease:
        raise ValueError(f"it is the record of {found.lease!r}")
    is_whole = isinstance(found.owner, str) and isinstance(found.term, int)
    if not is_whole or not 0 < found.term <= _MOST_TERM:
        raise ValueError(f"it has owner {found.owner!r}, term {found.term!r}")
    if found.owner and not (math.isfinite(found.ttl_s) and found.ttl_s > 0):
        raise ValueError(f"its ttl_s is {found.ttl_s!r}")


def _date(wall_s: float) -> str:
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
