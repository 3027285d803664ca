"""Waits for what the stock client is handed."""

from __future__ import annotations

from benchmarks.ptubes_clients.sdk import StockSdk
from tests.relay.fakes import wait_until

START_S = 120.0


def wait_for_notes(wanted: set[str], *clients: StockSdk) -> None:
    """Wait until the clients have been handed all of these together."""

    def is_so() -> bool:
        return wanted <= {note for one in clients for note in one.notes}

    wait_until(is_so, START_S)
