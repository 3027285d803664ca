"""A consumer of an older relay goes on at one that was just started, with an empty folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.mariadb_server import Database
from tests.promises.history.databases import own_database
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    running,
    sources_of,
    wait_until,
)

pytestmark = pytest.mark.mariadb


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of its own, of which nobody else writes the log."""
    with own_database(request, {"binlog-row-metadata": "FULL"}, is_mysql=False) as database:
        yield database


def insert(database: Database, *ids: int) -> None:
    """Insert rows, each in a transaction of its own."""
    for number in ids:
        database.run(f"INSERT INTO orders (id, note, price) VALUES ({number}, 'x', 1)")


@pytest.mark.parametrize("log", [{}, {"log": {"sync_ms": 5}}], ids=["ring", "relay log"])
@pytest.mark.parametrize("seen_before", [True, False], ids=["some are behind", "all are"])
def test_a_consumer_goes_on_at_a_relay_that_began_after_its_place(
    database: Database,
    tmp_path: Path,
    log: Mapping[str, Any],
    seen_before: bool,
) -> None:
    source = mysql_source(database, tmp_path, **log)
    old = RunningRelay(tmp_path, source, name="old")
    fresh = RunningRelay(tmp_path, source | {"start": "latest"}, name="fresh")
    consumer, sources = Remembering(), sources_of(database)
    options = {"checkpoint_dir": tmp_path / "checkpoints"}
    with running(old), running(fresh):
        old.start()
        insert(database, 1, 2)
        with consuming([old.url, fresh.url], sources, consumer, **options):
            wait_until(lambda: len(consumer.events) == 2, "the first rows", old.tell)
        insert(database, 3, 4, 5)
        fresh.start()
        if seen_before:
            insert(database, 6)
            wait_until(lambda: len(fresh.windows()) == 1, "its first row", fresh.tell)
        old.child.kill()
        with consuming([old.url, fresh.url], sources, consumer, **options):
            wait_until(lambda: len(consumer.events) >= 5, "what it missed", fresh.tell)
            insert(database, 7, 8)
            wait_until(lambda: len(consumer.events) >= 7 + seen_before, "the last", fresh.tell)
    expected = [1, 2, 3, 4, 5, *([6] if seen_before else []), 7, 8]
    assert [event.row["id"] for event in consumer.events] == expected
    assert consumer.errors == []


def test_rows_of_a_definition_from_before_its_first_start_are_refused_and_make_no_version(
    database: Database, tmp_path: Path
) -> None:
    source = mysql_source(database, tmp_path)
    old = RunningRelay(tmp_path, source, name="old")
    fresh = RunningRelay(tmp_path, source | {"start": "latest"}, name="fresh")
    consumer, sources = Remembering(), sources_of(database)
    options = {"checkpoint_dir": tmp_path / "checkpoints"}
    with running(old), running(fresh):
        old.start()
        insert(database, 1, 2)
        with consuming([old.url], sources, consumer, **options):
            wait_until(lambda: len(consumer.events) == 2, "the first rows", old.tell)
        insert(database, 3)
        database.run("ALTER TABLE orders ADD COLUMN place VARCHAR(20)")
        insert(database, 4)
        fresh.start()
        insert(database, 5)
        wait_until(lambda: len(fresh.windows()) == 1, "its first row", fresh.tell)
        versions = fresh.get("/api/v1/schemas").json()
        with consuming([fresh.url], sources, consumer, **options):
            wait_until(lambda: consumer.errors, "the refusal", fresh.tell)
        assert "from before this relay's first start" in str(consumer.errors[0])
        assert fresh.get("/api/v1/schemas").json() == versions
    assert [event.row["id"] for event in consumer.events] == [1, 2]
