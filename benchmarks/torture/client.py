"""The torture's consumer: applies each window to its own SQLite file and logs it.

It relies only on documented promises: windows are applied
when they end, and their content is logged for the checks.
Its checkpoint is the library's own file, so after a kill windows come again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from benchmarks.torture.log import Change, Log
from benchmarks.torture.mix import DDL_TABLE, columns_at
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import BY_SOURCE, SOURCES
from databus.client.checkpoints.store import FileCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent

# Small, so that large transactions are cut and the buffer fills.
FETCH_BYTES = 32 << 10
BUFFER_BYTES = 256 << 10
CHECKPOINT_EVERY_S = 0.2


class Applier(Consumer):
    """Applies windows; all methods are called on the dispatcher's thread."""

    def __init__(self, log: Log, applied: SharedNumber, mix: Sequence[str] = ()) -> None:
        self._log = log
        self._mix = mix
        self._applied = applied
        self._changes: list[Change] = []
        self._scn: int | None = None  # of the current window
        self._last_scn = -1

    def on_start_data_event_sequence(self, scn: int) -> None:
        """Begin a window."""
        if self._scn is not None:
            self._log.problem(scn, f"it began inside window {self._scn}")
        self._scn = scn
        self._changes = []

    def on_data_event(self, event: DataEvent) -> None:
        """Keep a change until its window ends."""
        if event.scn != self._scn:
            self._log.problem(event.scn, f"an event of it came in window {self._scn}")
        change = Change(
            event.source,
            event.is_delete,
            event.row,
            event.before,
            is_truncate=event.is_truncate,
        )
        self._check_columns(change)
        self._changes.append(change)

    def _check_columns(self, change: Change) -> None:
        """Record a row whose columns are not those of its table at that time."""
        if change.is_truncate:
            return
        table, row = BY_SOURCE[change.source], change.row
        found = {name: value for name, value in row.items() if name not in table.columns}
        wanted = columns_at(abs(row["tx"]), self._mix) if table is DDL_TABLE else {}
        if found != wanted:
            problem = f"a row of transaction {row['tx']} has {found} beside its columns"
            self._log.problem(self._scn or -1, f"{problem}, and not {wanted}")

    def on_end_data_event_sequence(self, scn: int) -> None:
        """Apply the window."""
        if scn != self._scn:
            self._log.problem(scn, f"it ended, and {self._scn} had begun")
        self._log.apply(scn, self._changes)
        self._applied.set(max([self._applied.get(), *self._numbers()]))
        self._scn, self._last_scn = None, scn

    def _numbers(self) -> Iterator[int]:
        return (change.row["tx"] for change in self._changes if not change.is_truncate)

    def on_checkpoint(self, scn: int) -> None:
        """Log a window without events: a checkpoint may now be there."""
        if scn != self._last_scn:
            self._log.apply(scn, [])
            self._last_scn = scn

    def on_rollback(self, scn: int) -> None:
        """Forget the current window, and record that the following ones are repeated."""
        self._scn = None
        self._log.rollback(scn)

    def on_error(self, error: BaseException) -> None:
        """Record why the client stops, which is always a failure here."""
        self._log.problem(-1, f"the client stopped: {error}")


@click.command()
@click.option("--relay", required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--mix", default="plain")
def main(relay: str, folder: Path, mix: str) -> None:
    """Run as the torture's client process, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())  # noqa: ARG005
    checkpoints = FileCheckpoints(folder / "checkpoints")
    client = DatabusClient(
        [relay],
        checkpoints=checkpoints,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        fetch_bytes=FETCH_BYTES,
        buffer_bytes=BUFFER_BYTES,
    )
    on_disk = checkpoints.load("default", SOURCES)
    log = Log(folder / "client.db")
    log.start(-1 if on_disk is None else on_disk.window_scn)
    with SharedNumber(folder / "applied") as applied:
        client.register(Applier(log, applied, mix.split(",")), SOURCES)
        with client:
            stop.wait()
    log.close()


if __name__ == "__main__":
    main()
