"""Seeding as a job: what is tried again, what stops alone, who does it and who watches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.seeder.job import SeedingThread, hold_seeding, seed, store_path
from databus.bootstrap.seeder.rate_limiter import Progress
from databus.bootstrap.store.store import SourceStatus
from databus.conf.settings import BackOffSettings, BootstrapSettings, PhysicalSourceSettings
from databus.relay.sources.kind import open_scan
from databus.relay.sources.table_scan import TableScan
from databus.schemas.errors import (
    BootstrapError,
    SourceStoppedError,
    SourceUnavailableError,
    UnknownSourceError,
)
from tests import PATIENCE_S
from tests.bootstrap.seeder.seeded_shop import ORDERS, Shop, shop_at
from tests.promises.running import wait_until

CODES = "shop.codes"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with shop_at(tmp_path, script="INSERT INTO codes VALUES ('a', 'many')") as shop:
        shop.insert(*range(50))
        yield shop


def settings_of(shop: Shop, **more: Any) -> BootstrapSettings:
    """Return a pair's settings for the shop, with small chunks."""
    return BootstrapSettings(
        data_dir=shop.store.path.parent,
        relays=("http://127.0.0.1:1",),
        physical_sources=(shop.physical,),
        chunk_rows=10,
        back_off=BackOffSettings(first_s=0.001, max_s=0.01),
        **more,
    )


def seed_now(shop: Shop, *sources: str, **options: Any) -> dict[str, Any]:
    """Seed as the command does; returns the states by name."""
    report = options.pop("report", shop.progress.append)
    states = seed(settings_of(shop), shop.physical, sources or None, report, shop.stop, **options)
    return {state.name: state for state in states}


@contextmanager
def seeding(shop: Shop, **options: Any) -> Iterator[SeedingThread]:
    """Run a thread that seeds the shop's store."""
    thread = SeedingThread(settings_of(shop), shop.physical, **options)
    thread.start()
    try:
        yield thread
    finally:
        assert thread.stop(timeout_s=PATIENCE_S)


def wait_for(shop: Shop, source: str, is_so: Callable[[Any], bool]) -> None:
    """Wait until a source's state is as wanted."""
    wait_until(lambda: is_so(shop.store.source(source)), source, lambda: shop.store.sources())


class Flaky:
    """Opens scans of which some chunks fail."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.opened = 0

    def __call__(self, settings: PhysicalSourceSettings) -> TableScan:
        self.opened += 1
        scan = open_scan(settings)
        chunks = scan.chunks

        def failing(*arguments: Any) -> Iterator[Any]:
            for chunk in chunks(*arguments):
                yield chunk
                if self.left:
                    self.left -= 1
                    raise SourceUnavailableError("it has gone away")

        scan.chunks = failing  # type: ignore[method-assign, assignment]
        return scan


def test_a_store_knows_where_its_file_is(shop: Shop) -> None:
    assert store_path(settings_of(shop), shop.physical) == shop.store.path


def test_a_database_that_goes_away_is_read_on_when_it_is_back(shop: Shop) -> None:
    shop.begin()
    flaky = Flaky(3)
    states = seed_now(shop, ORDERS, open_scan=flaky)
    assert states[ORDERS].status is SourceStatus.ACTIVE
    assert (flaky.opened, states[ORDERS].seed_rows) == (4, 50)
    assert shop.stored() == shop.table()


def test_a_table_that_cannot_be_read_stops_alone_and_says_why(shop: Shop) -> None:
    shop.begin()
    states = seed_now(shop)
    assert states[ORDERS].status is SourceStatus.ACTIVE
    assert states[CODES].status is SourceStatus.NEW  # nothing of it keeps the log from its end
    assert "column 'n': str 'many' does not fit" in states[CODES].problem


def test_a_table_that_is_not_captured_keeps_no_other_from_being_read(shop: Shop) -> None:
    shop.begin()
    shop.store.add_sources(shop.src_ids | {"shop.lost": 99})
    physical = shop.physical.model_copy(update={"sources": ("shop.lost", ORDERS)})
    with pytest.raises(SourceStoppedError):
        open_scan(physical).open()
    states = seed(settings_of(shop), physical, None, shop.progress.append, shop.stop)
    problems = {state.name: state.problem for state in states}
    assert "lost" in problems["shop.lost"]
    assert shop.store.source(ORDERS).status is SourceStatus.ACTIVE


def test_a_table_that_was_mended_is_seeded_when_asked_for(shop: Shop) -> None:
    shop.begin()
    seed_now(shop)
    shop.connection.execute("UPDATE codes SET n = 7")
    state = seed_now(shop, CODES)[CODES]
    assert (state.status, state.problem) == (SourceStatus.SEEDING_CATCH_UP, "")


def test_a_source_that_is_served_is_seeded_anew_when_it_is_named(shop: Shop) -> None:
    shop.begin()
    seed_now(shop, ORDERS)
    shop.insert(100)
    shop.catch_up()
    assert list(seed_now(shop)) == [CODES, "shop.hits", "shop.people"]
    first = shop.store.source(ORDERS).floor_scn
    assert seed_now(shop, ORDERS)[ORDERS].floor_scn > first


def test_a_store_without_a_producer_is_not_seeded(shop: Shop, tmp_path: Path) -> None:
    shop.store.add_sources(shop.src_ids)
    with pytest.raises(BootstrapError, match="start `databus bootstrap run`"):
        seed_now(shop)
    elsewhere = settings_of(shop).model_copy(update={"data_dir": tmp_path / "none"})
    with pytest.raises(BootstrapError, match="start `databus bootstrap run`"):
        seed(elsewhere, shop.physical, None, shop.progress.append, shop.stop)
    assert not (tmp_path / "none").exists()


def test_a_source_that_is_not_there_is_named(shop: Shop) -> None:
    shop.begin()
    with pytest.raises(UnknownSourceError, match="unknown source"):
        seed_now(shop, "shop.nothing")


def test_one_process_seeds_and_the_others_watch(shop: Shop) -> None:
    shop.begin()
    with hold_seeding(shop.store.path) as is_mine, hold_seeding(shop.store.path) as is_theirs:
        assert (is_mine, is_theirs) == (True, False)

        def finish(progress: Progress) -> None:
            # What the process that holds the lock does meanwhile.
            if shop.store.source(ORDERS).status is SourceStatus.NEW:
                shop.seed()
            shop.progress.append(progress)

        assert seed_now(shop, ORDERS, report=finish)[ORDERS].status is SourceStatus.ACTIVE
    assert shop.progress[-1].is_done


def test_the_thread_seeds_what_is_new_for_as_long_as_it_runs(shop: Shop) -> None:
    shop.store.add_sources(shop.src_ids)
    with seeding(shop) as thread:
        shop.begin()
        wait_for(shop, ORDERS, lambda state: state.status is SourceStatus.ACTIVE)
        wait_for(shop, CODES, lambda state: "does not fit" in state.problem)
        assert thread.problem == ""
        shop.insert(100)
        shop.catch_up()
        shop.store.reset_source(ORDERS)
        wait_for(shop, ORDERS, lambda state: state.floor_scn >= shop.store.position().scn)
        shop.connection.execute("UPDATE codes SET n = 7")
        shop.catch_up()
        shop.store.reset_source(CODES)
        wait_for(shop, CODES, lambda state: state.status is SourceStatus.ACTIVE)
    assert shop.stored() == shop.table()


def test_the_thread_says_what_it_waits_for_while_no_window_has_come(shop: Shop) -> None:
    shop.store.add_sources(shop.src_ids)
    with seeding(shop) as thread:
        wait_until(lambda: "waits for the relay's first window" in thread.problem, "the reason")
        shop.begin()
        wait_until(lambda: thread.problem == "", "no problem")


def test_the_thread_outlives_what_nobody_foresaw(shop: Shop) -> None:
    shop.begin()
    failed = threading.Event()

    def break_once(settings: PhysicalSourceSettings) -> TableScan:
        if not failed.is_set():
            failed.set()
            raise ZeroDivisionError("who would have thought")
        return open_scan(settings)

    with seeding(shop, open_scan=break_once) as thread:
        wait_until(lambda: "who would" in thread.problem, "the problem")
        wait_for(shop, ORDERS, lambda state: state.status is SourceStatus.ACTIVE)
        wait_until(lambda: thread.problem == "", "no problem")


def test_a_seeding_that_is_paused_rests_after_the_chunk_at_hand_and_goes_on_there(
    shop: Shop,
) -> None:
    progress: list[Progress] = []

    def rest_once(one: Progress) -> None:
        if one.source == ORDERS:
            progress.append(one)
            if one.rows == 20:
                thread.pause()

    shop.store.add_sources(shop.src_ids)
    with seeding(shop, report=rest_once) as thread:
        shop.begin()
        wait_until(lambda: thread.is_paused, "the pause")
        assert shop.store.source(ORDERS).seed_rows == progress[-1].rows == 20
        assert shop.store.source(ORDERS).status is SourceStatus.SEEDING
        thread.resume()
        wait_for(shop, ORDERS, lambda state: state.status is SourceStatus.ACTIVE)
        assert not thread.is_paused


def test_a_seeding_that_is_paused_ends_when_it_is_told(shop: Shop) -> None:
    with seeding(shop) as thread:
        thread.pause()
