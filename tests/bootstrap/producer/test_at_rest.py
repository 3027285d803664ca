"""What a store holds after a stream of every kind of row event, byte for byte.

`at_rest.golden` has one line per stored row. To write it anew after a change of the stored
form, run the test, look at the difference, and copy the file that the failure names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from databus.bootstrap.producer.producer import WindowWriter
from databus.bootstrap.store.store import Store
from databus.client.consumer import DataEvent
from databus.client.subscription import Subscription, bind
from databus.schemas.event import v1 as event_v1, v2 as event_v2
from databus.schemas.event.control import ddl_event, end_of_period
from databus.schemas.event.event import Event, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    Op,
    encode_metadata,
    metadata_part,
)
from databus.schemas.stream import row_reader
from databus.schemas.stream.row_event import SRC_ID
from databus.schemas.stream.row_reader import RowReader, RowWindow
from tests.client.shop import (
    CUSTOMERS,
    ORDERS,
    SRC_IDS,
    WIDER_ORDERS,
    change,
    customer,
    emptied,
    order,
    registered,
)

GOLDEN = Path(__file__).with_name("at_rest.golden")
NOW_NS = 1_700_000_000_000_000_000
SCHEMAS = registered(ORDERS, WIDER_ORDERS, CUSTOMERS)
_COLUMNS = {
    "snapshot": "id, key, number, is_hashed, scn, deleted_ns, event",
    "log": "id, scn, idx, key, number, is_hashed, at_ns, event",
}


@pytest.fixture(params=["compiled", "python"], autouse=True)
def cutter(request: pytest.FixtureRequest) -> Iterator[None]:
    ahead = row_reader.take_rows if request.param == "compiled" else None
    with patch.object(row_reader, "take_rows", ahead):
        yield


def wider(scn: int, number: int, op: Op = Op.INSERT, before: str | None = None) -> Event:
    row = {"id": number, "item": "tea", "note": f"note {scn}"}
    old = None if before is None else {**row, "note": before}
    return change(scn, row, WIDER_ORDERS, op, old)


def partial(scn: int, number: int, notes: Notes, op: Op = Op.UPDATE) -> Event:
    """Return an event whose row lacks the columns that the annotations name."""
    whole = change(scn, {"id": number, "item": "", "note": f"new {scn}"}, WIDER_ORDERS, op)
    return whole._replace(metadata=metadata_part(encode_metadata(EventMetadata(op, notes=notes))))


def of_version(event: Event, version: int) -> Event:
    """Return the event with a version in both of its parts."""
    assert event.payload is not None
    assert event.metadata is not None
    return event._replace(
        payload=event.payload._replace(schema_version=version),
        metadata=event.metadata._replace(schema_version=version),
    )


def v1(event: Event) -> bytes:
    return event_v1.encode(event._replace(metadata=None))


def windows() -> dict[int, list[Event | bytes]]:
    """Return the events of each window, by SCN; those in version 1 as bytes."""
    kept = Notes(absent=(1,))
    foreign = Part(b"of another project", b"f" * 16, 3)
    return {
        # Runs of plain rows, of two sources and two schemas.
        11: [*(order(11, n) for n in range(1, 6)), *(customer(11, n) for n in range(1, 4))],
        12: [change(12, {"id": 1, "item": "cup"}, ORDERS, Op.UPDATE, {"id": 1, "item": "tea"})],
        13: [change(13, {"id": n, "item": "tea"}, ORDERS, Op.DELETE) for n in (2, 3)],
        14: [
            wider(14, 1, Op.UPDATE, "old"),
            order(14, 6),
            wider(14, 7),
            wider(14, 8),
            ddl_event(14, 1014, 0, ["shop.orders"], "shop", "ALTER TABLE orders"),
            wider(14, 8, Op.UPDATE, "note 14"),
        ],
        # Keys of bytes, and numbers at the ends of their range.
        15: [
            order(15)._replace(key=key) for key in (b"\xff,1", b"k" * 70, 1 << 62, -(1 << 63), -1)
        ],
        16: [
            wider(16, 9)._replace(key=b"deleted"),
            wider(16, 9, Op.DELETE)._replace(key=b"deleted"),
        ],
        # Version 1, which carries no metadata.
        17: [v1(order(17, 20)), v1(order(17, 21)._replace(key=b"one")), order(17, 22)],
        18: [v1(change(18, {"id": 20, "item": "tea"}, ORDERS, Op.DELETE)), v1(customer(18, 9))],
        # What a relay of another project may send.
        19: [
            order(19, 23)._replace(metadata=None),
            order(19, 24)._replace(is_replicated=True),
            order(19, 25)._replace(is_traced=True, key=b"traced"),
            order(19, 26)._replace(metadata=foreign),
            of_version(order(19, 27), 3),
            of_version(order(19, 28), 3)._replace(key=b"version"),
            order(19, 29)._replace(payload=None),
            order(19, 30)._replace(partition_id=-7),
            v1(order(19, 31)._replace(is_replicated=True, is_traced=True)),
        ],
        # Rows without some columns: completed, and not yet known.
        20: [partial(20, 8, kept), partial(20, 70, kept), partial(20, 7, kept, Op.DELETE)],
        21: [partial(21, 8, Notes(absent=(1,), raw={"note": "0000-00-00"}))],
        22: [customer(22, 30), emptied(22, CUSTOMERS), customer(22, 31)],
        23: [emptied(23, CUSTOMERS), order(23, 40), emptied(23, CUSTOMERS)],
        24: [customer(24, 32, "Bob"), v1(emptied(24, CUSTOMERS)), customer(24, 33, "Eve")],
    }


def stream_of(windows: dict[int, list[Event | bytes]]) -> bytes:
    return b"".join(
        item if isinstance(item, bytes) else event_v2.encode(item)
        for scn, events in windows.items()
        for item in (*events, end_of_period(scn, 1000 + scn))
    )


def apply_all(store: Store, stream: bytes, chunk_bytes: int) -> None:
    """Apply a stream as the producer's client does, in chunks of this size."""
    store.add_sources(SRC_IDS)
    for schema in SCHEMAS:
        store.add_schemas(schema.src_id, [(schema.version, schema.text)])
    bindings = bind(Subscription(tuple(SRC_IDS)), SRC_IDS, SCHEMAS)
    reader, writer = RowReader(1 << 20), WindowWriter(store)
    for at in range(0, len(stream), chunk_bytes):
        for window in reader.receive(stream[at : at + chunk_bytes]):
            assert isinstance(window, RowWindow)
            for index, event in enumerate(window.events):
                writer.on_data_event(DataEvent(event, bindings[event[SRC_ID]], index))
            writer.on_end_data_event_sequence(window.scn)
    reader.close()


def at_rest(store: Store) -> Iterator[str]:
    """Yield one line for each row of the snapshot and log tables."""
    for table, columns in _COLUMNS.items():
        for src_id in SRC_IDS.values():
            sql = f"select {columns} from {table}_{src_id} order by id"
            for row in store.file.connection.execute(sql):
                cells = [cell.hex() if isinstance(cell, bytes) else repr(cell) for cell in row]
                yield f"{table}_{src_id} {' '.join(cells)}\n"


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 61])
def test_the_tables_hold_what_they_always_held(tmp_path: Path, chunk_bytes: int) -> None:
    path = tmp_path / "shop.db"
    with closing(Store.open(path, now_ns=lambda: NOW_NS)) as store:
        apply_all(store, stream_of(windows()), chunk_bytes)
        assert store.position().scn == max(windows())
        found = "".join(at_rest(store))
    written = tmp_path / GOLDEN.name
    written.write_text(found, encoding="ascii")
    assert found.splitlines() == GOLDEN.read_text("ascii").splitlines(), f"see {written}"
