"""What consumers with a name have not read yet, which the retention keeps for them.

A consumer reports the checkpoint that it would continue from. Nobody knows that of one that has not
reported since the relay's start: then nothing is let go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from databus.relay.log.layout import UNKNOWN_SCN


class Hold:
    """The last known checkpoints of some consumers. One thread notes them, any may read."""

    def __init__(self, names: Iterable[str]) -> None:
        self._scns = dict.fromkeys(names, UNKNOWN_SCN)

    def note(self, scns: Mapping[str, int]) -> None:
        """Take over the checkpoints of consumers, by name; others have not reported."""
        known = {name: scns[name] for name in self._scns if name in scns}
        self._scns = self._scns | known

    @property
    def names(self) -> tuple[str, ...]:
        """The consumers that segments are kept for."""
        return tuple(self._scns)

    @property
    def after_scn(self) -> int | None:
        """What comes after it is kept; -1 = everything, None = nothing is kept for anybody."""
        return min(self._scns.values(), default=None)
