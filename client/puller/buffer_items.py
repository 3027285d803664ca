"""What a bootstrap puts into the buffer: its beginning, its pages, its end.

A page is dealt with as a window is: delivered, replayed, checkpointed. It is
no transaction: its rows may be of many, and the rest of theirs come later.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from databus.client.subscription import Bindings
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.stream.row_reader import RowWindow

NOTICE_BYTES = 64  # what something that is not from the wire counts for in the buffer


class Phase(StrEnum):
    """What the events of a window or page are."""

    LIVE = "live"  # a transaction, from a relay
    SNAPSHOT = "snapshot"  # rows as they stand
    CATCH_UP = "catch_up"  # changes since the snapshot, from a bootstrap server


class BootstrapPage(NamedTuple):
    """A page, what decodes it, and the checkpoint of who has consumed it.

    `window` has its events and, as its SCN, how far it leads; `since_scn` is
    where it begins. One without events moves the checkpoint, written at once
    where `must_be_kept`.
    """

    window: RowWindow
    bindings: Bindings
    after: Checkpoint
    since_scn: int
    must_be_kept: bool = False

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of who has consumed it."""
        return self.after

    @property
    def phase(self) -> Phase:
        """What its events are."""
        is_snapshot = self.after.mode is ConsumptionMode.SNAPSHOT
        return Phase.SNAPSHOT if is_snapshot else Phase.CATCH_UP

    @property
    def size_bytes(self) -> int:
        """Its size on the wire."""
        return self.window.size_bytes


class BootstrapBegun(NamedTuple):
    """A bootstrap begins, goes on after a restart, or begins anew."""

    checkpoint: Checkpoint
    size_bytes: int = NOTICE_BYTES

    @property
    def is_beginning(self) -> bool:
        """Whether all of it is still to come."""
        return self.checkpoint.bootstrap_start_scn == -1

    @property
    def since_scn(self) -> int:
        """All after this SCN comes; -1 = all there is."""
        return self.checkpoint.bootstrap_since_scn or -1


class BootstrapEnded(NamedTuple):
    """What comes next is from a relay again, after the checkpoint."""

    checkpoint: Checkpoint
    size_bytes: int = NOTICE_BYTES


def empty_page(checkpoint: Checkpoint, since_scn: int) -> BootstrapPage:
    """Return a page of no events that moves the checkpoint, which is written at once."""
    window = RowWindow(since_scn, -1, (), NOTICE_BYTES)
    return BootstrapPage(window, {}, checkpoint, since_scn, must_be_kept=True)
