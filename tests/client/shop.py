"""Windows to read in tests: orders and customers, encoded as a relay sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from databus.client.machines.position import Position
from databus.client.puller.buffer_items import ReadWindow
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import Bindings, RegisteredSchema, Subscription, bind
from databus.demo import processes
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S

ORDERS_ID, CUSTOMERS_ID = 40, 41
ORDERS = Table(
    "shop.orders",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("item", "text", 1, nullable=False),
    ),
    "sqlite",
)
WIDER_ORDERS = Table("shop.orders", (*ORDERS.columns, Column("note", "text", 2)), "sqlite")
CUSTOMERS = Table(
    "shop.customers",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("name", "text", 1, nullable=False),
    ),
    "sqlite",
)
SCHEMAS = {table: avro_schema(table) for table in (ORDERS, WIDER_ORDERS, CUSTOMERS)}
SRC_IDS = {"shop.orders": ORDERS_ID, "shop.customers": CUSTOMERS_ID}


def change(
    scn: int,
    row: Mapping[str, Any],
    table: Table = ORDERS,
    op: Op = Op.INSERT,
    before: Mapping[str, Any] | None = None,
) -> Event:
    """Return the event of one row change."""
    text = SCHEMAS.get(table) or avro_schema(table)
    codec = RowCodec(text)
    metadata = EventMetadata(
        op, gtid=f"0-1-{scn}", before=None if before is None else codec.encode(before)
    )
    return Event(
        scn,
        1000 + scn,
        SRC_IDS[table.source],
        0,
        row["id"],
        Opcode.DELETE if op is Op.DELETE else Opcode.UPSERT,
        Part(codec.encode(row), schema_id(text)),
        metadata_part(encode_metadata(metadata)),
    )


def emptied(scn: int, table: Table = ORDERS) -> Event:
    """Return the event that says that all rows of a table are gone."""
    metadata = metadata_part(encode_metadata(EventMetadata(Op.TRUNCATE)))
    src_id = SRC_IDS[table.source]
    return Event(scn, 1000 + scn, src_id, 0, b"", Opcode.DELETE, None, metadata)


def order(scn: int, number: int = 1, item: str = "tea") -> Event:
    """Return the event of a new order."""
    return change(scn, {"id": number, "item": item})


def customer(scn: int, number: int = 1, name: str = "Ann") -> Event:
    """Return the event of a new customer."""
    return change(scn, {"id": number, "name": name}, CUSTOMERS)


def window(scn: int, *events: Event) -> bytes:
    """Return a window's bytes, its end included."""
    return b"".join(encode(e) for e in (*events, end_of_period(scn, 1000 + scn)))


def orders(scns: Iterable[int], per_window: int = 1, item: str = "tea") -> list[list[Event]]:
    """Return windows of orders; the n-th order of window s is number s·100 + n."""
    return [[order(s, s * 100 + n, item) for n in range(per_window)] for s in scns]


def registered(*tables: Table) -> tuple[RegisteredSchema, ...]:
    """Return what a relay that has these tables answers to /register."""
    return tuple(
        RegisteredSchema(SRC_IDS[table.source], version, SCHEMAS[table])
        for version, table in enumerate(tables, 1)
    )


def shop_bindings() -> Bindings:
    """Return what decodes orders and customers."""
    subscription = Subscription(("shop.orders", "shop.customers"))
    return bind(subscription, SRC_IDS, registered(ORDERS, CUSTOMERS))


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition that other threads bring about; fails when it does not come."""
    try:
        processes.wait_until(condition, patience_s, "it", 0.002)
    except TimeoutError as error:
        raise AssertionError(str(error)) from None


class FakeClock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def read(scn: int, *events: Event) -> ReadWindow:
    """Return a window as the decoder hands it on."""
    decoder = WindowDecoder(1 << 20)
    decoder.use(shop_bindings())
    decoder.begin(Position(Checkpoint.flexible()))
    (item,) = decoder.receive(window(scn, *events))
    assert isinstance(item, ReadWindow)
    return item
