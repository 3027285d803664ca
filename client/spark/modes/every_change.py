"""A batch with every change, and not only the newest of each key.

A table of rows, as `apply` of other targets takes it, is made of it by the rules of a
mode: `scd2`, `soft_delete` or `append_history`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.targets.changes import (
    AS_OF,
    DELETE,
    MARK_OPS,
    META,
    OF_CHANGE,
    PLACE,
    SCN,
    SOURCE,
    Changes,
    check_keys,
    check_names,
    check_sources,
    flat_rows,
    positions_in,
)
from databus.client.sql.modes import WriteMode

TIME, OP, INDEX = f"{OF_CHANGE}time", f"{OF_CHANGE}op", PLACE
# The operation of a key that `put` deletes.
GONE = "gone"
# Of changes alone: they are not columns of a table.
TOLD = (SCN, AS_OF, DELETE, INDEX, TIME, OP)
LAST_INDEX = 2**31 - 1
MOMENT = pa.timestamp("us", tz="UTC")
_FIELDS = ("time", "op")
# After a change of columns that what a table holds cannot follow: it is not to be read again.
REMEDY = "go on with a new target and a new checkpoint"


class Told(NamedTuple):
    """A truncate, or the end of a snapshot, with its time."""

    source: str
    scn: int
    place: int
    is_truncate: bool
    time: datetime | None


@dataclass(frozen=True, slots=True)
class EveryChange(Changes):
    """`rows`: the columns of the source, `_databus_source` and those of TOLD; `marks` is empty.

    A change of a key is a delete and an update. `told`: truncates and ends of snapshots.
    """

    told: tuple[Told, ...] = ()
    # By source, the SCN up to which the table has followed it after this batch, if it tells one.
    reached: Mapping[str, int] = field(default_factory=dict)
    # The newest commit time in the batch, or now: of ends whose own time is not known. In
    # microseconds since 1970.
    newest_us: int = 0

    @property
    def columns(self) -> list[str]:
        """The columns of the source."""
        return [name for name in self.rows.column_names if name not in (*TOLD, SOURCE)]

    def is_nothing(self) -> bool:
        """Return whether the batch was empty."""
        return not (self.rows.num_rows or self.told or self.positions)


def every_change_of(
    batch: pa.Table,
    keys: Sequence[str],
    *,
    mode: WriteMode,
    now_us: int,
    source_column: bool = False,
    source: str | None = None,
) -> EveryChange:
    """Return all changes of a batch; `batch` is that of `changes_of`, with times if they are known.

    `now_us`: the time, in microseconds since 1970.

    Raises SettingsError as `changes_of` does; a history needs no key.
    """
    columns = [name for name in batch.column_names if name != META]
    if keys or mode.has_keys:
        check_keys(keys, columns)
    check_names(columns, mode, source or "the source")
    check_sources(batch, source_column or not mode.has_keys)
    timed = _with_times(batch)
    rows = flat_rows(timed, keys, _FIELDS)
    return EveryChange(
        rows.combine_chunks(),
        keys=(*keys, SOURCE) if source_column else tuple(keys),
        marks=(),
        positions=positions_in(batch),
        source=source,
        mode=mode,
        told=_told_in(timed),
        reached=_reached(batch),
        newest_us=_newest_us(timed) or now_us,
    )


def put_rows(
    parts: Sequence[tuple[pa.Table, bool]],
    keys: Sequence[str],
    scn: int,
    source: str,
) -> pa.Table:
    """Return rows to put as of an SCN, and to delete (True), as those of `EveryChange`."""
    told: dict[str, tuple[Any, pa.DataType]] = {
        SOURCE: (source, pa.string()),
        SCN: (scn, pa.int64()),
        AS_OF: (scn, pa.int64()),
        INDEX: (LAST_INDEX, pa.int32()),
        TIME: (None, MOMENT),
    }
    found = []
    for rows, is_delete in parts:
        plain = rows.drop_columns([one for one in rows.column_names if one in (*TOLD, SOURCE)])
        op = GONE if is_delete else "snapshot"
        for name, (value, kind) in {
            **told, DELETE: (is_delete, pa.bool_()), OP: (op, pa.string()),
        }.items():  # fmt: skip
            column = pa.repeat(pa.scalar(value, kind), rows.num_rows)
            plain = plain.append_column(name, column)
        found.append(plain)
    merged = pa.concat_tables(found, promote_options="default")
    check_keys(keys, merged.column_names)
    return merged.combine_chunks()


def _with_times(batch: pa.Table) -> pa.Table:
    """Return a batch whose struct `_databus` has the field `time`."""
    struct = batch[META]
    if struct.type.get_field_index("time") >= 0:
        return batch
    array = struct.combine_chunks()
    parts = [pc.struct_field(array, one.name) for one in array.type]
    fields = [*array.type, pa.field("time", MOMENT)]
    whole = pa.StructArray.from_arrays([*parts, pa.nulls(len(array), MOMENT)], fields=fields)
    return batch.set_column(batch.column_names.index(META), META, whole)


def _reached(batch: pa.Table) -> dict[str, int]:
    struct = batch[META]
    meta = pa.table({name: pc.struct_field(struct, name) for name in ("op", "source", "scn")})
    moving = meta.filter(pc.not_equal(meta["op"], "snapshot"))
    found = moving.group_by("source").aggregate([("scn", "max")])
    return dict(zip(found["source"].to_pylist(), found["scn_max"].to_pylist(), strict=True))


def _told_in(batch: pa.Table) -> tuple[Told, ...]:
    struct = batch[META]
    names = ("op", "scn", "index", "source", "time")
    meta = pa.table({name: pc.struct_field(struct, name) for name in names})
    return tuple(
        Told(
            row["source"],
            row["scn"],
            LAST_INDEX if row["index"] is None else row["index"],
            row["op"] == "truncate",
            row["time"],
        )
        for row in meta.filter(pc.is_in(meta["op"], pa.array(MARK_OPS))).to_pylist()
    )


def _newest_us(batch: pa.Table) -> int:
    newest = pc.max(pc.struct_field(batch[META], "time").cast(MOMENT).cast(pa.int64())).as_py()
    return newest or 0
