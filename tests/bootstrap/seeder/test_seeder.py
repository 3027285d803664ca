"""A seeded table is the table at one SCN, whatever was written while it was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from databus.bootstrap.seeder.rate_limiter import Progress
from databus.bootstrap.store.store import SourceStatus
from databus.conf.column_settings import ColumnSettings
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.table_scan import Chunk, TableScan
from databus.schemas.errors import RowError, SourceStoppedError, SourceUnavailableError
from databus.schemas.event.metadata import Op, decode_metadata
from databus.schemas.event.v2 import decode
from databus.schemas.scn import BinlogPosition
from databus.schemas.table import Column, Table
from databus.schemas.table_change import shape
from databus.schemas.table_schema import avro_schema
from tests.bootstrap.seeder.seeded_shop import ORDERS, Shop, shop_at
from tests.relay.sources.sqlite.shop import drain


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with shop_at(tmp_path) as shop:
        yield shop


class Interrupted:
    """A scan that lets a test do something between two chunks."""

    def __init__(self, scan: TableScan, between: Callable[[int], None]) -> None:
        self._scan = scan
        self._between = between

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        for number, chunk in enumerate(self._scan.chunks(source, rows, resume)):
            yield chunk
            self._between(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scan, name)


def seed_between(shop: Shop, between: Callable[[int], None], source: str = ORDERS) -> None:
    """Seed with something between any two chunks."""
    with shop.scanning() as scan:
        assert shop.seeder(Interrupted(scan, between)).seed(source)


class Overtaken(Interrupted):
    """A scan that lets a test do something between a chunk's reading and its merging."""

    def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Chunk]:
        for number, chunk in enumerate(self._scan.chunks(source, rows, resume)):
            self._between(number)
            yield chunk


@pytest.mark.parametrize("interrupted", [Interrupted, Overtaken])
@pytest.mark.parametrize("chunk", [0, 2, 4])
def test_a_table_that_is_emptied_while_it_is_read_ends_with_its_rows(
    shop: Shop, chunk: int, interrupted: type[Interrupted]
) -> None:
    shop.insert(*range(50))
    shop.begin()

    def empty(number: int) -> None:
        if number == chunk:
            shop.empty()
            shop.insert(3, 77, note="after")

    with shop.scanning() as scan:
        assert shop.seeder(interrupted(scan, empty)).seed(ORDERS)
    shop.catch_up()
    assert shop.stored() == shop.table()
    assert [row["id"] for row in shop.table()] == [3, 77]


def crash_in(shop: Shop, chunk: int, source: str = ORDERS) -> None:
    """Seed until a chunk is merged, and no further."""

    def crash(number: int) -> None:
        if number == chunk:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seed_between(shop, crash, source)


@pytest.mark.parametrize("chunk_rows", [1, 7, 30, 31, 1000])
def test_a_quiet_table_is_seeded_and_served_at_once(shop: Shop, chunk_rows: int) -> None:
    shop.insert(*range(30))
    shop.begin()
    shop.seed(chunk_rows=chunk_rows)
    state = shop.store.source(ORDERS)
    assert (state.status, state.seed_rows, state.seed_estimate) == (SourceStatus.ACTIVE, 30, 30)
    assert shop.stored() == shop.table()


def test_an_empty_table_is_seeded_too(shop: Shop) -> None:
    shop.begin()
    shop.seed()
    assert shop.store.source(ORDERS).status is SourceStatus.ACTIVE
    assert shop.stored() == []


def test_rows_from_before_the_change_log_are_seeded(tmp_path: Path) -> None:
    with shop_at(tmp_path, script="INSERT INTO orders VALUES (1, 'old', 1), (2, 'old', 2)") as shop:
        shop.begin()
        shop.seed()
        assert len(shop.stored()) == 2
        assert shop.stored() == shop.table()


@pytest.mark.parametrize("source", ["shop.people", "shop.codes", "shop.hits"])
def test_tables_with_other_keys_or_none_are_seeded(shop: Shop, source: str) -> None:
    for n in range(25):
        shop.run(
            f"INSERT INTO people VALUES ('p{n}', 'NZ', {n})",
            f"INSERT INTO codes VALUES ('c{n}', {n})",
            f"INSERT INTO hits VALUES ('/{n}', {n})",
        )
    shop.begin()
    shop.seed(source)
    assert shop.stored(source) == shop.table(source)


def test_a_seeded_row_says_that_it_is_a_snapshot_as_of_the_beginning(shop: Shop) -> None:
    shop.insert(1, 2, 3)
    shop.begin()
    with shop.scanning() as scan:
        seeded = shop.seeder(scan, wall_ns=lambda: 77).seed(ORDERS)
    row = shop.store.rows_by_key(ORDERS, [2])[2]
    event, _ = decode(row.event)
    assert seeded
    assert event.metadata is not None
    assert decode_metadata(event.metadata.data).op is Op.SNAPSHOT
    assert (event.scn, event.timestamp_ns, event.src_id, event.key) == (row.scn, 77, 40, 2)
    assert row.scn == shop.store.source(ORDERS).floor_scn


def test_what_the_log_has_from_after_the_beginning_wins(shop: Shop) -> None:
    shop.insert(*range(30))
    shop.begin()

    def change(number: int) -> None:
        if number == 0:  # of rows that were read, and of rows that will be
            shop.run(
                "UPDATE orders SET note = 'new' WHERE id IN (3, 23)",
                "DELETE FROM orders WHERE id IN (4, 24)",
                "UPDATE orders SET id = 105 WHERE id = 25",
                "UPDATE orders SET id = -6 WHERE id = 6",
            )
            shop.catch_up()

    seed_between(shop, change)
    assert shop.store.source(ORDERS).status is SourceStatus.ACTIVE
    assert shop.stored() == shop.table()


def test_it_is_not_served_before_the_log_has_come_as_far_as_the_reading(shop: Shop) -> None:
    shop.insert(*range(30))
    shop.begin()
    seed_between(shop, lambda number: shop.run(f"UPDATE orders SET note = 'n{number}'"))
    state = shop.store.source(ORDERS)
    assert state.status is SourceStatus.SEEDING_CATCH_UP
    assert state.seed_until_scn > shop.store.position().scn
    shop.catch_up()
    assert shop.store.source(ORDERS).status is SourceStatus.ACTIVE
    assert shop.stored() == shop.table()


def test_rows_deleted_while_nobody_looked_do_not_survive_a_seeding(shop: Shop) -> None:
    shop.insert(*range(30))
    shop.begin()
    shop.seed()
    # As when the producer has lagged out: the deletion is in no log.
    shop.store.fall_off(1, 2)
    shop.run("DELETE FROM orders WHERE id BETWEEN 5 AND 15")
    (lost,) = drain(shop.source)
    shop.store.begin_log(lost.scn)
    shop.run("UPDATE orders SET note = 'y' WHERE id = 20")
    shop.seed()
    shop.catch_up()
    assert shop.stored() == shop.table()
    assert shop.store.rows_by_key(ORDERS, [5])[5].is_deleted


def test_after_a_crash_reading_goes_on_where_it_was(shop: Shop) -> None:
    shop.insert(*range(100))
    shop.begin()
    crash_in(shop, chunk=3)
    begun = shop.store.source(ORDERS)
    assert (begun.status, begun.seed_rows) == (SourceStatus.SEEDING, 40)
    shop.run("DELETE FROM orders WHERE id IN (5, 95)", "INSERT INTO orders VALUES (200, 'z', 0)")
    shop.catch_up()
    shop.seed()
    shop.catch_up()
    state = shop.store.source(ORDERS)
    assert (state.status, state.floor_scn) == (SourceStatus.ACTIVE, begun.seed_scn)
    assert len({p.rows for p in shop.progress}) == len(shop.progress) - 1  # none twice but the end
    assert shop.stored() == shop.table()


def test_a_table_without_a_key_begins_again_as_of_now(shop: Shop) -> None:
    shop.run(*(f"INSERT INTO hits VALUES ('/{n}', {n})" for n in range(50)))
    shop.begin()
    with shop.scanning() as scan:
        is_chunked = scan.is_chunked("shop.hits")
    crash_in(shop, 2, "shop.hits")
    before = shop.store.source("shop.hits")
    shop.run("DELETE FROM hits WHERE n < 30")
    shop.catch_up()
    shop.seed("shop.hits")
    shop.catch_up()
    assert is_chunked or shop.store.source("shop.hits").floor_scn > before.seed_scn
    assert shop.stored("shop.hits") == shop.table("shop.hits")


def test_columns_added_meanwhile_are_in_the_rows_read_after(shop: Shop) -> None:
    shop.insert(*range(30))
    shop.begin()

    begun: list[int] = []

    def alter(number: int) -> None:
        if not begun:
            begun.append(number)  # it is begun anew, for some rows were read before it
            shop.run("ALTER TABLE orders ADD COLUMN tip REAL DEFAULT 0.5")
            shop.run("UPDATE orders SET tip = 1.0 WHERE id < 20")
            shop.catch_up()

    seed_between(shop, alter)
    shop.catch_up()
    assert shop.stored() == shop.table()
    assert len({shape(text) for _, _, text in shop.store.schemas([40])}) == 2


def test_a_table_that_is_not_the_relays_is_not_read_into_the_source(shop: Shop) -> None:
    shop.insert(1)
    shop.begin()
    known = shop.store.schemas([40])
    columns = (Column("id", "integer", 0, key_position=0),)
    other = avro_schema(Table("shop.other", columns, "sqlite").named(ORDERS))
    shop.store.add_schemas(40, [(len(known) + 1, other)])
    with pytest.raises(SourceStoppedError) as caught:
        shop.seed(ORDERS)
    assert "source shop.orders is read from table shop.orders here" in str(caught.value)
    assert "the relay captures it from shop.other: write the same `table`" in str(caught.value)


def test_a_table_is_not_read_with_columns_that_the_relay_protects(shop: Shop) -> None:
    shop.insert(1, note="s3cr3t")
    shop.begin()
    entry = ColumnSettings(tables=(ORDERS,), exclude=("price",), mask={"note": "redact"})
    protected = ColumnRules("shop", [entry]).table(shop.source.tables()[0])
    known = shop.store.schemas([40])
    shop.store.add_schemas(40, [(len(known) + 1, avro_schema(protected))])
    text = r"the relay protects note \(redact\), price \(left out\), and the settings here do not"
    with pytest.raises(SourceStoppedError, match=text):
        shop.seed(ORDERS)
    shop.physical = shop.physical.model_copy(update={"columns": (entry,)})
    shop.seed(ORDERS)
    assert shop.stored() == [{"id": 1, "note": None}]


def test_one_table_is_seeded_again_alone(shop: Shop) -> None:
    shop.insert(*range(10))
    shop.run("INSERT INTO codes VALUES ('a', 1)")
    shop.begin()
    shop.seed(ORDERS, "shop.codes")
    first = shop.store.source(ORDERS)
    shop.insert(20)
    shop.catch_up()
    shop.store.reset_source(ORDERS)
    assert shop.store.source("shop.codes").status is SourceStatus.ACTIVE
    shop.seed(ORDERS)
    again = shop.store.source(ORDERS)
    assert again.status is SourceStatus.ACTIVE
    assert again.floor_scn > first.floor_scn
    assert shop.stored() == shop.table()


def test_a_seeding_that_somebody_resets_begins_again(shop: Shop) -> None:
    shop.insert(*range(50))
    shop.begin()

    def reset(number: int) -> None:
        if number == 2 and len(shop.table()) == 50:
            shop.insert(1000)
            shop.store.reset_source(ORDERS)

    seed_between(shop, reset)
    shop.catch_up()
    assert shop.stored() == shop.table()
    assert shop.store.source(ORDERS).status is SourceStatus.ACTIVE


def test_nothing_is_seeded_from_a_server_that_the_relay_has_left(shop: Shop) -> None:
    shop.insert(*range(10))
    shop.begin()
    scn = BinlogPosition(1, 1, 400).to_scn()
    shop.store.apply_window(scn, 1, [])
    with pytest.raises(SourceStoppedError, match="set `epoch = 1`"):
        shop.seed()
    assert shop.store.source(ORDERS).status is SourceStatus.NEW


def test_nothing_is_seeded_before_the_log_begins(shop: Shop) -> None:
    shop.insert(1)
    shop.store.add_sources(shop.src_ids)
    with pytest.raises(SourceUnavailableError, match="must come there first"):
        shop.seed()
    shop.store.begin_log(10)
    with pytest.raises(SourceUnavailableError, match="begins after scn 10 and the database shows"):
        shop.seed()
    assert shop.store.source(ORDERS).status is SourceStatus.NEW


def test_a_row_that_does_not_fit_is_an_error_with_its_column(tmp_path: Path) -> None:
    with shop_at(tmp_path, script="INSERT INTO codes VALUES ('a', 'many')") as shop:
        shop.insert(1, 2)
        shop.begin()
        with pytest.raises(RowError, match="column 'n'"):
            shop.seed("shop.codes")


def test_progress_is_told_after_each_chunk(shop: Shop) -> None:
    shop.insert(*range(25))
    shop.begin()
    shop.seed()
    assert [(p.rows, p.estimate, p.is_done) for p in shop.progress] == [
        (10, 25, False),
        (20, 25, False),
        (25, 25, False),
        (25, 25, True),
    ]


def test_it_ends_after_a_chunk_when_told_to(shop: Shop) -> None:
    shop.insert(*range(25))
    shop.begin()

    def stop(progress: Progress) -> None:
        shop.stop.set()

    with shop.scanning() as scan:
        assert not shop.seeder(scan, report=stop).seed(ORDERS)
    assert shop.store.source(ORDERS).seed_rows == 10
    shop.stop.clear()
    shop.seed()
    assert shop.stored() == shop.table()


STEPS = st.sampled_from(
    [
        "INSERT OR REPLACE INTO orders VALUES ({}, 'n{}', {})",
        "UPDATE orders SET note = 'u{1}' WHERE id = {0}",
        "UPDATE orders SET price = {2} WHERE id % 3 = {0} % 3",
        "UPDATE OR IGNORE orders SET id = {0} + {1} WHERE id = {0}",
        "DELETE FROM orders WHERE id = {0}",
        "DELETE FROM orders WHERE id BETWEEN {0} AND {0} + {1}",
        "catch up",
        "crash",
    ]
)
NUMBERS = st.integers(0, 40)


@settings(max_examples=60, deadline=None)
@given(
    before=st.lists(NUMBERS, max_size=30),
    script=st.lists(st.lists(st.tuples(STEPS, NUMBERS, NUMBERS), max_size=6), max_size=8),
    chunk_rows=st.integers(1, 8),
)
def test_whatever_is_written_between_chunks_the_rows_are_the_tables(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[int],
    script: list[list[tuple[str, int, int]]],
    chunk_rows: int,
) -> None:
    with shop_at(tmp_path_factory.mktemp("shop"), ("orders",)) as shop:
        shop.insert(*set(before))
        shop.begin()
        left = iter(script)

        def play(_: int) -> None:
            for text, one, two in next(left, []):
                if text == "catch up":
                    shop.catch_up()
                elif text == "crash":
                    raise KeyboardInterrupt
                else:
                    shop.run(text.format(one, two, two / 4))

        while shop.store.source(ORDERS).status in (SourceStatus.NEW, SourceStatus.SEEDING):
            try:
                with shop.scanning() as scan:
                    shop.seeder(Interrupted(scan, play), chunk_rows).seed(ORDERS)
            except KeyboardInterrupt:
                continue
        shop.catch_up()
        assert shop.store.source(ORDERS).status is SourceStatus.ACTIVE
        assert shop.stored() == shop.table()
