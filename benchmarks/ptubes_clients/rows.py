"""CPU time of the relay for the rows of Ptubes' clients: windows in, answers out, in this process.

python -m benchmarks.ptubes_clients.rows --rows 100000
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import click

from benchmarks.shared.report import Figure, publish
from databus.relay.serving.ptubes.places import Mode, PlaceTimes, PtubesCheckpoint
from databus.relay.serving.ptubes.reader_tasks import ReaderTask
from databus.relay.serving.ptubes.requests import Fetch, Subscription
from databus.relay.serving.ptubes.rows.row_events import RowEvents
from databus.relay.serving.ptubes.session import Batch
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import EventMetadata, Op, encode_metadata, metadata_part
from databus.schemas.event.v2 import encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema

ROWS, SHORT_ROWS = 100_000, 5_000
LARGE = 1000  # rows of a large transaction
_TABLE = "shop.sbtest"
_SRC_ID, _PARTITIONS = 40, 11
_WINDOW_BYTES = 1 << 20
_COLUMNS = (
    Column("id", "int", 0, nullable=False, key_position=0),
    Column("k", "int", 1),
    Column("c", "char(120)", 2),
    Column("pad", "char(60)", 3),
)
_TEXT = avro_schema(Table(_TABLE, _COLUMNS))


def bodies(count: int, each: int) -> Iterator[bytes]:
    """Yield events of `count` inserted rows, `each` in a transaction, about 1 MiB at a time."""
    codec, known = row_codec(_TEXT), schema_id(_TEXT)
    body = bytearray()
    for number in range(count):
        scn = 3 << 32 | 1000 * (number // each + 1)
        row: dict[str, Any] = {"id": number, "k": number * 7, "c": "c" * 119, "pad": "p" * 59}
        index = number % each
        metadata = EventMetadata(Op.INSERT, "0-1-7", 9, "bin.000003", 100, 0, index)
        part = metadata_part(encode_metadata(metadata))
        payload = Part(codec.encode(row), known)
        body += encode(Event(scn, 10**18, _SRC_ID, 0, number, Opcode.UPSERT, payload, part))
        if index == each - 1 or number == count - 1:
            body += encode(end_of_period(scn, 10**18))
            if len(body) > _WINDOW_BYTES:
                yield bytes(body)
                body.clear()
    if body:
        yield bytes(body)


def events_of(owned: int = _PARTITIONS) -> RowEvents:
    """Return what makes events of all rows, or of those of some partitions."""
    own = frozenset(range(owned))
    checkpoint = PtubesCheckpoint(Mode.EARLIEST)
    wanted = Subscription(
        "reader", "task", frozenset((_TABLE,)), _PARTITIONS, own, checkpoint, False, False
    )
    task = ReaderTask("reader", "shop", {_TABLE: _SRC_ID}, {}, {_TABLE: _TABLE})
    times = PlaceTimes(checkpoint, None)
    return RowEvents(wanted, task, lambda _id: _TEXT, lambda _epoch: 1, UTC, times)


def cpu_s(windows: list[bytes], owned: int = _PARTITIONS) -> float:
    """Return the CPU seconds of making all answers, of 1000 events or 1 MB each."""
    events, most, own = events_of(owned), Fetch(), frozenset(range(owned))
    began_s = time.process_time()
    batch = Batch(most, own)
    for body in windows:
        for event in events.read(body):
            batch.add(event)
            if batch.is_full:
                batch.to_bytes()
                batch = Batch(most, own)
    batch.to_bytes()
    return time.process_time() - began_s


def figures(short: bool = False, count: int = ROWS) -> list[Figure]:
    """Measure; return CPU seconds for a million rows."""
    count = SHORT_ROWS if short else count
    found = []
    for each in (LARGE, 1):
        windows = list(bodies(count, each))
        for owned in (_PARTITIONS, 5):
            seconds = min(cpu_s(windows, owned) for _ in range(3)) * 1_000_000 / count
            name = f"Ptubes' rows, {each} in a transaction, {owned} of {_PARTITIONS} partitions"
            found.append(Figure(name, seconds, "CPU s per million rows"))
    return found


@click.command()
@click.option("--rows", "count", default=ROWS, show_default=True)
def main(count: int) -> None:
    """Measure the CPU time of rows for Ptubes' clients."""
    publish("ptubes_rows", figures(count=count))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ptubes_clients.rows")
