"""Rows without the columns that were not logged: whole in the store, or a clear error."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.store.log_table import LogRange
from databus.bootstrap.store.partial_rows import notes_of
from databus.bootstrap.store.snapshot_pages import needed_rows
from databus.bootstrap.store.store import SourceStatus, Store
from databus.bootstrap.store.values import StoredEvent
from databus.schemas.avro_rows import row_codec, schema_id
from databus.schemas.errors import BootstrapError
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.metadata import (
    EventMetadata,
    Notes,
    Op,
    decode_metadata,
    encode_metadata,
    metadata_part,
)
from databus.schemas.event.v2 import decode, encode
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from tests import PATIENCE_S
from tests.bootstrap.filled import emptied
from tests.bootstrap.producer.child import settings_for
from tests.client.fake_relay import FakeRelay
from tests.client.shop import ORDERS, ORDERS_ID, order, wait_until

ITEMS = Table(
    "shop.items",
    (
        Column("id", "integer", 0, nullable=False, key_position=0),
        Column("name", "text", 1, nullable=False),
        Column("day", "text", 2),
        Column("price", "integer", 3),
    ),
    dialect="sqlite",
)
WIDER = replace(ITEMS, columns=(*ITEMS.columns, Column("note", "text", 4)))
NAMES = [column.name for column in ITEMS.columns]
FILLERS = {"id": 0, "name": "", "item": "", "day": None, "price": None, "note": None}
Row = Mapping[str, Any]


def event(
    scn: int,
    key: int,
    row: Row,
    op: Op = Op.UPDATE,
    before: Row | None = None,
    raw: Mapping[str, str] | None = None,
    table: Table = ITEMS,
    src_id: int = 1,
) -> tuple[int, StoredEvent]:
    """Return the event of a row, and of the row before, that lack columns or not."""
    text = avro_schema(table)
    codec, names = row_codec(text), [column.name for column in table.columns]

    def write(values: Row) -> bytes:
        return codec.encode({name: values.get(name, FILLERS.get(name)) for name in names})

    def absent(values: Row | None) -> tuple[int, ...]:
        return () if values is None else tuple(n for n, x in enumerate(names) if x not in values)

    notes = Notes(absent(row), absent(before), raw or {})
    metadata = EventMetadata(
        op,
        before=None if before is None else write(before),
        notes=notes if any(notes) else None,
    )
    opcode = Opcode.DELETE if op is Op.DELETE else Opcode.UPSERT
    payload = Part(write(row), schema_id(text))
    made = Event(
        scn, scn, src_id, 0, key, opcode, payload, metadata_part(encode_metadata(metadata))
    )
    is_partial = bool(notes.absent or notes.before_absent)
    return src_id, StoredEvent(scn, key, op is Op.DELETE, encode(made), is_partial=is_partial)


def item(key: int, name: str = "tea", day: str | None = "mon", price: int | None = 1) -> Row:
    return {"id": key, "name": name, "day": day, "price": price}


def opened(path: Path) -> Store:
    store = Store.open(path)
    store.add_sources({ITEMS.source: 1})
    for version, table in enumerate((ITEMS, WIDER), 1):
        store.add_schemas(1, [(version, avro_schema(table))])
    store.begin_log(100)
    return store


def seed(
    store: Store, *events: tuple[int, StoredEvent], scn: int = 100, name: str = ITEMS.source
) -> None:
    store.begin_seeding(name, scn, 1)
    store.merge_chunk(name, [stored for _, stored in events], None)
    store.end_seeding(name, scn)
    store.activate_caught_up()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(opened(tmp_path / "shop.db")) as made:
        seed(made, event(100, 1, item(1), Op.SNAPSHOT))
        apply(made, 101)
        yield made


def apply(store: Store, scn: int, *events: tuple[int, StoredEvent]) -> None:
    store.apply_window(scn, scn, events)
    store.activate_caught_up()


def row_in(data: bytes, table: Table = ITEMS) -> dict[str, Any]:
    decoded, _ = decode(data)
    text = avro_schema(WIDER if decoded.schema_id == schema_id(avro_schema(WIDER)) else table)
    return row_codec(text).decode(decoded.value)


def before_in(data: bytes) -> dict[str, Any] | None:
    metadata = decode(data)[0].metadata
    assert metadata is not None
    before = decode_metadata(metadata.data).before
    return None if before is None else row_codec(avro_schema(ITEMS)).decode(before)


def rows_of(store: Store, table: Table = ITEMS) -> dict[Any, dict[str, Any]]:
    page = store.snapshot_page(table.source, needed_rows(0, 1 << 62, 0, None), 1 << 30)
    return {row.key: row_in(row.event, table) for row in page.rows}


def log_of(store: Store, after: int = 0) -> list[bytes]:
    page = store.log_page(LogRange([1], (after, -1), 1 << 40, {}), 1 << 30)
    return [row.event for row in page.rows]


def test_what_an_update_lacks_is_taken_from_the_stored_row(store: Store) -> None:
    apply(store, 110, event(110, 1, {"id": 1, "price": 2}, before={"id": 1}))
    assert rows_of(store) == {1: item(1, price=2)}
    (logged,) = log_of(store)
    assert row_in(logged) == item(1, price=2)
    assert before_in(logged) == item(1)
    assert notes_of(logged) == Notes()


def test_each_source_of_a_store_fills_from_its_own_rows(tmp_path: Path) -> None:
    others = replace(ITEMS, source="shop.others")
    with closing(opened(tmp_path / "shop.db")) as store:
        store.add_sources({ITEMS.source: 1, others.source: 2})
        store.add_schemas(2, [(1, avro_schema(others))])
        seed(store, event(100, 1, item(1, name="tea"), Op.SNAPSHOT))
        seeded = event(100, 1, item(1, name="cup"), Op.SNAPSHOT, table=others, src_id=2)
        seed(store, seeded, name=others.source)
        change = {"id": 1, "price": 2}
        apply(store, 110, event(110, 1, change), event(110, 1, change, table=others, src_id=2))
        assert rows_of(store) == {1: item(1, name="tea", price=2)}
        assert rows_of(store, others) == {1: item(1, name="cup", price=2)}


def test_updates_of_one_window_build_on_each_other(store: Store) -> None:
    apply(
        store,
        110,
        event(110, 1, {"id": 1, "price": 2}),
        event(110, 1, {"id": 1, "name": "milk"}),
        event(110, 2, item(2), Op.INSERT),
        event(110, 2, {"id": 2, "day": None}),
    )
    assert rows_of(store) == {1: item(1, "milk", price=2), 2: item(2, day=None)}
    assert [row_in(logged)["price"] for logged in log_of(store)] == [2, 2, 1, 1]


def test_a_row_before_that_lacks_columns_is_filled_when_the_row_is_whole(store: Store) -> None:
    apply(store, 110, event(110, 1, item(1, "milk"), before={"id": 1, "day": "mon"}))
    (logged,) = log_of(store)
    assert before_in(logged) == item(1)
    assert notes_of(logged) == Notes()


def test_a_deleted_row_is_filled_and_one_that_nobody_has_stays_as_it_is(store: Store) -> None:
    apply(store, 110, event(110, 1, {"id": 1}, Op.DELETE), event(110, 9, {"id": 9}, Op.DELETE))
    first, second = log_of(store)
    assert row_in(first) == item(1)
    assert notes_of(first) == Notes()
    assert notes_of(second).absent == (1, 2, 3)
    assert rows_of(store) == {}


def test_the_raw_text_of_a_value_goes_with_it(store: Store) -> None:
    zero = {"day": "0000-00-00"}
    apply(store, 110, event(110, 1, item(1, day=None), raw=zero))
    apply(store, 120, event(120, 1, {"id": 1, "price": 5}))
    assert notes_of(log_of(store)[-1]) == Notes(raw=zero)
    apply(store, 130, event(130, 1, {"id": 1, "day": "tue"}))
    assert notes_of(log_of(store)[-1]) == Notes()
    assert rows_of(store) == {1: item(1, day="tue", price=5)}


@pytest.mark.parametrize("key", [7, 8])
def test_a_row_that_nobody_has_stops_the_producer_with_what_to_do(store: Store, key: int) -> None:
    apply(store, 105, event(105, 8, item(8), Op.INSERT))
    apply(store, 106, event(106, 8, item(8), Op.DELETE))
    words = rf"shop\.items: the row of key {key} at scn 110 lacks name, day, .*seed the table again"
    with pytest.raises(BootstrapError, match=words):
        apply(store, 110, event(110, key, {"id": key, "price": 2}))
    assert store.position().scn == 106


def test_a_column_that_the_stored_row_has_not_stops_the_producer(store: Store) -> None:
    wide = event(110, 1, {"id": 1, "price": 2}, table=WIDER)
    with pytest.raises(BootstrapError, match="scn 110 lacks note"):
        apply(store, 110, wide)
    apply(store, 110, event(110, 1, {**item(1), "note": "x"}, table=WIDER))
    apply(store, 120, event(120, 1, {"id": 1, "price": 3}, table=WIDER))
    assert rows_of(store) == {1: {**item(1, price=3), "note": "x"}}


def test_a_row_of_a_version_that_the_store_has_not_is_refused_with_its_id(store: Store) -> None:
    novel = replace(ITEMS, columns=(*ITEMS.columns, Column("size", "integer", 4)))
    digest = schema_id(avro_schema(novel)).hex()
    position = store.position()
    with pytest.raises(BootstrapError, match=f"shop.db has no schema of the id {digest}"):
        apply(store, 110, event(110, 1, {"id": 1, "price": 2}, table=novel))
    assert (store.position(), rows_of(store)) == (position, {1: item(1)})


def test_a_row_from_before_a_truncate_fills_nothing(store: Store) -> None:
    late = event(110, 1, {"id": 1, "price": 2})
    with pytest.raises(BootstrapError, match="lacks name, day"):
        apply(store, 110, emptied(1, 110), late)
    apply(store, 110, emptied(1, 110))
    with pytest.raises(BootstrapError, match="lacks name, day"):
        apply(store, 111, event(111, 1, {"id": 1, "price": 2}))


def test_seeding_again_gets_it_going(store: Store) -> None:
    late = event(110, 7, {"id": 7, "price": 2})
    with pytest.raises(BootstrapError, match="seed the table again"):
        apply(store, 110, late)
    store.reset_source(ITEMS.source)
    apply(store, 110, late)
    seed(store, event(120, 7, item(7, price=2)), scn=120)
    apply(store, 120)
    assert store.source(ITEMS.source).status is SourceStatus.ACTIVE
    assert rows_of(store) == {7: item(7, price=2)}


def test_a_row_that_is_not_seeded_yet_waits_for_the_seeder(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "shop.db")) as store:
        store.begin_seeding(ITEMS.source, 100, 2)
        apply(store, 110, event(110, 1, {"id": 1, "price": 2}))
        apply(store, 120, event(120, 1, {"id": 1, "day": "tue"}))
        store.merge_chunk(ITEMS.source, [event(100, 1, item(1, "milk"))[1]], None)
        apply(store, 130, event(130, 1, {"id": 1, "price": 3}))
        store.end_seeding(ITEMS.source, 130)
        assert store.activate_caught_up() == [ITEMS.source]
        assert rows_of(store) == {1: item(1, "milk", "tue", 3)}
        # Of what the log has before that, two rows are not whole.
        assert store.source(ITEMS.source).floor_scn == 120
        assert [notes_of(logged).absent for logged in log_of(store)] == [(1, 2), (1,), ()]


def test_a_row_that_came_behind_the_seeder_without_columns_has_it_seeded_anew(
    tmp_path: Path,
) -> None:
    with closing(opened(tmp_path / "shop.db")) as store:
        store.begin_seeding(ITEMS.source, 100, 1)
        store.merge_chunk(ITEMS.source, [event(100, 1, item(1))[1]], None)
        apply(store, 110, event(110, 7, {"id": 7, "name": "x"}, Op.INSERT))
        store.end_seeding(ITEMS.source, 110)
        assert store.activate_caught_up() == []
        state = store.source(ITEMS.source)
        assert state.status is SourceStatus.NEW
        assert "lack columns" in state.problem
        seed(store, event(120, 7, item(7, "x")), event(120, 1, item(1)), scn=120)
        apply(store, 120)
        assert rows_of(store) == {1: item(1), 7: item(7, "x")}


def test_a_row_from_before_a_hole_in_the_log_fills_nothing(store: Store) -> None:
    store.fall_off(101, 200)
    store.begin_log(199)
    apply(store, 210, event(210, 1, {"id": 1, "price": 2}))
    seed(store, event(205, 1, item(1, "changed in the hole")), scn=205)
    apply(store, 211)
    assert rows_of(store) == {1: item(1, "changed in the hole", price=2)}


def test_the_producer_says_what_to_do_until_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    _, partial = event(9, 100, {"id": 100}, table=ORDERS, src_id=ORDERS_ID)
    whole = order(8, 100, "tea")
    with FakeRelay([[whole], [decode(partial.event)[0]], [order(10, 3)]]) as relay:
        producer = Producer(*settings_for(path, relay.url, sources=("shop.orders",)), path)
        producer.start()
        try:
            wait_until(lambda: producer.status().scn == 10)
            assert producer.is_healthy
            with closing(Store.open(path)) as store:
                store.begin_seeding("shop.orders", 10, 0)
                store.end_seeding("shop.orders", 10)
                store.activate_caught_up()
                _, lost = event(11, 777, {"id": 777}, table=ORDERS, src_id=ORDERS_ID)
                relay.append([decode(lost.event)[0]])
                wait_until(lambda: "lacks item" in producer.problem)
                assert "databus bootstrap seed --source shop.orders" in producer.problem
                store.reset_source("shop.orders")
                wait_until(lambda: producer.status().scn == 11)
                wait_until(lambda: producer.is_healthy)
        finally:
            assert producer.stop(PATIENCE_S)
    with closing(Store.open(path)) as store:
        log = store.log_page(LogRange([ORDERS_ID], (0, -1), 10, {}), 1 << 30)
        assert notes_of(log.rows[1].event) == Notes()
        assert row_codec(avro_schema(ORDERS)).decode(decode(log.rows[1].event)[0].value) == {
            "id": 100,
            "item": "tea",
        }


# Whatever comes while the table is read

WRITES = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["insert", "update", "update", "update", "delete", "truncate"]),
        st.sets(st.sampled_from(NAMES[1:]), min_size=1),
    ),
    max_size=4,
)


class Shop:
    """The table, and the events that say how it came to be so."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {key: dict(item(key)) for key in range(4)}
        self.scn = 100

    def commit(self, writes: Sequence[tuple[int, str, set[str]]]) -> list[tuple[int, StoredEvent]]:
        self.scn += 1
        events = []
        for number, (key, what, columns) in enumerate(writes):
            row = self.rows.get(key)
            value = self.scn * 10 + number
            if what == "truncate":
                self.rows.clear()
                events.append(emptied(1, self.scn))
            elif what == "insert" and row is None:
                self.rows[key] = dict(item(key, f"n{value}", f"d{value}", value))
                events.append(event(self.scn, key, self.rows[key], Op.INSERT))
            elif what == "delete" and row is not None:
                events.append(event(self.scn, key, {"id": key}, Op.DELETE))
                del self.rows[key]
            elif what == "update" and row is not None:
                kinds = {"name": f"n{value}", "day": f"d{value}", "price": value}
                changed = {"id": key, **{name: kinds[name] for name in columns}}
                events.append(event(self.scn, key, changed, before={"id": key}))
                row.update(changed)
        return events


@given(
    windows=st.lists(WRITES, min_size=6, max_size=16),
    lag=st.integers(0, 4),
    begin=st.integers(0, 3),
    reads=st.lists(st.integers(0, 2), min_size=3, max_size=3),
)
@settings(deadline=None, max_examples=150)
def test_whatever_comes_while_a_table_is_seeded_its_rows_are_whole(
    windows: list[list[tuple[int, str, set[str]]]], lag: int, begin: int, reads: list[int]
) -> None:
    """`lag` is how many windows the producer is behind, `reads` how many come between chunks."""
    with tempfile.TemporaryDirectory() as folder, closing(opened(Path(folder) / "s.db")) as store:
        shop, waiting = Shop(), []
        left = list(windows)

        def go_on(count: int, behind: int) -> None:
            for _ in range(count):
                events = shop.commit(left.pop(0) if left else [])
                waiting.append((shop.scn, events))
            while len(waiting) > behind:
                scn, events = waiting.pop(0)
                apply(store, scn, *events)

        go_on(begin, lag)
        seed_scn = shop.scn
        store.begin_seeding(ITEMS.source, seed_scn, 6)
        for number, count in enumerate(reads):
            chunk = [
                event(seed_scn, key, dict(shop.rows[key]), Op.SNAPSHOT)[1]
                for key in (2 * number, 2 * number + 1)
                if key in shop.rows
            ]
            go_on(count, lag)
            store.merge_chunk(ITEMS.source, chunk, str(number))
        store.end_seeding(ITEMS.source, shop.scn)
        go_on(1, 0)
        assert store.source(ITEMS.source).status is SourceStatus.ACTIVE
        served = store.source(ITEMS.source).floor_scn
        go_on(len(left) + 1, 0)
        assert rows_of(store) == shop.rows
        assert all(
            not notes_of(logged).absent or decode(logged)[0].opcode is Opcode.DELETE
            for logged in log_of(store, served)
        )
