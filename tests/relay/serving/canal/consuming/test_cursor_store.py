"""Cursors are kept durably, the newest of each client, however often the disk refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.relay.serving.canal.consuming import cursor_store as module
from databus.relay.serving.canal.consuming.batches import Place
from databus.relay.serving.canal.consuming.cursor_store import (
    CursorKeeper,
    CursorTakenError,
    FileCursors,
    Key,
)
from databus.relay.serving.canal.consuming.cursors import Cursor, checkpoint_of, place_of
from databus.relay.serving.canal.protocol.errors import CanalError
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError
from tests import PATIENCE_S

KEY = ("example", 1001)


def cursor(scn: int, client_id: int = 1001) -> Cursor:
    return Cursor("example", client_id, r".*\..*", {"shop": Checkpoint.at(scn).with_mark((scn, 5))})


class Store(FileCursors):
    """Files that fail as they are told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.errors: list[Exception] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.written: list[Cursor] = []

    def write(self, cursor: Cursor) -> None:
        assert self.may_write.wait(PATIENCE_S)
        if self.errors:
            raise self.errors.pop(0)
        super().write(cursor)
        self.written.append(cursor)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def refused() -> list[tuple[Key, DatabusError]]:
    return []


@pytest.fixture
def keeper(
    store: Store, refused: list[tuple[Key, DatabusError]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[CursorKeeper]:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    found = CursorKeeper(store, lambda key, error: refused.append((key, error)))
    yield found
    assert found.close(10)


def test_a_cursor_is_read_as_it_was_written(store: Store, keeper: CursorKeeper) -> None:
    assert store.read(KEY) is None
    keeper.keep(KEY, cursor(5)).result(PATIENCE_S)
    assert store.read(KEY) == cursor(5)
    assert store.read(("example", 7)) is None
    keeper.keep(KEY, None).result(PATIENCE_S)
    assert store.read(KEY) is None
    keeper.keep(KEY, None).result(PATIENCE_S)


def test_only_the_newest_of_a_client_is_written(store: Store, keeper: CursorKeeper) -> None:
    store.may_write.clear()
    done = [keeper.keep(KEY, cursor(scn)) for scn in range(1, 50)]
    store.may_write.set()
    for one in done:
        one.result(PATIENCE_S)
    assert store.written[-1] == cursor(49)
    assert len(store.written) <= 2


def test_what_could_not_be_written_is_written_later(store: Store, keeper: CursorKeeper) -> None:
    store.errors = [OSError(28, "No space left on device"), RuntimeError("a mistake")]
    keeper.keep(KEY, cursor(5)).result(PATIENCE_S)
    assert store.read(KEY) == cursor(5)
    assert keeper.problem == ""


def test_a_problem_is_shown_while_it_lasts(store: Store, keeper: CursorKeeper) -> None:
    store.errors = [OSError(28, "No space left on device")] * 10_000
    done = keeper.keep(KEY, cursor(5))
    while not keeper.problem:
        assert not done.done()
    assert "No space left" in keeper.problem
    store.errors.clear()
    done.result(PATIENCE_S)


def test_a_cursor_that_another_relay_has_written_is_given_up(
    store: Store, keeper: CursorKeeper, refused: list[tuple[Key, DatabusError]]
) -> None:
    store.errors = [CursorTakenError("another relay has written it")]
    with pytest.raises(CursorTakenError):
        keeper.keep(KEY, cursor(5)).result(PATIENCE_S)
    assert [key for key, _ in refused] == [KEY]


def test_closing_writes_what_is_left(store: Store, refused: list[tuple[Key, DatabusError]]) -> None:
    keeper = CursorKeeper(store, lambda key, error: refused.append((key, error)))
    for client_id in range(5):
        keeper.keep(("example", client_id), cursor(5, client_id))
    assert keeper.close(10)
    assert [store.read(("example", n)) for n in range(5)] == [cursor(5, n) for n in range(5)]


def test_what_is_not_written_yet_can_be_dropped(store: Store, keeper: CursorKeeper) -> None:
    store.may_write.clear()
    other = keeper.keep(("other", 1), Cursor("other", 1, "", {}))
    dropped = keeper.keep(KEY, cursor(5))
    keeper.drop("example")
    store.may_write.set()
    other.result(PATIENCE_S)
    assert dropped.cancelled()
    assert store.read(KEY) is None


def test_a_cursor_of_another_client_is_refused(tmp_path: Path) -> None:
    store = FileCursors(tmp_path)
    store.write(cursor(5))
    path = tmp_path / "canal" / "example" / "1001.json"
    path.rename(path.with_name("7.json"))
    with pytest.raises(CanalError, match=r"7\.json cannot be used"):
        store.read(("example", 7))


@pytest.mark.parametrize("settled", [(5, -1), (5, 0)])
def test_places_are_kept_as_checkpoints(settled: tuple[int, int]) -> None:
    place = Place(settled, rows_scn=4)
    kept = Checkpoint.from_json(checkpoint_of(place, (4, 99)).to_json())
    assert place_of(kept) == place
    assert kept.mark == (4, 99)
