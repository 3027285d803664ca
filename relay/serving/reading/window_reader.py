"""What requests need of the reader of a ring: to find positions, and to read windows."""

from __future__ import annotations

from typing import Protocol

from databus.relay.ring.event_selector import WINDOW_DONE, EventSelector, Position, SelectedEvents
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError


class Finder(Protocol):
    """Finds positions in a ring; `find` may raise ScnNotFoundError."""

    def newest(self) -> tuple[int, int]:
        """Return SCN and end position of the newest window."""
        ...

    def find(self, scn: int, window_offset: int) -> int | None:
        """Return the position after (scn, window_offset); None if it is not in the ring yet."""
        ...


class HeldWindows(Protocol):
    """Knows the windows of a ring."""

    def window_at(self, scn: int) -> tuple[int, int] | None:
        """Return SCN and timestamp of the newest window up to `scn`; None if it is not held."""
        ...


class WindowReader(Finder, HeldWindows, Protocol):
    """The reader of a ring; `read` and `select` may raise ScnNotFoundError, too."""

    @property
    def opening(self) -> int:
        """Changes when the ring is emptied; positions found before are then invalid."""
        ...

    @property
    def head(self) -> int:
        """Position of the oldest window."""
        ...

    @property
    def min_scn(self) -> int:
        """SCN of the oldest window; negative without one."""
        ...

    @property
    def prev_scn(self) -> int:
        """Newest SCN no longer held; negative if unknown."""
        ...

    @property
    def max_scn(self) -> int:
        """SCN of the newest window; negative if there never was one."""
        ...

    def read(self, position: int, max_bytes: int) -> bytes:
        """Return bytes from `position` on, up to the published tail."""
        ...

    def select(
        self,
        position: int,
        max_bytes: int,
        selector: EventSelector,
        place: Position,
        room_bytes: int,
    ) -> SelectedEvents | None:
        """Return the events that pass in the next `max_bytes`; None at the published tail."""
        ...

    def end_of_windows(self, position: int, max_bytes: int, slack_bytes: int = 0) -> int:
        """Return the end of the last window that fits, within `slack_bytes`, or `position`."""
        ...

    def has_optional(self, position: int, windows: bytes) -> bool:
        """Return whether whole windows read at `position` contain a statement or a truncate."""
        ...

    def remember_end(self, scn: int, position: int) -> None:
        """Remember the end position of a window that was just sent."""


def find_first(reader: Finder, scn: int) -> int | None:
    """Return the position after window `scn`, a first SCN; None if the ring does not have it."""
    try:
        return reader.find(scn, WINDOW_DONE)
    except DamagedWindowsError:
        raise
    except ScnNotFoundError:
        return None  # overwritten meanwhile: every window that is left is newer


def stands_for_begin(reader: Finder, scn: int) -> bool:
    """Return whether `scn`, the oldest window, only says where capture began.

    Its rows are in no ring, so nobody can read inside it.
    """
    try:
        reader.find(scn, 0)
    except DamagedWindowsError:
        raise
    except ScnNotFoundError:
        return True
    return False
