"""A process of the group: it notes what it is given, and under which terms.

It relies only on what is documented: the terms are seen by the checkpoint store that it gives to
its client.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.cluster_torture.log import Log
from benchmarks.cluster_torture.writer import SOURCE, serial_of
from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent
from databus.groups.names import consumed_scn
from databus.leases.clock import steady_s
from databus.leases.errors import StaleTermError
from databus.leases.places import open_records
from databus.schemas.checkpoint import Checkpoint

GROUP = "torture"
CHECKPOINT_EVERY_S = 0.5
WORK_S = 0.003  # for each row: so now and then a process is frozen in the middle of a window


class NotedCheckpoints(RecordCheckpoints):
    """Checkpoints that note each term that begins, and each that is stored or refused."""

    def __init__(self, url: str, log: Log) -> None:
        super().__init__(open_records(url))
        self.begun: dict[int, tuple[str, int]] = {}
        """The place and the term of each partition that has begun."""
        self._log = log

    def begin_term(self, name: str, sources: Sequence[str], term: int) -> Checkpoint | None:
        """Begin a term."""
        at_s = steady_s()
        found = super().begin_term(name, sources, term)
        place = place_of(name)
        self.begun[int(place.partition(".")[2])] = place, term
        self._log.note("began", at_s, place, term, consumed_scn(found))
        return found

    def save_under(
        self, name: str, sources: Sequence[str], checkpoint: Checkpoint, term: int
    ) -> None:
        """Save a checkpoint."""
        noted = place_of(name), term, consumed_scn(checkpoint)
        at_s = steady_s()
        try:
            super().save_under(name, sources, checkpoint, term)
        except StaleTermError:
            self._log.note("refused", at_s, *noted)
            raise
        self._log.note("stored", at_s, *noted)


def place_of(name: str) -> str:
    """Return generation and partition of a checkpoint's name, `GROUP#GENERATION.PARTITION`."""
    return name.rpartition("#")[2]


class Noting(Consumer):
    """Notes each row before its callback returns."""

    def __init__(self, checkpoints: NotedCheckpoints, log: Log) -> None:
        self._checkpoints, self._log = checkpoints, log
        self._told: set[int] = set()

    def on_add_partition(self, partition: int, scn: int) -> None:  # noqa: ARG002
        """Take note of a partition."""
        self._told.add(partition)

    def on_drop_partition(self, partition: int) -> None:
        """Take note that it goes."""
        self._told.discard(partition)

    def on_data_event(self, event: DataEvent) -> None:
        """Note a row."""
        at_s = steady_s()
        (partition,) = event.partitions
        if partition not in self._told:
            self._problem(f"a row of partition {partition}, which was not added")
        place, term = self._checkpoints.begun.get(partition, ("?", 0))
        serial = serial_of(event.row["n"], is_delete=event.is_delete)
        self._log.note("row", at_s, place, term, event.scn, key=event.row["id"], serial=serial)
        time.sleep(WORK_S)

    def on_rollback(self, scn: int) -> None:
        """Note that rows behind `scn` come again."""
        self._log.note("rollback", steady_s(), scn=scn)

    def on_error(self, error: BaseException) -> None:
        """Note why the client stops, which is always a failure here."""
        self._problem(f"the client stopped: {error}")

    def _problem(self, text: str) -> None:
        self._log.note("problem", steady_s(), text=text)


@click.command()
@click.option("--relay", required=True)
@click.option("--coordinator", required=True)
@click.option("--partitions", type=int, required=True)
@click.option("--ttl", "ttl_s", type=float, required=True)
@click.option("--slot", type=int, required=True)
@click.option("--file", type=click.Path(path_type=Path), required=True)
def main(
    relay: str, coordinator: str, partitions: int, ttl_s: float, slot: int, file: Path
) -> None:
    """Run as a process of the group, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    log = Log(file, slot)
    checkpoints = NotedCheckpoints(coordinator, log)
    client = DatabusClient(
        [relay],
        checkpoints=checkpoints,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        group=GROUP,
        coordinator=coordinator,
        partitions=partitions,
        group_ttl_s=ttl_s,
        group_finish_s=4 * ttl_s,
    )
    client.register(Noting(checkpoints, log), [SOURCE])
    with client:
        stop.wait()
    checkpoints.close()
    log.note("left", steady_s())


if __name__ == "__main__":
    main()
