"""What an error of Kafka means for a sink: wait, refuse a row, or stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError

# The same message again is refused again. A login that fails is none of these: it is no row's
# fault, and no row may be set aside for it.
_REFUSED = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
# Of these every message of a topic is a cause; the others refuse batches, of which one message may
# be the cause.
_OF_TOPIC = frozenset(
    {
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_FENCED = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)
# What follows for the other messages of a transaction in which one has failed.
CONSEQUENCES = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})


class Undelivered(NamedTuple):
    """A message that was not taken, and the row that it is of; None for a position."""

    error: KafkaError
    topic: str
    change: Change | None


def undelivered_error(failures: Sequence[Undelivered]) -> SinkError | None:
    """Return what a sink raises for messages that were not taken; None without any.

    The row is named if it is the cause for certain.
    """
    causes = [one for one in failures if one.error.code() not in CONSEQUENCES]
    if not causes:
        return None
    first = causes[0]
    is_alone = all(one.change is first.change for one in causes)
    change = first.change if is_alone or first.error.code() in _OF_TOPIC else None
    return sink_error(first.error, f"topic {first.topic}", change)


def sink_error(error: KafkaError, where: str, change: Change | None = None) -> SinkError:
    """Return what a sink raises for an error; `change` is the row that met it, if one did."""
    problem = f"{where}: {error.name()}: {error.str()}"
    if error.code() in _FENCED:
        return SinkError(
            f"{problem}: another process, or another physical source, writes with the same id"
        )
    if error.code() in _REFUSED:
        return SinkRefusedError(problem, change)
    return SinkUnavailableError(problem)
