"""Where reading goes on: after a whole window, or from the newest there is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import SettingsError
from databus.schemas.scn import MAX_SCN


@dataclass(frozen=True, slots=True)
class Position:
    """After which whole window reading goes on; `is_latest` = after the newest there is."""

    checkpoint: Checkpoint
    is_latest: bool = False

    @property
    def scn(self) -> int:
        """The SCN up to which there is nothing more to read; -1 when there is none.

        In a bootstrap that is where the bootstrap began.
        """
        if self.checkpoint.is_bootstrap:
            return self.checkpoint.bootstrap_since_scn or -1
        return self.checkpoint.prev_scn

    @property
    def floor_scn(self) -> int:
        """The SCN that every window from here on is above."""
        return self.checkpoint.window_scn - (0 if self.checkpoint.is_whole_window else 1)

    def after_window(self, scn: int, timestamp_ns: int = -1, *, has_rows: bool = False) -> Position:
        """Return where the end of a window leads."""
        return Position(self.checkpoint.after_window(scn, timestamp_ns, has_rows=has_rows))

    def within(self, scn: int, offset: int) -> Checkpoint:
        """Return the checkpoint that asks for the rest of window `scn`, from event `offset`."""
        return replace(self.checkpoint, window_scn=scn, window_offset=offset)

    def before_window(self, scn: int) -> Position:
        """Return where window `scn` is read again from its first event.

        Only "the newest" has to be put another way: asked for again, it would
        be after the window that it was before.
        """
        return Position(self.within(scn, 0)) if self.is_latest else self


def place_order(scn: int, offset: int) -> tuple[int, int]:
    """Return what orders places in a stream: the end of a window (-1) is behind its events."""
    return scn, MAX_SCN if offset < 0 else offset


def position_of(checkpoint: Checkpoint) -> Position:
    """Return where a stored checkpoint leads: whole windows only, or any page of a bootstrap."""
    if checkpoint.mode is ConsumptionMode.ONLINE and checkpoint.window_offset > 0:
        whole = replace(checkpoint, window_scn=checkpoint.prev_scn, window_offset=-1)
        return Position(whole)
    return Position(checkpoint)


def restart_scn(checkpoint: Checkpoint) -> int | None:
    """Return after which window a relay is asked on from a checkpoint; None when none is named.

    That of a bootstrap goes on at a bootstrap server.
    """
    scn = position_of(checkpoint).floor_scn
    return None if checkpoint.is_bootstrap or scn < 0 else scn


def parse_start(start: str) -> Position:
    """Return where a client without a checkpoint starts; raises SettingsError."""
    if start == "earliest":
        return Position(Checkpoint.flexible())
    if start == "latest":
        return Position(Checkpoint.flexible(), is_latest=True)
    if start == "beginning":
        return Position(Checkpoint.at(0))
    if start.isascii() and start.isdigit() and int(start) < 1 << 63:
        return Position(Checkpoint.at(int(start)))
    raise SettingsError(f"start = {start!r}: is not earliest, latest, beginning or an SCN")
