"""Makes a pack of a range of rows. The compiled column decoder turns their events into columns."""

from __future__ import annotations

import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from databus.bootstrap.store.file import joins_bytes
from databus.bootstrap.store.rows_now import RowsNow
from databus.bootstrap.store.snapshot_pages import measure, needed_rows
from databus.schemas.avro_rows import schema_id
from databus.schemas.columns.avro_columns import WriterSchema, columns_of
from databus.schemas.errors import DatabusError
from databus.schemas.event.crc import event_crc
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.packs import Buffers, PackHead, compress, join_columns
from databus.schemas.stream.whole_events import check_events

if TYPE_CHECKING:
    from databus.client.arrow._column_decoder import Held

try:
    from databus.client.arrow import _column_decoder as column_decoder
except ImportError:  # not built: nothing is packed
    new_decoder = None
else:
    new_decoder = column_decoder.ColumnDecoder

_ROWS = """
select id, scn, event from snapshot_{src_id} not indexed
where id > ? and id <= ? and deleted_ns = 0 order by id
"""
# SQLite joins in the order of its scan.
_JOINED = """
select min(scn), max(scn), group_concat(id), cast(group_concat(event, '') as blob)
from snapshot_{src_id} not indexed where id > ? and id <= ? and deleted_ns = 0
"""
_OF_THOSE = 0.9  # of the rows that should fit
_SCN = 1  # its place among the columns of an event's head


@dataclass(frozen=True, slots=True)
class PackSizes:
    """How large packs are: a page of a client with the default sizes, and a batch of its rows.

    As columns, rows of many small numbers take more room than as events. One of fewer rows is not
    worth it, unless its range has no more ids. `fewest_noted`: changed rows that are left to the
    readers.
    """

    most_rows: int = 20_000
    most_event_bytes: int = 3_900_000
    most_column_bytes: int = 3_900_000
    fewest_rows: int = 1000
    fewest_noted: int = 5000


@dataclass(frozen=True, slots=True)
class PackRange:
    """What can become a pack: rows with ids in (`after_id`, `until_id`].

    `is_open`: rows may be added at its end, so it is packed only when the pack is full.
    """

    after_id: int
    until_id: int
    is_open: bool = False


class Built(NamedTuple):
    """A pack that was made. `others`: ids of rows of its range that are in no column."""

    head: PackHead
    ids: array[int]
    others: array[int]
    frame: bytes


class _Taken(NamedTuple):
    """The ids of rows that are in the columns, and of the others; and the highest of their SCNs."""

    ids: array[int]
    others: array[int]
    scn: int


class PackBuilder:
    """Makes packs of one source of a store, of rows in the schema version of a moment.

    Raises SchemaError or ValueError for a schema whose rows do not become columns, and ValueError
    where the decoder was not compiled.
    """

    def __init__(self, store_id: str, schema: WriterSchema, now: RowsNow, sizes: PackSizes) -> None:
        self._sizes = sizes
        self._store_id = store_id
        self._src_id = schema.src_id
        self._digest = schema_id(schema.text)
        if new_decoder is None:
            raise ValueError("the decoder of columns was not compiled")
        self._decoder = new_decoder(
            # Never full before the pack is.
            has_before=False,
            as_snapshot=True,
            batch_rows=sizes.most_rows + 1,
            batch_bytes=1 << 40,
        )
        self._plan = self._decoder.add(schema.src_id, self._digest, columns_of(schema))
        self._version_scn = now.changed_scn(schema.src_id)
        self._renew: Callable[[bytes], bytes] = now.renew_standing

    def build(self, connection: sqlite3.Connection, wanted: PackRange) -> Built | None:
        """Return the pack of the first rows of a range; None when there are too few for one.

        Runs inside the caller's transaction.
        """
        most_rows, most_bytes = self._sizes.most_rows, self._sizes.most_column_bytes
        while True:
            built = self._build(connection, wanted, most_rows)
            if built is None or built.head.rows == 1 or built.head.columns_bytes <= most_bytes:
                return built
            fitting = built.head.rows * most_bytes / built.head.columns_bytes
            most_rows = max(1, int(fitting * _OF_THOSE))

    def _build(
        self, connection: sqlite3.Connection, wanted: PackRange, most_rows: int
    ) -> Built | None:
        live = needed_rows(0, MAX_SCN, wanted.after_id, None, until_id=wanted.until_id)
        limits = most_rows, self._sizes.most_event_bytes
        found = measure(connection, self._src_id, live, *limits)
        is_full = not found.is_last
        if not found.rows or (wanted.is_open and not is_full):
            return None
        until_id = found.last_id if is_full else wanted.until_id
        bounds = wanted.after_id, until_id
        taken = self._take_joined(connection, bounds) or self._take_each(connection, bounds)
        if not taken.ids:
            return None
        _, heads, columns, _, _ = self._decoder.finish(self._plan)
        buffers: list[Buffers] = [
            (_view(valid), _view(offsets), memoryview(values))
            for valid, offsets, values in (*columns, heads[_SCN])
        ]
        data, sizes = join_columns(buffers)
        ids, frame = taken.ids, compress(data)
        head = PackHead(
            store=self._store_id,
            src_id=self._src_id,
            digest=self._digest.hex(),
            after_id=wanted.after_id,
            until_id=until_id,
            scn=taken.scn,
            rows=len(ids),
            sizes=sizes,
            frame_bytes=len(frame),
            crc=event_crc(frame),
            ids_crc=0 if until_id - wanted.after_id == len(ids) else event_crc(ids.tobytes()),
        )
        return Built(head, ids, taken.others, frame)

    def _take_joined(
        self, connection: sqlite3.Connection, bounds: tuple[int, int]
    ) -> _Taken | None:
        """Decode a range of events at once; None when they have to be looked at one by one.

        Then no row is an object, and other threads run meanwhile.
        """
        if not joins_bytes():
            return None
        sql = _JOINED.format(src_id=self._src_id)
        first_scn, scn, listed, events = connection.execute(sql, bounds).fetchone()
        if first_scn < self._version_scn:
            return None
        at, *_ = self._decoder.take(events, 0, -1, False)
        ids = array("q", map(int, listed.split(",")))
        if at == len(events) and self._decoder.rows(self._plan) == len(ids):
            return _Taken(ids, array("q"), scn)
        if self._decoder.rows(self._plan):
            self._decoder.finish(self._plan)
        return None

    def _take_each(self, connection: sqlite3.Connection, bounds: tuple[int, int]) -> _Taken:
        """Decode events, each by itself where it is not plain or of an older version."""
        rows = connection.execute(_ROWS.format(src_id=self._src_id), bounds).fetchall()
        for *_, event in rows:
            check_events(event, 1)
        data = memoryview(b"".join([event for *_, event in rows]))
        ends = list(accumulate(len(event) for *_, event in rows))
        ids, others = array("q"), array("q")
        number = 0
        while number < len(rows):
            row_id, scn, event = rows[number]
            if scn >= self._version_scn:
                end = self._end_of_newest(rows, number, ends)
                at, *_ = self._decoder.take(data[:end], ends[number] - len(event), -1, False)
                after = bisect_right(ends, at)
                ids.extend(row_id for row_id, *_ in rows[number:after])
                number = after
                if at == end:
                    continue
                row_id, _, event = rows[number]  # it is not plain
            taken = self._take_renewed(event)
            (ids if taken else others).append(row_id)
            number += 1
        return _Taken(ids, others, max(scn for _, scn, _ in rows))

    def _end_of_newest(
        self, rows: Sequence[tuple[int, int, bytes]], number: int, ends: Sequence[int]
    ) -> int:
        """Return where the events end that follow a row's and were written in its version, too."""
        while number < len(rows) and rows[number][1] >= self._version_scn:
            number += 1
        return ends[number - 1]

    def _take_renewed(self, event: bytes) -> bool:
        try:
            renewed = self._renew(event)
        except DatabusError:
            return False  # whoever reads the row by itself says why
        at, *_ = self._decoder.take(renewed, 0, -1, False)
        return at == len(renewed)


def _view(held: Held | None) -> memoryview | None:
    return None if held is None else memoryview(held)
