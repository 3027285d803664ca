"""A kill at every system call of the position store: no record is torn, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Change, Opening, Position
from databus.client.sinks.running.feed import Feed, SinkState
from databus.client.sinks.running.plan import make_plan
from databus.client.sinks.serving.positions import (
    NAME,
    PositionFile,
    SinkCheckpoints,
    StoredPosition,
    read_positions,
)
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.schemas.checkpoint import Checkpoint
from tests import PATIENCE_S
from tests.client.sinks.changes import ListedStream, window

KILLED = 17
WINDOWS = 6
MOST_STEPS = 400


def stored(scn: int, sink: str = "a", source: str = "shop") -> StoredPosition:
    return StoredPosition(sink, source, ("shop.orders",), Checkpoint.at(scn, 1000 + scn))


def in_child(act: Callable[[], None], kill_at: int | None) -> int:
    """Do something in a child that is killed before its n-th step; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        if kill_at is not None:
            _kill_before(kill_at)
        act()
        code = 0
    finally:
        os._exit(code)


def _kill_before(step: int) -> None:
    """Count the system calls with which files are written, and end before one of them."""
    left = [step]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(KILLED)
            return call(*arguments, **keywords)

        return made

    for name in ("open", "close", "write", "fsync", "replace", "rename", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    os.fdopen = lambda fd, _mode: _Raw(fd)  # type: ignore[assignment]


class _Raw:
    """A file that writes half of its bytes at a time, so that a kill comes between them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> None:
        half = len(data) // 2
        os.write(self._fd, data[:half])
        os.write(self._fd, data[half:])

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        return self._fd

    def __enter__(self) -> _Raw:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._fd)


def test_a_kill_at_any_step_of_a_write_leaves_the_old_record_or_the_new_one(
    tmp_path: Path,
) -> None:
    seen = []
    for step in range(MOST_STEPS):
        folder = tmp_path / str(step)
        file = PositionFile(folder)
        for one in (stored(5), stored(9, "b"), stored(2, "a", "billing")):
            file.save(one)
        code = in_child(lambda file=file: file.save(stored(6)), step)  # type: ignore[misc]
        found = {key: one.checkpoint.window_scn for key, one in read_positions(file.path).items()}
        assert found in (
            {("a", "billing"): 2, ("a", "shop"): 5, ("b", "shop"): 9},
            {("a", "billing"): 2, ("a", "shop"): 6, ("b", "shop"): 9},
        )
        # The next process writes on, whatever the one before has left.
        PositionFile(folder).save(stored(7))
        assert PositionFile(folder).load("a", "shop") == stored(7)
        seen.append(found["a", "shop"])
        if code == 0:
            break
        assert code == KILLED
    assert code == 0
    assert len(seen) > 6
    assert seen == sorted(seen)
    assert set(seen) == {5, 6}


class StoredStream(ListedStream):
    """Windows whose positions are in a file."""

    def __init__(self, store: SinkCheckpoints) -> None:
        super().__init__(*(window(scn, ("t", scn)) for scn in range(1, WINDOWS + 1)))
        self._store = store

    def load(self) -> Position | None:
        found = self._store.load("shop", ["shop.t"])
        self.position = None if found is None else Position("shop", found)
        return self.position

    def windows(self) -> Iterator[DataWindow]:
        for one in super().windows():
            yield DataWindow(one._read, commit=lambda _number, scn=one.scn: self._save(scn))  # type: ignore[misc]

    def _save(self, scn: int) -> None:
        self._store.save("shop", ["shop.t"], Checkpoint.at(scn))


class Appending:
    """A target that has what was flushed, as a database has: in one step, by one call."""

    def __init__(self, path: Path) -> None:
        self._path, self._held = path, list[str]()

    def open(self, opening: Opening) -> Position | None:
        return None

    def write(self, changes: Sequence[Change]) -> None:
        self._held += [f"{one.key['id']}\n" for one in changes]

    def flush(self) -> Position | None:
        with self._path.open("a") as file:
            file.write("".join(self._held))
        self._held = []
        return None

    def close(self) -> None:
        pass


def run(folder: Path) -> None:
    raw = {"name": "a", "kind": "x", "sources": ("shop.t",), "until": WINDOWS}
    more = {"flush": {"rows": 1}, "positions_every_s": 0}
    plan = make_plan(build_settings(raw | more, SinkSettings), lambda: Appending(folder / "target"))
    feed = Feed(plan, StoredStream(SinkCheckpoints(PositionFile(folder), "a")))
    feed.start()
    assert feed.wait(PATIENCE_S)
    assert feed.state is SinkState.DONE
    feed.stop()


def target(folder: Path) -> list[int]:
    path = folder / "target"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_kill_at_any_step_of_the_store_loses_no_change_of_a_sink(tmp_path: Path) -> None:
    repeated = 0
    for step in range(MOST_STEPS):
        folder = tmp_path / str(step)
        folder.mkdir()
        code = in_child(lambda folder=folder: run(folder), step)  # type: ignore[misc]
        assert code in (0, KILLED)
        held = {key: one.checkpoint.window_scn for key, one in positions(folder).items()}
        # The store is never beyond the target.
        assert held.get(("a", "shop"), 0) <= max(target(folder), default=0)
        assert in_child(lambda folder=folder: run(folder), None) == 0  # type: ignore[misc]
        found = target(folder)
        assert list(dict.fromkeys(found)) == list(range(1, WINDOWS + 1))
        assert len(found) <= WINDOWS + 1  # what was flushed and not stored comes again
        repeated += len(found) - WINDOWS
        if code == 0:
            break
    assert code == 0
    assert step > 6 * WINDOWS
    assert repeated > 0


def positions(folder: Path) -> dict[tuple[str, str], StoredPosition]:
    return dict(read_positions(folder / NAME))
