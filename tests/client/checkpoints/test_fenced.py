"""Checkpoints under leases: a smaller term than the greatest that was seen writes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.client.checkpoints.fenced import RecordCheckpoints, open_checkpoints
from databus.client.checkpoints.store import FileCheckpoints, MemoryCheckpoints, save_in
from databus.daemon.faults import is_transient
from databus.leases.errors import StaleTermError
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

pytest_plugins = ["tests.record_stores"]

SOURCES = ("shop.orders", "shop.customers")


Open = Callable[[], RecordCheckpoints | FileCheckpoints]


@pytest.fixture
def open_one(store_url: str, tmp_path: Path) -> Iterator[Open]:
    """Open the checkpoints as another process would."""
    opened: list[RecordCheckpoints] = []

    def open_store() -> RecordCheckpoints | FileCheckpoints:
        if store_url.startswith("file:"):
            return FileCheckpoints(tmp_path / "checkpoints")
        opened.append(open_checkpoints(store_url))
        return opened[-1]

    yield open_store
    for one in opened:
        one.close()


def test_what_was_saved_without_a_term_is_loaded_again(open_one: Open) -> None:
    store = open_one()
    assert store.load("default", SOURCES) is None
    assert store.term("default", SOURCES) == 0
    for scn in (5, 6):
        store.save("default", SOURCES, Checkpoint.at(scn))
    assert open_one().load("default", SOURCES) == Checkpoint.at(6)
    assert store.load("default", SOURCES[::-1]) is None
    assert store.load("other", SOURCES) is None


def test_a_smaller_term_than_the_greatest_is_refused_and_an_equal_one_is_not(
    open_one: Open,
) -> None:
    old, new = open_one(), open_one()
    for term in (7, 7, 9):
        old.save_under("default", SOURCES, Checkpoint.at(term), term)
    with pytest.raises(StaleTermError, match="term is 8, and term 9 has begun") as caught:
        new.save_under("default", SOURCES, Checkpoint.at(100), 8)
    assert (caught.value.term, caught.value.newest) == (8, 9)
    assert not is_transient(caught.value)
    assert old.load("default", SOURCES) == Checkpoint.at(9)
    # Each checkpoint has terms of its own.
    new.save_under("other", SOURCES, Checkpoint.at(1), 1)


def test_a_term_that_begins_gets_what_is_saved_and_shuts_out_the_one_before(
    open_one: Open,
) -> None:
    old, new = open_one(), open_one()
    assert old.begin_term("default", SOURCES, 1) is None
    old.save_under("default", SOURCES, Checkpoint.at(5, 1005), 1)
    assert new.begin_term("default", SOURCES, 2) == Checkpoint.at(5, 1005)
    with pytest.raises(StaleTermError):
        old.save_under("default", SOURCES, Checkpoint.at(6), 1)
    with pytest.raises(StaleTermError):
        old.begin_term("default", SOURCES, 1)
    assert new.load("default", SOURCES) == Checkpoint.at(5, 1005)
    assert old.term("default", SOURCES) == 2


def test_a_term_may_begin_before_anything_is_saved(open_one: Open) -> None:
    store = open_one()
    assert store.begin_term("default", SOURCES, 3) is None
    assert store.load("default", SOURCES) is None
    with pytest.raises(StaleTermError):
        store.save_under("default", SOURCES, Checkpoint.at(1), 2)
    store.save_under("default", SOURCES, Checkpoint.at(1), 3)
    assert store.load("default", SOURCES) == Checkpoint.at(1)


def test_who_has_no_lease_may_not_write_what_owners_write(open_one: Open) -> None:
    store = open_one()
    store.save("default", SOURCES, Checkpoint.at(4))
    assert store.begin_term("default", SOURCES, 1) == Checkpoint.at(4)
    with pytest.raises(CheckpointError, match=r"under a lease, term 1.*databus checkpoint set"):
        store.save("default", SOURCES, Checkpoint.at(9))
    assert store.load("default", SOURCES) == Checkpoint.at(4)


def test_of_owners_that_write_at_once_the_greatest_term_stays(open_one: Open) -> None:
    barrier = threading.Barrier(4)
    refused: list[int] = []

    def write(store: RecordCheckpoints | FileCheckpoints, term: int) -> None:
        barrier.wait()
        for scn in range(5):
            try:
                store.save_under("default", SOURCES, Checkpoint.at(10 * term + scn), term)
            except StaleTermError:
                refused.append(term)

    threads = [threading.Thread(target=write, args=(open_one(), term)) for term in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_one().load("default", SOURCES) == Checkpoint.at(44)
    assert 4 not in refused


def test_save_in_names_the_term_and_refuses_a_store_that_knows_none(open_one: Open) -> None:
    store = open_one()
    save_in(store, "default", SOURCES, Checkpoint.at(5), term=2)
    with pytest.raises(StaleTermError):
        save_in(store, "default", SOURCES, Checkpoint.at(6), term=1)
    with pytest.raises(CheckpointError, match="MemoryCheckpoints has no `save_under`"):
        save_in(MemoryCheckpoints(), "default", SOURCES, Checkpoint.at(5), term=1)


def test_a_store_that_cannot_be_reached_is_a_transient_error_of_the_checkpoint() -> None:
    store = open_checkpoints("mysql://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(CheckpointError, match="cannot be written") as caught:
        store.save("default", SOURCES, Checkpoint.at(5))
    assert is_transient(caught.value)
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        store.load("default", SOURCES)
    assert is_transient(caught.value)
    store.close()


def test_a_file_has_the_term_and_its_checksum_covers_it(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path)
    store.save("default", SOURCES, Checkpoint.at(5))
    path = store.path("default", SOURCES)
    assert "term" not in json.loads(path.read_text())
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    store.save_under("default", SOURCES, Checkpoint.at(6), 12)
    text = path.read_text()
    assert json.loads(text)["term"] == 12
    for damage in (text.replace("12", "13"), text.replace('"term": 12,', "")):
        path.write_text(damage)
        with pytest.raises(CheckpointError, match="checksum is wrong"):
            store.save_under("default", SOURCES, Checkpoint.at(7), 14)
    values = json.loads(text)
    del values["crc"]
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="a term, but no checksum"):
        store.load("default", SOURCES)


def test_files_that_a_killed_process_left_half_written_are_removed(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path)
    left = [tmp_path / "x.json.new.4194305.7", tmp_path / "x.json.new.1.7"]
    for path in left:
        path.write_text("{")
    store.begin_term("default", SOURCES, 1)
    # No process has the first number, and process 1 runs.
    assert [path.exists() for path in left] == [False, True]
