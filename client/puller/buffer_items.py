"""What is put into the client's buffer: windows, pages, and what happens between them.

A page of a bootstrap is handled like a window: delivered, replayed, checkpointed. It is not a
transaction: it may contain parts of many, and later pages the rest of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from databus.client.machines.position import Position
from databus.client.subscription import Bindings
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import DatabusError
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.row_reader import RowWindow

NOTICE_BYTES = 64  # size in the buffer of an item that was not sent by a server


class Phase(StrEnum):
    """The kind of events in a window or page."""

    LIVE = "live"  # a transaction, from a relay
    SNAPSHOT = "snapshot"  # current rows
    CATCH_UP = "catch_up"  # changes since the snapshot, from a bootstrap server


class ReadWindow(NamedTuple):
    """A whole window, the bindings that decode it, and a position at or before its start."""

    window: RowWindow
    bindings: Bindings
    since: Position
    transactions: int = 1  # in a batch, the number of windows that have rows

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint after this window."""
        return self.checkpoint_later()()

    def checkpoint_later(self) -> Callable[[], Checkpoint]:
        """Return what makes the checkpoint after this window, and does not hold its rows."""
        window, since = self.window, self.since.checkpoint
        has_rows = bool(window.events)
        return partial(since.after_window, window.scn, window.timestamp_ns, has_rows=has_rows)

    @property
    def size_bytes(self) -> int:
        """Its size on the wire."""
        return self.window.size_bytes


class RolledBack(NamedTuple):
    """Reading went back: the next window follows window `scn`."""

    scn: int
    size_bytes: int = NOTICE_BYTES


@dataclass(slots=True)
class ReadingFailed:
    """Reading has stopped. In the buffer, so that the windows before it are consumed first.

    `is_retried`: reading was resumed in the meantime, so the error is obsolete.
    """

    error: DatabusError
    is_retried: bool = False
    size_bytes: int = NOTICE_BYTES


class BootstrapPage(NamedTuple):
    """A page, the bindings that decode it, and the checkpoint after it.

    `window` has the events, and as its SCN the end of the page; the page begins after
    `since_scn`. A page without events only moves the checkpoint, which is written at once
    with `must_be_kept`.
    """

    window: RowWindow
    bindings: Bindings
    after: Checkpoint
    since_scn: int
    must_be_kept: bool = False

    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint after this page."""
        return self.after

    def checkpoint_later(self) -> Callable[[], Checkpoint]:
        """Return what returns the checkpoint after this page, and does not hold its rows."""
        checkpoint = self.after
        return lambda: checkpoint

    @property
    def known_scn(self) -> int:
        """The SCN of what consumers have, in a snapshot; MAX_SCN if they have nothing."""
        after = self.after
        if self.phase is not Phase.SNAPSHOT:
            return MAX_SCN
        known = after.bootstrap_since_scn if after.bootstrap_since_scn > 0 else after.seen_scn
        return MAX_SCN if known == -1 else known

    @property
    def phase(self) -> Phase:
        """The kind of its events."""
        is_snapshot = self.after.mode is ConsumptionMode.SNAPSHOT
        return Phase.SNAPSHOT if is_snapshot else Phase.CATCH_UP

    @property
    def size_bytes(self) -> int:
        """Its size on the wire."""
        return self.window.size_bytes


class BootstrapBegun(NamedTuple):
    """A bootstrap starts, continues after a restart of the client, or restarts."""

    checkpoint: Checkpoint
    size_bytes: int = NOTICE_BYTES

    @property
    def is_beginning(self) -> bool:
        """Whether the bootstrap is at its very start."""
        return self.checkpoint.bootstrap_start_scn == -1

    @property
    def since_scn(self) -> int:
        """The bootstrap delivers everything after this SCN; -1 = all rows."""
        return self.checkpoint.bootstrap_since_scn or -1


class BootstrapEnded(NamedTuple):
    """The bootstrap is over; a relay's windows follow, after the checkpoint."""

    checkpoint: Checkpoint
    size_bytes: int = NOTICE_BYTES


BufferItem = (
    ReadWindow | RolledBack | ReadingFailed | BootstrapPage | BootstrapBegun | BootstrapEnded
)


def empty_page(checkpoint: Checkpoint, since_scn: int) -> BootstrapPage:
    """Return an empty page whose checkpoint is written at once."""
    window = RowWindow(since_scn, -1, (), NOTICE_BYTES)
    return BootstrapPage(window, {}, checkpoint, since_scn, must_be_kept=True)


def position_after(since: Position, window: RowWindow) -> Position:
    """Return the position after a window that begins at `since` or later."""
    has_rows = bool(window.events)
    return since.after_window(window.scn, window.timestamp_ns, has_rows=has_rows)
