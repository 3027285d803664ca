"""A private broker of Apache Kafka in KRaft mode: on loopback, gone when it is closed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from databus.demo.processes import free_port
from tests import PATIENCE_S
from tests.client.sinks.private_server import PrivateServer

HOST = "127.0.0.1"
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_databus="right";
log.dirs={folder}/data
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
message.max.bytes=200000
log.cleaner.dedupe.buffer.size=4194304
"""


class PrivateKafka(PrivateServer):
    """One broker and its files; a context manager. Its data outlive a kill.

    The second listener asks for SASL/PLAIN: user `databus`, password `right`.
    """

    TITLE = "Kafka"

    def __init__(self, archives: Path) -> None:
        super().__init__()
        self._archives = archives
        self.port, self.login_port = free_port(), free_port()
        self._controller = free_port()

    @property
    def brokers(self) -> str:
        """Where clients connect."""
        return f"{HOST}:{self.port}"

    @property
    def admin(self) -> AdminClient:
        """A client for topics."""
        return AdminClient({"bootstrap.servers": self.brokers})

    def start(self) -> None:
        """Start the broker, and wait until it serves clients."""
        if not self._settings.exists():
            self._format()
        super().start()

    def command(self) -> Sequence[str]:
        """Return the command of the broker."""
        return self._java("kafka.Kafka", str(self._settings))

    def make_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic; `_` stands for the dots of a setting."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin  # while it is waited for
        made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
        made[name].result(PATIENCE_S)

    def read(
        self, topic: str, count: int = 0, partitions: int = 1, **settings: object
    ) -> list[Message]:
        """Return the committed messages of a topic up to its end.

        A transaction is shown a moment after its commit: `count` messages are waited for.
        """
        found: list[Message] = []
        ended: set[int | None] = set()
        deadline = time.monotonic() + PATIENCE_S
        with self._consumer(topic, partitions, settings) as consumer:
            while len(found) < count or len(ended) < partitions:
                message = consumer.poll(0.2)
                assert time.monotonic() < deadline, f"{topic}: {len(found)} of {count} messages"
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    deadline = time.monotonic() + PATIENCE_S
                    found.append(message)
                    ended.discard(message.partition())
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
        return found

    @contextmanager
    def _consumer(
        self, topic: str, partitions: int, settings: Mapping[str, object]
    ) -> Iterator[Consumer]:
        given = {
            "bootstrap.servers": self.brokers,
            "group.id": "test",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **settings,
        }
        consumer = Consumer(given)
        try:
            consumer.assign(
                [TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(partitions)]
            )
            yield consumer
        finally:
            consumer.close()

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    def _format(self) -> None:
        text = _SETTINGS.format(
            port=self.port, login=self.login_port, controller=self._controller, folder=self.folder
        )
        self._settings.write_text(text)
        arguments = ("format", "-t", "ZGF0YWJ1cy1mb3ItdGVzdA", "-c", str(self._settings))
        command = self._java("kafka.tools.StorageTool", *arguments)
        made = subprocess.run(command, check=False, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr

    def _java(self, main: str, *arguments: str) -> list[str]:
        quick = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return ["java", *quick, "-cp", f"{self._archives}/*", main, *arguments]

    def serves(self) -> bool:
        """Whether a broker answers."""
        quiet: dict[str, Any] = {
            "bootstrap.servers": self.brokers,
            "log_level": 0,
            "error_cb": lambda _error: None,
        }
        try:
            return bool(AdminClient(quiet).list_topics(timeout=1).brokers)
        except Exception:  # not yet
            return False
