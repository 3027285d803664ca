"""Reads the same bytes through the compiled readers and through Python's alone.

Read are windows or a page, and of each event all that an application can ask for; then the rows
as Arrow tables. A reading ends with items and, where it stopped, one of the project's errors. Any
other exception leaves it, and is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.client_fuzz.making import SCHEMAS, SRC_IDS
from databus.client import subscription
from databus.client.arrow import tables
from databus.client.events.data_event import DataEvent, make_rows, make_runs
from databus.client.events.event_fields import (
    PythonEventFields,
    make_rows_in_python,
    make_runs_in_python,
)
from databus.client.subscription import Bindings, Subscription, bind, schemas_of
from databus.schemas.avro_rows import RowCodec
from databus.schemas.errors import DatabusError
from databus.schemas.rows import row_decoding
from databus.schemas.stream import row_reader
from databus.schemas.stream.page_reader import PageReader
from databus.schemas.stream.row_event import IS_PLAIN, SRC_ID, RowEvent
from databus.schemas.stream.row_reader import RowReader

MOST_BYTES = 1 << 24
_FIELDS = (
    *("source", "key", "scn", "index", "timestamp_ns", "is_delete", "is_truncate", "op"),
    *("row", "before", "absent", "raw", "has_absent", "gtid", "schema_version"),
)
_LEFT_OUT = ("__doc__", "__module__", "__slots__")
_OWN = {name: value for name, value in vars(DataEvent).items() if name not in _LEFT_OUT}
# An event over the fields in Python, as it is where nothing was built.
_PythonDataEvent: Any = type("_PythonDataEvent", (PythonEventFields,), {"__slots__": (), **_OWN})


class Outcome(NamedTuple):
    """A reading: what an application gets, and why it ended."""

    found: Sequence[Any]
    problem: str


def is_built() -> bool:
    """Whether there are compiled readers."""
    return row_reader.take_rows is not None and tables.new_decoder is not None


class Way:
    """Reads by compiled code where there is any, or by Python alone."""

    def __init__(self, is_compiled: bool) -> None:
        self._is_compiled = is_compiled
        with self._chosen():
            self._bindings = self._bind()

    @contextmanager
    def _chosen(self) -> Iterator[None]:
        if self._is_compiled:
            yield
            return
        with ExitStack() as changed:
            for module, name, value in (
                (row_reader, "take_rows", None),
                (row_decoding, "is_compiled", False),
                (tables, "new_decoder", None),
                # The usual codecs are kept, and are compiled.
                (subscription, "row_codec", RowCodec),
            ):
                changed.enter_context(patch.object(module, name, value))
            yield

    def _bind(self) -> Bindings:
        bindings = bind(Subscription(tuple(SRC_IDS)), SRC_IDS, SCHEMAS)
        for bound in bindings.values():
            for codec in bound.codecs.values():
                _ = codec.decode_from  # planned once, here
        return bindings

    def read(self, chunks: Sequence[bytes], is_page: bool) -> Outcome:
        """Read a stream or a page."""
        reader: Any = PageReader(MOST_BYTES) if is_page else RowReader(MOST_BYTES)
        reader.known = schemas_of(self._bindings)
        items: list[Any] = []
        problem = ""
        with self._chosen():
            try:
                for chunk in chunks:
                    items += reader.receive(chunk)
                reader.close()
            except DatabusError as error:
                problem = _text(error)
                items += getattr(reader, "before_damage", ())
            found = [self._shown(item) for item in items]
        return Outcome(found, problem)

    def _shown(self, item: Any) -> Any:
        rows = [event for event in item.events if event[SRC_ID] in self._bindings]
        fields = item._asdict()
        fields["events"] = [event[:IS_PLAIN] for event in item.events]
        # Rows of unknown schemas, and those before a control event, never reach an application.
        if getattr(item, "unknown", True):
            return repr(fields)
        events = item.events if len(rows) == len(item.events) else tuple(rows)
        return repr(fields), self._events(events), self._tables(rows)

    def _events(self, events: Sequence[RowEvent]) -> list[Any]:
        made: Any = make_runs if self._is_compiled else make_runs_in_python
        kind = DataEvent if self._is_compiled else _PythonDataEvent
        whole = made(kind, events, self._bindings, True)
        each = made(kind, events, self._bindings, True, are_one_by_one=True)
        shown = [(name, [_fields(event) for event in _in_turn(run)]) for name, run in whole + each]
        return [*shown, _tried(partial(self._rows, kind, events))]

    def _rows(self, kind: Any, events: Sequence[RowEvent]) -> str:
        made: Any = make_rows if self._is_compiled else make_rows_in_python
        some = [made(kind, events, self._bindings, src_id) for src_id in self._bindings]
        return repr((made(kind, events, self._bindings), some))

    def _tables(self, rows: list[RowEvent]) -> list[Any]:
        def table(src_id: int) -> str:
            own = [event for event in rows if event[SRC_ID] == src_id]
            made = tables.table_of(own, self._bindings[src_id])
            made.validate(full=True)
            return repr((made.schema, made.to_pylist()))

        return [_tried(partial(table, src_id)) for src_id in sorted({e[SRC_ID] for e in rows})]


def _in_turn(run: Any) -> Iterable[Any]:
    """Return the events of a run, each of which may end when the next one is taken."""
    return run if isinstance(run, list) else run.one_by_one()


def _field(event: Any, name: str) -> str:
    return repr(getattr(event, name))


def _fields(event: Any) -> list[Any]:
    return [_tried(partial(_field, event, name)) for name in _FIELDS]


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except DatabusError as error:
        return _text(error)


def _text(error: DatabusError) -> str:
    return f"{type(error).__name__}: {error}"
