"""Where a sink ends: `until`, a place in the history of its source. Pure."""

from __future__ import annotations

from databus.client.dispatcher.data_window import DataWindow
from databus.client.puller.buffer_items import Phase
from databus.conf.named_places import GtidPlace, ScnPlace, TimePlace, parse_place


class Ending:
    """Decides which windows are still written."""

    def __init__(self, until: str | None) -> None:
        """`until` is an SCN, a time or a GTID; None = there is no end."""
        self._place = None if until is None else parse_place(until)

    def is_past(self, window: DataWindow) -> bool:
        """Whether a window comes after the end."""
        if window.phase is not Phase.LIVE:
            return False
        match self._place:
            case ScnPlace(scn):
                return window.scn > scn
            case TimePlace(time_ns):
                return window.timestamp_ns >= time_ns
        return False

    def is_last(self, window: DataWindow) -> bool:
        """Whether a window is the last one."""
        if window.phase is not Phase.LIVE:
            return False
        match self._place:
            case ScnPlace(scn):
                return window.scn == scn
            case GtidPlace(gtid):
                return any(event.gtid == gtid for event in window.events[:1])
        return False

    def is_reached(self, scn: int) -> bool:
        """Whether all windows up to an SCN are all that there are before the end."""
        return isinstance(self._place, ScnPlace) and scn >= self._place.scn
