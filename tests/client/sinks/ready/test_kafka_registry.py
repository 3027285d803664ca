"""Messages in Avro, with a real registry of schemas, and Confluent's deserializer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.errors import SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.kafka import KafkaSink
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from tests.client.sinks.changes import made, mysql_schema
from tests.client.sinks.kafka_broker import PrivateKafka
from tests.client.sinks.schema_registry import PrivateRegistry

pytest_plugins = ["tests.client.sinks.kafka_fixtures"]
pytestmark = pytest.mark.kafka


@contextmanager
def opened(kafka: PrivateKafka, topic: str, url: str, **options: Any) -> Iterator[KafkaSink]:
    given = {"brokers": kafka.brokers, "id": topic, "topic": topic, "timeout_s": 10, **options}
    sink = KafkaSink(KafkaSink.Options.model_validate({**given, "registry": {"url": url}}))
    try:
        sink.open(Opening("test", "shop"))
        yield sink
    finally:
        sink.close()


def row(number: int, op: str = "insert", **types: str) -> Change:
    schema = mysql_schema(**(types or {"price": "decimal(10,2)"}))
    values: dict[str, Any] = dict.fromkeys(types or ("price",))
    change = made(op, number, scn=number, **values)
    return replace(change, schema=schema, position=Position("shop", Checkpoint.at(number)))


def put(sink: KafkaSink, *changes: Change) -> None:
    sink.write(changes)
    sink.flush()


def read(kafka: PrivateKafka, registry: PrivateRegistry, topic: str, count: int) -> list[Any]:
    """Return (key, value) of messages as Confluent's deserializer reads them."""
    found = []
    with SchemaRegistryClient({"url": registry.url}) as client:
        deserialize: Any = AvroDeserializer(client)
        for message in kafka.read(topic, count):
            key = deserialize(message.key(), SerializationContext(topic, MessageField.KEY))
            in_value = SerializationContext(topic, MessageField.VALUE)
            value = message.value()
            found.append((key, value and deserialize(value, in_value)))
    return found


def test_rows_in_avro_are_read_by_confluents_deserializer(
    kafka: PrivateKafka, registry: PrivateRegistry
) -> None:
    topic = "avro.rows"
    kafka.make_topic(topic)
    with opened(kafka, topic, registry.url, format="avro") as sink:
        put(sink, row(1), row(2), row(1, "delete"))
    assert read(kafka, registry, topic, 3) == [
        ({"id": 1}, {"id": 1, "price": None}),
        ({"id": 2}, {"id": 2, "price": None}),
        ({"id": 1}, None),  # one message: it is the tombstone
    ]
    with SchemaRegistryClient({"url": registry.url}) as client:
        assert {f"{topic}-key", f"{topic}-value"} <= set(client.get_subjects())


def test_debeziums_envelope_in_avro_is_read_by_it_too(
    kafka: PrivateKafka, registry: PrivateRegistry
) -> None:
    topic = "avro.envelopes"
    kafka.make_topic(topic)
    options = {"format": "debezium", "debezium": {"name": "shop", "converter": "avro"}}
    with opened(kafka, topic, registry.url, **options) as sink:
        put(sink, row(1), row(1, "delete"))
    insert, delete, tombstone = read(kafka, registry, topic, 3)
    assert (insert[0], insert[1]["op"], insert[1]["after"]["id"]) == ({"id": 1}, "c", 1)
    assert (delete[1]["op"], delete[1]["before"], delete[1]["after"]) == ("d", None, None)
    assert tombstone == ({"id": 1}, None)


def test_a_column_that_is_added_is_a_version_and_one_that_no_reader_could_read_is_refused(
    kafka: PrivateKafka, registry: PrivateRegistry
) -> None:
    topic = "avro.versions"
    kafka.make_topic(topic)
    with (
        SchemaRegistryClient({"url": registry.url}) as client,
        opened(kafka, topic, registry.url, format="avro") as sink,
    ):
        put(sink, row(1, v="int"))
        client.set_compatibility(f"{topic}-value", level="BACKWARD")
        put(sink, row(2, v="int", w="varchar(9)"))
        assert client.get_versions(f"{topic}-value") == [1, 2]
        narrower = row(3, v="varchar(9)")
        with pytest.raises(SinkRefusedError, match=f"subject {topic}-value") as refused:
            put(sink, narrower)
        assert refused.value.change is narrower
    assert [value for _, value in read(kafka, registry, topic, 2)] == [
        {"id": 1, "v": None},
        {"id": 2, "v": None, "w": None},
    ]


def test_a_registry_that_is_away_is_waited_for(
    kafka: PrivateKafka, new_registry: Callable[[], PrivateRegistry]
) -> None:
    topic = "avro.away"
    kafka.make_topic(topic)
    registry = new_registry()
    with opened(kafka, topic, registry.url, format="avro") as sink:
        with pytest.raises(SinkUnavailableError, match=str(registry.port)):
            put(sink, row(1))
        sink.close()
        with registry:
            sink.open(Opening("test", "shop"))
            put(sink, row(1))
            assert len(read(kafka, registry, topic, 1)) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "avro"}, "need a registry"),
        ({"format": "debezium", "debezium": {"converter": "avro"}}, "need a registry"),
        ({"registry": {"url": "http://a:b@c"}}, "it is shown in errors"),
        ({"registry": {"url": "c:8081"}}, "http://HOST:PORT"),
        ({"format": "avro", "registry": {"url": "http://c", "user": "a"}}, "password_file"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        sink_maker("kafka", {"brokers": "127.0.0.1:1", "id": "x", **options})()


def test_the_password_is_sent_and_in_no_error(kafka: PrivateKafka, tmp_path: Path) -> None:
    topic = "avro.password"
    kafka.make_topic(topic)
    (tmp_path / "password").write_text("top-secret\n")
    (tmp_path / "password").chmod(0o600)
    access = {"user": "a", "password_file": str(tmp_path / "password")}
    given = {"brokers": kafka.brokers, "id": topic, "topic": topic, "format": "avro"}
    options = {**given, "registry": {"url": "http://127.0.0.1:1/x", **access}}
    sink = KafkaSink(KafkaSink.Options.model_validate(options))
    sink.open(Opening("test", "shop"))
    with pytest.raises(SinkUnavailableError) as failed:
        put(sink, row(1))
    sink.close()
    assert "top-secret" not in repr(failed.value) + json.dumps(str(failed.value.__cause__))
