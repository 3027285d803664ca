"""Which tables a catch-up leaves out: those that the relay has stopped, after their last window."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from databus.relay.captured_spans import CapturedSpans
from databus.relay.ring.ring import Ring


class LeftOut:
    """The `TableStops` of a catch-up.

    A table is read up to the window after which the relay has stopped it, and left out where it
    cannot be understood after that. One that cannot be understood before, or that the relay goes
    on with, stops the catch-up: nobody would be told that its rows are missing.
    """

    def __init__(self, spans: CapturedSpans, ring: Ring, begin_scn: int) -> None:
        """`ring` is the catch-up's, which begins after `begin_scn`."""
        self._last = {name: stop.scn for name, stop in spans.stops.items()}
        self._ring = ring
        self._left_out = {name for name, scn in self._last.items() if scn <= begin_scn}

    @property
    def stops(self) -> Collection[str]:
        """The names of the sources that are left out."""
        return self._left_out

    def stop(self, sources: Sequence[str], problem: str, since: float) -> bool:  # noqa: ARG002
        """Leave sources out from now on; return False if the relay is said to have their rows."""
        scn = self._ring.max_scn
        if not all(name in self._last and self._last[name] <= scn for name in sources):
            return False
        self._left_out.update(sources)
        return True
