"""A window as an application that iterates gets it, and its events grouped for callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from databus.client.events.data_event import (
    DataEvent,
    DdlEvent,
    LentEvents,
    StatementEvent,
    make_rows,
    make_runs,
)
from databus.client.puller.buffer_items import BootstrapPage, Phase, ReadWindow
from databus.client.subscription import SourceBinding
from databus.schemas.errors import UnknownSourceError
from databus.schemas.stream.row_event import SRC_ID, schemas_in

if TYPE_CHECKING:
    import pyarrow as pa

# A source's name and a run of its events; or None and a statement.
Group = tuple[str | None, Sequence[Any]]


class DataWindow:
    """A whole window, as yielded by `for window in client.windows(…)`; or a batch of them.

    A batch, as yielded by `client.batches(…)`, has `transactions` windows. `scn` and
    `timestamp_ns` are those of the last; each event has its own.

    If `phase` is not LIVE it is a page of a bootstrap, which is not a transaction. With
    `begins_bootstrap` a bootstrap starts or restarts here: after a restart all rows come
    again, and those deleted since the first attempt come as deletes.
    """

    __slots__ = ("_commit", "_lent", "_number", "_read", "begins_bootstrap")

    def __init__(
        self,
        read: ReadWindow | BootstrapPage,
        begins_bootstrap: bool = False,
        commit: Callable[[int], None] = lambda _number: None,
        number: int = 0,
    ) -> None:
        self._read = read
        self._commit, self._number = commit, number
        self._lent: LentEvents | None = None
        self.begins_bootstrap = begins_bootstrap

    def commit(self) -> None:
        """Write the checkpoint of this window, which covers all before it. Thread-safe.

        For an iteration with `auto_commit=False`; with `auto_commit` it is written at the latest
        `checkpoint_every_s` after the next window was requested. Raises CheckpointError if it
        cannot be written now, or if the iteration has ended.
        """
        self._commit(self._number)

    def committer(self) -> Callable[[], None]:
        """Return what does `commit`, and holds none of the window's rows meanwhile."""
        return partial(self._commit, self._number)

    @property
    def scn(self) -> int:
        """The SCN."""
        return self._read.window.scn

    @property
    def timestamp_ns(self) -> int:
        """The commit time, nanoseconds since the epoch."""
        return self._read.window.timestamp_ns

    @property
    def phase(self) -> Phase:
        """The kind of its events."""
        return self._read.phase if isinstance(self._read, BootstrapPage) else Phase.LIVE

    @property
    def transactions(self) -> int:
        """The number of windows that it has."""
        return self._read.transactions if isinstance(self._read, ReadWindow) else 1

    @property
    def events(self) -> tuple[DataEvent, ...]:
        """The events in order. Made at the first access: an Arrow table needs none."""
        if self._lent is None:
            runs = group_events(self._read)
            self._lent = LentEvents(
                tuple(runs[0][1])
                if len(runs) == 1
                else tuple([event for _, run in runs for event in run])
            )
        return self._lent.events

    @property
    def statements(self) -> tuple[DdlEvent | StatementEvent, ...]:
        """The statements on its sources: DDL, and DML that was logged instead of its rows."""
        if not self._read.window.statements:  # hot path
            return ()
        return tuple(told for _, told in statements_of(self._read))

    @property
    def changes(self) -> tuple[DataEvent | DdlEvent | StatementEvent, ...]:
        """The events, and the statements at their places between them."""
        found: list[DataEvent | DdlEvent | StatementEvent] = list(self.events)
        for place, told in reversed(statements_of(self._read)):
            found.insert(place, told)
        return tuple(found)

    def to_pylist(self, source: str | None = None) -> list[dict[str, Any]]:
        """Return the rows, those of one source only if it is given: `row` of each event.

        Raises UnknownSourceError for a source that is not read.
        """
        src_id = None if source is None else self._source(source).src_id
        if self._lent is not None:
            return [e.row for e in self._lent.events if src_id is None or e.src_id == src_id]
        return make_rows(DataEvent, self._read.window.events, self._read.bindings, src_id)

    def to_arrow(self, source: str | None = None) -> pa.Table:
        """Return the rows of one source as a pyarrow Table, of types as the Spark reader's.

        Beside the columns of the row it has `_databus`, which describes each change. The source
        must be given if there are rows of several, or of none while several are read
        (ValueError). Raises UnknownSourceError for one that is not read, ImportError without
        pyarrow, RowError for rows of which only some columns were logged, SchemaError for rows
        of versions that no type holds, ProtocolError.
        """
        try:
            from databus.client.arrow.tables import table_of
        except ModuleNotFoundError as error:
            if error.name != "pyarrow":
                raise
            raise ImportError(
                "to_arrow() needs pyarrow: pip install pyarrow", name="pyarrow"
            ) from error
        bound = self._source(source)
        events = tuple(self._read.window.events)
        if any(event[SRC_ID] != bound.src_id for event in events):
            events = tuple([event for event in events if event[SRC_ID] == bound.src_id])
        return table_of(events, bound)

    def _source(self, name: str | None) -> SourceBinding:
        """Return a source; None = the only one that has rows, or is read where there are none."""
        window, bindings = self._read.window, self._read.bindings
        if name is None:
            # A window of a statement alone has no rows.
            src_ids = {src_id for src_id, _ in schemas_in(window.events)} or set(bindings)
            with_rows = [bindings[src_id] for src_id in src_ids]
            if len(with_rows) == 1:
                return with_rows[0]
            shown = ", ".join(sorted(bound.name for bound in with_rows))
            has = "has rows" if window.events else "may have rows, and has none,"
            raise ValueError(f"the window {has} of {shown}: name the table's source")
        by_name = {bound.name: bound for bound in bindings.values()}
        if name not in by_name:
            raise UnknownSourceError(name, sorted(by_name))
        return by_name[name]

    def __repr__(self) -> str:
        count = len(self._read.window.events)
        return f"<DataWindow scn={self.scn} {self.phase} events={count}>"


def read_of(window: DataWindow) -> ReadWindow | BootstrapPage:
    """Return what a window was made of, which makes callbacks, too."""
    return window._read


def group_events(
    read: ReadWindow | BootstrapPage,
    are_tracked_later: bool = False,
    are_one_by_one: bool = False,
) -> list[Group]:
    """Return the events in order, grouped by runs of one source; see `make_runs`."""
    is_batch = isinstance(read, ReadWindow) and read.transactions > 1
    events, bindings = read.window.events, read.bindings
    return make_runs(DataEvent, events, bindings, is_batch, are_tracked_later, are_one_by_one)  # type: ignore[return-value]


def statements_of(read: ReadWindow | BootstrapPage) -> list[tuple[int, DdlEvent | StatementEvent]]:
    """Return the statements on the registration's sources, with the number of events before."""
    window = read.window
    names = {source.name for source in read.bindings.values()}
    return [
        (
            place,
            (StatementEvent if told.is_dml else DdlEvent)(
                told.sources, told.database, told.statement, window.scn, window.timestamp_ns
            ),
        )
        for place, told in window.statements
        if not names.isdisjoint(told.sources)
    ]


def has_unlogged_rows(read: ReadWindow | BootstrapPage) -> bool:
    """Return whether a statement changed rows of the registration's sources, which it lacks."""
    if not read.window.statements:
        return False
    return any(isinstance(told, StatementEvent) for _, told in statements_of(read))


def add_statements(
    groups: Iterable[Group],
    read: ReadWindow | BootstrapPage,
    kinds: tuple[type, ...] = (DdlEvent, StatementEvent),
) -> list[Group]:
    """Return the groups, with statements on the registration's sources between them."""
    waiting = [(place, told) for place, told in statements_of(read) if isinstance(told, kinds)]
    found: list[Group] = []
    begin = 0
    for source, events in groups:
        end = begin + len(events)
        # A statement in the middle of a run cuts the run in two.
        while waiting and waiting[0][0] < end:
            place, told = waiting.pop(0)
            if place > begin:
                found.append((source, events[: place - begin]))
                events, begin = events[place - begin :], place
            found.append((None, [told]))
        found.append((source, events))
        begin = end
    return found + [(None, [told]) for _, told in waiting]
