"""A batch of changes in the form that targets take: the newest change of each key, and marks.

Every target follows these rules:

- An upsert (insert, update, snapshot) is written if its SCN >= the row's.
- A delete removes the row if its SCN >= the row's.
- An update whose before image has another key also deletes that key.
- A truncate at SCN X of a source removes the source's rows with SCN <= X.
- The end of a snapshot at SCN B removes the source's rows with SCN <= B, except
  those known to exist as of B. A change proves that its row exists as of its own
  SCN, a snapshot row that it exists as of the snapshot's. An upsert that is older
  than the row only raises the row's as-of SCN.
- A row without an SCN is older than everything.

So the table ends the same if a batch is applied twice, or if batches are applied
again from an earlier one on. This module does no I/O and needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.arrow.arrow_types import LEAVE_OUT, NO_KEYS
from databus.client.sql.modes import WriteMode
from databus.schemas.errors import IncompatibleSchemaError, SettingsError

META = "_databus"
SOURCE = "_databus_source"
SCN = "_databus_scn"
AS_OF = "_databus_as_of"
# Only in changes, never in a table: True if the change deletes its key.
DELETE = "_databus_delete"
BOOKKEEPING = {SCN: pa.int64(), AS_OF: pa.int64(), SOURCE: pa.string()}
# Begins the names of columns that are made on the way to a table, and are never in one.
OF_CHANGE = "_databus_change_"
PLACE = f"{OF_CHANGE}index"  # in the window

LOG_OPS = ("insert", "update", "delete", "truncate")
MARK_OPS = ("truncate", "snapshot_end")
_LAST_INDEX = 2**31 - 1
_MOST_DIGITS = 38
# Decimal digits of signed integers, by their bits.
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


@dataclass(frozen=True, slots=True)
class Mark:
    """A truncate, or the end of a complete snapshot: it removes older rows of a source.

    A truncate removes all rows up to its SCN, the end of a snapshot those that are
    not known to exist as of its SCN.
    """

    source: str
    scn: int
    is_truncate: bool
    # A truncate's place in its window: rows of the same window may follow it.
    index: int = _LAST_INDEX


@dataclass(frozen=True, slots=True)
class Changes:
    """The newest change of each key of one batch, and the batch's marks.

    `rows`: the table's columns, then `_databus_source` (if the target has it),
    `_databus_scn`, `_databus_as_of`, `_databus_delete`; one row per key.
    `positions`: newest SCN in the log per physical source.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    marks: tuple[Mark, ...]
    positions: Mapping[str, int]
    # The source of the rows, if the target shall record that it holds only this one.
    source: str | None = None
    # What the table holds, and more entries for its commit log (`targets.commit_log`).
    mode: WriteMode = WriteMode.MIRROR
    notes: Mapping[str, int] | None = None
    # The commit log of the rows that they were made of, if they hold only for these.
    made_of: Mapping[str, int] | None = None
    # If it is known: no row of the table below this SCN has the key of a change.
    least_scn: int | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of a table that is created for these rows."""
        fields = [field for field in self.rows.schema if field.name != DELETE]
        return pa.schema([field.with_nullable(True).remove_metadata() for field in fields])

    def in_types_of(self, table: pa.Schema) -> Changes:
        """Return the changes with a table's types; the table has all their columns."""
        schema = pa.schema([table.field(name) for name in self.schema.names])
        rows = cast_to(self.rows, schema.append(self.rows.schema.field(DELETE)))
        return replace(self, rows=rows)

    @property
    def has_source(self) -> bool:
        """Whether rows name their source, which then is part of the key."""
        return SOURCE in self.keys

    @property
    def newest_scn(self) -> int:
        """The newest SCN of rows, marks and positions, for messages; -1 if there is none."""
        scns = [*self.positions.values(), *(mark.scn for mark in self.marks)]
        return max([*scns, pc.max(self.rows[SCN]).as_py() or -1])

    def is_nothing(self) -> bool:
        """Return whether the batch was empty."""
        return not (self.rows.num_rows or self.marks or self.positions)


def changes_of(batch: pa.Table, keys: Sequence[str], *, source_column: bool = False) -> Changes:
    """Return the net changes of a batch: one per key, and the marks.

    `batch`: rows in any order, with the struct `_databus`; of one source, or of
    several with the same columns if `source_column` is set.

    Raises SettingsError for keys that are not columns, null keys, names that are taken,
    and rows of several sources without `source_column`.
    """
    columns = [name for name in batch.column_names if name != META]
    check_names(columns)
    check_keys(keys, columns)
    check_sources(batch, source_column)
    whole_key = (*keys, SOURCE) if source_column else tuple(keys)
    marks = marks_in(batch)
    rows = net_rows(flat_rows(batch, keys), whole_key, marks)
    return Changes(rows, whole_key, marks, positions_in(batch))


def flat_rows(batch: pa.Table, keys: Sequence[str], more: Sequence[str] = ()) -> pa.Table:
    """Return a batch's changes of rows, and deletes of the keys that updates left.

    The struct `_databus` becomes columns: the bookkeeping, `_databus_delete` and
    PLACE; so do the fields `more`, named with OF_CHANGE. A key may have several rows.
    """
    meta = _Meta.of(batch)
    rows = _flat(batch, meta, more).filter(pc.invert(pc.is_in(meta.op, pa.array(MARK_OPS))))
    _check_null_keys(rows, keys)
    return pa.concat_tables([rows, _old_keys(batch, meta, keys, more)])


def net_rows(flat: pa.Table, keys: Sequence[str], marks: Sequence[Mark]) -> pa.Table:
    """Return the newest of the `flat_rows` of each key, without what marks remove again.

    `keys`: with `_databus_source` if the table has it. Rows of some keys may be given alone.
    """
    # The delete of an old key counts only if the key has no newer change.
    rows = newest_per_key(flat, keys)
    rows = rows.filter(pc.invert(_covered(rows, marks)))
    drop = [PLACE] if SOURCE in keys else [PLACE, SOURCE]
    return rows.drop_columns(drop).combine_chunks()


def snapshots_in(batch: pa.Table) -> list[str]:
    """Return the sources with snapshot rows, or the end of a snapshot, in a batch."""
    meta = _Meta.of(batch)
    is_of_snapshot = pc.is_in(meta.op, pa.array(["snapshot", "snapshot_end"]))
    return sorted(pc.unique(meta.source.filter(is_of_snapshot)).to_pylist())


def marks_in(batch: pa.Table) -> tuple[Mark, ...]:
    """Return the truncates and ends of snapshots in a batch."""
    meta = _Meta.of(batch)
    return tuple(
        Mark(
            source=row["source"],
            scn=row["scn"],
            is_truncate=row["op"] == "truncate",
            index=_LAST_INDEX if row["index"] is None else row["index"],
        )
        for row in meta.table.filter(pc.is_in(meta.op, pa.array(MARK_OPS))).to_pylist()
    )


def positions_in(batch: pa.Table) -> dict[str, int]:
    """Return the newest SCN in the log per physical source; snapshot rows do not count."""
    meta = _Meta.of(batch)
    moving = meta.table.filter(pc.not_equal(meta.op, "snapshot"))
    grouped = moving.group_by("physical_source").aggregate([("scn", "max")])
    return dict(
        zip(grouped["physical_source"].to_pylist(), grouped["scn_max"].to_pylist(), strict=True)
    )


def put_changes(
    rows: pa.Table | None,
    deletes: pa.Table | None,
    keys: Sequence[str],
    scn: int,
    source: str | None = None,
) -> Changes:
    """Return rows to write, and keys to delete, as changes of one SCN.

    `rows`: the table's columns; `deletes`: at least the key columns. If the key has
    `_databus_source`, a table without that column gets `source` in it.
    """
    parts = [
        _stamped(_with_source(part, source, keys), scn, is_delete=is_delete)
        for part, is_delete in ((rows, False), (deletes, True))
        if part is not None
    ]
    if not parts:
        raise SettingsError("put needs rows or keys to delete; neither is given")
    merged = pa.concat_tables(parts, promote_options="default")
    check_keys(keys, merged.column_names)
    _check_null_keys(merged, keys)
    codes = key_codes([merged], keys)[0]
    if len(np.unique(codes)) != len(codes):
        raise SettingsError(f"put: a key ({', '.join(keys)}) is given twice")
    return Changes(merged.combine_chunks(), tuple(keys), (), {})


def newest_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return for each key the row with the greatest (`_databus_scn`, PLACE)."""
    if not rows.num_rows:
        return rows
    (codes,) = key_codes([rows], keys)
    order = np.lexsort((_numbers(rows[PLACE]), _numbers(rows[SCN]), codes))
    sorted_codes = codes[order]
    # The rows of a key are neighbours now, the newest one last.
    is_last = np.append(sorted_codes[1:] != sorted_codes[:-1], True)
    return rows.take(pa.array(np.sort(order[is_last])))


def key_codes(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[np.ndarray]:
    """Return a number per row of each table; rows have equal numbers if their keys are equal.

    A key column must have the same type in all tables.
    """
    lengths = [table.num_rows for table in tables]
    codes = np.zeros(sum(lengths), dtype=np.int64)
    for key in keys:
        chunks = [chunk for table in tables for chunk in table[key].chunks]
        column = pa.chunked_array(chunks, tables[0][key].type)
        part = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
        codes = codes * (len(codes) + 1) + np.asarray(part)
        # Renumbered after each column, so that no number of columns overflows.
        codes = np.unique(codes, return_inverse=True)[1] if len(keys) > 1 else codes
    return np.split(codes, np.cumsum(lengths)[:-1])


def check_keys(keys: Sequence[str], columns: Sequence[str]) -> None:
    """Raise SettingsError unless there are keys, and all of them are columns."""
    if not keys:
        raise no_keys()
    missing = [key for key in keys if key not in columns]
    if missing:
        raise SettingsError(
            f"key column {', '.join(map(repr, missing))} is not there; "
            f"columns: {', '.join(columns)}"
        )


def check_names(
    columns: Iterable[str], mode: WriteMode = WriteMode.MIRROR, source: str = "the source"
) -> None:
    """Raise SettingsError if a column of a source has the name of one of ours, in any case.

    `columns`: without `_databus`. In a mirror we have few; names of the other modes may come later.
    """
    for name in columns:
        lower = name.lower()
        is_ours = lower in (META, *BOOKKEEPING, DELETE) or lower.startswith(OF_CHANGE)
        if is_ours or (mode is not WriteMode.MIRROR and lower.startswith(META)):
            raise SettingsError(
                f"{source} has a column {name!r} itself: a target of mode {mode} has a column of "
                f"that name for its own use, or may get one. Rename the column, or {LEAVE_OUT}"
            )


def no_keys() -> SettingsError:
    """Return the error for a table that has no key."""
    return SettingsError(NO_KEYS)


def unified_schema(target: pa.Schema, batch: pa.Schema, name: str, remedy: str = "") -> pa.Schema:
    """Return the target's schema, with a batch's new columns at the end.

    Raises IncompatibleSchemaError if a value might not fit the target's type.
    """
    fields = list(target)
    known = {field.name: field.type for field in fields}
    for field in batch:
        if field.name not in known:
            fields.append(pa.field(field.name, field.type))
        elif not _fits(field.type, known[field.name]):
            raise IncompatibleSchemaError(
                name,
                field.name,
                f"changes have type {field.type}, the table has {known[field.name]}, and no type "
                f"holds both: {remedy or _fill_again(name)}",
            )
    return pa.schema(fields)


def _fill_again(name: str) -> str:
    return f"alter that column of {name}, or remove the table and load it anew"


def cast_to(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with exactly a schema's columns; missing columns are null."""
    columns = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds every value of both types, or None."""
    if _fits(other, one):
        return one
    if _fits(one, other):
        return other
    if pa.types.is_decimal(one) and pa.types.is_decimal(other):
        scale = max(one.scale, other.scale)
        digits = max(one.precision - one.scale, other.precision - other.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None
    return None


def _fits(given: pa.DataType, held: pa.DataType) -> bool:
    """Return whether the type `held` can store every value of the type `given`."""
    if given == held:
        return True
    types = pa.types
    if types.is_signed_integer(given) and types.is_decimal(held):
        return bool(_DIGITS[given.bit_width] <= held.precision - held.scale)
    # A double holds every integer of 53 bits.
    if types.is_signed_integer(given) and held == pa.float64():
        return bool(given.bit_width <= 32)
    if types.is_signed_integer(given) and types.is_signed_integer(held):
        return bool(given.bit_width <= held.bit_width)
    if types.is_decimal(given) and types.is_decimal(held):
        whole = held.precision - held.scale >= given.precision - given.scale
        return bool(whole and held.scale >= given.scale)
    if types.is_timestamp(given) and types.is_timestamp(held):
        return (given.tz is None) == (held.tz is None) and given.unit == held.unit == "us"
    text = (types.is_string, types.is_large_string, types.is_string_view)
    raw = (types.is_binary, types.is_large_binary, types.is_binary_view)
    return (given == pa.float32() and held == pa.float64()) or any(
        any(is_a(given) for is_a in kind) and any(is_a(held) for is_a in kind)
        for kind in (text, raw)
    )


@dataclass(frozen=True, slots=True)
class _Meta:
    """The fields of `_databus` as columns."""

    table: pa.Table

    @classmethod
    def of(cls, batch: pa.Table) -> _Meta:
        struct = batch[META]
        names = ("op", "scn", "index", "as_of", "source", "physical_source")
        return cls(pa.table({name: pc.struct_field(struct, name) for name in names}))

    @property
    def op(self) -> pa.ChunkedArray:
        return self.table["op"]

    @property
    def source(self) -> pa.ChunkedArray:
        return self.table["source"]


def _flat(batch: pa.Table, meta: _Meta, more: Sequence[str]) -> pa.Table:
    """Return rows with the needed fields of `_databus` as columns."""
    rows = batch.drop_columns([META])
    fields = meta.table
    columns = {
        SOURCE: fields["source"],
        SCN: fields["scn"].cast(pa.int64()),
        AS_OF: fields["as_of"].cast(pa.int64()),
        DELETE: pc.equal(fields["op"], "delete"),
        # A snapshot row is the state at the end of its window, so it counts as the last change.
        PLACE: pc.fill_null(
            pc.if_else(
                pc.equal(fields["op"], "snapshot"),
                pa.scalar(None, pa.int32()),
                fields["index"].cast(pa.int32()),
            ),
            _LAST_INDEX,
        ),
        **{f"{OF_CHANGE}{name}": pc.struct_field(batch[META], name) for name in more},
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows


def _old_keys(batch: pa.Table, meta: _Meta, keys: Sequence[str], more: Sequence[str]) -> pa.Table:
    """Return deletes of the old keys of updates that changed the key."""
    struct = batch[META]
    nothing = _flat(batch.slice(0, 0), _Meta(meta.table.slice(0, 0)), more)
    if struct.type.get_field_index("before") < 0:
        return nothing
    before = pc.struct_field(struct, "before")
    is_moved = pc.invert(struct.is_valid())
    for key in keys:
        old = pc.struct_field(before, key)
        is_moved = pc.or_(is_moved, pc.fill_null(pc.not_equal(old, batch[key]), False))
    is_moved = pc.and_(is_moved, pc.and_(before.is_valid(), pc.equal(meta.op, "update")))
    if not pc.any(is_moved).as_py():
        return nothing
    rows = _flat(batch, meta, more).filter(is_moved)
    images = before.filter(is_moved)
    for name in batch.column_names:
        if name != META:
            at = rows.column_names.index(name)
            # A delete needs only the key: columns that the image lacks are null.
            if images.type.get_field_index(name) >= 0:
                column = pc.struct_field(images, name)
            else:
                column = pa.nulls(rows.num_rows, batch.schema.field(name).type)
            rows = rows.set_column(at, name, column)
    deletes = pa.array(np.ones(rows.num_rows, dtype=bool))
    return rows.set_column(rows.column_names.index(DELETE), DELETE, deletes).cast(nothing.schema)


def _covered(rows: pa.Table, marks: Sequence[Mark]) -> pa.ChunkedArray | pa.Array:
    """Return a mask of the upserts that a mark of the same batch removes again."""
    covered = pa.array(np.zeros(rows.num_rows, dtype=bool))
    for mark in marks:
        if mark.is_truncate:
            follows = pc.and_(pc.equal(rows[SCN], mark.scn), pc.greater(rows[PLACE], mark.index))
            is_older = pc.and_(pc.less_equal(rows[SCN], mark.scn), pc.invert(follows))
        else:
            # The as-of SCN of a change is never less than its SCN.
            is_older = pc.less(rows[AS_OF], mark.scn)
        covered = pc.or_(covered, pc.and_(is_older, pc.equal(rows[SOURCE], mark.source)))
    return pc.and_(covered, pc.invert(rows[DELETE]))


def _with_source(table: pa.Table, source: str | None, keys: Sequence[str]) -> pa.Table:
    """Return a table with `_databus_source` added, if the key has it and the table does not."""
    if SOURCE not in keys or SOURCE in table.column_names:
        return table
    if source is None:
        raise SettingsError(f"rows of this target need the column {SOURCE}: give source=…")
    names = pa.repeat(pa.scalar(source, pa.string()), table.num_rows)
    return table.append_column(SOURCE, names)


def _stamped(rows: pa.Table, scn: int, *, is_delete: bool) -> pa.Table:
    """Return rows with the bookkeeping columns of changes."""
    given = [name for name in rows.column_names if name in (SCN, AS_OF, DELETE)]
    rows = rows.drop_columns(given)
    count = rows.num_rows
    for name, value, kind in (
        (SCN, scn, pa.int64()),
        (AS_OF, scn, pa.int64()),
        (DELETE, is_delete, pa.bool_()),
    ):
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, kind), count))
    return rows


def check_sources(batch: pa.Table, source_column: bool) -> None:
    """Raise SettingsError for rows of several sources if no column tells them apart."""
    names = sorted(pc.unique(_Meta.of(batch).source).to_pylist())
    if len(names) > 1 and not source_column:
        raise SettingsError(
            f"changes of {len(names)} sources ({', '.join(names)}) go into one table: select one "
            f"with rows_of(batch, source), or open the target with source_column=True, which "
            f"adds {SOURCE} to its columns and its key"
        )


def _check_null_keys(rows: pa.Table, keys: Sequence[str]) -> None:
    """Raise SettingsError for rows whose key has a null: they identify no row."""
    for key in keys:
        nulls = rows.filter(pc.is_null(rows[key]))
        if nulls.num_rows:
            scn = nulls[SCN][0].as_py()
            raise SettingsError(
                f"key column {key!r} is null in {nulls.num_rows} rows, the first of SCN {scn}: "
                "name columns that are never null with keys=[…]"
            )


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(column)
