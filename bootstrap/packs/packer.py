"""Keeps a store's tables packed: in small steps, behind the writes.

A step looks at one table after another until one needs work. It notes which of its rows have
changed since, or makes one pack: of rows that are in none, or in place of one with too many
changed rows. The next step begins with the table after that, so that each gets its turn.

Rows are read in one transaction and written in another, so the lock for writing is held for the
writing alone. What happened in between is found: the packer alone makes packs, and whatever ends
their epoch is seen before the writing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from databus.bootstrap.packs.building import Built, PackBuilder, PackRange, PackSizes
from databus.bootstrap.store.packs import table
from databus.bootstrap.store.packs.table import Noted, Outline, Packing
from databus.bootstrap.store.rows_now import RowsNow
from databus.bootstrap.store.store import Store
from databus.bootstrap.store.values import SourceState, SourceStatus
from databus.schemas.columns.avro_columns import WriterSchema
from databus.schemas.errors import SchemaError

DEFAULT_SIZES = PackSizes()
DELETED_AT_A_TIME = 20
# With more changed rows than these since the last notes, all packs are made anew.
MOST_NOTED = 500_000
# Few changed rows are noted at every so many looks: a deletion before its tombstone is gone.
_ALL_NOTED_EVERY = 600
_NOTED_AT_A_TIME = 200  # packs, in one transaction
CHANGED_SHARE = 5  # a pack is made anew when more than one row in five of it has changed
_CHANGED = """
select id from snapshot_{src_id} indexed by snapshot_{src_id}_scn where scn > ? and scn <= ?
"""


class Packer:
    """Packs the tables of one store, up to `most_bytes`; 0 = none. For one thread."""

    def __init__(self, store: Store, most_bytes: int, sizes: PackSizes = DEFAULT_SIZES) -> None:
        self._sizes = sizes
        self._store = store
        self._connection = store.file.connection
        self._most_bytes = most_bytes
        self._looks: dict[int, int] = {}  # by source
        self._last = ""  # the source that was worked on
        # By source: ranges that have too few rows for a pack of their own.
        self._small: dict[int, set[PackRange]] = {}
        # By source: ranges within others, by their first id, whose rows are not worth a pack.
        self._skipped: dict[int, dict[int, int]] = {}
        self._full_bytes: int | None = None  # of all packs when one more found no room

    def step(self) -> bool:
        """Do one piece of work; return whether there was any. Raises BootstrapError, LeaseError."""
        if not self._most_bytes:
            self._end_all()
        if self._delete_outdated() or self._delete_excess():
            return True
        if not self._most_bytes:
            return False
        active = [s for s in self._store.sources() if s.status is SourceStatus.ACTIVE]
        after = [state for state in active if state.name > self._last]
        for state in after + active[: len(active) - len(after)]:
            if self._work_on(state):
                self._last = state.name
                return True
        return False

    def _end_all(self) -> None:
        with self._store.file.reading("reading packs"):
            is_any = self._connection.execute("select 1 from packing").fetchone() is not None
        if is_any:
            with self._store.file.writing("ending packs", stamps=False):
                table.end_all(self._connection)

    def _delete_outdated(self) -> bool:
        """Delete some packs that nobody uses any more."""
        with self._store.file.reading("reading packs"):
            if not table.has_outdated(self._connection):
                return False
        with self._store.file.writing("deleting packs", stamps=False):
            return table.delete_outdated(self._connection, DELETED_AT_A_TIME) > 0

    def _delete_excess(self) -> bool:
        """Delete some packs if there are more than may be: the setting was another one."""
        with self._store.file.reading("reading packs"):
            held_bytes = table.held_bytes(self._connection)
        if self._full_bytes is not None and held_bytes < self._full_bytes:
            self._full_bytes = None
        if held_bytes <= self._most_bytes:
            return False
        with self._store.file.writing("deleting packs", stamps=False):
            return table.delete_last(self._connection, DELETED_AT_A_TIME) > 0

    def _work_on(self, state: SourceState) -> bool:
        looks = self._looks[state.src_id] = self._looks.get(state.src_id, 0) + 1
        with self._store.file.reading("reading packs", state.name):
            now = self._store.rows_now([state.src_id])
            scn = self._store.position().scn
            packing = table.packing_of(self._connection, state.src_id)
            is_usable = (
                packing is not None
                and packing.version == now.version(state.src_id)
                and packing.scn >= state.tombstone_floor_scn
            )
            changed = 0
            if packing is not None and is_usable:
                changed = self._store.count_changed(state.name, packing.scn, MOST_NOTED)
        if packing is None or not is_usable or changed == MOST_NOTED:
            self._begin(state, scn, now.version(state.src_id))
            return True
        if changed >= self._sizes.fewest_noted or (changed and not looks % _ALL_NOTED_EVERY):
            return self._note(state, packing, scn)
        return self._pack(state, packing, now)

    def _begin(self, state: SourceState, scn: int, version: str) -> None:
        self._small.pop(state.src_id, None)
        self._skipped.pop(state.src_id, None)
        with self._store.file.writing("beginning to pack", state.name, scn, stamps=False):
            if self._store.source(state.name) == state:
                table.begin(self._connection, state.src_id, scn, version)

    # Rows that have changed

    def _note(self, state: SourceState, packing: Packing, scn: int) -> bool:
        """Note which rows have changed up to the position."""
        sql = _CHANGED.format(src_id=state.src_id)
        with self._store.file.reading("reading what has changed", state.name, scn):
            # The rows of tombstones that are gone would not be found.
            if packing.scn < self._store.source(state.name).tombstone_floor_scn:
                return True
            bounds = packing.scn, scn
            ids = sorted(row_id for (row_id,) in self._connection.execute(sql, bounds))
        changes = self._by_pack(state, packing, ids)
        while True:
            # Nobody else changes packs, so the lock is only held for the writing.
            some = list(islice(changes, _NOTED_AT_A_TIME))
            noted = self._noted(state, packing, some)
            with self._store.file.writing("noting what has changed", state.name, scn, stamps=False):
                if table.packing_of(self._connection, state.src_id) != packing:
                    return True  # the epoch has ended
                table.change(self._connection, noted)
                if len(some) < _NOTED_AT_A_TIME:
                    # Only now, when all are noted.
                    table.move(self._connection, state.src_id, packing, scn)
                    return True

    def _noted(
        self, state: SourceState, packing: Packing, changes: Iterable[tuple[int, list[int]]]
    ) -> list[Noted]:
        found = []
        with self._store.file.reading("reading packs", state.name):
            for until_id, ids in changes:
                pack = table.pack_after(self._connection, state.src_id, packing.epoch, until_id - 1)
                if pack is not None:
                    found.append(table.noted(pack, ids))
        return found

    def _by_pack(
        self, state: SourceState, packing: Packing, ids: Sequence[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield the changed rows of each pack that has any, as (its last id, their ids)."""
        at = 0
        for outline in self._outlines(state, packing) if ids else ():
            while at < len(ids) and ids[at] <= outline.after_id:
                at += 1
            begin = at
            while at < len(ids) and ids[at] <= outline.until_id:
                at += 1
            if at > begin:
                yield outline.until_id, list(ids[begin:at])

    def _outlines(self, state: SourceState, packing: Packing) -> list[Outline]:
        with self._store.file.reading("reading packs", state.name):
            return table.outlines(self._connection, state.src_id, packing.epoch)

    # Packs

    def _pack(self, state: SourceState, packing: Packing, now: RowsNow) -> bool:
        """Make one pack, if one is wanted; return whether something was done."""
        small = self._small.setdefault(state.src_id, set())
        text = now.newest(state.src_id)
        outlines = self._outlines(state, packing)
        packed = {(outline.after_id, outline.until_id) for outline in outlines}
        wanted = None
        for one in self._ranges(state, outlines):
            is_packed = (one.after_id, one.until_id) in packed
            if one not in small and (is_packed or self._full_bytes is None):
                wanted = one
                break
        if wanted is None or text is None:
            return False
        try:
            schema = WriterSchema(state.name, state.src_id, 1, text)
            builder = PackBuilder(self._store.id, schema, now, self._sizes)
        except (SchemaError, ValueError):
            return False  # a reader of columns says why
        with self._store.file.reading("reading rows to pack", state.name):
            # Rows of a newer version may be among them.
            if self._store.rows_now([state.src_id]).version(state.src_id) != packing.version:
                return True
            built = builder.build(self._connection, wanted)
        if not self._is_worth_it(built, wanted):
            if built is not None and not is_packed and built.head.until_id < wanted.until_id:
                self._skip(state, wanted, built.head.until_id)
                return True
            built = None
        if built is None and not is_packed:
            small.add(wanted)
            return True
        return self._write(state, packing, wanted, built)

    def _skip(self, state: SourceState, wanted: PackRange, until_id: int) -> None:
        """Go on behind rows that are not worth a pack, in strides that grow."""
        skipped = self._skipped.setdefault(state.src_id, {})
        begin = next((at for at, end in skipped.items() if end == wanted.after_id), wanted.after_id)
        skipped[begin] = min(wanted.until_id, until_id + wanted.after_id - begin)

    def _write(
        self, state: SourceState, packing: Packing, wanted: PackRange, built: Built | None
    ) -> bool:
        with self._store.file.writing("writing a pack", state.name, stamps=False):
            if table.packing_of(self._connection, state.src_id) != packing:
                return True
            table.delete_within(self._connection, state.src_id, wanted.after_id, wanted.until_id)
            held_bytes = table.held_bytes(self._connection)
            if built is None:
                self._small[state.src_id].add(wanted)
            elif held_bytes + table.size_bytes(built.head) <= self._most_bytes:
                head, ids, others, frame = built
                table.add(self._connection, packing.epoch, head, ids, others, frame)
            else:
                self._full_bytes = held_bytes
        return True

    def _ranges(self, state: SourceState, outlines: Sequence[Outline]) -> Iterator[PackRange]:
        """Yield the ranges that are to be packed, the most changed packs among them."""
        at, skipped = 0, self._skipped.get(state.src_id, {})
        for outline in outlines:
            at = skipped.get(at, at)
            if outline.after_id > at:
                yield PackRange(at, outline.after_id)
            if CHANGED_SHARE * outline.changed > outline.rows:
                yield PackRange(outline.after_id, outline.until_id)
            at = outline.until_id
        at = skipped.get(at, at)
        # Tried again only when the table has grown: the range is another one then.
        grown = max(1, self._sizes.most_rows // 10)
        rows = (self._store.max_row(state.name) - at) // grown * grown
        if rows > 0:
            yield PackRange(at, at + rows, is_open=True)

    def _is_worth_it(self, built: Built | None, wanted: PackRange) -> bool:
        if built is None or CHANGED_SHARE * len(built.others) > built.head.rows:
            return False
        return built.head.rows >= min(self._sizes.fewest_rows, wanted.until_id - wanted.after_id)
