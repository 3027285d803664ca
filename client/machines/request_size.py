"""The `size` of the next request: the usual one, or more when a window or event does not fit."""

from __future__ import annotations

from databus.conf.settings import ClientSettings
from databus.schemas.errors import ServerError, SettingsError


class RequestSize:
    """The size of the next request of one registration."""

    def __init__(self, settings: ClientSettings) -> None:
        self._usual_bytes = min(settings.fetch_bytes, settings.buffer_bytes)
        self._limit_bytes = settings.max_window_bytes
        self.size_bytes = self._usual_bytes
        self._reported_bytes = 0  # size of an oversized event, by the last answer

    def reset(self) -> None:
        """Use the usual size again."""
        self.size_bytes = self._usual_bytes
        self._reported_bytes = 0

    def grow_for_window(self, scn: int, after_scn: int, server: str, got_bytes: int) -> None:
        """Double the size because window `scn` did not fit into an answer of `got_bytes`.

        Raises SettingsError at the limit; there ServerError if the answer had room left.
        """
        size_bytes = self.size_bytes
        if size_bytes >= self._limit_bytes and 2 * got_bytes < size_bytes:
            raise ServerError(
                server,
                f"sends window {scn} after scn {after_scn} in part only: {got_bytes} bytes, though "
                f"{size_bytes} were asked for; raise its own limit of a response's size",
            )
        self._grow(2 * self.size_bytes, f"window {scn}", after_scn, is_exact=False)

    def grow_for_event(self, event_bytes: int, server: str, after_scn: int) -> None:
        """Set the size that an event needs.

        The size comes from a header that nothing checks. A size above `max_window_bytes`,
        which ends reading, is therefore believed only when it is sent twice.
        Raises SettingsError above the limit, ServerError when the size was large enough.
        """
        # The request had room for it: asking for more would change nothing.
        if event_bytes <= self.size_bytes:
            raise ServerError(
                server,
                f"has an event of {event_bytes} bytes after scn {after_scn} and does not "
                f"send it though {self.size_bytes} were asked for; raise its "
                "http.max_response_bytes",
            )
        if event_bytes > self._limit_bytes and event_bytes != self._reported_bytes:
            self._reported_bytes = event_bytes
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
