"""The rows of a chunk as the server sent them: read from the connection, decoded when used.

PyMySQL sends the query and reads the columns' definitions. The packets of the rows, which
follow, are cut by `_text_rows.pyx`: PyMySQL would make an object of each value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from pymysql.constants.CR import CR_MALFORMED_PACKET, CR_SERVER_LOST
from pymysql.err import OperationalError, raise_mysql_exception

from databus.relay.sources.mysql.scan._text_rows import BROKEN, END, ERROR, TextRows
from databus.relay.sources.mysql.scan.columns import RawRow, SelectedColumn
from databus.relay.sources.mysql.scan.text_plan import plan_of
from databus.relay.sources.source import Row
from databus.relay.sources.table_scan import Key, SnapshotForm

_RECEIVE_BYTES = 256 << 10

# Converts rows; raises the scan's error for a value that does not fit.
MakeRows = Callable[[Sequence[RawRow]], Sequence[Row]]


def read_texts(connection: Any, query: str) -> TextRows:
    """Run a query and return its rows; raises the driver's errors.

    An error leaves the connection unusable.
    """
    connection.query(query, unbuffered=True)
    result = connection._result
    texts = TextRows(result.field_count, connection._next_seq_id)
    status = texts.feed(_receive(connection))
    while status not in (END, ERROR, BROKEN):
        status = texts.feed(_receive(connection))
    if status == BROKEN:
        raise OperationalError(CR_MALFORMED_PACKET, "a packet of another result")
    # The driver would go on to read the rows that it has not seen.
    result.unbuffered_active = False
    result.connection = None
    connection._next_seq_id = texts.sequence
    if status == ERROR:
        raise_mysql_exception(texts.error)
    return texts


def _receive(connection: Any) -> bytes:
    chunk: bytes = connection._rfile.read1(_RECEIVE_BYTES)
    if not chunk:
        raise OperationalError(CR_SERVER_LOST, "Lost connection to MySQL server during query")
    return chunk


class ChunkRows(Sequence[Row]):
    """The first `count` rows of a result. They are converted when one is asked for."""

    def __init__(
        self,
        texts: TextRows,
        count: int,
        columns: tuple[SelectedColumn, ...],
        make: MakeRows,
    ) -> None:
        self._texts = texts
        self._count = count
        self._columns = columns
        self._make = make
        self._made: Sequence[Row] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._rows()[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows())

    def write_events(self, form: SnapshotForm) -> list[tuple[Key, bytes]] | None:
        """Return each row's key and event; see `Chunk`."""
        return self._texts.events(
            plan_of(self._columns, form.encoder),
            self._count,
            scn=form.scn,
            timestamp_ns=form.timestamp_ns,
            metadata=form.metadata,
            metadata_end=form.metadata_end,
        )

    def _rows(self) -> Sequence[Row]:
        if self._made is None:
            self._made = self._make([self._texts[at] for at in range(self._count)])
        return self._made
