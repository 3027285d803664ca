"""The position at which reading continues: after a whole window, or after the newest one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from databus.conf.named_places import NamedPlace, ScnPlace, Word, parse_place
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode, LogWindow
from databus.schemas.scn import MAX_SCN


@dataclass(frozen=True, slots=True)
class Position:
    """The whole window after which reading continues; `is_latest` = after the newest one.

    With a `place` it is not known yet: a relay has to find it.
    """

    checkpoint: Checkpoint
    is_latest: bool = False
    place: NamedPlace | None = None

    @property
    def scn(self) -> int:
        """The SCN up to which everything is read; -1 if unknown.

        In a bootstrap this is the SCN at which the bootstrap began.
        """
        if self.checkpoint.is_bootstrap:
            return self.checkpoint.bootstrap_since_scn or -1
        return self.checkpoint.prev_scn

    @property
    def floor_scn(self) -> int:
        """The SCN below every window still to be read."""
        return self.checkpoint.window_scn - (0 if self.checkpoint.is_whole_window else 1)

    def after_window(self, scn: int, timestamp_ns: int = -1, *, has_rows: bool = False) -> Position:
        """Return the position after window `scn`."""
        return Position(self.checkpoint.after_window(scn, timestamp_ns, has_rows=has_rows))

    def proved_by(self, window: LogWindow | None) -> Position:
        """Return the position with a newer window of its relay's log, if this is one.

        One without the name of a source is of use only as long as there is no mark.
        """
        checkpoint = self.checkpoint
        if window is None or (checkpoint.mark is not None and not window[2]):
            return self
        if not self._proved_scn < window[0] <= checkpoint.window_scn:
            return self
        return replace(self, checkpoint=checkpoint.with_log_window(window))

    @property
    def is_proved(self) -> bool:
        """Whether it ends with a window by which its log is known again."""
        return self.is_latest or self._proved_scn >= self.checkpoint.window_scn

    @property
    def _proved_scn(self) -> int:
        return max(self.checkpoint.log_scn, self.checkpoint.mark_scn)

    def within(self, scn: int, offset: int) -> Checkpoint:
        """Return the checkpoint that requests the rest of window `scn`, from event `offset`."""
        return replace(self.checkpoint, window_scn=scn, window_offset=offset)

    def before_window(self, scn: int) -> Position:
        """Return the position that reads window `scn` again from its first event.

        Only "latest" changes: requested again, it would mean a position after the window.
        """
        return Position(self.within(scn, 0)) if self.is_latest else self


def place_order(scn: int, offset: int) -> tuple[int, int]:
    """Return a sort key for stream positions: the end of a window (-1) follows its events."""
    return scn, MAX_SCN if offset < 0 else offset


def position_of(checkpoint: Checkpoint) -> Position:
    """Return the position of a stored checkpoint: whole windows, or a page of a bootstrap."""
    if checkpoint.mode is ConsumptionMode.ONLINE and checkpoint.window_offset > 0:
        whole = replace(checkpoint, window_scn=checkpoint.prev_scn, window_offset=-1)
        return Position(whole)
    return Position(checkpoint)


def parse_start(start: str | int) -> Position:
    """Return the position at which a client without a checkpoint starts; raise SettingsError."""
    place = parse_place(start)
    match place:
        case Word.EARLIEST:
            return Position(Checkpoint.flexible())
        case Word.LATEST:
            return Position(Checkpoint.flexible(), is_latest=True)
        case Word.BEGINNING:
            return Position(Checkpoint.at(0))
        case ScnPlace(scn):
            return Position(Checkpoint.at(scn))
    return Position(Checkpoint.flexible(), place=place)
