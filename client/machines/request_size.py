"""How many bytes one request asks for: the usual number, or more when something does not fit."""

from __future__ import annotations

from databus.conf.settings import ClientSettings
from databus.schemas.errors import ServerError, SettingsError


class RequestSize:
    """The size of the next request of one registration."""

    def __init__(self, settings: ClientSettings) -> None:
        self._usual_bytes = min(settings.fetch_bytes, settings.buffer_bytes)
        self._limit_bytes = settings.max_window_bytes
        self.size_bytes = self._usual_bytes
        self._said_bytes = 0  # of an event too large, by an answer

    def reset(self) -> None:
        """Ask for the usual number again."""
        self.size_bytes = self._usual_bytes
        self._said_bytes = 0

    def grow_for_window(self, scn: int, after_scn: int) -> None:
        """Ask for twice as much, for window `scn` did not fit; raises SettingsError."""
        self._grow(2 * self.size_bytes, f"window {scn}", after_scn, is_exact=False)

    def grow_for_event(self, event_bytes: int, server: str, after_scn: int) -> None:
        """Ask for what an event needs; raises SettingsError, or ServerError when it was asked.

        A header, which nothing checks, says how much it is: what would end the
        reading is believed when it was said twice.
        """
        if event_bytes <= self.size_bytes:
            raise ServerError(
                server,
                f"has an event of {event_bytes} bytes after scn {after_scn} and does not "
                f"send it though {self.size_bytes} were asked for; raise its "
                "http.max_response_bytes",
            )
        if event_bytes > self._limit_bytes and event_bytes != self._said_bytes:
            self._said_bytes = event_bytes
            raise ServerError(
                server,
                f"says that an event after scn {after_scn} has {event_bytes} bytes, more than "
                f"max_window_bytes = {self._limit_bytes}; asking once more",
            )
        self._grow(event_bytes, "an event", after_scn, is_exact=True)

    def _grow(self, size_bytes: int, what: str, after_scn: int, is_exact: bool) -> None:
        limit_bytes = self._limit_bytes
        if self.size_bytes >= limit_bytes or (is_exact and size_bytes > limit_bytes):
            raise SettingsError(
                f"{what} after scn {after_scn} is larger than "
                f"max_window_bytes = {limit_bytes}; raise it"
            )
        self.size_bytes = min(size_bytes, limit_bytes)
