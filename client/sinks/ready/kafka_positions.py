"""Positions of Kafka sinks: the newest record with a sink's id in a compacted topic.

The record is part of the transaction that has the messages, so both are there or neither is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from databus.client.sinks.contract import Position
from databus.client.sinks.errors import SinkError, SinkUnavailableError

log = logging.getLogger(__name__)

# Closed segments are compacted, so small ones keep the topic small.
_TOPIC = {"cleanup.policy": "compact", "segment.bytes": str(1 << 20)}
_BATCH = 500


def read_position(
    client: Mapping[str, Any], topic: str, sink_id: str, timeout_s: float
) -> Position | None:
    """Return the position of a sink, None if it has none; make the topic if it is not there.

    Raises KafkaException, CheckpointError, SinkError.
    """
    admin = AdminClient(dict(client))
    _ensure_topic(admin, topic, timeout_s)
    place = TopicPartition(topic, 0)
    found = admin.list_offsets(
        {place: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        request_timeout=timeout_s,
    )
    end: int = found[place].result(timeout_s).offset
    reading = {
        "group.id": sink_id,  # a consumer must name one; no offset is committed
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
    }
    consumer = Consumer({**client, **reading})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        text = _newest(consumer, sink_id.encode(), end, timeout_s)
    finally:
        consumer.close()
    return None if text is None else Position.from_json(text.decode())


def _newest(consumer: Consumer, key: bytes, end: int, timeout_s: float) -> bytes | None:
    """Return the value of the newest record with a key before `end`."""
    newest, deadline = None, time.monotonic() + timeout_s
    while True:
        for message in consumer.consume(_BATCH, 0.1):
            if _is_end(message, end):
                return newest
            if message.error() is None and message.key() == key:
                newest = message.value()
        # Records behind an open transaction of another sink are shown when it has ended.
        if time.monotonic() > deadline:
            raise SinkUnavailableError("the topic of positions could not be read to its end")


def _is_end(message: Message, end: int) -> bool:
    """Whether everything before `end` was read; raise KafkaException for a failure."""
    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    offset = message.offset()
    return offset is not None and offset >= end


def _ensure_topic(admin: AdminClient, topic: str, timeout_s: float) -> None:
    # All topics are listed: to ask for one might make it, with the broker's defaults.
    if topic not in admin.list_topics(timeout=timeout_s).topics:
        made = admin.create_topics([NewTopic(topic, 1, -1, config=_TOPIC)])
        try:
            made[topic].result(timeout_s)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], request_timeout=timeout_s)
    policy = found[resource].result(timeout_s)["cleanup.policy"].value
    if policy != "compact":
        raise SinkError(
            f"topic {topic} has cleanup.policy={policy}, which loses positions: make it compact"
        )
