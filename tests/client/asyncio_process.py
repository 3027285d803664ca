"""A process of a group that reads in asyncio, until SIGTERM.

    python -m tests.client.asyncio_process RELAY COORDINATOR FOLDER NAME

Lines of `FOLDER/NAME.log`: `["add", PARTITION]`, `["drop", PARTITION]` and
`["row", {"id": …, "partition": …, "scn": …}]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from databus.client import DatabusClient
from tests.client.test_group_registration import PARTITIONS, SOURCE


class Log:
    """The file; also the listener."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *line: object) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    async def on_add_partition(self, partition: int, scn: int) -> None:
        self.note("add", partition)

    async def on_drop_partition(self, partition: int) -> None:
        self.note("drop", partition)


async def main(relay: str, coordinator: str, folder: Path, name: str) -> None:
    """Read until SIGTERM."""
    log = Log(folder / f"{name}.log")
    client = DatabusClient(
        [relay],
        group="billing",
        partitions=PARTITIONS,
        coordinator=coordinator,
        checkpoint_every_s=0.2,
        group_ttl_s=5.0,
        wait_ms=200,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stop)
    async for window in client.windows_async(SOURCE, partition_listener=log):
        for event in window.events:
            (partition,) = event.partitions
            log.note("row", {"id": event.row["id"], "partition": partition, "scn": event.scn})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
