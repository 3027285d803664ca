"""One process of the group: `python -m benchmarks.group_scale.process RELAY FOLDER KIND NUMBER`.

Writes `owned.NUMBER`, the number of its partitions, whenever that changes, `rows.NUMBER`, the rows
so far, all the time, and `done.NUMBER` at SIGTERM: rows, and the times of the first and last one on
the machine's clock.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from zlib import crc32

from benchmarks.group_scale import SOURCE
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent

WAIT_S = 0.005
TELL_S = 0.05
_ROUNDS = 1_000  # of the callback that computes: about a quarter of a millisecond
_DATA = bytes(512)


class Timed(Consumer):
    """Counts rows, and works on each one."""

    def __init__(self, folder: Path, number: str, kind: str) -> None:
        self.rows, self.first_s, self.last_s = 0, 0.0, 0.0
        self._owned: set[int] = set()
        self._folder, self._number = folder, number
        self._work = _compute if kind == "cpu" else _wait

    def on_add_partition(self, partition: int, scn: int) -> None:  # noqa: ARG002
        """Note it."""
        self._owned.add(partition)
        self._note()

    def on_drop_partition(self, partition: int) -> None:
        """Note it."""
        self._owned.discard(partition)
        self._note()

    def on_data_event(self, event: DataEvent) -> None:
        """Work on a row."""
        self.first_s = self.first_s or time.monotonic()
        self._work(event.row)
        self.rows += 1
        self.last_s = time.monotonic()

    def tell(self) -> None:
        """Write how many rows have come."""
        self._write("rows", self.rows)

    def finish(self) -> None:
        """Write what came."""
        self._write("done", [self.rows, self.first_s, self.last_s])

    def _note(self) -> None:
        self._write("owned", len(self._owned))

    def _write(self, name: str, value: object) -> None:
        path = self._folder / f"{name}.{self._number}"
        new = self._folder / f"new.{name}.{self._number}"
        new.write_text(json.dumps(value))
        new.rename(path)


def _compute(row: dict[str, object]) -> None:
    value = crc32(repr(row).encode())
    for _ in range(_ROUNDS):
        value = crc32(_DATA, value)


def _wait(row: dict[str, object]) -> None:  # noqa: ARG001
    time.sleep(WAIT_S)


def main(relay: str, folder: Path, kind: str, number: str) -> None:
    """Consume until SIGTERM."""
    consumer, is_ending = Timed(folder, number, kind), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_ending.set())
    client = DatabusClient([relay], group="scale", checkpoint_dir=folder / "state")
    client.register(consumer, [SOURCE])
    with client:
        while not is_ending.wait(TELL_S):
            consumer.tell()
    consumer.finish()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])
