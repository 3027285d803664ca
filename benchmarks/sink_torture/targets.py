"""What sinks write to: real servers and folders, that can be taken away, and be read."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from benchmarks.adversity.disks import SmallDisk
from benchmarks.sink_torture.workload import SOURCES, Rows
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import Child
from tests.client.sinks.kafka_broker import PrivateKafka
from tests.client.sinks.ready.test_kafka_killed import Copy
from tests.client.sinks.redis_server import PrivateRedis
from tests.client.sinks.serving.test_killed import archived
from tests.mariadb_server import connect
from tools.fetch_archives import KAFKA

_DISK_MIB = 512
_TOPIC = "torture"
_DATABASE = "torture"


class Held(NamedTuple):
    """What a target has: rows, and the ids of all changes, None if it keeps only rows."""

    rows: Rows
    ids: list[Any] | None


class Target(Protocol):
    """A target of one run. A context manager."""

    kind: str
    most_lanes: int

    def options_of(self, lanes: int) -> dict[str, Any]:
        """Return the options of a sink with so many lanes."""
        ...

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
        self._options: dict[str, Any] = {"folder": str(self._archive)}

    def options_of(self, lanes: int) -> dict[str, Any]:  # noqa: ARG002 - it has one
        """Return the options."""
        return self._options

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
        archives = KAFKA.find()
        if archives is None:
            raise RuntimeError("python -m tools.fetch_archives says why there is no Kafka")
        self._kafka = PrivateKafka(archives)
        self._kafka.__enter__()
        self._kafka.make_topic(_TOPIC)
        self._options: dict[str, Any] = {
            "brokers": self._kafka.brokers,
            "id": _TOPIC,
            "topic": _TOPIC,
            "format": "debezium",
        }

    def options_of(self, lanes: int) -> dict[str, Any]:  # noqa: ARG002 - it has one
        """Return the options."""
        return self._options

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


class RedisTarget:
    """A private server that writes each change to its log, and is killed at times."""

    kind = "redis"
    most_lanes = 1

    def __init__(self, folder: Path) -> None:  # noqa: ARG002 - as all targets
        self._redis = PrivateRedis()
        self._redis.__enter__()
        self._options: dict[str, Any] = {"url": self._redis.url}

    def options_of(self, lanes: int) -> dict[str, Any]:  # noqa: ARG002 - it has one
        """Return the options."""
        return self._options

    def held(self) -> Held:
        """Return the strings of rows."""
        with self._redis.client() as client:
            names = list(client.scan_iter("shop.*", count=1000))
            texts = client.mget(names) if names else []
        # The sink may delete a key between the two.
        held = {name: text for name, text in zip(names, texts, strict=True) if text is not None}
        return Held({_place(name): json.loads(text) for name, text in held.items()}, None)

    @contextmanager
    def away(self, sinks: Child, draw: random.Random) -> Iterator[None]:  # noqa: ARG002
        """Kill the server, and start it again."""
        self._redis.kill()
        time.sleep(draw.uniform(0.5, 3.0))
        yield
        self._redis.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it do nothing for the length of a `with`."""
        with self._redis.hanging():
            yield

    def close(self) -> None:
        """End the server."""
        self._redis.close()


class SqlTarget:
    """Tables of a private MariaDB, which is killed at times. Several lanes are at least once."""

    kind = "sql"
    most_lanes = 8

    def __init__(self, folder: Path) -> None:
        self._server = PrivateMariaDB()
        self._server.__enter__()
        with closing(connect(self._server)) as connection:
            connection.cursor().execute(f"CREATE DATABASE {_DATABASE}")
        password = folder / "target-password"
        password.touch(0o600)
        password.write_text(self._server.password)
        url = f"mysql+pymysql://{self._server.user}@127.0.0.1:{self._server.port}/{_DATABASE}"
        self._options: dict[str, Any] = {
            "url": url,
            "password_file": str(password),
            "table": "{table}",
        }

    def options_of(self, lanes: int) -> dict[str, Any]:
        """Return the options; with one lane its position is in the transaction."""
        return {**self._options, "exactly_once": lanes == 1}

    def held(self) -> Held:
        """Return the rows of its tables."""
        rows: Rows = {}
        with closing(connect(self._server, database=_DATABASE)) as connection:
            cursor = connection.cursor()
            for source in SOURCES:
                table = source.partition(".")[2]
                cursor.execute("SHOW TABLES LIKE %s", (table,))
                if cursor.fetchall():
                    cursor.execute(f"SELECT id, v, s FROM {table}")
                    found = cursor.fetchall()
                    rows |= {(source, key): {"id": key, "v": v, "s": s} for key, v, s in found}
        return Held(rows, None)

    @contextmanager
    def away(self, sinks: Child, draw: random.Random) -> Iterator[None]:  # noqa: ARG002
        """Kill the server, and start it again."""
        self._server.kill()
        time.sleep(draw.uniform(0.5, 3.0))
        yield
        self._server.start()

    def close(self) -> None:
        """End the server."""
        self._server.__exit__(None, None, None)


def _place(name: str) -> tuple[str, int]:
    source, _, key = name.rpartition(":")
    return source, int(key)


TARGETS: dict[str, Callable[[Path], Target]] = {
    "files": FilesTarget,
    "kafka": KafkaTarget,
    "redis": RedisTarget,
    "sql": SqlTarget,
}
