"""A comparison finds what differs, and nothing else, while both sides go on."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from rich.console import Console

from databus.bootstrap.seeder.rate_limiter import Progress
from databus.bootstrap.store.store import Store
from databus.bootstrap.verify.comparison import Comparison, Kind
from databus.bootstrap.verify.report import json_of, shown
from databus.bootstrap.verify.scratch_table import Candidate, ScratchTable
from databus.bootstrap.verify.verify import Verifier, verify
from databus.conf.column_settings import ColumnSettings
from databus.relay.sources.column_rules import ColumnRules
from databus.relay.sources.table_scan import TableScan
from databus.schemas.errors import BootstrapError
from databus.schemas.table_schema import avro_schema
from tests.bootstrap.seeder.seeded_shop import ORDERS, Shop, shop_at
from tests.bootstrap.seeder.test_job import settings_of
from tests.bootstrap.seeder.test_seeder import Interrupted

HITS = "shop.hits"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with shop_at(tmp_path) as shop:
        shop.insert(*range(50))
        shop.run(*(f"INSERT INTO hits VALUES ('/{n}', {n})" for n in range(5)))
        shop.begin()
        shop.seed(ORDERS, HITS, "shop.codes", "shop.people")
        yield shop


class CatchingUp(Event):
    """Waiting lets the producer come on."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self._shop = shop

    def wait(self, timeout: float | None = None) -> bool:
        self._shop.catch_up()
        return self.is_set()


def compare(
    shop: Shop,
    source: str = ORDERS,
    between: Callable[[int], None] = lambda _: None,
    **options: Any,
) -> Comparison:
    """Compare with something between any two chunks."""
    options.setdefault("stop", CatchingUp(shop))
    options.setdefault("report", shop.progress.append)
    with shop.scanning() as scan:
        reading: TableScan = Interrupted(scan, between)
        return Verifier(shop.store, reading, chunk_rows=10, **options).verify(source)


def spoil(shop: Shop, *statements: str) -> None:
    """Change the store behind everybody's back; {t} is the table of the orders."""
    with closing(sqlite3.connect(shop.store.path)) as connection, connection:
        for statement in statements:
            connection.execute(statement.format(t=f"snapshot_{shop.src_ids[ORDERS]}"))


def found_kinds(found: Comparison) -> dict[Any, Kind]:
    """Return what the examples say, by key."""
    return {example.key: example.kind for example in found.examples}


@pytest.mark.parametrize("source", [ORDERS, HITS, "shop.codes"])
def test_a_seeded_table_is_the_same(shop: Shop, source: str) -> None:
    found = compare(shop, source)
    assert found.is_same
    assert found.rows == len(shop.table(source))
    assert found.has_key is (source != HITS)


def test_rows_that_a_truncate_took_meanwhile_are_no_difference(shop: Shop) -> None:
    def empty(number: int) -> None:
        if number == 2:
            shop.empty()
            shop.insert(3, 77)

    found = compare(shop, between=empty)
    assert found.is_same


def test_each_kind_of_difference_is_found_with_both_sides(shop: Shop) -> None:
    shop.run("UPDATE orders SET note = 'new' WHERE id = 7")
    shop.catch_up()
    spoil(
        shop,
        "DELETE FROM {t} WHERE key = 3",
        "UPDATE {t} SET deleted_ns = 1 WHERE key = 4",
        "UPDATE {t} SET key = 107 WHERE key = 5",
        "UPDATE {t} SET event = (SELECT event FROM {t} WHERE key = 8) WHERE key = 7",
    )
    found = compare(shop)
    assert not found.is_same
    assert found_kinds(found) == {
        3: Kind.MISSING,
        4: Kind.MISSING,
        5: Kind.MISSING,
        7: Kind.DIFFERS,
        107: Kind.SURPLUS,
    }
    assert found.counts == {Kind.MISSING: 3, Kind.DIFFERS: 1, Kind.SURPLUS: 1}
    (differing,) = (e for e in found.examples if e.kind is Kind.DIFFERS)
    assert differing.in_source == {"id": 7, "note": "new", "price": 1.5}
    assert differing.in_store == {"id": 8, "note": "x", "price": 1.5}
    assert differing.scn == shop.store.rows_by_key(ORDERS, [7])[7].scn


def test_only_the_first_differences_are_kept_and_all_are_counted(shop: Shop) -> None:
    spoil(shop, "DELETE FROM {t}")
    found = compare(shop, most_examples=3)
    assert (found.counts[Kind.MISSING], len(found.examples)) == (50, 3)


def test_what_the_producer_has_not_brought_yet_is_no_difference(shop: Shop) -> None:
    times = iter(range(12))

    def change(number: int) -> None:
        time = next(times, None)
        if time is None:
            return
        shop.run(
            f"UPDATE orders SET note = 'v{time}' WHERE id IN ({number * 10}, 45, 49)",
            f"DELETE FROM orders WHERE id = {number * 10 + 3}",
            f"DELETE FROM orders WHERE id = {number * 10 + 13}",
            f"INSERT INTO orders VALUES ({1000 + time}, 'late', 0)",
            f"INSERT INTO orders VALUES ({-1000 - time}, 'behind', 0)",
            f"UPDATE orders SET id = {2000 + time} WHERE id = {number * 10 + 5}",
        )

    found = compare(shop, between=change)
    assert found.is_same
    assert found.moving == 0
    assert compare(shop).is_same


def test_a_store_that_runs_ahead_of_the_reading_is_no_difference(shop: Shop) -> None:
    class Late(Interrupted):
        """Hands chunks over when the store has newer rows already."""

        def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Any]:
            for number, chunk in enumerate(self._scan.chunks(source, rows, resume)):
                self._between(number)
                yield chunk

    changed: set[int] = set()

    def change(number: int) -> None:
        if number not in changed:
            changed.add(number)
            shop.run(
                f"UPDATE orders SET note = 'w{number}' WHERE id = {number * 10 + 1}",
                f"DELETE FROM orders WHERE id = {number * 10 + 2}",
            )
            shop.catch_up()

    with shop.scanning() as scan:
        late: TableScan = Late(scan, change)
        verifier = Verifier(shop.store, late, 10, shop.progress.append, CatchingUp(shop))
        found = verifier.verify(ORDERS)
    assert found.is_same
    assert found.moving == 0


def test_a_row_that_changes_at_every_look_is_moving(shop: Shop) -> None:
    class Hectic(Interrupted):
        """Changes a row each time that it was read, before anybody can compare it."""

        def chunks(self, source: str, rows: int, resume: str | None = None) -> Iterator[Any]:
            for chunk in self._scan.chunks(source, rows, resume):
                shop.run("UPDATE orders SET price = price + 1 WHERE id = 7")
                shop.catch_up()
                yield chunk

    with shop.scanning() as scan:
        hectic: TableScan = Hectic(scan, lambda _: None)
        verifier = Verifier(shop.store, hectic, 10, shop.progress.append, CatchingUp(shop))
        found = verifier.verify(ORDERS)
    assert (found.moving, found.is_same) == (1, True)


def test_differences_are_found_among_rows_that_move(shop: Shop) -> None:
    spoil(
        shop,
        "DELETE FROM {t} WHERE key = 44",
        "UPDATE {t} SET key = 107 WHERE key = 46",
    )

    def change(number: int) -> None:
        shop.run(f"UPDATE orders SET note = 'v{number}' WHERE id IN (41, 42, 43)")

    found = compare(shop, between=change)
    assert found_kinds(found) == {44: Kind.MISSING, 46: Kind.MISSING, 107: Kind.SURPLUS}


def test_rows_that_were_not_written_since_a_column_came_are_the_same_by_its_default(
    shop: Shop,
) -> None:
    shop.run("ALTER TABLE orders ADD COLUMN tip REAL DEFAULT 0.5")
    shop.catch_up()
    assert compare(shop).is_same
    shop.run("UPDATE orders SET tip = 2 WHERE id = 3")
    assert compare(shop).is_same
    spoil(shop, "UPDATE {t} SET event = (SELECT event FROM {t} WHERE key = 8) WHERE key = 7")
    found = compare(shop)
    assert found_kinds(found) == {7: Kind.DIFFERS}


def test_a_row_that_is_there_twice_without_a_key_counts_once(shop: Shop) -> None:
    shop.run("INSERT INTO hits VALUES ('/1', 1)")
    assert compare(shop, HITS).is_same


def test_a_source_that_is_not_served_is_not_compared(shop: Shop) -> None:
    shop.store.reset_source(ORDERS)
    with pytest.raises(BootstrapError, match="is new and not served yet"):
        compare(shop)


def test_a_producer_that_stands_still_is_an_error(shop: Shop) -> None:
    times = iter(range(1000))
    shop.insert(100)

    class Idle(CatchingUp):
        def wait(self, timeout: float | None = None) -> bool:
            return False

    with pytest.raises(BootstrapError, match="is `databus bootstrap run` running"):
        compare(shop, stop=Idle(shop), monotonic_s=lambda: float(next(times)))


def test_a_comparison_that_was_stopped_says_so(shop: Shop) -> None:
    stop = CatchingUp(shop)

    def end(progress: Progress) -> None:
        if progress.rows == 20:
            stop.set()

    found = compare(shop, report=end, stop=stop)
    assert (found.is_same, found.is_whole, found.rows) == (False, False, 20)
    assert not any(found.counts.values())


def test_all_sources_are_compared_and_shown(shop: Shop) -> None:
    spoil(shop, "DELETE FROM {t} WHERE key = 3", "UPDATE {t} SET key = 107 WHERE key = 5")
    found = verify(settings_of(shop), shop.physical, None, shop.progress.append, shop.stop)
    assert {one.source: one.is_same for one in found} == {
        ORDERS: False,
        HITS: True,
        "shop.codes": True,
        "shop.people": True,
    }
    out = io.StringIO()
    console = Console(file=out, width=160)
    for part in shown(found):
        console.print(part)
    assert "shop.hits has no key: distinct rows were compared" in out.getvalue()
    assert 'id=3, note="x", price=1.5' in out.getvalue()
    orders = json.loads(json_of(found))[ORDERS]
    assert (orders["isSame"], orders["missing"], orders["surplus"]) == (False, 2, 1)
    assert orders["differences"][0] == {
        "key": 3,
        "kind": "missing",
        "scn": -1,
        "inSource": {"id": 3, "note": "x", "price": 1.5},
        "inStore": None,
    }


def test_the_store_is_only_read(shop: Shop) -> None:
    with closing(Store.open(shop.store.path, is_read_only=True)) as store, shop.scanning() as scan:
        verifier = Verifier(store, scan, 10, shop.progress.append, CatchingUp(shop))
        assert verifier.verify(ORDERS).is_same


def test_notes_give_back_what_was_there_when_asked() -> None:
    with closing(ScratchTable()) as notes:
        made = [Candidate(n, b"", b"", 5, str(n % 3)) for n in range(2500)]
        notes.add(made)
        pages = []
        for page in notes.take():
            pages.append(page)
            notes.add(page[:1])
        assert [c for page in pages for c in page] == made
        assert [len(page) for page in pages] == [1000, 1000, 500]
        assert notes.take_places() == [("0", {0}), ("1", {1000}), ("2", {2000})]
        assert notes.take_places() == []
        notes.see([1, 2, 3, 2])
        assert notes.unseen([2, 3, 4, 5]) == {4, 5}


def test_what_the_relay_protects_is_not_compared_with_settings_that_do_not(shop: Shop) -> None:
    entry = ColumnSettings(tables=(ORDERS,), mask={"note": "redact"})
    protected = ColumnRules("shop", [entry]).table(shop.source.tables()[0])
    known = shop.store.schemas([40])
    shop.store.add_schemas(40, [(len(known) + 1, avro_schema(protected))])
    with pytest.raises(BootstrapError, match=r"the relay protects note \(redact\)"):
        compare(shop)
