"""The window of the relay's log by which a store's position is proved: the newest one is kept."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.bootstrap.store.check import check_store
from databus.bootstrap.store.retention import Retention
from databus.bootstrap.store.store import Store
from databus.schemas.errors import BootstrapError, StoreDamagedError
from tests.bootstrap.filled import PERSON, FilledStore, make_filled, put, unprove
from tests.bootstrap.serving import pair_settings

OTHER = "shop.other"  # a source of the relay that the store does not keep


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[FilledStore]:
    made = make_filled(tmp_path / "shop.db")
    made.apply(110)
    yield made
    made.close()


def test_a_store_has_none_at_first(filled: FilledStore) -> None:
    assert filled.store.log_window() is None


def test_a_window_with_rows_is_one_and_stays_when_the_rows_have_left_the_log(
    filled: FilledStore,
) -> None:
    filled.store.prove((110, 1100, OTHER))
    filled.apply(120, put(1, 1, 120))
    own = (120, filled.store.position().timestamp_ns, PERSON.source)
    assert filled.store.log_window() == own
    filled.apply(130)
    settings = pair_settings(filled.path.parent, log_retention_s=1e-9)
    while Retention(filled.store, settings).step():
        pass
    assert (filled.store.mark(), filled.store.log_window()) == (None, own)


def test_only_a_newer_one_replaces_it(filled: FilledStore) -> None:
    store = filled.store
    store.prove((105, 1050, OTHER))
    for window in ((104, 1040, "shop.older"), (105, 1051, "shop.same")):
        store.prove(window)
        assert store.log_window() == (105, 1050, OTHER)
    store.prove((106, 1060, "shop.newer"))
    assert store.log_window() == (106, 1060, "shop.newer")


def test_one_after_the_position_is_of_no_use(filled: FilledStore) -> None:
    filled.store.prove((111, 1110, OTHER))
    assert filled.store.log_window() is None


def test_it_is_kept_with_the_window_that_moves_the_position(filled: FilledStore) -> None:
    store = filled.store
    assert store.apply_window(120, 1200, [], (120, 1200, OTHER))
    assert (store.position(), store.log_window()) == ((120, 1200), (120, 1200, OTHER))
    # A window that the store has already moves nothing.
    assert not store.apply_window(120, 1200, [], (119, 1190, OTHER))
    assert store.log_window() == (120, 1200, OTHER)


def test_it_stays_when_windows_without_rows_are_applied_a_term_begins_and_the_store_is_opened_again(
    filled: FilledStore,
) -> None:
    filled.store.prove((110, 1100, OTHER))
    filled.apply(120)
    filled.store.begin_term(3)
    with closing(Store.open(filled.path)) as again:
        assert (again.log_window(), again.position().scn) == ((110, 1100, OTHER), 120)
        assert again.term() == 3
    list(check_store(filled.path))


def test_it_goes_with_the_log(filled: FilledStore) -> None:
    store = filled.store
    store.prove((110, 1100, OTHER))
    store.fall_off(110, 50)
    assert store.log_window() is None
    store.prove((110, 1100, OTHER))  # of a client that had not ended yet
    assert store.log_window() is None
    store.begin_log(49)
    store.apply_window(50, 500, [])
    assert store.log_window() is None
    store.prove((50, 500, OTHER))
    assert store.log_window() == (50, 500, OTHER)


def test_a_store_of_an_earlier_version_has_none_and_takes_one(filled: FilledStore) -> None:
    filled.store.close()
    with closing(sqlite3.connect(filled.path)) as database:
        unprove(database)
        database.execute("pragma user_version = 8")
    with pytest.raises(BootstrapError, match="the producer brings it up to date"):
        Store.open(filled.path, is_read_only=True)
    with closing(Store.open(filled.path)) as store:
        assert (store.log_window(), store.position()) == (None, (110, 1100))
        store.prove((110, 1100, OTHER))
    list(check_store(filled.path))
    with closing(Store.open(filled.path, is_read_only=True)) as store:
        assert store.log_window() == (110, 1100, OTHER)


def test_one_that_was_damaged_is_not_believed(filled: FilledStore) -> None:
    filled.store.prove((110, 1100, OTHER))
    with closing(sqlite3.connect(filled.path)) as database, database:
        database.execute("update store set log_timestamp_ns = 1101")
    with pytest.raises(StoreDamagedError, match="position is not what was written"):
        filled.store.log_window()
    with pytest.raises(StoreDamagedError, match="position is not what was written"):
        filled.store.prove((110, 1100, OTHER))
