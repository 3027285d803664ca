"""Changes and windows for the tests of sinks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from databus.client.dispatcher.data_window import DataWindow
from databus.client.sinks.contract import Change, ChangeOp, Position, TransactionInfo
from databus.client.sinks.running.plan import SinkPlan, make_plan
from databus.client.sinks.running.reading_trouble import ReadingTrouble
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import CheckpointError
from databus.schemas.table import Column, Table
from databus.schemas.table_schema import avro_schema
from databus.testing import change, make_window
from databus.testing.recorder import Recorder
from tests import PATIENCE_S

INFO = TransactionInfo(1, 1)


def made(op: str, key: Any, source: str = "shop.orders", *, scn: int = 1, **values: Any) -> Change:
    """Return a change of the row with this `id`; `before_x=1` is a value of the row before."""
    before = {name[7:]: one for name, one in values.items() if name.startswith("before_")}
    after = {name: one for name, one in values.items() if not name.startswith("before_")}
    return Change(
        ChangeOp(op),
        source,
        {"id": key},
        {"id": key, **before} if before or op == "delete" else None,
        None if op in ("delete", "truncate", "ddl") else {"id": key, **after},
        TransactionInfo(scn, scn),
        scn,
        scn,
    )


def moved(old: Any, new: Any, source: str = "shop.orders", **values: Any) -> list[Change]:
    """Return the two halves of an update that changes the key."""
    row = {"id": old, **values}
    delete = Change(ChangeOp.DELETE, source, {"id": old}, row, None, INFO, 1, 1, is_move=True)
    after = {"id": new, **values}
    insert = Change(ChangeOp.INSERT, source, {"id": new}, None, after, INFO, 1, 1, is_move=True)
    return [delete, insert]


def window(scn: int, *rows: tuple[str, int], op: str = "insert", **values: Any) -> DataWindow:
    """Return a transaction with these rows: (table, id)."""
    changes = [change(f"shop.{table}", {"id": key, **values}, op) for table, key in rows]  # type: ignore[arg-type]
    return make_window(*changes, scn=scn)


class ListedStream:
    """A stream of windows that a test gives; its position is in memory."""

    def __init__(self, *windows: DataWindow, sources: Sequence[str] = ()) -> None:
        self.source = "shop"
        self._windows = list(windows)
        self._sources = sources
        self._news: queue.Queue[DataWindow | None] = queue.Queue()
        self.stored: list[int] = []
        self.position: Position | None = None
        self.scn = -1
        self.begun_at: list[int] = []
        self.trouble = ReadingTrouble()
        self._fails = 0
        self._is_open = False

    @property
    def sources(self) -> Sequence[str]:
        names = [event.source for one in self._windows for event in one.events]
        return tuple(self._sources or dict.fromkeys(names))

    def put(self, *windows: DataWindow) -> None:
        for one in windows:
            self._windows.append(one)
            self._news.put(one)

    def fail_to_store(self, times: int) -> None:
        self._fails = times

    def load(self) -> Position | None:
        return self.position

    def begin_at(self, position: Position) -> None:
        self.position = position

    def windows(self) -> Iterator[DataWindow]:
        after = -1 if self.position is None else self.position.scn
        self.begun_at.append(after)
        self.scn = max(self.scn, after)
        self._news = queue.Queue()
        self._is_open = True
        try:
            for one in list(self._windows):
                if one.scn > after:
                    yield self._committing(one)
                    self.scn = one.scn
            while (new := self._news.get()) is not None:
                yield self._committing(new)
                self.scn = new.scn
        finally:
            self._is_open = False

    def end(self) -> None:
        self._news.put(None)

    def _committing(self, one: DataWindow) -> DataWindow:
        def commit(_number: int) -> None:
            if self._fails:
                self._fails -= 1
                raise CheckpointError("the disk is full")
            if not self._is_open:
                raise CheckpointError("its iteration has ended")
            self.position = Position("shop", Checkpoint.at(one.scn))
            self.stored.append(one.scn)

        return DataWindow(one._read, commit=commit)


def plan_of(recorder: Recorder, **settings: Any) -> SinkPlan:
    """Return the plan of a sink that writes to a recorder, and flushes each transaction."""
    given: dict[str, Any] = {
        "name": "test",
        "kind": "recorder",
        "sources": ("shop.*",),
        "flush": {"rows": 1},
        "positions_every_s": 0,
        **settings,
    }
    failures = {"fast_retries": 0, "back_off": {"first_s": 0.01, "factor": 1}}
    given["failures"] = failures | given.get("failures", {})
    return make_plan(build_settings(given, SinkSettings), recorder.sink)


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "it did not happen"


def mysql_schema(source: str = "shop.orders", **sql_types: str) -> WriterSchema:
    """Return the schema of a MySQL table with these columns; `id` is an INT and its key.

    A type that ends with `not null` is of a column that is never NULL.
    """
    columns = [Column("id", "int(11)", 0, nullable=False, key_position=0)]
    for position, (name, sql_type) in enumerate(sql_types.items(), 1):
        kind = sql_type.removesuffix(" not null")
        columns.append(Column(name, kind, position, nullable=kind == sql_type))
    return WriterSchema(source, 1, 1, avro_schema(Table(source, tuple(columns))))
