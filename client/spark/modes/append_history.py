"""A row for each change: the rules of mode `append_history`. Pure.

    _databus_source, _databus_id   the change; a text that is the same whenever it comes again
    _databus_op      insert, update, delete, snapshot or truncate
    _databus_scn, _databus_index   its window, and its place in it
    _databus_time    the commit time
    _databus_as_of   of a row of a snapshot: the SCN as of which it was read

An insert, an update and a row of a snapshot have the row after it, a delete that before
it, a truncate none. A change of a key is a delete and an insert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.sinks.contract import key_digest
from databus.client.spark.modes.every_change import (
    INDEX as PLACE_IN_WINDOW,
    LAST_INDEX,
    MOMENT,
    OP as TOLD_OP,
    TIME as TOLD_TIME,
    EveryChange,
)
from databus.client.spark.targets.changes import (
    AS_OF,
    DELETE,
    SCN,
    SOURCE,
    Changes,
    cast_to,
    newest_per_key,
)
from databus.client.sql.modes import ID, INDEX, OP, TIME

KEYS = (SOURCE, ID)
EXTRAS = pa.schema(
    [
        (SOURCE, pa.string()), (ID, pa.string()), (OP, pa.string()), (SCN, pa.int64()),
        (INDEX, pa.int32()), (TIME, MOMENT), (AS_OF, pa.int64()),
    ]
)  # fmt: skip


def changes_of(batch: EveryChange) -> Changes:
    """Return the rows of a batch's changes, as changes of the table."""
    rows = batch.rows
    ops = _ops(rows)
    indexes = pc.if_else(
        pc.equal(rows[PLACE_IN_WINDOW], LAST_INDEX),
        pa.scalar(None, pa.int32()),
        rows[PLACE_IN_WINDOW],
    )
    columns = {
        SOURCE: rows[SOURCE],
        ID: pa.array(_ids(batch, ops), pa.string()),
        OP: ops,
        SCN: rows[SCN],
        INDEX: indexes,
        TIME: rows[TOLD_TIME].cast(MOMENT),
        AS_OF: rows[AS_OF],
    }
    found = rows.select(batch.columns)
    for name, column in columns.items():
        found = found.append_column(EXTRAS.field(name), column)
    schema = pa.schema([field.remove_metadata() for field in found.schema])
    found = pa.concat_tables([found.cast(schema), _truncates(batch, schema)])
    deletes = pa.array(np.zeros(found.num_rows, dtype=bool))
    # A batch may have a row of a snapshot twice.
    places = pa.array(np.zeros(found.num_rows, dtype=np.int32))
    found = newest_per_key(found.append_column(PLACE_IN_WINDOW, places), KEYS).drop_columns(
        [PLACE_IN_WINDOW]
    )
    found = found.append_column(DELETE, deletes.slice(0, found.num_rows))
    found = found.combine_chunks()
    return Changes(
        found,
        KEYS,
        (),
        batch.positions,
        batch.source,
        batch.mode,
        # A change that comes again has the SCN that it had.
        least_scn=pc.min(found[SCN]).as_py(),
    )


def _ops(rows: pa.Table) -> pa.ChunkedArray:
    """Return what each change does: the halves of a change of a key are a delete and an insert."""
    is_move = _is_move(rows)
    whole = pc.if_else(rows[DELETE], "delete", rows[TOLD_OP])
    return pc.if_else(pc.and_(is_move, pc.invert(rows[DELETE])), "insert", whole)


def _is_move(rows: pa.Table) -> pa.Array:
    """Return which rows are halves of a change of a key."""
    is_half = pc.and_(rows[DELETE], pc.not_equal(rows[TOLD_OP], "delete"))
    moves = set(_places(rows.filter(is_half)))
    if not moves:
        return pa.array(np.zeros(rows.num_rows, dtype=bool))
    return pa.array([place in moves for place in _places(rows)], pa.bool_())


def _places(rows: pa.Table) -> Iterable[tuple[str, int, int]]:
    names = (SOURCE, SCN, PLACE_IN_WINDOW)
    return zip(*(rows[name].to_pylist() for name in names), strict=True)


def _ids(batch: EveryChange, ops: pa.ChunkedArray) -> list[str]:
    """Return the ids of changes, as those of a sink."""
    rows = batch.rows
    halves = pc.and_(rows[DELETE], pc.not_equal(rows[TOLD_OP], "delete")).to_pylist()
    places = zip(
        rows[SOURCE].to_pylist(), rows[SCN].to_pylist(), rows[PLACE_IN_WINDOW].to_pylist(),
        strict=True,
    )  # fmt: skip
    of_key = batch.columns if not batch.keys else [key for key in batch.keys if key != SOURCE]
    is_read = pc.equal(ops, "snapshot")
    keys = iter(rows.filter(is_read).select(of_key).to_pylist())
    found = []
    for (source, scn, index), half, op in zip(places, halves, ops.to_pylist(), strict=True):
        if op == "snapshot":
            found.append(f"snapshot:{source}:{scn}:{key_digest(next(keys))}")
        else:
            found.append(f"{scn}:{index}{':delete' if half else ''}")
    return found


def _truncates(batch: EveryChange, schema: pa.Schema) -> pa.Table:
    lines: list[Mapping[str, object]] = [
        {
            SOURCE: one.source,
            ID: f"{one.scn}:{one.place}",
            OP: "truncate",
            SCN: one.scn,
            INDEX: one.place,
            TIME: one.time,
            AS_OF: one.scn,
        }
        for one in batch.told
        if one.is_truncate
    ]
    return cast_to(pa.Table.from_pylist(lines, EXTRAS), schema)
