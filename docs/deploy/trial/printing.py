"""The consumer of compose.yaml: prints each row, and each change."""

from __future__ import annotations

from databus.client.consumer import DataEvent


def changed(event: DataEvent) -> None:
    """Print a row or a change."""
    print(event.op, event.source, dict(event.row), flush=True)
