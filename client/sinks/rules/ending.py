"""Where a sink ends: `until`, a place in the history of its source. Pure."""

from __future__ import annotations

from databus.client.dispatcher.data_window import DataWindow, read_of
from databus.client.puller.buffer_items import BootstrapPage, Phase
from databus.conf.named_places import GtidPlace, ScnPlace, TimePlace, parse_place
from databus.schemas.errors import SettingsError


class Ending:
    """Decides which windows are still written."""

    def __init__(self, until: str | None) -> None:
        """`until` is an SCN, a time or a GTID; None = there is no end."""
        self._text = until
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

    def check_page(self, window: DataWindow, now_ns: int) -> None:
        """Raise SettingsError for a page of a bootstrap that has rows as of after the end.

        What they were at the end, and which rows were deleted since, is not known any more.
        """
        read = read_of(window)
        if self._place is None or not isinstance(read, BootstrapPage):
            return
        checkpoint = read.checkpoint()
        known = (checkpoint.bootstrap_start_scn, checkpoint.bootstrap_target_scn)
        newest = max((*known, *(event.scn for event in window.events)))
        match self._place:
            case ScnPlace(scn):
                is_past = newest > scn
            case TimePlace(time_ns):
                is_past = now_ns >= time_ns
            case _:
                is_past = True  # nobody says whether it has that transaction
        if is_past:
            raise SettingsError(
                f"until = {self._text!r}: the rows of the bootstrap server are as of SCN {newest}, "
                "and what they were at that place is not known: give an SCN or a time that is "
                "still to come, or leave out `bootstrap_servers`"
            )

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
