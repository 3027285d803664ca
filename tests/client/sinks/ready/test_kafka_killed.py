"""`databus sink run` into Kafka, killed at random moments: consumers see each change once."""

from __future__ import annotations

import json
import random
import time
from contextlib import closing
from typing import Any

import pytest

from databus.demo.processes import python_module, wait_until
from databus.demo.stage import Stage
from tests.client.sinks.kafka_broker import PrivateKafka
from tests.client.sinks.serving.test_killed import PATIENCE_S, rows, stage, writing

pytest_plugins = ["tests.client.sinks.kafka_fixtures"]
pytestmark = pytest.mark.kafka

KILLS = 6
SINKS = """
data_dir = "state"
relays = ["{url}"]

[[sinks]]
name = "topics"
kind = "kafka"
sources = ["shop.*"]
options = {{ brokers = "{brokers}", id = "killed", topic = "killed", format = "debezium" }}
flush = {{ rows = 20, seconds = 0.02 }}
"""


class Copy:
    """A consumer as the examples for Debezium's JSON have it: `op`, `before`, `after`, `source`."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], Any] = {}
        self.ids: list[bytes] = []
        self.tombstones = 0

    def take(self, value: bytes | None, headers: dict[str, Any]) -> None:
        if value is None:
            self.tombstones += 1
            return
        self.ids.append(headers["databus-id"])
        payload = json.loads(value)
        table = f"{payload['source']['db']}.{payload['source']['table']}"
        if payload["op"] in ("c", "u", "r"):
            self.rows[table, payload["after"]["id"]] = payload["after"]
        elif payload["op"] == "t":
            self.rows = {place: row for place, row in self.rows.items() if place[0] != table}
        elif payload["op"] == "d":
            self.rows.pop((table, payload["before"]["id"]), None)


def copied(kafka: PrivateKafka) -> Copy:
    copy = Copy()
    for message in kafka.read("killed"):
        copy.take(message.value(), dict(message.headers() or []))
    return copy


def kill_again_and_again(made: Stage, rng: random.Random, command: list[str]) -> None:
    sinks = made.child("sinks", command)
    for _ in range(KILLS):
        sinks.start()
        # After it has begun to write, and some time later.
        time.sleep(2.0 + rng.random())
        sinks.kill()
    sinks.start()


def test_after_kills_a_consumer_has_seen_each_change_once(kafka: PrivateKafka) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    kafka.make_topic("killed")
    with stage("sqlite") as made, closing(made.database.connect()) as session:
        settings = made.folder / "sink.toml"
        settings.write_text(SINKS.format(url=made.url, brokers=kafka.brokers))
        with writing(made, rng):
            command = python_module("databus.cli.main", "sink", "run", "-c", settings)
            kill_again_and_again(made, rng, command)
        wanted = rows(session)
        wait_until(lambda: copied(kafka).rows == wanted, PATIENCE_S, "the topic")
        copy = copied(kafka)
        assert len(copy.ids) == len(set(copy.ids)) > 100
        assert copy.tombstones > 0
        uncommitted = kafka.read("killed", 0, 1, **{"isolation.level": "read_uncommitted"})
        print(f"{len(copy.ids)} changes, {len(uncommitted)} messages with those of aborted flushes")
