"""The torture's new client: bootstraps, then streams; applies everything to its own file.

Its checkpoint is the library's own file. The mode of each checkpoint is
logged before it is written, so that the log never knows less than the file.

Shared numbers in the folder: `bootstrapped` (events that a bootstrap brought),
`is_live`, and `applied`: the transaction that was applied last, which goes back
when windows come again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.bootstrap_torture.log import GuardedLog
from benchmarks.torture.log import Change
from benchmarks.torture.shared_number import SharedNumber
from benchmarks.torture.workload import SOURCES
from databus.client.checkpoints.store import FileCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode

CHECKPOINT_EVERY_S = 0.2


class LoggedCheckpoints(FileCheckpoints):
    """The library's checkpoint files, with a log of the changes of mode."""

    def __init__(self, directory: Path, log: GuardedLog) -> None:
        super().__init__(directory)
        self._log = log
        self._mode: ConsumptionMode | None = None

    def save(self, name: str, sources: Sequence[str], checkpoint: Checkpoint) -> None:
        """Save, and log the mode when it changes."""
        if checkpoint.mode is not self._mode:
            self._mode = checkpoint.mode
            self._log.mode(checkpoint.mode, checkpoint.window_scn)
        super().save(name, sources, checkpoint)


class Bootstrapper(Consumer):
    """Applies pages and windows; all methods are called on the dispatcher's thread."""

    def __init__(self, log: GuardedLog, folder: Path) -> None:
        self._log = log
        self._changes: list[Change] = []
        self._scn: int | None = None  # of the current window or page
        self._last_scn = -1
        self._bootstrapped = SharedNumber(folder / "bootstrapped")
        self._is_live = SharedNumber(folder / "is_live")
        self._applied = SharedNumber(folder / "applied")

    def on_start_data_event_sequence(self, scn: int) -> None:
        """Begin a window."""
        self._begin(scn)

    def on_data_event(self, event: DataEvent) -> None:
        """Keep a change until its window ends."""
        if event.scn != self._scn:
            self._log.problem(event.scn, f"an event of it came in window {self._scn}")
        self._keep(event)

    def on_end_data_event_sequence(self, scn: int) -> None:
        """Apply the window."""
        self._end(scn)
        self._log.apply(scn, self._changes)
        self._last_scn = scn
        self._is_live.set(1)
        self._applied.set(max(change.row["tx"] for change in self._changes))

    def on_checkpoint(self, scn: int) -> None:
        """Log a window without events: a checkpoint may now be there."""
        if scn != self._last_scn:
            self._log.apply(scn, [])
            self._last_scn = scn

    def on_rollback(self, scn: int) -> None:
        """Forget the current window, and record that the following ones are repeated."""
        self._scn = None
        self._log.rollback(scn)

    def on_start_bootstrap(self) -> None:
        """Record that the client is no longer live."""
        self._is_live.set(0)

    def on_start_bootstrap_sequence(self, scn: int) -> None:
        """Begin a page."""
        self._begin(scn)

    def on_bootstrap_event(self, event: DataEvent) -> None:
        """Keep a row or change until its page ends."""
        self._keep(event)

    def on_end_bootstrap_sequence(self, scn: int) -> None:
        """Apply the page."""
        self._end(scn)
        self._log.apply_page(scn, self._changes)
        self._bootstrapped.set(self._bootstrapped.get() + len(self._changes))

    def on_bootstrap_checkpoint(self, scn: int) -> None:
        """Do nothing: a page is not a window."""

    def on_error(self, error: BaseException) -> None:
        """Record why the client stops, which is always a failure here."""
        self._log.problem(-1, f"the client stopped: {error}")

    def close(self) -> None:
        """Close the shared numbers."""
        for number in (self._bootstrapped, self._is_live, self._applied):
            number.close()

    def _begin(self, scn: int) -> None:
        if self._scn is not None:
            self._log.problem(scn, f"it began inside window {self._scn}")
        self._scn = scn
        self._changes = []

    def _keep(self, event: DataEvent) -> None:
        kept = (event.source, event.is_delete, event.row, event.before, event.scn, event.wire_key)
        self._changes.append(Change(*kept))

    def _end(self, scn: int) -> None:
        if scn != self._scn:
            self._log.problem(scn, f"it ended, and {self._scn} had begun")
        self._scn = None


def floor_of(checkpoint: Checkpoint | None) -> int:
    """Return the SCN after which everything comes again from this checkpoint."""
    if checkpoint is None:
        return -1
    if checkpoint.mode in (ConsumptionMode.SNAPSHOT, ConsumptionMode.INIT):
        return checkpoint.bootstrap_since_scn
    return checkpoint.window_scn - (checkpoint.window_offset > 0)


@click.command()
@click.option("--relay", required=True)
@click.option("--bootstrap-server", required=True)
@click.option("--fetch-bytes", type=int, required=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True)
def main(relay: str, bootstrap_server: str, fetch_bytes: int, folder: Path) -> None:
    """Run as the torture's client process, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())  # noqa: ARG005
    log = GuardedLog(folder / "client.db")
    checkpoints = LoggedCheckpoints(folder / "checkpoints", log)
    client = DatabusClient(
        [relay],
        checkpoints=checkpoints,
        bootstrap_servers=(bootstrap_server,),
        start="beginning",
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        fetch_bytes=fetch_bytes,
        buffer_bytes=8 * fetch_bytes,
    )
    on_disk = checkpoints.load("default", SOURCES)
    log.start(floor_of(on_disk), "" if on_disk is None else on_disk.mode)
    consumer = Bootstrapper(log, folder)
    client.register(consumer, SOURCES)
    with client:
        stop.wait()
    consumer.close()
    log.close()


if __name__ == "__main__":
    main()
