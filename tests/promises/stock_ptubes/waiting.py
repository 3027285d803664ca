"""Waits for what the stock client is handed."""

from __future__ import annotations

from benchmarks.ptubes_clients.sdk import StockSdk
from tests.relay.fakes import wait_until

START_S = 120.0


def wait_for_notes(wanted: set[str], *clients: StockSdk) -> None:
    """Wait until the clients have been handed all of these together; fails with what lacks."""

    def missing() -> set[str]:
        return wanted - {note for one in clients for note in one.notes}

    try:
        wait_until(lambda: not missing(), START_S)
    except AssertionError as error:
        lacking, handed = sorted(missing()), [len(one.notes) for one in clients]
        message = f"{error}: of {len(wanted)} rows {len(lacking)} lack, such as {lacking[:3]};"
        raise AssertionError(f"{message} handed to each client: {handed}") from None
