"""The spans of a ring's sources, with what the ring does not have of each server's log.

Where a relay goes on at another server, that one's log has what was already delivered, too. What
follows a place before the first window that was read there, the ring has with SCNs of the server
before, if at all: reading on in the ring would leave some out. So the place is refused, or served
from the server's log. Such places come from other relays of the source, which went over earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from databus.relay.capture.servers import Servers
from databus.relay.ring.scn_index import Extent
from databus.relay.sources.epochs import Epoch, Unread, unread_places
from databus.relay.span import Span, Spans


class Held(Protocol):
    """A reader of what a relay holds."""

    def extent(self) -> Extent:
        """Return the bounds of what it holds."""
        ...


def unread_by(servers: Servers, held: Held) -> list[Unread]:
    """Return the places of later epochs that lie before what is held of them."""
    return unread_in(servers.table.epochs, held)


def unread_in(epochs: Sequence[Epoch], held: Held) -> list[Unread]:
    """Return the places of later ones of some epochs that lie before what is held of them."""
    if all(epoch.after_scn < 0 for epoch in epochs):
        return []
    extent = held.extent()
    known = [scn for scn in (extent.prev_scn, extent.min_scn) if scn >= 0]
    return unread_places(epochs, min(known, default=-1))


class EpochSpans:
    """Spans of the sources of one ring. On the loop's thread."""

    __slots__ = ("_held", "_servers", "_spans")

    def __init__(self, spans: Spans, servers: Servers, held: Held) -> None:
        self._spans, self._servers, self._held = spans, servers, held

    @property
    def revision(self) -> int:
        """Changes with each of them, and before the first window of an epoch can be read."""
        return self._spans.revision + len(self._servers.table.epochs)

    def of(self, src_ids: Collection[int] | None) -> Span:
        """Return the span of some sources; None for all of them."""
        span = self._spans.of(src_ids)
        unread = unread_by(self._servers, self._held)
        if not unread:
            return span
        peers = self._servers.peers
        passed = () if peers is None else tuple(peers.passed())
        return span._replace(unread=tuple(unread), passed=passed)
