"""The list of servers in a store: what each kind of store does for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from databus.servers.entry import ServerEntry

EVERY_S = 3.0  # how often a server writes its entry again
SILENT_S = 10.0  # a server of which nothing is heard for about so long is listed no more


class ServerDirectory(Protocol):
    """A list of servers. Thread-safe.

    All methods raise LeaseError, and LeaseUnavailableError after a few seconds if the store cannot
    be reached.
    """

    shown: str
    """The store's URL without a password."""
    poll_s: float
    """How often it is worth looking whether the list has changed."""

    def put(self, entry: ServerEntry) -> None:
        """Write the entry of this process; it has one at most. Call it every `EVERY_S`."""

    def remove(self, instance: str) -> None:
        """Take the entry of this process out of the list; others see it at once."""

    def entries(self, on_change: Callable[..., None] | None = None) -> list[ServerEntry]:
        """Return the servers that are there, in no order.

        `on_change` is called, with any arguments, when one comes or goes, by a store that can
        tell; it may be called without a change, or not at all.
        """
        ...

    def close(self) -> None:
        """Close connections. An entry that was not removed goes after about `SILENT_S`."""
