"""Where a catch-up meets what the relay holds, and the proof that both are one history. Pure.

The *bound* is the newest SCN that the relay no longer holds. A reader behind it reads on in the
relay's own history, so a catch-up hands out no window from the bound on before the windows that
both have are proved to be equal, by their digests. An empty window that the relay's history begins
with says nothing of the source's window with that SCN: capture that begins at `latest` makes one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from databus.relay.capture.overlap.window_digests import WindowDigest, window_digests
from databus.relay.ring.event_selector import WINDOW_DONE, Position
from databus.relay.ring.events import BytesReader
from databus.relay.ring.scn_index import Extent
from databus.schemas.errors import RelayLogError
from databus.schemas.event.event import Event

# Windows that are compared, those without rows included.
COMPARED_WINDOWS = 64


class Overlapping(BytesReader, Protocol):
    """A reader of windows."""

    @property
    def max_scn(self) -> int:
        """SCN of the newest window."""
        ...

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position after (scn, window_offset); None if it is not there yet."""
        ...


def bound_of(held: Extent) -> int:
    """Return the SCN after which the relay holds everything; -1 if it holds nothing.

    If the window before the oldest one is unknown, it is that of the oldest one.
    """
    return held.prev_scn if held.prev_scn >= 0 else held.min_scn


def lacks(held: Extent, asked: Position) -> bool:
    """Return whether the relay no longer holds what comes after a place.

    Not for the beginning of the source, which no log can prove to have.
    """
    scn, offset = asked
    bound = bound_of(held)
    if scn <= 0 or bound < 0:
        return False
    return scn < bound or (scn == held.prev_scn and offset >= 0)


def beyond(held: Extent, scn: int, position: int) -> Extent:
    """Return the extent of what the relay holds after a window that ends at a position."""
    return held._replace(head=position, prev_scn=scn, min_scn=scn + 1)


def compare(
    held: Extent, own: Overlapping, read: Overlapping, counts: Callable[[Event], bool]
) -> int | None:
    """Compare the relay's oldest windows with those of a catch-up; return the SCN they end with.

    `own` reads the relay's history, `read` the catch-up. Returns None as long as the catch-up is
    not that far. Raises RelayLogError if a window differs; ScnNotFoundError if `own` has lost the
    windows meanwhile.
    """
    bound = bound_of(held)
    if read.max_scn < bound:
        return None
    expected = list(islice(window_digests(own, held.head, counts), COMPARED_WINDOWS))
    with_rows = [window for window in expected if window.digest]
    # Each reading writes empty windows of its own.
    last_scn = with_rows[-1].scn if with_rows else bound
    if expected and not with_rows:  # then the catch-up must have no rows there either
        last_scn = max(bound, min(expected[-1].scn, read.max_scn))
    if read.max_scn < last_scn:
        return None
    # Capture of a source begins with an empty window: the place where it began, behind windows
    # that it never read. Only where it has rows was the oldest window read.
    is_bound_read = held.prev_scn < 0 and bool(with_rows) and with_rows[0].scn == bound
    after_scn = bound - 1 if is_bound_read else bound
    position = read.find(after_scn, WINDOW_DONE)
    found: list[WindowDigest] = []
    if position is not None:
        for window in window_digests(read, position, counts):
            if window.scn > last_scn:
                break
            if window.digest:
                found.append(window)
    _check_same(with_rows, found)
    return max(last_scn, bound)


def _check_same(expected: list[WindowDigest], found: list[WindowDigest]) -> None:
    if expected == found:
        return
    scns = [window.scn for window in {*expected} ^ {*found}]
    raise RelayLogError(
        f"the source's log now has other rows at scn {min(scns)} than the relay captured: the two "
        "are not one history"
    )
