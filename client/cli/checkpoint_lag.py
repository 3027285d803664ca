"""The lag of a checkpoint behind a relay or another checkpoint. Pure.

Also the effects of moving a checkpoint: which windows are delivered again, and which are
skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from databus.conf.units import duration_text
from databus.schemas.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class RelayRange:
    """The range of one physical source that a relay holds; SCNs below 0 = none.

    `prev_scn` is the newest window that has been overwritten.
    """

    physical_source: str
    sources: tuple[str, ...]
    min_scn: int
    max_scn: int
    prev_scn: int
    newest_ns: int

    def holds(self, scn: int | None) -> bool:
        """Whether reading can continue after window `scn`; None = from the oldest window."""
        if scn is None:
            return True
        # Reading after the newest overwritten window misses nothing.
        return scn >= self.prev_scn if self.prev_scn >= 0 else scn >= self.min_scn


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag behind a relay; `behind_s` is between commit times, None = unknown."""

    physical_source: str
    oldest_scn: int
    newest_scn: int
    behind_scn: int | None
    behind_s: float | None
    is_held: bool

    def to_json_value(self) -> dict[str, Any]:
        """Return the lag as JSON values."""
        return {
            "physicalSource": self.physical_source,
            "oldestScn": self.oldest_scn,
            "newestScn": self.newest_scn,
            "behindScn": self.behind_scn,
            "behindSeconds": self.behind_s,
            "isHeld": self.is_held,
        }

    @property
    def text(self) -> str:
        """The lag in a few words."""
        if not self.is_held:
            return f"not held: the oldest is {self.oldest_scn}"
        if self.behind_scn is None:
            return "not known"
        if self.behind_scn < 0:
            return f"{-self.behind_scn} SCNs AHEAD of the relay"
        if self.behind_scn == 0:
            return "none"
        seconds = "" if self.behind_s is None else f", {duration_text(self.behind_s)}"
        return f"{self.behind_scn} SCNs{seconds}"


def lag_of(scn: int | None, time_ns: int | None, held: RelayRange) -> Lag:
    """Return the lag of a position behind the range that a relay holds."""
    behind = None if scn is None or held.max_scn < 0 else held.max_scn - scn
    behind_s = None
    if behind is not None and behind <= 0:
        behind_s = 0.0
    # Commit times may be missing from old checkpoints.
    elif behind is not None and time_ns and held.newest_ns:
        behind_s = max(0.0, (held.newest_ns - time_ns) / 1e9)
    return Lag(held.physical_source, held.min_scn, held.max_scn, behind, behind_s, held.holds(scn))


def distance_text(a: int | None, b: int | None, names: tuple[str, str] = ("A", "B")) -> str:
    """Return which of two positions is ahead, and how far, in words."""
    if a == b:
        return "same"
    if a is None or b is None:
        nowhere = names[0] if a is None else names[1]
        return f"{nowhere} has not started"
    ahead = names[0] if a > b else names[1]
    return f"{ahead} is {abs(a - b)} SCNs ahead"


def consequences(old: int | None, new: Checkpoint, word: str, held: RelayRange | None) -> list[str]:
    """Return the effects on a consumer at `old` of moving its checkpoint to `new`."""
    to_scn = None if new.is_flexible else new.window_scn
    lines = _windows_moved(old, to_scn, word)
    if held is None:
        lines.append("Not checked whether a relay holds that position: give --relay URL to check.")
    elif not held.holds(to_scn):
        lines.append(
            f"The relay does not hold it (its oldest window is {held.min_scn}): the consumer reads "
            "from a bootstrap server, or stops with an error if its settings have none."
        )
    elif to_scn is not None and to_scn > held.max_scn:
        lines.append(
            f"The relay has not reached it: its newest window is {held.max_scn}. Nothing is "
            f"delivered until there is a window after {to_scn}."
        )
    return lines


def _windows_moved(old: int | None, to_scn: int | None, word: str) -> list[str]:
    if to_scn is None:
        until = "" if old is None else f", those up to {old} a second time"
        return [f"It starts with the oldest window that the relay holds{until}."]
    if old is None:
        return [f"It had not started. Windows up to {to_scn} are SKIPPED ({word})."]
    if to_scn == old:
        return [f"It is after window {old} already: nothing is repeated, nothing is skipped."]
    if to_scn < old:
        return [f"Windows after {to_scn}, up to {old}, are delivered AGAIN."]
    return [f"Windows after {old}, up to {to_scn}, are SKIPPED: they are never delivered."]
