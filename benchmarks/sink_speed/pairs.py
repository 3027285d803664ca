"""A sink, and the library alone that writes the same bytes to the same server.

pyarrow has no writer of JSON, so orjson makes the lines for it. Files are synced by both.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
from confluent_kafka import Producer
from pyarrow import fs, parquet

from benchmarks.sink_speed.rows import FLUSH, changes, parts
from benchmarks.sink_speed.sql_writers import by_hand
from databus.client.sinks.contract import Change, Opening, Sink
from databus.client.sinks.formats.choosing import DebeziumSettings, chosen_format
from databus.client.sinks.formats.message import Message
from databus.client.sinks.formats.plain import json_bytes, plain_json
from databus.client.sinks.loading import sink_maker
from databus.demo.private_mariadb import PrivateMariaDB
from tests.client.sinks.kafka_broker import PrivateKafka
from tests.client.sinks.ready.sql.conftest import fresh
from tests.client.sinks.redis_server import PrivateRedis
from tests.postgres_server import PrivatePostgres
from tools.fetch_archives import KAFKA
from tools.fetch_test_servers import POSTGRES

_SMALL_BATCHES = {"batch.size": 100_000}  # the broker of the tests takes no larger ones
_OPENING = Opening("speed", "shop")
Write = Callable[[list[Any]], None]


class Pair(NamedTuple):
    """Two that write. `prepare` makes of changes what the library alone is given."""

    sink: Write
    alone: Write
    prepare: Callable[[list[Change]], list[Any]]


@contextmanager
def _opened(kind: str, **options: Any) -> Iterator[Write]:
    sink: Sink = sink_maker(kind, options)()
    sink.open(_OPENING)

    def write(changes: list[Change]) -> None:
        for flush in parts(changes, FLUSH):
            sink.write(flush)
            sink.flush()

    try:
        yield write
    finally:
        sink.close()


@contextmanager
def _kafka(form: str) -> Iterator[Pair]:
    archives = KAFKA.find()
    assert archives is not None, "python -m tools.fetch_archives says why there is no Kafka"
    make = chosen_format(form, DebeziumSettings())  # type: ignore[arg-type]

    def prepare(changes: list[Change]) -> list[Any]:
        found = []
        for change in changes:
            message = make(change, time.time_ns() // 1_000_000)
            assert isinstance(message, Message)
            headers = {"databus-scn": b"1234567", "databus-id": b"1234567:0"}
            headers |= {"databus-source": change.source.encode()}
            found.append((message.key, message.value, list(headers.items())))
        return found

    with PrivateKafka(archives) as kafka:
        for topic in ("sink", "alone"):
            kafka.make_topic(topic)
        producer = Producer(
            {
                "bootstrap.servers": kafka.brokers,
                "transactional.id": "alone",
                "partitioner": "murmur2_random",
                **_SMALL_BATCHES,
            }
        )
        producer.init_transactions()

        def alone(messages: list[Any]) -> None:
            for flush in parts(messages, FLUSH):
                producer.begin_transaction()
                for key, value, headers in flush:
                    producer.produce("alone", value, key, headers=headers)
                producer.commit_transaction()

        options: dict[str, Any] = {"brokers": kafka.brokers, "id": "speed", "topic": "sink"}
        options |= {"format": form, "client": _SMALL_BATCHES}
        with _opened("kafka", **options) as write:
            yield Pair(write, alone, prepare)
        producer.close()


@contextmanager
def _redis() -> Iterator[Pair]:
    with PrivateRedis() as server, server.client(decode_responses=False) as client:

        def alone(texts: list[Any]) -> None:
            for flush in parts(texts, FLUSH):
                pipeline = client.pipeline(transaction=True)
                for key, text in flush:
                    pipeline.set(key, text)
                pipeline.execute()

        def prepare(changes: list[Change]) -> list[Any]:
            return [
                (f"alone:{one.key['id']}".encode(), json_bytes(dict(one.after or {})))
                for one in changes
            ]

        with _opened("redis", url=server.url) as write:
            yield Pair(write, alone, prepare)


@contextmanager
def _files(form: str) -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="databus-speed-") as folder:
        local, number = fs.LocalFileSystem(), iter(range(1 << 30))

        @contextmanager
        def durable() -> Iterator[Any]:
            path = Path(folder) / f"{next(number)}.{form}"
            with local.open_output_stream(str(path)) as stream:
                yield stream
            for one in (path, path.parent):
                fd = os.open(one, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)

        def lines(objects: list[Any]) -> None:
            for flush in parts(objects, FLUSH):
                with durable() as stream:
                    stream.write(b"\n".join(map(orjson.dumps, flush)))

        def tables(rows: list[Any]) -> None:
            for flush in parts(rows, FLUSH):
                with durable() as stream:
                    parquet.write_table(pa.Table.from_pylist(flush), stream, compression="zstd")

        def prepare(changes: list[Change]) -> list[Any]:
            if form == "json":
                return [plain_json(one) for one in changes]
            meta = {"op": "update", "scn": 1, "index": 0, "time": 1, "gtid": None}
            return [{**(one.after or {}), "_databus": meta} for one in changes]

        target = Path(folder) / "archive"
        with _opened("files", folder=str(target), format=form) as write:
            yield Pair(write, lines if form == "json" else tables, prepare)


@contextmanager
def _sql(dialect: str) -> Iterator[Pair]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres: Any = None
        servers = {}
        if dialect == "postgresql":
            postgres = stack.enter_context(PrivatePostgres(POSTGRES.find()))  # type: ignore[arg-type]
        elif dialect == "mariadb":
            servers[dialect] = stack.enter_context(PrivateMariaDB())
        target = stack.enter_context(fresh(dialect, folder, postgres, servers))
        write = stack.enter_context(_opened("sql", **target.options, table="sink"))
        write(changes(0, 1))  # makes the table, of which the other one is made
        yield Pair(write, by_hand(target), _values)


def _values(changes: list[Change]) -> list[Any]:
    return [tuple((one.after or {}).values()) for one in changes]


PAIRS: dict[str, Callable[[], Any]] = {
    "kafka-plain": lambda: _kafka("plain"),
    "kafka-debezium": lambda: _kafka("debezium"),
    "redis": _redis,
    "files-json": lambda: _files("json"),
    "files-parquet": lambda: _files("parquet"),
    "sql-postgresql": lambda: _sql("postgresql"),
    "sql-mariadb": lambda: _sql("mariadb"),
    "sql-sqlite": lambda: _sql("sqlite"),
}
