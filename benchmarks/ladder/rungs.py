"""Which rung of history holds what, and which of them serves a window. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Rung(StrEnum):
    """The rungs, from the newest windows to the oldest; each is also the name of a consumer."""

    RING = "ring"
    LOG = "log"
    ARCHIVE = "archive"
    SOURCE = "source"
    BOOTSTRAP = "bootstrap"


# How long a consumer is away, in sizes of the ring. The last two leave near the beginning.
AWAY: Mapping[Rung, float] = {Rung.RING: 0.5, Rung.LOG: 10, Rung.ARCHIVE: 50, Rung.SOURCE: 95}
# What log and archive keep, in the same unit.
LOG_KEEPS, ARCHIVE_KEEPS = 20, 75


@dataclass(frozen=True, slots=True)
class Held:
    """The SCNs after which ring, relay log and archive have every window."""

    ring: int
    log: int
    archive: int

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Held:
        """Return what a physical source's view in the API says."""
        log = view["relayLog"]
        archive = log["archive"]
        # The window before the archive's oldest is not told: the oldest itself is what it lacks.
        return cls(
            *(int(one) for one in (view["ring"]["prevScn"], log["prevScn"], archive["minScn"]))
        )

    def rung_of(self, scn: int) -> Rung:
        """Return which rung has a window; the source's log has what the others do not."""
        if scn > self.ring:
            return Rung.RING
        if scn > self.log:
            return Rung.LOG
        return Rung.ARCHIVE if scn > self.archive else Rung.SOURCE


def served(scns: Iterable[int], held: Held) -> Counter[Rung]:
    """Return how many of some windows each rung serves."""
    return Counter(held.rung_of(scn) for scn in scns)


def misplaced(left_at: Mapping[Rung, int], held: Held) -> list[str]:
    """Return which consumers' next windows are not on the rung that they are to show."""
    return [
        f"the next window of the consumer {rung} is on {held.rung_of(scn + 1)}"
        for rung, scn in left_at.items()
        if rung is not Rung.BOOTSTRAP and held.rung_of(scn + 1) is not rung
    ]
