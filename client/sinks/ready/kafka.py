"""The sink `kafka`: each change is a message, and each flush a transaction with its position.

A consumer with isolation.level=read_committed sees every window once. After a kill the next process
ends the transaction that was open, reads the position that the last committed one has, and goes on
from there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position
from databus.client.sinks.errors import SinkError, SinkUnavailableError
from databus.client.sinks.formats.choosing import (
    DebeziumSettings,
    FormatName,
    chosen_format,
    needs_registry,
)
from databus.client.sinks.formats.message import AvroMessage
from databus.client.sinks.ready.kafka_log import LibraryLog
from databus.client.sinks.ready.kafka_registry import RegistrySettings, SchemaRegistry
from databus.client.sinks.ready.templates import Template
from databus.conf.extras import how_to_install
from databus.conf.model import Settings
from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError

try:
    from confluent_kafka import KafkaError, KafkaException, Message, Producer

    from databus.client.sinks.ready.kafka_errors import Undelivered, sink_error, undelivered_error
    from databus.client.sinks.ready.kafka_positions import read_position
except ImportError as error:
    raise ImportError(f"{error}: {how_to_install('kafka')}") from error

_LIBRARY_LOG = LibraryLog()  # of all producers and consumers of this process: they say the same
_OWN = frozenset({"bootstrap.servers", "transactional.id", "enable.idempotence", "sasl.password"})
_NOT_IN_A_TOPIC = re.compile(r"[^A-Za-z0-9._-]")
_ABORT_S = 2.0


_Headers = list[tuple[str, str | bytes | None]]


class KafkaSink:
    """Writes transactions; exactly once for consumers that read committed messages."""

    keeps_position = True  # in each transaction
    has_position_per_source = True

    class Options(Settings):
        """Options of `kafka`."""

        brokers: str = Field(min_length=1, description="HOST:PORT, several with commas")
        id: str = Field(
            min_length=1,
            description="Name of its transactions and position: another one for each sink and "
            "physical source, and always the same",
        )
        topic: str = Field(default="{source}", description="Template of the topic")
        key: str = Field(default="", description="Template of the key; none = the format's key")
        format: FormatName = Field(default="plain", description="Format of keys and values")
        debezium: DebeziumSettings = Field(
            default_factory=DebeziumSettings, description="Settings of the format `debezium`"
        )
        registry: RegistrySettings | None = Field(
            default=None,
            validate_default=True,
            description="Where the schemas of messages in Avro are kept",
        )
        tombstones: bool = Field(
            default=True, description="A delete is followed by a message without a value"
        )
        position_topic: str = Field(
            default="databus-positions", description="Compacted topic, made if it is not there"
        )
        timeout_s: float = Field(
            default=30.0, ge=1, description="Time for the brokers to take a flush"
        )
        client: dict[str, str | int | bool] = Field(
            default={}, description="More settings of librdkafka, such as security.protocol"
        )
        password_file: Path | None = Field(
            default=None, description="File with sasl.password; only its user may read it"
        )

        @property
        def own_places(self) -> frozenset[str]:
            """The id, at each broker: who opens a sink with it ends what another one has open."""
            brokers = (one.strip() for one in self.brokers.split(","))
            return frozenset(f"id {self.id} at {broker}" for broker in brokers if broker)

        @field_validator("topic", "key")
        @classmethod
        def _is_a_template(cls, text: str) -> str:
            Template(text)
            return text

        @field_validator("client")
        @classmethod
        def _leaves_ours(cls, client: dict[str, str | int | bool]) -> dict[str, str | int | bool]:
            if taken := sorted(_OWN & client.keys()):
                raise ValueError(f"{taken[0]} has an option of its own")
            return client

        @field_validator("registry")
        @classmethod
        def _is_there_for_avro(
            cls, registry: RegistrySettings | None, info: ValidationInfo
        ) -> RegistrySettings | None:
            given = info.data
            is_known = {"format", "debezium"} <= given.keys()
            if registry is None and is_known and needs_registry(given["format"], given["debezium"]):
                raise ValueError("messages in Avro need a registry of schemas: set its url")
            return registry

    def __init__(self, options: Options) -> None:
        """Raises SettingsError for the password file."""
        self._options = options
        self._format = chosen_format(options.format, options.debezium)
        self._registry = _registry(options)
        self._topic = Template(options.topic)
        self._topics: dict[str, str] = {}  # by source, where it says the topic
        self._key = Template(options.key) if options.key else None
        self._client = _client(options, self._failed)
        self._id = options.id
        self._producer: Producer | None = None
        self._is_in_transaction = False
        self._position: Position | None = None
        self._said: KafkaError | None = None  # by the connection, since the sink was opened
        self._undelivered: list[Undelivered] = []  # of this transaction

    def open(self, opening: Opening) -> Position | None:
        """End what an earlier process has left open, and return the position of the topic."""
        options = self._options
        self._id = f"{options.id}/{opening.physical_source}"
        try:
            self._producer = _producer(_producer_settings(self._client, options, self._id))
            self._producer.init_transactions(options.timeout_s)
            own = read_position(self._client, options.position_topic, self._id, options.timeout_s)
        except KafkaException as error:
            raise self._error(error) from error
        if own is None and opening.had_own:
            raise SinkError(
                f"topic {options.position_topic} of {options.brokers} has no position of "
                f"{self._id}, which has been there: the brokers have lost it, or are others. Begin "
                "anew with another name of the sink, another `id`, and a bootstrap"
            )
        self._position = own
        return own

    def write(self, changes: Sequence[Change]) -> None:
        """Send the changes within a transaction; raise SinkRefusedError, SinkUnavailableError."""
        try:
            if not self._is_in_transaction:
                self._opened().begin_transaction()
                self._is_in_transaction = True
            now_ms = time.time_ns() // 1_000_000
            for change in changes:
                self._write(change, now_ms)
        except KafkaException as error:
            raise self._error(error) from error

    def flush(self) -> Position | None:
        """Commit the transaction, with the position in it."""
        if not self._is_in_transaction:
            return self._position
        options, position = self._options, self._position
        try:
            if position is not None:
                self._send(
                    options.position_topic, self._id.encode(), position.to_json().encode(), 0
                )
            left = self._opened().flush(options.timeout_s)
            if (failure := undelivered_error(self._undelivered)) is not None:
                raise failure
            if left:
                raise SinkUnavailableError(self._said_text(f"{left} messages were not taken"))
            self._opened().commit_transaction(options.timeout_s)
        except KafkaException as error:
            raise self._error(error) from error
        except SystemError as error:
            raise self._fatal(error) from error
        self._is_in_transaction = False
        return position

    def close(self) -> None:
        """Abort what was not committed."""
        producer, self._producer = self._producer, None
        if self._registry is not None:
            self._registry.close()
        if producer is None:
            return
        # If it cannot be aborted now, the next process does it.
        with suppress(KafkaException):
            if self._is_in_transaction:
                producer.abort_transaction(_ABORT_S)
        producer.purge()
        self._is_in_transaction = False
        # It ends with its last reference: `close` would wait for brokers that do not answer. An
        # error that somebody keeps has the frames it came through, so none of them has it either.

    def _write(self, change: Change, now_ms: int) -> None:
        message = self._format(change, now_ms)
        self._position = change.position or self._position
        if message is None:
            return
        topic = self._topics.get(change.source) or self._topic_of(change)
        key: bytes | None
        value: bytes | None
        more: Mapping[str, bytes] = {}
        if isinstance(message, AvroMessage):
            key, value = self._framed(topic, message, change)
        else:
            key, value, more = message
        if key is not None and self._key is not None:
            key = self._key.fill(change).encode()
        headers: _Headers = [*more.items(), *_headers(change)]
        self._send(topic, key, value, change=change, headers=headers)
        is_gone = change.op is ChangeOp.DELETE and value is not None
        if is_gone and self._options.tombstones and key is not None:
            self._send(topic, key, None, change=change, headers=headers)

    def _topic_of(self, change: Change) -> str:
        topic = _NOT_IN_A_TOPIC.sub("_", self._topic.fill(change))
        if not self._topic.has_columns:
            self._topics[change.source] = topic
        return topic

    def _framed(
        self, topic: str, message: AvroMessage, change: Change
    ) -> tuple[bytes | None, bytes | None]:
        """Return key and value of a message in Avro as bytes; their schemas are registered."""
        assert self._registry is not None
        frame = partial(self._registry.frame, change=change)
        key, value = message
        return (
            None if key is None else frame(f"{topic}-key", key),
            None if value is None else frame(f"{topic}-value", value),
        )

    def _send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = -1,
        change: Change | None = None,
        headers: _Headers | None = None,
    ) -> None:
        """Give a message to the library; wait while its queue is full."""
        told = partial(self._delivered, change)
        until_s: float | None = None
        while True:
            try:
                self._opened().produce(
                    topic, value, key, partition, on_delivery=told, headers=headers
                )
                return
            except BufferError:
                until_s = until_s or time.monotonic() + self._options.timeout_s
                self._opened().poll(0.1)
                if time.monotonic() > until_s:
                    text = self._said_text("the queue is full")
                    raise SinkUnavailableError(text) from None
            except KafkaException as error:
                raise self._error(error, topic, change) from error

    def _delivered(self, change: Change | None, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._undelivered.append(Undelivered(error, message.topic() or "", change))

    def _opened(self) -> Producer:
        if self._producer is None:
            raise SinkError("the sink is not open")
        return self._producer

    def _failed(self, error: KafkaError) -> None:
        # The first that was said is the cause; that all brokers are down follows from it.
        if self._said is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._said = error

    def _error(
        self, error: KafkaException, topic: str = "", change: Change | None = None
    ) -> SinkError:
        """Return what is raised for an exception; that a message failed says more than it."""
        if self._producer is not None and not self._is_in_transaction:
            with suppress(KafkaException):
                self._producer.poll(0)  # what the connection said meanwhile
        where = f"topic {topic}" if topic else self._said_text(self._options.brokers)
        return undelivered_error(self._undelivered) or sink_error(error.args[0], where, change)

    def _fatal(self, error: SystemError) -> SinkError:
        """Return what is raised for a fatal error, which comes as a SystemError.

        It is raised while the library calls back, and is the cause, or is lost. Then the library
        says it again when it is asked for something.
        """
        cause = error.__cause__
        if not isinstance(cause, KafkaException):
            try:
                self._opened().abort_transaction(_ABORT_S)
            except KafkaException as found:
                cause = found
            else:
                return SinkUnavailableError(self._said_text("the transaction failed"))
        return self._error(cause)

    def _said_text(self, problem: str) -> str:
        said = self._said
        return problem if said is None else f"{problem} ({said.name()}: {said.str()})"


def _client(options: KafkaSink.Options, on_error: object) -> dict[str, object]:
    """Return the settings of every connection."""
    found: dict[str, object] = {
        "client.id": "databus",
        **options.client,
        "bootstrap.servers": options.brokers,
        "error_cb": on_error,
        "logger": _LIBRARY_LOG,
    }
    if options.password_file is not None:
        found["sasl.password"] = private_line("password_file", options.password_file)
    return found


def _producer(settings: dict[str, object]) -> Producer:
    """Return a producer, which has not connected; raise SettingsError for what it cannot be."""
    try:
        return Producer(settings)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._INVALID_ARG:
            raise
        raise SettingsError(f"options.client: {error.args[0].str()}") from error


def _registry(options: KafkaSink.Options) -> SchemaRegistry | None:
    if options.registry is None or not needs_registry(options.format, options.debezium):
        return None
    return SchemaRegistry(options.registry, options.timeout_s)


def _producer_settings(
    client: dict[str, object], options: KafkaSink.Options, transactional_id: str
) -> dict[str, object]:
    timeout_ms = int(options.timeout_s * 1000)
    return {
        "partitioner": "murmur2_random",  # as Java's producers: equal keys, equal partitions
        "topic.metadata.propagation.max.ms": timeout_ms // 3,
        "transaction.timeout.ms": timeout_ms,
        # A commit says that all were taken; to be told of each takes a sixth of its time.
        "delivery.report.only.error": True,
        **client,
        "transactional.id": transactional_id,
        "enable.idempotence": True,
    }


def _headers(change: Change) -> _Headers:
    found: _Headers = [
        ("databus-scn", str(change.scn).encode()),
        ("databus-id", change.id.encode()),
        ("databus-source", change.source.encode()),
    ]
    if change.transaction.gtid is not None:
        found.append(("databus-gtid", change.transaction.gtid.encode()))
    return found
