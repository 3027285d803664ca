"""Reconstruct rows as of an SCN from the first change of each row after it. Pure.

A row as of SCN X, by its first change after X:

    insert      there was no row
    update      the before image
    delete      the deleted row
    truncate    unknown: the log does not have the removed rows

All operations are on Arrow columns; only keys and first changes stay in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.client.spark.arrow.row_types import CHANGE_COLUMN
from databus.schemas.errors import ReadAgainError, SettingsError

_PLACE = "place"
_FEWEST = 10_000  # changes to collect before the later ones of each key are dropped


class AsOf:
    """Collects the changes after an SCN, and returns the rows as of that SCN.

    `keys`: the names of the key columns.
    """

    def __init__(self, source: str, scn: int, keys: Sequence[str]) -> None:
        self._source = source
        self._scn = scn
        self._keys = list(keys)
        self._changes: list[pa.RecordBatch] = []
        self._held = 0
        self._limit = _FEWEST

    def add(self, changes: pa.RecordBatch) -> None:
        """Add changes, in any order; raises ReadAgainError for a truncate."""
        self._check_truncates(changes)
        self._changes.append(changes)
        self._held += changes.num_rows
        if self._held > self._limit:
            firsts = self._firsts()
            self._changes = firsts.to_batches()
            self._held = firsts.num_rows
            # Doubled, so that each change is sorted a bounded number of times on average.
            self._limit = max(_FEWEST, 2 * self._held)

    def rows(self, known: Sequence[pa.RecordBatch]) -> pa.Table | None:
        """Return the rows as of the SCN, without those whose keys are in `known`; None if empty.

        Raises SettingsError if a row cannot be reconstructed.
        """
        if not self._changes:
            return None
        firsts = self._firsts()
        told = firsts.column(CHANGE_COLUMN).combine_chunks()
        is_update = pc.equal(pc.struct_field(told, "op"), "update")
        is_delete = pc.equal(pc.struct_field(told, "op"), "delete")
        self._check_before_images(told, is_update)
        found = pa.concat_tables(
            [_rows_before(firsts.filter(is_update)), _without_change(firsts.filter(is_delete))]
        )
        found = self._without(found, known)
        return found if found.num_rows else None

    def _firsts(self) -> pa.Table:
        """Return the first change of each key, in the order of commits."""
        changes = pa.Table.from_batches(self._changes)
        told = changes.column(CHANGE_COLUMN).combine_chunks()
        scns, indexes = (pc.struct_field(told, name).to_numpy(False) for name in ("scn", "index"))
        # The last key given to lexsort counts first.
        changes = changes.take(pa.array(np.lexsort((indexes, scns))))
        numbered = _numbered(changes, self._keys)
        names = numbered.column_names[:-1]
        grouped = numbered.group_by(names, use_threads=False).aggregate([(_PLACE, "min")])
        return changes.take(_sorted(grouped.column(f"{_PLACE}_min")))

    def _without(self, found: pa.Table, known: Sequence[pa.RecordBatch]) -> pa.Table:
        if not known or not found.num_rows:
            return found
        numbered = _numbered(found, self._keys)
        names = numbered.column_names[:-1]
        others = pa.Table.from_batches(known).select(self._keys).rename_columns(names)
        left = numbered.join(others, keys=names, join_type="left anti", use_threads=False)
        return found.take(_sorted(left.column(_PLACE)))

    def _check_truncates(self, changes: pa.RecordBatch) -> None:
        told = changes.column(CHANGE_COLUMN)
        is_truncate = pc.equal(pc.struct_field(told, "op"), "truncate")
        scn = pc.max(pc.struct_field(told, "scn").filter(is_truncate)).as_py()
        if scn is not None:
            raise ReadAgainError(
                f"{self._source} as of scn {self._scn}: it was truncated at scn {scn}, and the "
                f"removed rows are not kept; set option asOf to {scn} or later, or leave it out"
            )

    def _check_before_images(self, told: pa.StructArray, is_update: pa.BooleanArray) -> None:
        is_lacking = pc.and_(is_update, pc.is_null(pc.struct_field(told, "before")))
        scn = pc.min(pc.struct_field(told, "scn").filter(is_lacking)).as_py()
        if scn is not None:
            raise SettingsError(
                f"{self._source} as of scn {self._scn}: a row was updated at scn {scn}, but the "
                "log has no before image of it, or the image does not fit the altered table. Set "
                "before_images = true in the relay's settings and, for MySQL, "
                "binlog_row_image = FULL; until then, and after an ALTER, read without option "
                "asOf while nobody writes"
            )


def _numbered(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the key columns, renamed, and the rows' numbers."""
    names = [f"key{number}" for number in range(len(keys))]
    places = pa.array(np.arange(rows.num_rows))
    return pa.table([*(rows.column(key) for key in keys), places], [*names, _PLACE])


def _sorted(places: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.sort(places.to_numpy()))


def _without_change(rows: pa.Table) -> pa.Table:
    return rows.drop_columns([CHANGE_COLUMN])


def _rows_before(updates: pa.Table) -> pa.Table:
    schema = _without_change(updates).schema
    befores = pc.struct_field(updates.column(CHANGE_COLUMN), "before")
    return pa.table([pc.struct_field(befores, name) for name in schema.names], schema=schema)
