"""Reads a page of a table's snapshot from its packs, with the rows that have changed since.

A page from packs has the rows that the page of their events would have: those of the packs that
have not changed, and the events of the others as they are now. Where that cannot be said, or
would not pay, there is no such page, and the rows are read one by one.

All reads are inside the caller's transaction: packs, notes, rows and position are of one moment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from databus.bootstrap.store.packs import table
from databus.bootstrap.store.packs.table import Packing, StoredPack
from databus.bootstrap.store.reads import StoreReading
from databus.bootstrap.store.snapshot_pages import SnapshotRange
from databus.bootstrap.store.values import SourceState
from databus.schemas.errors import ProtocolError
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.packs import beginning, check_frame
from databus.schemas.stream.whole_events import check_events

# Of a source, changed since the packer's last notes: with more, it is behind.
MOST_RECENT = 20_000
MOST_PACKS = 4  # of a page: a reader has all their columns in its memory
_LEAST_SHARE = 2  # a pack is sent when at least one row in two of it is wanted
MOST_CHANGED = 3  # and not more than one row in three has changed

_RECENT = """
select id from snapshot_{src_id} indexed by snapshot_{src_id}_scn
where scn > ? and id > ? and id <= ?
"""
_ROW = "select event from snapshot_{src_id} where id = ? and scn <= ? and deleted_ns = 0"


class PackedPage(NamedTuple):
    """A page's rows up to id `last_id`: packs, and events.

    Without `parts` the rows up to there are to be read one by one.
    """

    last_id: int
    parts: Sequence[bytes] = ()
    rows: int = 0


def is_whole(wanted: SnapshotRange) -> bool:
    """Return whether every live row of a range is wanted, as of an SCN, and no tombstone."""
    return wanted.since_scn <= 0 and wanted.wanted is None and wanted.deleted_after_scn == MAX_SCN


class PackReading:
    """Reads the pages of one source. `form` returns an event as it is sent.

    `version` is that of the rows as of the store's position (`RowsNow`).
    """

    def __init__(
        self,
        store: StoreReading,
        source: SourceState,
        version: str,
        form: Callable[[bytes], bytes],
    ) -> None:
        self._store = store
        self._connection = store.file.connection
        self._src_id = source.src_id
        self._source = source
        self._version = version
        self._form = form

    def page(self, wanted: SnapshotRange, most_bytes: int) -> PackedPage:
        """Return the page after `wanted.after_id`; its `last_id` is at most `wanted.until_id`."""
        with self._store.file.reading("reading packs", self._source.name):
            packing = self._usable()
            if packing is None:
                return PackedPage(wanted.until_id)
            first = page = self._next(packing, wanted, most_bytes)
            packs: list[bytes] = []
            events: list[bytes] = []
            rows = 0
            # A request costs more than reading a pack.
            while page.parts:
                begins, frame, following = page.parts
                packs += (begins, frame)
                events.append(following)
                rows += page.rows
                most_bytes -= sum(map(len, page.parts))
                wanted = wanted._replace(after_id=page.last_id)
                if page.last_id >= wanted.until_id or len(events) == MOST_PACKS:
                    break
                page = self._next(packing, wanted, most_bytes)
        # A reader finds packs only before the first event.
        return PackedPage(wanted.after_id, (*packs, *events), rows) if packs else first

    def _next(self, packing: Packing, wanted: SnapshotRange, most_bytes: int) -> PackedPage:
        """Return a page of one pack: its beginning and frame, and the events of the other rows."""
        after_id = wanted.after_id
        pack = table.pack_after(self._connection, self._src_id, packing.epoch, after_id)
        if pack is None:
            return PackedPage(wanted.until_id)
        if pack.head.after_id > after_id:
            return PackedPage(min(pack.head.after_id, wanted.until_id))
        last_id = min(pack.head.until_id, wanted.until_id)
        found = self._of(pack, packing, wanted._replace(until_id=last_id), most_bytes)
        return found or PackedPage(last_id)

    def _usable(self) -> Packing | None:
        packing = table.packing_of(self._connection, self._src_id)
        if (
            packing is None
            or packing.version != self._version
            # A row whose tombstone is gone would not be found as changed.
            or packing.scn < self._source.tombstone_floor_scn
        ):
            return None
        recent = self._store.count_changed(self._source.name, packing.scn, MOST_RECENT)
        return packing if recent < MOST_RECENT else None

    def _of(
        self, pack: StoredPack, packing: Packing, wanted: SnapshotRange, most_bytes: int
    ) -> PackedPage | None:
        head = pack.head
        if (head.store, head.src_id) != (self._store.id, self._src_id):
            raise ProtocolError(f"the pack up to row {head.until_id} is of another table")
        # Too large a pack for the page is not even read.
        if head.scn > wanted.start_scn or head.frame_bytes > most_bytes:
            return None
        ids = table.ids_of(self._connection, pack)
        begin, end = bisect_right(ids, wanted.after_id), bisect_right(ids, wanted.until_id)
        changed = self._changed(pack, packing, wanted)
        if _LEAST_SHARE * (end - begin) < head.rows or MOST_CHANGED * len(changed) > head.rows:
            return None
        events = list(self._events(changed, wanted.start_scn))
        gone = list(_places(ids, changed))
        left_out = [*range(begin), *gone, *range(end, head.rows)]
        frame = table.frame_of(self._connection, pack)
        check_frame(head, frame)
        begins = beginning(head, left_out)
        if len(begins) + len(frame) + sum(map(len, events)) > most_bytes:
            return None
        rows = head.rows - len(left_out) + len(events)
        return PackedPage(wanted.until_id, (begins, frame, b"".join(events)), rows)

    def _changed(self, pack: StoredPack, packing: Packing, wanted: SnapshotRange) -> list[int]:
        """Return the ids of the wanted rows that are not in a pack as they are now, ascending."""
        noted = pack.changed
        begin = bisect_right(noted, wanted.after_id)
        found = set(noted[begin : bisect_right(noted, wanted.until_id)])
        recent = _RECENT.format(src_id=self._src_id)
        bounds = packing.scn, wanted.after_id, wanted.until_id
        found.update(row_id for (row_id,) in self._connection.execute(recent, bounds))
        return sorted(found)

    def _events(self, ids: Sequence[int], start_scn: int) -> Iterator[bytes]:
        sql = _ROW.format(src_id=self._src_id)
        for row_id in ids:
            row = self._connection.execute(sql, (row_id, start_scn)).fetchone()
            if row is not None:
                check_events(row[0], 1)
                yield self._form(row[0])


def _places(ids: Sequence[int], wanted: Sequence[int]) -> Iterator[int]:
    """Yield where wanted ids are, those that are there."""
    for row_id in wanted:
        place = bisect_left(ids, row_id)
        if place < len(ids) and ids[place] == row_id:
            yield place
