"""The attacked consumer: a process that writes down deliveries before it acknowledges them.

It trusts the library for nothing but what is promised. A line of JSON for each window, page,
rollback and error, on disk before the callback returns: what a checkpoint covers is in the file.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.adversity.writer import SOURCE, wrong_row
from benchmarks.torture.log import Delivery, Kind
from benchmarks.torture.shared_number import SharedNumber
from databus.client.checkpoints.store import FileCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.schemas.errors import DatabusError

LOG = "consumer.jsonl"
STOPPED = "stopped"  # why the client ended, beside the kinds of `Delivery`
ERROR_EXIT = 3


class Notebook:
    """The file: lines that are on disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, scn: int, stamps: list[Any] | None = None, text: str = "") -> None:
        """Append a line."""
        line = {"kind": kind, "scn": scn, "stamps": stamps or [], "text": text}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_notes(path: Path) -> Iterator[Delivery]:
    """Yield a consumer's notes; an incomplete last line is ignored."""
    run = 0
    for found in _lines(path):
        if found["kind"] == STOPPED:
            continue
        run += found["kind"] == "start"
        stamps = [(tx, row, rows) for tx, row, rows in found["stamps"]]
        kind: Kind = found["kind"]
        yield Delivery(run, kind, found["scn"], stamps, found["text"])


def read_stops(path: Path) -> list[str]:
    """Return the reason of each stop of the client."""
    return [found["text"] for found in _lines(path) if found["kind"] == STOPPED]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


class Noting(Consumer):
    """Writes down windows at their end; all methods are called on the dispatcher's thread."""

    def __init__(self, seed: int, notes: Notebook, applied: SharedNumber) -> None:
        self._seed = seed
        self._notes = notes
        self._applied = applied
        self._stamps: list[tuple[int, int, int]] = []
        self._scn: int | None = None  # of the current window

    def on_start_data_event_sequence(self, scn: int) -> None:
        """Begin a window."""
        self._begin(scn)

    def on_data_event(self, event: DataEvent) -> None:
        """Keep a row until its window ends."""
        if event.scn != self._scn:
            self._notes.write("problem", event.scn, text=f"it came in window {self._scn}")
        self._take(event)

    def on_end_data_event_sequence(self, scn: int) -> None:
        """Note the window."""
        self._end("window", scn)

    def on_rollback(self, scn: int) -> None:
        """Record that the following windows are repeated."""
        self._scn = None
        self._notes.write("rollback", scn)

    def on_start_bootstrap(self) -> None:
        """Record that pages follow."""
        self._notes.write("mode", -1, text="bootstrap")

    def on_stop_bootstrap(self) -> None:
        """Record that windows follow."""
        self._notes.write("mode", -1, text="online")

    def on_start_bootstrap_sequence(self, scn: int) -> None:
        """Begin a page."""
        self._begin(scn)

    def on_bootstrap_event(self, event: DataEvent) -> None:
        """Keep a row of a page."""
        self._take(event)

    def on_end_bootstrap_sequence(self, scn: int) -> None:
        """Note the page."""
        self._end("page", scn)

    def on_bootstrap_rollback(self, scn: int) -> None:
        """Record that pages are repeated."""
        self._notes.write("page", scn, text="rollback")

    def on_bootstrap_checkpoint(self, scn: int) -> None:
        """Do nothing: pages are written down at their end."""

    def on_error(self, error: BaseException) -> None:
        """Record why the client stops."""
        self._notes.write(STOPPED, -1, text=f"{type(error).__name__}: {error}")

    def _begin(self, scn: int) -> None:
        if self._scn is not None:
            self._notes.write("problem", scn, text=f"it began inside window {self._scn}")
        self._scn, self._stamps = scn, []

    def _take(self, event: DataEvent) -> None:
        row = event.row
        if event.is_delete or event.is_truncate:
            self._notes.write("problem", event.scn, text=f"a delete that nobody made: {event!r}")
            return
        if problem := wrong_row(self._seed, row):
            self._notes.write("problem", event.scn, text=problem)
            return
        self._stamps.append((row["tx"], row["tx_row"], row["tx_rows"]))

    def _end(self, kind: str, scn: int) -> None:
        if scn != self._scn:
            self._notes.write("problem", scn, text=f"it ended, and {self._scn} had begun")
        self._notes.write(kind, scn, self._stamps)
        self._applied.set(max([self._applied.get(), *(stamp[0] for stamp in self._stamps)]))
        self._scn = None


@click.command()
@click.option("--relay", required=True)
@click.option("--bootstrap", default="")
@click.option("--start", default="earliest")
@click.option("--port", type=int, required=True, help="Of its own health and metrics.")
@click.option("--seed", type=int, required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoints", type=click.Path(path_type=Path), required=True)
def main(
    relay: str, bootstrap: str, start: str, port: int, seed: int, folder: Path, checkpoints: Path
) -> None:
    """Run as the consumer, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    notes = Notebook(folder / LOG)
    try:
        on_disk = FileCheckpoints(checkpoints).load("default", (SOURCE,))
        notes.write("start", -1 if on_disk is None else on_disk.window_scn)
        client = DatabusClient(
            [relay],
            bootstrap_servers=[bootstrap] if bootstrap else [],
            checkpoint_dir=checkpoints,
            start=start,
            checkpoint_every_s=0.1,
            report_every_s=0.3,
            wait_ms=1000,
            back_off={"first_s": 0.05, "max_s": 1.0},
            http={"port": port},
        )
        with SharedNumber(folder / "applied") as applied:
            client.register(Noting(seed, notes, applied), [SOURCE])
            with client:
                stop.wait()
    except DatabusError as error:
        notes.write(STOPPED, -1, text=f"{type(error).__name__}: {error}")
        raise SystemExit(ERROR_EXIT) from error


if __name__ == "__main__":
    main()
