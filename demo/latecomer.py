"""A consumer that starts when the relay no longer holds the beginning.

It requests everything from the beginning, so its client goes to the bootstrap server
first: the current rows, then the changes made meanwhile, then the relay like any other
client. It keeps the rows, to be compared with the shop's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent

Rows = Mapping[tuple[str, int], int]  # (source, id) → number of the row's last change


class Latecomer(Consumer):
    """Keeps the rows of the shop. The screen reads its progress from another thread."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], int] = {}
        self.bootstrap_events = 0
        self.live_events = 0
        self._phase = "asks the relay for everything"
        self.is_live = False

    def on_start_bootstrap(self) -> None:
        """Note it."""
        self._phase = "reads from the bootstrap server"

    def on_bootstrap_event(self, event: DataEvent) -> None:
        """Store a row, or a change made since the rows were read."""
        self.bootstrap_events += 1
        self._take(event)

    def on_stop_bootstrap(self) -> None:
        """Note it."""
        self._go_live()

    def on_data_event(self, event: DataEvent) -> None:
        """Take a change."""
        self.live_events += 1
        self._go_live()
        self._take(event)

    def _go_live(self) -> None:
        self._phase, self.is_live = "is live", True

    def _take(self, event: DataEvent) -> None:
        place = event.source, int(event.row["id"])
        if event.is_delete:
            self.rows.pop(place, None)
        else:
            self.rows[place] = int(event.row["change_no"])

    def describe(self) -> str:
        """Return its progress as one line."""
        return (
            f"late consumer {self._phase}: {self.bootstrap_events} rows and changes from the "
            f"bootstrap server, {self.live_events} changes from the relay; {len(self.rows)} rows"
        )

    def verdict(self, shop: Rows) -> str:
        """Return whether it has exactly the shop's rows, as text that begins with NOT if not."""
        wrong = sorted(p for p in self.rows.keys() | shop.keys() if self.rows.get(p) != shop.get(p))
        if wrong:
            source, number = wrong[0]
            return f"NOT the shop's rows: {len(wrong)} differ, {source} {number} first"
        return f"exactly the shop's {len(shop)} rows"


def late_client(
    relay: str, bootstrap_server: str, sources: Sequence[str], latecomer: Latecomer
) -> DatabusClient:
    """Return a client that starts from the beginning."""
    client = DatabusClient([relay], bootstrap_servers=[bootstrap_server], start="beginning")
    client.register(latecomer, sources)
    return client


def shop_rows(
    query: Callable[[str], Sequence[tuple[Any, ...]]], sources: Sequence[str]
) -> dict[tuple[str, int], int]:
    """Read the shop's own rows."""
    return {
        (source, int(number)): int(change)
        for source in sources
        for number, change in query(f"SELECT id, change_no FROM {source.partition('.')[2]}")
    }
