"""A callback per event against fastavro alone: `python -m benchmarks.callback [--json FILE]`.

The client's own path, in one process and without the network: encoded version 2
bytes in chunks as the socket gives them → `WindowDecoder` (CRCs, windows, SCN order,
schemas known) → buffer → dispatcher thread → a consumer that reads `event.row`
of every event. Against it: a loop that decodes the same rows with
`fastavro.schemaless_reader`, and does nothing else. The two take turns; a
figure is the median of the repeats, the ratio that of their ratios.

Three tables: the demo's orders as MySQL has them (decimal, datetime) and as
SQLite has them (numbers and texts), and the narrowest row that is any use.
Windows have 10 events, each with the metadata that a relay sends.

Then the shapes in which an application can take MySQL's orders: each row as a dict, per event, per
run of a transaction, per batch, in loops over windows and batches; and batches as Arrow tables;
with transactions of 1,000 rows and of one. CPU seconds are those of all threads, decoding
included.
"""

from __future__ import annotations

import json
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from io import BytesIO
from random import Random
from time import monotonic, process_time
from typing import Any

import fastavro

from benchmarks.shared.report import Figure, Target, at_least, command, seconds
from databus.client.checkpoints.store import MemoryCheckpoints
from databus.client.consumer import Consumer, DataEvent
from databus.client.dispatcher.callbacks import CheckpointRule, Dispatch
from databus.client.dispatcher.data_window import DataWindow
from databus.client.dispatcher.dispatcher import Dispatcher
from databus.client.dispatcher.window_iterator import WindowIterator
from databus.client.machines.position import Position
from databus.client.puller.buffer import Buffer
from databus.client.puller.buffer_items import BufferItem
from databus.client.puller.window_decoder import WindowDecoder
from databus.client.subscription import RegisteredSchema, Subscription, bind
from databus.conf.settings import ClientSettings
from databus.schemas.avro_rows import RowCodec, schema_id
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

SRC_ID = 40
EVENTS_PER_WINDOW = 10
CHUNK_BYTES = 64 << 10
TARGET = at_least(0.60)
BATCH_ROWS = 10_000
KINDS = {
    "mysql": "bigint bigint bigint bigint decimal(10,2) varchar(100) datetime(3) bigint bigint",
    "sqlite": "integer integer integer integer text text text integer integer",
}
NAMES = "id customer_id product_id quantity total status ordered_at change_no changed_ns"


@dataclass(frozen=True, slots=True)
class Load:
    """The same rows twice: as a stream's bytes and as bare Avro."""

    schema: str
    stream: bytes
    rows: list[bytes]
    last_scn: int


def orders_table(dialect: str) -> Table:
    """Return the demo's table of orders."""
    columns = zip(NAMES.split(), KINDS[dialect].split(), strict=True)
    return Table(
        "shop.orders",
        tuple(
            Column(name, kind, position, False, 0 if position == 0 else None)
            for position, (name, kind) in enumerate(columns)
        ),
        dialect,
    )


def orders(dialect: str, count: int) -> Iterator[dict[str, Any]]:
    """Make up rows of orders."""
    chosen, moment = Random(1), datetime(2026, 1, 1)
    for number in range(count):
        total, at = Decimal(chosen.randrange(1, 10**6)).scaleb(-2), moment + timedelta(0, number)
        is_text = dialect == "sqlite"
        yield {
            "id": number,
            "customer_id": chosen.randrange(10_000),
            "product_id": chosen.randrange(1_000),
            "quantity": chosen.randrange(1, 9),
            "total": str(total) if is_text else total,
            "status": chosen.choice(("new", "paid", "shipped", "returned")),
            "ordered_at": at.isoformat(sep=" ", timespec="milliseconds") if is_text else at,
            "change_no": number,
            "changed_ns": 1_790_000_000_000_000_000 + number,
        }


NARROW = Table(
    "shop.stock",
    (Column("id", "integer", 0, False, 0), Column("quantity", "integer", 1, False)),
    "sqlite",
)


def make_load(
    table: Table, rows: Iterator[dict[str, Any]], per_window: int = EVENTS_PER_WINDOW
) -> Load:
    """Encode rows as a relay sends them, so many to a window."""
    text = avro_schema(table)
    codec, digest = RowCodec(text), schema_id(text)
    encoded = [codec.encode(row) for row in rows]
    pieces, scn = [], 0
    for begin in range(0, len(encoded), per_window):
        scn = begin + 1
        for index, data in enumerate(encoded[begin : begin + per_window]):
            metadata = EventMetadata(
                Op.INSERT, f"0-1-{scn}", 1, "mariadb-bin.000001", scn, 0, index
            )
            payload, told = Part(data, digest, 1), metadata_part(encode_metadata(metadata))
            pieces.append(
                encode(Event(scn, scn, SRC_ID, 0, begin + index, Opcode.UPSERT, payload, told))
            )
        pieces.append(encode(end_of_period(scn, scn)))
    return Load(text, b"".join(pieces), encoded, scn)


class Reader(Consumer):
    """Reads the row of every event, and signals the last one."""

    def __init__(self, last: int) -> None:
        self.is_done = threading.Event()
        self.row: dict[str, Any] = {}
        self._last = last

    def on_data_event(self, event: DataEvent) -> None:
        """Read the row."""
        self.row = event.row

    def on_end_data_event_sequence(self, scn: int) -> None:
        """Check whether that was the last window."""
        if scn == self._last:
            self.is_done.set()


class RunReader(Reader):
    """Reads the rows of a run together."""

    def on_data_events(self, events: Sequence[DataEvent]) -> None:
        """Read the rows."""
        rows = [event.row for event in events]
        self.row = rows[-1]


class ClientPath:
    """The client from the bytes of an answer to the callback."""

    def __init__(self, load: Load, kind: type[Reader] = Reader, batch_rows: int = 0) -> None:
        self._load = load
        self.reader = kind(load.last_scn)
        subscription = Subscription(("shop.orders",), batch_rows=batch_rows)
        self._settings = ClientSettings(relays=("http://nowhere",))
        self._room = threading.Event()
        self._buffer: Buffer[BufferItem] = Buffer(self._settings.buffer_bytes)
        self._buffer.on_room = self._room.set
        self._decoder = WindowDecoder(self._settings.max_window_bytes)
        schema = RegisteredSchema(SRC_ID, 1, load.schema)
        self._decoder.use(bind(subscription, {"shop.orders": SRC_ID}, [schema]))
        position = Position(Checkpoint.flexible())
        self._decoder.begin(position)
        self._dispatcher = Dispatcher(
            subscription,
            Dispatch([self.reader], self._settings.callback_budget_s, 0, monotonic),
            CheckpointRule(self._settings.checkpoint_every_s, monotonic),
            MemoryCheckpoints(),
            self._buffer,
            self._settings,
            position,
            Random(1),
            _raise,
        )

    def run(self) -> None:
        """Take the whole stream."""
        stream, receive, put = self._load.stream, self._decoder.receive, self._buffer.put
        for begin in range(0, len(stream), CHUNK_BYTES):
            while not self._buffer.ask_room(CHUNK_BYTES):
                self._room.wait()
                self._room.clear()
            put(receive(stream[begin : begin + CHUNK_BYTES]))
        self.reader.is_done.wait()

    def __enter__(self) -> ClientPath:
        self._dispatcher.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._dispatcher.stop()
        self._dispatcher.join(10)


class LoopPath:
    """The client from the bytes of an answer to a loop over windows or batches."""

    def __init__(self, load: Load, take: Callable[[DataWindow], object], batch_rows: int) -> None:
        self._load = load
        self._take = take
        settings = ClientSettings(relays=("http://nowhere",))
        self._buffer: Buffer[BufferItem] = Buffer(settings.buffer_bytes)
        subscription = Subscription(("shop.orders",), batch_rows=batch_rows)
        position = Position(Checkpoint.flexible())
        self._decoder = WindowDecoder(settings.max_window_bytes)
        schema = RegisteredSchema(SRC_ID, 1, load.schema)
        self._decoder.use(bind(subscription, {"shop.orders": SRC_ID}, [schema]))
        self._decoder.begin(position)
        rule = CheckpointRule(settings.checkpoint_every_s, monotonic)
        store, buffer = MemoryCheckpoints(), self._buffer
        self._windows = WindowIterator(subscription, rule, store, buffer, position, _nothing)

    def run(self) -> None:
        """Take the whole stream."""
        stream = self._load.stream
        # All of it waits then, so that the size of the batches is not left to chance.
        for begin in range(0, len(stream), CHUNK_BYTES):
            self._buffer.put(self._decoder.receive(stream[begin : begin + CHUNK_BYTES]))
        for window in self._windows.windows():
            self._take(window)
            if window.scn == self._load.last_scn:
                break


def decode_alone(load: Load) -> None:
    """Decode every row with fastavro, nothing else."""
    schema = fastavro.parse_schema(json.loads(load.schema))
    read = fastavro.schemaless_reader
    for row in load.rows:
        read(BytesIO(row), schema, None)


def measure(load: Load, repeats: int) -> tuple[float, float]:
    """Return the client's events/s and its ratio to fastavro; both take turns."""
    speeds, ratios = [], []
    for _ in range(repeats):
        alone_s = seconds(lambda: decode_alone(load))
        with ClientPath(load) as path:
            client_s = seconds(path.run)
        if path.reader.row != RowCodec(load.schema).decode(load.rows[-1]):
            raise RuntimeError(f"the last row that reached the callback is {path.reader.row}")
        speeds.append(len(load.rows) / client_s)
        ratios.append(alone_s / client_s)
    return statistics.median(speeds), statistics.median(ratios)


CALLBACKS: dict[str, tuple[type[Reader], int]] = {
    "callback per event": (Reader, 0),
    "callback per run": (RunReader, 0),
    "callback per batch": (RunReader, BATCH_ROWS),
}
LOOPS: dict[str, tuple[Callable[[DataWindow], object], int]] = {
    "loop over windows": (DataWindow.to_pylist, 0),
    "loop over batches": (DataWindow.to_pylist, BATCH_ROWS),
    "loop over batches as Arrow tables": (DataWindow.to_arrow, BATCH_ROWS),
}


def _spent(path: ClientPath | LoopPath) -> tuple[float, float]:
    """Return the seconds and the CPU seconds of one run."""
    began_cpu_s = process_time()
    took_s = seconds(path.run)
    return took_s, process_time() - began_cpu_s


def measure_shapes(load: Load, repeats: int) -> dict[str, tuple[float, float]]:
    """Return rows/s and the least CPU seconds per million rows of each shape; they take turns."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in (*CALLBACKS, *LOOPS)}
    for _ in range(repeats):
        for name, (kind, batch_rows) in CALLBACKS.items():
            with ClientPath(load, kind, batch_rows) as path:
                found[name].append(_spent(path))
        for name, (take, batch_rows) in LOOPS.items():
            found[name].append(_spent(LoopPath(load, take, batch_rows)))
    rows = len(load.rows)
    return {
        name: (
            statistics.median(rows / took_s for took_s, _ in spent),
            # What else the machine does only adds to it.
            min(cpu_s / rows * 1e6 for _, cpu_s in spent),
        )
        for name, spent in found.items()
    }


def shape_figures(count: int, repeats: int) -> list[Figure]:
    """Measure the shapes with transactions of many rows, and of one."""
    found = []
    for of, per_window in (("1,000 rows", 1000), ("one row", 1)):
        load = make_load(orders_table("mysql"), orders("mysql", count), per_window)
        for name, (speed, cpu_s) in measure_shapes(load, repeats).items():
            title = f"{name}, transactions of {of}"
            found.append(Figure(title, speed, "rows/s"))
            found.append(Figure(f"{title}: CPU", cpu_s, "s per million rows"))
    return found


def figures(short: bool = False) -> list[Figure]:
    """Measure the three tables."""
    count, repeats = (5_000, 21) if short else (20_000, 41)
    narrow = ({"id": n, "quantity": n % 90} for n in range(count))
    loads: list[tuple[str, Load, Target | None]] = [
        ("MySQL order", make_load(orders_table("mysql"), orders("mysql", count)), TARGET),
        ("SQLite order", make_load(orders_table("sqlite"), orders("sqlite", count)), None),
        ("two numbers", make_load(NARROW, narrow), None),
    ]
    found = []
    for name, load, target in loads:
        speed, ratio = measure(load, repeats)
        found.append(Figure(f"callback, {name} of {len(load.rows[0])} bytes", speed, "events/s"))
        found.append(Figure(f"callback, {name} / fastavro alone", ratio, "x", target))
    return found + shape_figures(4 * count, repeats // 3)


def _nothing() -> None:
    pass


def _raise(error: BaseException) -> None:
    raise error


main = command("callback", figures)
if __name__ == "__main__":
    main()
