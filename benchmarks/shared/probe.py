"""`python -m benchmarks.shared.probe`: a client process whose callback notes when it was called.

The times are kept in memory and written at the end. With --asleep-after its
callback goes to sleep at that event and stays asleep until SIGTERM.
"""

from __future__ import annotations

import signal
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.shared.load import SOURCE, write_numbers
from databus.client.client import DatabusClient
from databus.client.consumer import DataEvent
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.stream.stream_reader import ControlEvent

ASLEEP_BUDGET_S = 3600.0


class Decoded:
    """The time at which each window was last assembled from received bytes."""

    def __init__(self) -> None:
        self.at_ns: dict[int, int] = {}

    def wrap(self) -> None:
        """Record the times of every stream reader of this process."""
        receive: Callable[[RowReader, bytes], list[RowWindow | ControlEvent]] = RowReader.receive

        def noting(reader: RowReader, chunk: bytes) -> list[RowWindow | ControlEvent]:
            items = receive(reader, chunk)
            now = time.time_ns()
            self.at_ns.update((item.scn, now) for item in items if isinstance(item, RowWindow))
            return items

        RowReader.receive = noting  # type: ignore[method-assign,assignment]


class Probe:
    """Counts events, and records n, scn, and the time of each callback."""

    def __init__(self, events: int | None, asleep_after: int | None) -> None:
        self.stop = threading.Event()
        self.noted = array("q")
        self._left = events
        self._asleep_after = asleep_after

    def take(self, event: DataEvent) -> None:
        """Handle an event."""
        now = time.time_ns()
        assert isinstance(event.wire_key, int)
        self.noted.extend((event.wire_key, event.scn, now))
        if self._asleep_after is not None and len(self.noted) >= 3 * self._asleep_after:
            self.stop.wait()
        if self._left is not None and len(self.noted) >= 3 * self._left:
            self.stop.set()


def stamps_of(noted: array[int], decoded: Decoded) -> list[int]:
    """Return n, scn, decoded, called of each event; decoded = called where it was not noted."""
    numbers: list[int] = []
    for at in range(0, len(noted), 3):
        n, scn, called = noted[at : at + 3]
        numbers += (n, scn, decoded.at_ns.get(scn, called), called)
    return numbers


@click.command()
@click.option("--relay", required=True)
@click.option("--source", default=SOURCE, help="What is read.")
@click.option("--stamps", type=click.Path(path_type=Path), required=True)
@click.option("--events", type=int, help="End after so many.")
@click.option("--asleep-after", type=int, help="Sleep from this event on.")
@click.option("--buffer-bytes", type=int, default=8 << 20)
@click.option("--traced", is_flag=True, help="Note when windows are decoded, too.")
def main(
    relay: str,
    source: str,
    stamps: Path,
    events: int | None,
    asleep_after: int | None,
    buffer_bytes: int,
    traced: bool,
) -> None:
    """Run as a client process."""
    decoded = Decoded()
    if traced:
        decoded.wrap()
    probe = Probe(events, asleep_after)
    signal.signal(signal.SIGTERM, lambda number, frame: probe.stop.set())  # noqa: ARG005
    client = DatabusClient([relay], buffer_bytes=buffer_bytes, callback_budget_s=ASLEEP_BUDGET_S)
    client.on(source)(probe.take)
    with client:
        probe.stop.wait()
    write_numbers(stamps, stamps_of(probe.noted, decoded))


if __name__ == "__main__":
    main()
