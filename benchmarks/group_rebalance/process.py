"""One process: `python -m benchmarks.group_rebalance.process RELAY COORDINATOR PARTITIONS FILE`.

It appends `begins` to FILE, and a line for each partition that comes, `+ NUMBER`, or goes,
`- NUMBER`, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from benchmarks.group_rebalance import GROUP, SOURCE, TTL_S
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer


class Listing(Consumer):
    """Writes down which partitions come and go."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1, encoding="ascii")

    def begins(self) -> None:
        """Write down that all is loaded."""
        self._file.write("begins\n")

    def on_add_partition(self, partition: int, scn: int) -> None:  # noqa: ARG002
        """Write it down."""
        self._file.write(f"+ {partition}\n")

    def on_drop_partition(self, partition: int) -> None:
        """Write it down."""
        self._file.write(f"- {partition}\n")


def main(relay: str, coordinator: str, partitions: int, file: Path) -> None:
    """Be a member until SIGTERM."""
    is_ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_ending.set())
    client = DatabusClient(
        [relay],
        group=GROUP,
        coordinator=coordinator,
        partitions=partitions,
        group_ttl_s=TTL_S,
        checkpoint_dir=file.parent / "state",
    )
    listing = Listing(file)
    client.register(listing, [SOURCE])
    listing.begins()
    with client:
        is_ending.wait()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
