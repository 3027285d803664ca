"""Print each row, and each change: the consumer of docs/deploy/compose.yaml.

    PYTHONPATH=examples databus client run -c client.toml --consumer printing:changed \\
        --source shop.orders

`databus client run` reads relays, checkpoints and all else from a settings file.
"""

from __future__ import annotations

from databus.client import DataEvent


def changed(event: DataEvent) -> None:
    """Print a row or a change."""
    print(event.op, event.source, dict(event.row), flush=True)
