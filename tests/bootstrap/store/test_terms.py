"""A store that is written under a lease: what an owner writes whose time is over is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from databus.bootstrap.store import migrations
from databus.bootstrap.store.file import identify
from databus.bootstrap.store.migrations import MIGRATIONS
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.store import Store
from databus.leases.errors import LeaseLostError, StaleTermError
from databus.schemas.errors import BootstrapError, StoreDamagedError
from tests.bootstrap.filled import (
    ORDERS,
    PERSON,
    TEXTS,
    FilledStore,
    make_filled,
    put,
    stored,
    unpack,
)
from tests.bootstrap.serving import pair_settings

ORDER = ORDERS.source


class Lease:
    """A lease that runs out when the test says so."""

    def __init__(self, term: int) -> None:
        self._term = term
        self.looks_left = 1000

    def term(self) -> int:
        self.looks_left -= 1
        if self.looks_left < 0:
            raise LeaseLostError("bootstrap/x", self._term, "it was not renewed in time")
        return self._term

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()


class GuardedLease(Lease):
    """A lease whose guard finds the write lock free before and behind it."""

    def __init__(self, term: int, path: Path) -> None:
        super().__init__(term)
        self.path = path
        self.writes = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        self.writes += 1
        self._check_lock()
        try:
            yield
        finally:
            self._check_lock()

    def _check_lock(self) -> None:
        with closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    """A store that owner 2 has taken over while `shop.orders` was seeded."""
    made = make_filled(tmp_path / "shop.db")
    made.store.reset_source(ORDER)
    made.store.begin_seeding(ORDER, 101, 3)
    made.store.add_sources({PERSON.source: 1, ORDER: 2, "shop.new": 3})
    with closing(Store.open(made.path, lease=Lease(2))) as store:
        store.begin_term(2)
    yield made
    made.close()


def retain(store: Store) -> None:
    settings = pair_settings(store.path.parent, log_retention_s=1e-9)
    Retention(store, settings, lambda: 1 << 62).step()


WRITES: dict[str, Callable[[Store], object]] = {
    "window": lambda store: store.apply_window(200, 1, [put(1, 1, 200)]),
    "position": lambda store: store.apply_window(200, 1, []),
    "proof": lambda store: store.prove((101, 1, PERSON.source)),
    "sources": lambda store: store.add_sources({PERSON.source: 1, ORDER: 2, "shop.more": 4}),
    "schemas": lambda store: store.add_schemas(1, [(2, TEXTS[2])]),
    "log": lambda store: store.begin_log(300),
    "lag": lambda store: store.fall_off(101, 500),
    "begin": lambda store: store.begin_seeding("shop.new", 101, 3),
    "chunk": lambda store: store.merge_chunk(ORDER, [stored(2, 9, 101)], "9"),
    "end": lambda store: store.end_seeding(ORDER, 101),
    "reset": lambda store: store.reset_source(PERSON.source),
    "again": lambda store: store.read_again(PERSON.source, 200, "altered"),
    "problem": lambda store: store.set_problem(ORDER, "it does not fit"),
    "term": lambda store: store.begin_term(1),
    "retention": retain,
}


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_written_under_a_former_term(
    filled: FilledStore, write: Callable[[Store], object]
) -> None:
    before = content(filled.path)
    with closing(Store.open(filled.path, lease=Lease(1))) as former:
        with pytest.raises(StaleTermError, match="its term is 1, and term 2 has begun"):
            write(former)
        assert former.term() == 2
    assert content(filled.path) == before


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_an_owner_that_was_frozen_in_the_middle_of_a_write_rolls_it_back(
    filled: FilledStore, write: Callable[[Store], object]
) -> None:
    before, lease = content(filled.path), Lease(2)
    with closing(Store.open(filled.path, lease=lease)) as owner:
        lease.looks_left = 1  # that at the beginning
        with pytest.raises(LeaseLostError, match="not renewed in time"):
            write(owner)
    assert content(filled.path) == before


def test_the_owner_writes_all_of_it(filled: FilledStore) -> None:
    with closing(Store.open(filled.path, lease=Lease(2))) as owner:
        owner.apply_window(200, 1, [put(1, 1, 200)])
        owner.merge_chunk(ORDER, [stored(2, 9, 101)], "9")
        owner.end_seeding(ORDER, 101)
        assert owner.activate_caught_up() == [ORDER]
        retain(owner)
        assert (owner.position().scn, owner.term()) == (200, 2)


def test_a_migration_is_refused_under_a_former_term(
    filled: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, "create table later (x)"))
    with pytest.raises(StaleTermError):
        Store.open(filled.path, lease=Lease(1))
    assert identify(filled.path) == (filled.store.id, 2)
    Store.open(filled.path, lease=Lease(3)).close()
    monkeypatch.undo()
    with pytest.raises(BootstrapError, match="newer version"):
        identify(filled.path)


def test_a_store_is_identified_without_a_change_and_made_if_it_is_new(tmp_path: Path) -> None:
    path = tmp_path / "pair" / "shop.db"
    store_id, term = identify(path)
    assert (len(store_id), term) == (32, 0)
    with closing(sqlite3.connect(path)) as connection:
        # Of a version that knew no terms.
        unpack(connection)
        connection.execute("alter table store drop column term")
        connection.execute("pragma user_version = 5")
    assert identify(path) == (store_id, 0)
    with pytest.raises(BootstrapError, match="older version"):
        Store.open(path, is_read_only=True)
    with closing(Store.open(path, lease=Lease(4))) as store:
        store.begin_term(4)
    assert identify(path) == (store_id, 4)


def test_a_term_that_was_damaged_is_not_believed(filled: FilledStore) -> None:
    with closing(sqlite3.connect(filled.path)) as connection, connection:
        connection.execute("update store set term = 1")
    with pytest.raises(StoreDamagedError, match="position is not what was written"):
        filled.store.apply_window(200, 1, [])


@pytest.mark.parametrize("name", WRITES)
def test_the_write_lock_is_only_held_under_the_guard(filled: FilledStore, name: str) -> None:
    """A process that is frozen with the lock is ended by the guard, which must be on by then."""
    lease = GuardedLease(2, filled.path)
    with closing(Store.open(filled.path, lease=lease)) as store, suppress(StaleTermError):
        WRITES[name](store)
    assert lease.writes
