"""The sink `kafka`, on a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from databus.client.sinks.contract import Change, Opening, Position, TransactionInfo
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.loading import sink_maker
from databus.client.sinks.ready.kafka import KafkaSink
from databus.client.sinks.rules.beginnings import with_own
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import SettingsError
from tests.client.shop import wait_until
from tests.client.sinks.changes import made
from tests.client.sinks.kafka_broker import PrivateKafka

pytest_plugins = ["tests.client.sinks.kafka_fixtures"]
pytestmark = pytest.mark.kafka


@pytest.fixture
def name(request: pytest.FixtureRequest, kafka: PrivateKafka) -> str:
    """Make a topic of the test's own, and return its name."""
    name = re.sub("[^a-z_]", ".", request.node.name)
    kafka.make_topic(name)
    return name


@pytest.fixture
def open_sink(kafka: PrivateKafka, name: str) -> Iterator[Any]:
    """Return what opens a sink that writes to the test's topic."""
    sinks: list[KafkaSink] = []

    def opened(**options: Any) -> tuple[KafkaSink, Position | None]:
        given = {"brokers": kafka.brokers, "id": name, "topic": name, "timeout_s": 10, **options}
        sink = KafkaSink(KafkaSink.Options.model_validate(given))
        sinks.append(sink)
        return sink, sink.open(Opening("test", "shop"))

    yield opened
    for sink in sinks:
        sink.close()


def at(scn: int, source: str = "shop") -> Position:
    return Position(source, Checkpoint.at(scn))


def insert(scn: int, **values: Any) -> Change:
    return replace(made("insert", scn, scn=scn, **values), position=at(scn))


def put(sink: KafkaSink, *changes: Change) -> None:
    sink.write(changes)
    sink.flush()


def scn_of(message: Message) -> int:
    return int(dict(message.headers() or [])["databus-scn"] or b"")


def scns(kafka: PrivateKafka, topic: str, count: int, **settings: Any) -> list[int]:
    found = kafka.read(topic, count, **settings)
    return [scn_of(one) for one in found]


def test_a_flush_is_a_transaction_with_its_position(
    kafka: PrivateKafka, name: str, open_sink: Any
) -> None:
    sink, own = open_sink()
    assert own is None
    sink.write([insert(1), insert(2)])
    assert scns(kafka, name, 0) == []  # for whoever reads what is committed
    assert sink.flush() == at(2)
    assert scns(kafka, name, 2) == [1, 2]
    assert sink.flush() == at(2)  # nothing to write
    sink.write([insert(3)])
    sink.close()  # without a flush
    again, own = open_sink()
    assert own == at(2)
    put(again, insert(3))
    assert scns(kafka, name, 3) == [1, 2, 3]


def test_what_a_killed_process_has_sent_is_never_seen(
    kafka: PrivateKafka, name: str, open_sink: Any
) -> None:
    killed, _ = open_sink()
    killed.write([insert(1)])
    killed._producer.flush(10)  # the broker has it, and nobody commits it
    assert scns(kafka, name, 1, **{"isolation.level": "read_uncommitted"}) == [1]
    again, own = open_sink()
    assert own is None
    put(again, insert(1))
    assert scns(kafka, name, 1) == [1]
    with pytest.raises(SinkError, match="writes with the same id"):
        killed.flush()


def test_sinks_share_the_topic_of_positions(kafka: PrivateKafka, name: str, open_sink: Any) -> None:
    for scn, sink_id in ((1, "a"), (2, "b"), (3, "a")):
        sink, _ = open_sink(id=f"{name}-{sink_id}")
        sink.write([insert(scn)])
        sink.flush()
        sink.close()
    assert open_sink(id=f"{name}-a")[1] == at(3)
    assert open_sink(id=f"{name}-b")[1] == at(2)


def test_the_position_is_read_past_what_another_sink_has_open(name: str, open_sink: Any) -> None:
    first, _ = open_sink(id=f"{name}-first")
    other, _ = open_sink(id=f"{name}-other")
    other.write([insert(1)])
    other._send("databus-positions", b"x", b"x", 0)  # its position, and it does not commit
    other._producer.flush(10)
    put(first, insert(2))
    first.close()
    with pytest.raises(SinkUnavailableError, match="could not be read to its end"):
        open_sink(id=f"{name}-first", timeout_s=5)
    other.close()
    assert open_sink(id=f"{name}-first")[1] == at(2)


def test_messages_have_key_value_headers_and_tombstones(
    kafka: PrivateKafka, name: str, open_sink: Any
) -> None:
    sink, _ = open_sink()
    info = TransactionInfo(7, 7, "0-1-17")
    deleted = replace(made("delete", 5, scn=7, before_s="x"), position=at(7), transaction=info)
    put(sink, deleted)
    first, second = kafka.read(name, 2)
    assert (first.key(), second.key()) == (b'{"id":5}', b'{"id":5}')
    value = json.loads(first.value() or b"")
    assert (value["op"], value["before"], value["after"]) == ("delete", {"id": 5, "s": "x"}, None)
    assert second.value() is None
    wanted = {
        "databus-scn": b"7",
        "databus-id": b"7:0",
        "databus-source": b"shop.orders",
        "databus-gtid": b"0-1-17",
    }
    assert dict(first.headers() or []) == dict(second.headers() or []) == wanted


def test_without_tombstones_a_delete_is_one_message(
    kafka: PrivateKafka, name: str, open_sink: Any
) -> None:
    sink, _ = open_sink(tombstones=False)
    put(sink, replace(made("delete", 5), position=at(7)), made("truncate", 0))
    assert [json.loads(one.value() or b"")["op"] for one in kafka.read(name, 2)] == [
        "delete",
        "truncate",
    ]


def test_topics_and_keys_are_templates(kafka: PrivateKafka, name: str, open_sink: Any) -> None:
    topic = f"{name}.shop.orders.a_b"
    kafka.make_topic(topic, partitions=3)
    sink, _ = open_sink(topic=f"{name}.{{schema}}.{{table}}.{{status}}", key="{status}-{n}")
    put(sink, *(insert(scn, status="a b", n=scn % 2) for scn in range(1, 9)))
    found = kafka.read(topic, 8, partitions=3)
    assert {one.key() for one in found} == {b"a b-0", b"a b-1"}
    # Messages of a key are in one partition, in order.
    for key in (b"a b-0", b"a b-1"):
        mine = [one for one in found if one.key() == key]
        assert len({one.partition() for one in mine}) == 1
        order = [scn_of(one) for one in mine]
        assert order == sorted(order)


def test_equal_keys_go_where_javas_producers_send_them(
    kafka: PrivateKafka, name: str, open_sink: Any
) -> None:
    topic = f"{name}.many"
    kafka.make_topic(topic, partitions=10)
    sink, _ = open_sink(topic=topic, key="{text}")
    put(sink, insert(1, text="foobar"), insert(2, text="21"))
    places = {one.key(): one.partition() for one in kafka.read(topic, 2, partitions=10)}
    # From the test of Kafka's own Utils.murmur2: -790332482 and -973932308, without their signs.
    assert places == {
        b"foobar": (-790332482 & 0x7FFFFFFF) % 10,
        b"21": (-973932308 & 0x7FFFFFFF) % 10,
    }


def test_a_row_that_is_too_large_is_named_if_it_is_certain(name: str, open_sink: Any) -> None:
    big = insert(2, text="x" * 300_000)
    sink, _ = open_sink(client={"message.max.bytes": 100_000})
    with pytest.raises(SinkRefusedError, match="MSG_SIZE_TOO_LARGE") as refused:
        put(sink, insert(1), big, insert(3))  # it is not even sent
    assert refused.value.change is big
    sink.close()
    sink, _ = open_sink()
    with pytest.raises(SinkRefusedError, match="MSG_SIZE_TOO_LARGE") as refused:
        put(sink, insert(1), big, insert(3))  # the broker refuses a batch
    assert refused.value.change in (None, big)
    sink.close()
    sink, own = open_sink()
    assert own is None
    with pytest.raises(SinkRefusedError, match="MSG_SIZE_TOO_LARGE") as refused:
        put(sink, replace(big, position=None))
    assert refused.value.change == replace(big, position=None)
    sink.close()
    sink, own = open_sink()
    put(sink, insert(1), insert(3))
    assert sink.flush() == at(3)


@pytest.mark.parametrize(
    ("topic", "problem"),
    [("missing", "topic missing: _?UNKNOWN_TOPIC"), ("{no_column}", "no column no_column")],
)
def test_a_topic_that_is_not_there_refuses_the_row(
    topic: str, problem: str, open_sink: Any
) -> None:
    sink, _ = open_sink(topic=topic, client={"topic.metadata.propagation.max.ms": 500})
    change = insert(1)
    with pytest.raises(SinkRefusedError, match=problem) as refused:
        put(sink, change)
    assert refused.value.change is change


def test_brokers_that_are_away_are_unavailable(open_sink: Any) -> None:
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:1 .*(refused|down)"):
        open_sink(brokers="127.0.0.1:1", timeout_s=1)


def test_a_wrong_password_is_no_rows_fault_and_is_not_shown(
    kafka: PrivateKafka, tmp_path: Path, name: str, open_sink: Any
) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "databus",
    }
    options = {
        "brokers": f"127.0.0.1:{kafka.login_port}",
        "client": login,
        "password_file": str(file),
    }
    file.write_text("wrong-one\n")
    with pytest.raises(SinkUnavailableError, match="_AUTHENTICATION") as failure:
        open_sink(**options, timeout_s=5)
    assert "wrong-one" not in str(failure.value)
    file.write_text("right\n")
    sink, _ = open_sink(**options)
    put(sink, insert(1))
    assert scns(kafka, name, 1) == [1]


def test_a_topic_of_positions_that_forgets_is_refused(
    kafka: PrivateKafka, name: str, open_sink: Any
) -> None:
    kafka.make_topic(f"{name}.forgets", cleanup_policy="delete")
    with pytest.raises(SinkError, match=r"cleanup\.policy=delete"):
        open_sink(position_topic=f"{name}.forgets")


def test_each_physical_source_has_a_position_of_its_own(name: str, open_sink: Any) -> None:
    sink, _ = open_sink()
    put(sink, insert(1))
    sink.close()
    assert sink.open(Opening("test", "other")) is None
    put(sink, replace(insert(2), position=at(7, "other")))
    sink.close()
    assert sink.open(Opening("test", "shop")) == at(1)
    sink.close()
    assert sink.open(Opening("test", "other")) == at(7, "other")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topic": "{a.b}"}, "write the names of columns"),
        ({"topic": "{source!r}"}, "write the names of columns"),
        ({"client": {"sasl.password": "x"}}, "sasl.password has an option of its own"),
        ({"format": "xml"}, "format = 'xml'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        sink_maker("kafka", {"brokers": "127.0.0.1:1", "id": "x", **options})


def test_a_broker_that_dies_is_waited_for(new_kafka: Callable[[], PrivateKafka]) -> None:
    with new_kafka() as broker:
        broker.make_topic("orders")
        given = {"brokers": broker.brokers, "id": "a", "topic": "orders", "timeout_s": 3}
        options = KafkaSink.Options.model_validate(given)
        with closing(KafkaSink(options)) as sink:
            sink.open(Opening("test", "shop"))
            put(sink, insert(1))
            broker.kill()
            with pytest.raises(SinkUnavailableError, match=r"not taken|_MSG_TIMED_OUT"):
                put(sink, insert(2))
        broker.start()
        with closing(KafkaSink(options)) as again:
            assert again.open(Opening("test", "shop")) == at(1)
            put(again, insert(2))
        assert scns(broker, "orders", 2) == [1, 2]


def library_threads() -> int:
    names = (one / "comm" for one in Path("/proc/self/task").iterdir())
    return sum(one.read_text().startswith("rdk:") for one in names)


def test_a_sink_is_closed_while_its_broker_hangs_and_leaves_no_thread(
    kafka: PrivateKafka, open_sink: Any
) -> None:
    before = library_threads()
    sink, _ = open_sink(timeout_s=5)
    put(sink, insert(1))
    with kafka.hanging():
        with pytest.raises(SinkUnavailableError) as kept:
            put(sink, insert(2))
        assert library_threads() > before
        sink.close()
        wait_until(lambda: library_threads() == before)
        assert kept.value.__traceback__ is not None, "who keeps the error keeps no connection"


def test_a_sink_whose_position_the_brokers_have_lost_does_not_go_on(
    kafka: PrivateKafka, name: str
) -> None:
    given = {"brokers": kafka.brokers, "id": name, "topic": name, "timeout_s": 10}
    sink = KafkaSink(KafkaSink.Options.model_validate(given))
    with closing(sink), pytest.raises(SinkError, match="which has been there"):
        sink.open(Opening("test", "shop", Position("shop", with_own(Checkpoint.at(7), at(7)))))


def test_a_sink_that_has_passed_what_it_does_not_take_needs_no_position_in_kafka(
    kafka: PrivateKafka, name: str
) -> None:
    given = {"brokers": kafka.brokers, "id": name, "topic": name, "timeout_s": 10}
    sink = KafkaSink(KafkaSink.Options.model_validate(given))
    with closing(sink):
        assert sink.open(Opening("test", "shop", at(7))) is None
