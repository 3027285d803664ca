"""Thirty right uses of the client API: type checkers find nothing. Never run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, assert_type

from databus.client import (
    Consumer,
    DatabusClient,
    DataEvent,
    DataWindow,
    DdlEvent,
    DeadLetterFile,
    Op,
    Result,
)
from databus.schemas.errors import ConsumerError
from databus.schemas.filters import ModFilter, PartitionFilter
from databus.testing import change, deliver, make_event, make_window, running_relay


@dataclass
class Order:
    id: int
    total: Decimal


class Line(NamedTuple):
    order: int
    item: str


one = DatabusClient("http://127.0.0.1:11115")  # 1
several = DatabusClient(["http://a:11115", "http://b:11115"], start="latest")  # 2
named = DatabusClient(relays="http://a:11115", checkpoint_dir=Path("state"), name="billing")  # 3
at_time = DatabusClient("http://a", start=datetime.now(UTC) - timedelta(hours=1))  # 4
at_scn = DatabusClient("http://a", start=8589936646, checkpoint_every_s=0.5)  # 5
sized = DatabusClient("http://a", fetch_bytes="4 MiB", buffer_bytes=1 << 20)  # 6
grouped = DatabusClient("http://a", group="g", partitions=32, coordinator="file:/tmp/g")  # 7
watched = DatabusClient("http://a", http={"port": 11117}, back_off={"first_s": 0.1})  # 8


@one.on("shop.orders")  # 9
def plain(event: DataEvent) -> None:
    assert_type(event.key, dict[str, Any])  # 10
    assert_type(event.row["total"], Any)
    assert_type(event.into(Order), Order)  # 11
    assert_type(event.into(Line), Line)
    assert_type(event.op, Op)  # 12


@one.on("shop.orders", "shop.lines", name="results")  # 13
def with_result(event: DataEvent) -> Result | None:
    return Result.CHECKPOINT if event.before else None


@one.on("shop.orders", batch_rows=1000)  # 14
def in_batches(events: Sequence[DataEvent]) -> None:
    print(len(events), events[0].scn + 1)


@one.on("shop.orders", name="async")  # 15
async def awaited(event: DataEvent) -> None:
    print(event.timestamp_ns / 1e9)


@one.on("shop.orders", name="aside", on_failure="skip")  # 16
def skipping(event: DataEvent) -> None: ...


@one.on("shop.orders", name="letters", on_failure=DeadLetterFile("letters.jsonl"))  # 17
def keeping(event: DataEvent) -> None: ...


async def keep(event: DataEvent, error: ConsumerError) -> None:
    print(event.source, error.problem)


class Copy(Consumer):
    def on_data_event(self, event: DataEvent) -> Result | None:  # 18
        return Result.SUCCESS

    def on_ddl(self, event: DdlEvent) -> None:  # 19
        print(event.statement.upper())

    def on_rollback(self, scn: int) -> None:  # 20
        print(scn + 1)


one.register(Copy(), ["shop.orders"], name="copy", on_failure=keep)  # 21
one.register([Copy(), Copy()], ("a.b",), filters={"a.b": ModFilter(4, 0, 1)})  # 22
shared = {"a.b": PartitionFilter(32, frozenset({1, 2}), ("customer",))}
one.register(Copy(), ["a.b"], filters=shared, reader_schemas={"a.b": "{}"}, batch_rows=10)  # 23

for window in one.windows("shop.orders", auto_commit=False):  # 24
    assert_type(window, DataWindow)
    assert_type(window.events, tuple[DataEvent, ...])
    window.commit()

for batch in one.batches("shop.orders", rows=500, name="batches"):  # 25
    rows: list[dict[str, Any]] = batch.to_pylist("shop.orders")
    one.commit()


async def follow() -> None:
    async with one as client:  # 26
        async for window in client.windows_async("shop.orders"):
            print(window.scn)
        await client.run_async()


one.seek("earliest", "shop.orders")  # 27
one.seek(datetime.now(UTC), "shop.orders", name="copy")

with one as running:  # 28
    assert_type(running, DatabusClient)
    running.pause()
    running.resume()

event = make_event(change("shop.orders", {"id": 7}, "delete", key="id"), scn=4)  # 29
scns: list[int] = deliver(Copy(), make_window(change("a.b", {"id": 1}))).checkpoints

with running_relay("CREATE TABLE orders (id INTEGER PRIMARY KEY)") as relay:  # 30
    relay.execute("INSERT INTO orders VALUES (1)")
    DatabusClient(relay.url).run()
