"""A sink for tests: a target in memory, which records what is written, when, and by which lane."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position
from databus.client.sinks.errors import SinkRefusedError
from databus.client.sinks.rules.key_values import folded

Row = Mapping[str, Any]
RowKey = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """One flush: its changes, the thread that made it, and when it began and ended."""

    changes: tuple[Change, ...]
    thread: str
    began_s: float
    ended_s: float

    def overlaps(self, other: Written) -> bool:
        """Whether two flushes were made at the same time."""
        return self.began_s < other.ended_s and other.began_s < self.ended_s


@dataclass
class Recorder:
    """The target. `client.register_sink(recorder.sink, …)` writes to it."""

    sleep_s: float = 0.0
    """How long each flush takes."""
    keeps_position: bool = False
    """Whether it keeps its position, in one step with the rows, as an exactly-once target does."""
    unique: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Unique keys besides the primary key, by source; it refuses a row that violates one."""
    fails: Callable[[Sequence[Change]], None] = lambda _changes: None
    """Called before a flush; what it raises is the failure of the flush."""
    writes: list[Written] = field(default_factory=list)
    position: Position | None = None
    opened: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, dict[RowKey, Row]] = {}

    def sink(self) -> RecorderSink:
        """Return a sink that writes here; each lane has one."""
        return RecorderSink(self)

    @property
    def changes(self) -> list[Change]:
        """All changes that were written, in the order of the flushes."""
        with self._lock:
            return [change for written in self.writes for change in written.changes]

    def rows(self, source: str) -> list[Row]:
        """The rows of a source as the target has them, in the order of their keys."""
        with self._lock:
            held = self._rows.get(source, {})
            return [held[key] for key in sorted(held, key=repr)]

    def take(self, changes: Sequence[Change], position: Position | None) -> None:
        """Apply changes as one step, and record them; raise SinkRefusedError and change nothing."""
        began_s = time.monotonic()
        self.fails(changes)
        if self.sleep_s:
            time.sleep(self.sleep_s)
        with self._lock:
            # A transaction sees its own rows: all of them are undone together.
            before = {source: dict(rows) for source, rows in self._rows.items()}
            try:
                for change in changes:
                    self._apply(change)
            except SinkRefusedError:
                self._rows = before
                raise
            if self.keeps_position and position is not None:
                self.position = position
            thread = threading.current_thread().name
            self.writes.append(Written(tuple(changes), thread, began_s, time.monotonic()))

    def _apply(self, change: Change) -> None:
        rows = self._rows.setdefault(change.source, {})
        key = tuple(map(folded, change.key.values()))
        if change.op is ChangeOp.TRUNCATE:
            rows.clear()
        elif change.after is not None:
            row = {**rows.get(key, {}), **change.after}
            self._check_unique(change, key, row, rows)
            rows[key] = row
        elif change.op is ChangeOp.DELETE:
            rows.pop(key, None)

    def _check_unique(self, change: Change, key: RowKey, row: Row, rows: Mapping[Any, Row]) -> None:
        for columns in self.unique.get(change.source, ()):
            wanted = [folded(row[column]) for column in columns]
            for other, held in rows.items():
                if other != key and [folded(held[column]) for column in columns] == wanted:
                    problem = f"duplicate entry {wanted} for {', '.join(columns)}"
                    raise SinkRefusedError(problem, change)


class RecorderSink:
    """Writes to a recorder what it has got since the last flush."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: list[Change] = []
        self._position: Position | None = None

    def open(self, opening: Opening) -> Position | None:  # noqa: ARG002
        """Return the recorder's position, if it keeps one."""
        self._recorder.opened += 1
        self._position = self._recorder.position
        return self._position

    def write(self, changes: Sequence[Change]) -> None:
        """Hold changes until `flush`."""
        self._held += changes
        for change in changes:
            self._position = change.position or self._position

    def flush(self) -> Position | None:
        """Write what is held."""
        self._recorder.take(self._held, self._position)
        self._held = []
        return self._position

    def close(self) -> None:
        """Drop what is held."""
        self._held = []

    def unique_keys(self, source: str) -> Sequence[Sequence[str]]:
        """Return the unique keys besides the primary key."""
        return self._recorder.unique.get(source, ())
