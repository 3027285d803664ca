"""A list of servers in memory, which a test can take away."""

from __future__ import annotations

from collections.abc import Callable

from databus.leases.errors import LeaseUnavailableError
from databus.servers.entry import ServerEntry


class FakeDirectory:
    """A list of servers; while `is_away` every request is an error."""

    shown = "memory:"
    poll_s = 0.01

    def __init__(self) -> None:
        self.there: dict[str, ServerEntry] = {}
        self.puts = 0
        self.is_away = False
        self.is_broken = False
        self.is_closed = False

    def put(self, entry: ServerEntry) -> None:
        self._check()
        self.puts += 1
        self.there[entry.instance] = entry

    def remove(self, instance: str) -> None:
        self._check()
        self.there.pop(instance, None)

    def entries(self, on_change: Callable[..., None] | None = None) -> list[ServerEntry]:
        self._check()
        return list(self.there.values())

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        assert not self.is_closed
        if self.is_broken:
            raise ZeroDivisionError
        if self.is_away:
            raise LeaseUnavailableError(self.shown, "away")
