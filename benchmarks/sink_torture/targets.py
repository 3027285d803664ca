"""What sinks write to: real servers and folders, that can be taken away, and be read."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.adversity.disks import SmallDisk
from benchmarks.sink_torture.workload import Rows
from databus.demo.processes import Child
from tests.client.sinks.kafka_broker import PrivateKafka
from tests.client.sinks.serving.test_kafka_killed import Copy
from tests.client.sinks.serving.test_killed import archived
from tools import fetch_kafka

_DISK_MIB = 512
_TOPIC = "torture"


class Held(NamedTuple):
    """What a target has: rows, and the ids of all changes, None if it keeps only rows."""

    rows: Rows
    ids: list[Any] | None


class Target(Protocol):
    """A target of one run. A context manager."""

    kind: str
    options: dict[str, Any]
    most_lanes: int

    def held(self) -> Held:
        """Return what it has now."""
        ...

    @contextmanager
    def away(self, sinks: Child, draw: random.Random) -> Iterator[None]:
        """Take it away for the length of a `with`."""
        ...

    def close(self) -> None:
        """End it."""


class FilesTarget:
    """A folder, whose disk is full at times."""

    kind = "files"
    most_lanes = 1

    def __init__(self, folder: Path) -> None:
        self._disk = SmallDisk(folder / "disk", _DISK_MIB)
        self._archive = self._disk.folder / "archive"
        self.options: dict[str, Any] = {"folder": str(self._archive)}

    def held(self) -> Held:
        """Return the rows that the entries of the manifest amount to."""
        return Held(*archived(self._archive))

    @contextmanager
    def away(self, sinks: Child, draw: random.Random) -> Iterator[None]:
        """Fill the disk."""
        with self._disk.full(sinks):
            time.sleep(draw.uniform(0.5, 2.0))
            yield

    def close(self) -> None:
        """Unmount the disk."""
        self._disk.close()


class KafkaTarget:
    """A topic of a private broker, which is killed at times."""

    kind = "kafka"
    most_lanes = 1

    def __init__(self, folder: Path) -> None:  # noqa: ARG002 - as all targets
        archives = fetch_kafka.find()
        if archives is None:
            raise RuntimeError("python -m tools.fetch_kafka says why there is no Kafka")
        self._kafka = PrivateKafka(archives)
        self._kafka.__enter__()
        self._kafka.make_topic(_TOPIC)
        self.options: dict[str, Any] = {
            "brokers": self._kafka.brokers,
            "id": _TOPIC,
            "topic": _TOPIC,
            "format": "debezium",
        }

    def held(self) -> Held:
        """Return what a consumer of committed messages has seen."""
        copy = Copy()
        for message in self._kafka.read(_TOPIC):
            copy.take(message.value(), dict(message.headers() or []))
        return Held(copy.rows, copy.ids)

    @contextmanager
    def away(self, sinks: Child, draw: random.Random) -> Iterator[None]:  # noqa: ARG002
        """Kill the broker, and start it again."""
        self._kafka.kill()
        time.sleep(draw.uniform(0.5, 3.0))
        yield
        self._kafka.start()

    def close(self) -> None:
        """End the broker."""
        self._kafka.close()


TARGETS: dict[str, type[FilesTarget] | type[KafkaTarget]] = {
    "files": FilesTarget,
    "kafka": KafkaTarget,
}
