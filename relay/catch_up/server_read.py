"""The server whose log a catch-up reads: the one that capture has read last."""

from __future__ import annotations

from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.capture import Capture
from databus.relay.epoch_spans import Held, unread_by
from databus.relay.log.layout import UNKNOWN_SCN
from databus.schemas.scn import epoch_begin


class ServerRead:
    """Follows from which server capture reads, not which ones it only tries. On the loop's thread.

    A server that does not answer is waited for: another one has not proved to have the same log.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._settings = capture.servers.database

    @property
    def settings(self) -> PhysicalSourceSettings:
        """The settings for the server, with its epoch."""
        self.look()
        return self._settings

    def look(self) -> None:
        """Take note of the server that is read now, if one is."""
        if self._capture.place.is_proved:
            self._settings = self._capture.servers.database

    @property
    def is_newest(self) -> bool:
        """Whether it is that of the newest epoch, which may be read for the first time now."""
        return self.settings.epoch == self._capture.servers.epoch

    def has(self, scn: int) -> bool:
        """Return whether a place is of this server's log, not of one before."""
        epochs = self._capture.servers.table.epochs
        return len(epochs) <= 1 or scn >= epoch_begin(epochs[-1].number)

    def unread_until(self, scn: int, held: Held) -> int:
        """Return the SCN up to which the relay lacks this server's windows, from a place on.

        UNKNOWN_SCN if it does not lack them for having gone over later; see `epoch_spans`.
        """
        for one in unread_by(self._capture.servers, held):
            if one.first <= scn <= one.last:
                return one.last
        return UNKNOWN_SCN
