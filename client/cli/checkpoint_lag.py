"""How a place stands to a relay, and to another place: how far, which is ahead. Pure.

And what moving a checkpoint does to whom it belongs to: which windows come
again, which are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from databus.conf.units import duration_text
from databus.schemas.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class RelayRange:
    """What a relay holds of one physical source; SCNs below 0 = none.

    `prev_scn` is the newest window that it does not hold any more.
    """

    physical_source: str
    sources: tuple[str, ...]
    min_scn: int
    max_scn: int
    prev_scn: int
    newest_ns: int

    def holds(self, scn: int | None) -> bool:
        """Whether reading can go on after a window; None = from the oldest there is."""
        if scn is None:
            return True
        return scn >= self.prev_scn if self.prev_scn >= 0 else scn >= self.min_scn


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a place is behind a relay; `behind_s` from commit to commit, None = not known."""

    physical_source: str
    oldest_scn: int
    newest_scn: int
    behind_scn: int | None
    behind_s: float | None
    is_held: bool

    def to_json_value(self) -> dict[str, Any]:
        """Return it as plain values."""
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
        """It in a few words."""
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
    """Return how far a place is behind what a relay holds."""
    behind = None if scn is None or held.max_scn < 0 else held.max_scn - scn
    behind_s = None
    if behind is not None and behind <= 0:
        behind_s = 0.0
    elif behind is not None and time_ns and held.newest_ns:
        behind_s = max(0.0, (held.newest_ns - time_ns) / 1e9)
    return Lag(held.physical_source, held.min_scn, held.max_scn, behind, behind_s, held.holds(scn))


def distance_text(a: int | None, b: int | None, names: tuple[str, str] = ("A", "B")) -> str:
    """Say which of two places is ahead, and how far."""
    if a == b:
        return "same"
    if a is None or b is None:
        nowhere = names[0] if a is None else names[1]
        return f"{nowhere} has not begun"
    ahead = names[0] if a > b else names[1]
    return f"{ahead} is {abs(a - b)} SCNs ahead"


def consequences(old: int | None, new: Checkpoint, word: str, held: RelayRange | None) -> list[str]:
    """Say what a consumer at `old` will see once its checkpoint is moved to `new`."""
    to_scn = None if new.is_flexible else new.window_scn
    lines = _windows_moved(old, to_scn, word)
    if held is None:
        lines.append("Whether a relay holds that place is not known: --relay URL looks.")
    elif not held.holds(to_scn):
        lines.append(
            f"The relay does not hold it (its oldest window is {held.min_scn}): the consumer goes "
            "to a bootstrap server, or stops with an error when its settings name none."
        )
    elif to_scn is not None and to_scn > held.max_scn:
        lines.append(
            f"The relay has not come so far: its newest window is {held.max_scn}. Nothing comes "
            f"before a window after {to_scn}."
        )
    return lines


def _windows_moved(old: int | None, to_scn: int | None, word: str) -> list[str]:
    if to_scn is None:
        until = "" if old is None else f", up to {old} a second time"
        return [f"It begins with the oldest window that a relay holds: those come again{until}."]
    if old is None:
        return [f"It had not begun. Windows up to {to_scn} are left out ({word})."]
    if to_scn == old:
        return [f"It is after window {old} already: nothing comes again, nothing is left out."]
    if to_scn < old:
        return [f"Windows after {to_scn}, up to {old}, come AGAIN."]
    return [f"Windows after {old}, up to {to_scn}, are LEFT OUT: they never come."]
