"""What librdkafka logs, and what is left out of it."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaException, Producer

from databus.client.sinks.ready.kafka_log import (
    EVERY_S,
    MOST_KINDS,
    LibraryLog,
    Line,
    RepeatedLines,
)

AWAY = "FAIL [rdkafka#producer-{}] [thrd:{}/1]: {}/1: Connect failed: refused (after {}ms in state)"


def away(broker: str, client: int = 1, after_ms: int = 0) -> Line:
    return Line(logging.ERROR, AWAY.format(client, broker, broker, after_ms))


def test_a_line_that_comes_again_is_counted_and_logged_once_in_a_while() -> None:
    lines = RepeatedLines()
    assert list(lines.take(away("a:9092"), 0)) == [away("a:9092")]
    for number in range(120):
        again = away("a:9092", client=number, after_ms=number)  # it says the same
        assert list(lines.take(again, number / 120)) == []
    told, again = lines.take(away("a:9092", client=9), EVERY_S)
    assert told.text.startswith("(120 more lines, not logged, as: FAIL [rdkafka#producer-1]")
    assert told.level == logging.ERROR
    assert again == away("a:9092", client=9)
    assert list(lines.take(away("a:9092"), EVERY_S + 1)) == []


def test_the_library_may_count_lines_itself() -> None:
    lines = RepeatedLines()
    counted = "(after 0ms in state CONNECT, 30 identical error(s) suppressed)"
    first = Line(logging.ERROR, "Connect failed (after 7ms in state CONNECT)")
    assert list(lines.take(first, 0)) == [first]
    assert list(lines.take(Line(logging.ERROR, f"Connect failed {counted}"), 1)) == []


def test_another_broker_or_another_error_is_logged_at_once() -> None:
    lines = RepeatedLines()
    denied = Line(logging.ERROR, "FAIL [rdkafka#producer-1] [thrd:a:9092/1]: denied")
    for line in (away("a:9092"), away("b:9092"), away("a:9093"), denied):
        assert list(lines.take(line, 0)) == [line]


def test_what_was_left_out_is_told_with_the_next_line_of_any_kind() -> None:
    lines = RepeatedLines()
    for now_s in (0, 1):
        list(lines.take(away("a:9092"), now_s))
    told, other = lines.take(away("b:9092"), EVERY_S)
    assert told.text.startswith("(1 more lines")
    assert other == away("b:9092")


def test_lines_that_all_differ_take_no_memory_without_end() -> None:
    lines = RepeatedLines()
    for number in range(3 * MOST_KINDS):
        list(lines.take(away(f"{number}:9092"), 0))
    assert len(lines._since_s) == len(lines._passed) == MOST_KINDS


def test_brokers_that_are_away_give_a_line_each(caplog: pytest.LogCaptureFixture) -> None:
    brokers = "127.0.0.1:1,127.0.0.1:2"
    client = {"bootstrap.servers": brokers, "transactional.id": "a", "reconnect.backoff.ms": 1}
    library_log = LibraryLog()
    for _ in range(2):
        producer = Producer({**client, "reconnect.backoff.max.ms": 5, "logger": library_log})
        with pytest.raises(KafkaException):
            producer.init_transactions(1)
        producer.poll(0.1)
    refused = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
    assert len(refused) == 2
    assert {"127.0.0.1:1/" in one for one in refused} == {True, False}
