"""The fields of an event that most callbacks read; `_event_fields` is the same, compiled."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from databus.schemas.event.event import Opcode
from databus.schemas.event.layout import MD5_PART_BYTES
from databus.schemas.event.metadata import EventMetadata
from databus.schemas.stream.row_event import (
    IS_PLAIN,
    KEY,
    OPCODE,
    PLACE,
    ROW_DIGEST,
    SCN,
    SRC_ID,
    TIMESTAMP_NS,
    WIRE,
    RowEvent,
)

if TYPE_CHECKING:
    from databus.client.subscription import Bindings, SourceBinding


class PythonEventFields:
    """The fields of a row event, and its row, which is decoded at the first access."""

    __slots__ = ("_event", "_metadata", "_row", "_source", "index")

    def __init__(self, event: RowEvent, source: SourceBinding, index: int) -> None:
        self._event = event
        self._source = source
        self.index = index
        self._row: dict[str, Any] | None = None
        self._metadata: EventMetadata | None = None

    @property
    def source(self) -> str:
        """The source's name, e.g. `shop.orders`."""
        return self._source.name

    @property
    def src_id(self) -> int:
        """The source's id at the server that sent the event."""
        return self._source.src_id

    @property
    def scn(self) -> int:
        """The window's SCN."""
        return self._event[SCN]

    @property
    def wire_key(self) -> int | bytes:
        """The key as it was sent: a number, or the columns as text; empty for a truncate."""
        return self._event[KEY]

    @property
    def timestamp_ns(self) -> int:
        """The commit time, nanoseconds since the epoch."""
        return self._event[TIMESTAMP_NS]

    @property
    def is_delete(self) -> bool:
        """Whether the row was deleted; `row` is then the old row. True for a truncate too."""
        return self._event[OPCODE] == Opcode.DELETE

    @property
    def row(self) -> dict[str, Any]:
        """The row after the change (before it, for a delete), column → value.

        Columns that the source did not log are missing: see `absent`. Raises ProtocolError
        or IncompatibleSchemaError if the row cannot be decoded.
        """
        row = self._row
        if row is None:
            event = self._event
            if event[IS_PLAIN]:
                row = self._row = self._source.codecs[event[ROW_DIGEST]].decode_from(
                    event[WIRE], event[PLACE] + MD5_PART_BYTES
                )
            else:
                row = self._row = self._read_row()
        return row

    def _read_row(self) -> dict[str, Any]:
        raise NotImplementedError


Made = TypeVar("Made", bound=PythonEventFields)
_SRC_ID = itemgetter(SRC_ID)
_SCN_OF = attrgetter("scn")


def make_runs_in_python(
    event_type: type[Made],
    events: Sequence[RowEvent],
    bindings: Bindings,
    is_batch: bool = False,
    are_tracked_later: bool = False,  # noqa: ARG001
    are_one_by_one: bool = False,  # noqa: ARG001
) -> list[tuple[str, list[Made]]]:
    """Return the events, numbered and grouped by runs of one source, each after its name.

    In a batch of windows each SCN is numbered from 0. With `are_tracked_later` call `track_kept`
    behind the callbacks. With `are_one_by_one` the compiled one may make an event when it is
    needed.
    """
    runs = []
    begin = 0
    for src_id, run in groupby(events, _SRC_ID):
        source = bindings[src_id]
        made = [event_type(event, source, index) for index, event in enumerate(run, begin)]
        begin += len(made)
        runs.append((source.name, made))
    if is_batch:
        for _, window in groupby((event for _, made in runs for event in made), _SCN_OF):
            for index, event in enumerate(window):
                event.index = index
    return runs


def make_rows_in_python(
    event_type: type[Made],
    events: Sequence[RowEvent],
    bindings: Bindings,
    src_id: int | None = None,
) -> list[dict[str, Any]]:
    """Return the row of each event, or of those of one source."""
    return [
        event_type(event, bindings[event[SRC_ID]], 0).row
        for event in events
        if src_id is None or event[SRC_ID] == src_id
    ]


class PythonLentEvents:
    """The events of a window. The compiled ones lie in a response until this ends."""

    __slots__ = ("events",)

    def __init__(self, events: tuple[Any, ...]) -> None:
        self.events = events


def track_kept_in_python(runs: Sequence[tuple[Any, Any]]) -> None:
    """Do nothing: the garbage collector tracks all events in Python from the beginning."""
