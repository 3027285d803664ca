"""Convert the columns of one schema version to batches of the target's columns.

A decoder yields a `RowBatch`: Arrow arrays of the writer's own types. This module
converts them to the schema that Spark expects: it widens types, makes texts, fills
columns that the writer did not have with nulls, and adds the constants of
`_databus`. All conversions are vectorised, except texts of types for which Arrow
has no suitable cast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.client.arrow.arrow_types import (
    HEAD_TYPES,
    RowBatch,
    is_wider,
    stored_type,
)
from databus.client.arrow.merged_columns import is_as_text
from databus.client.spark.arrow.row_types import (
    CHANGE_COLUMN,
    Layout,
    arrow_schema,
    row_schema,
)
from databus.schemas.avro_rows import row_codec
from databus.schemas.columns.any_text import any_text
from databus.schemas.columns.avro_columns import AvroColumn, Kind, WriterSchema, columns_of
from databus.schemas.errors import ReloadNeededError, RestartNeededError, SchemaError

Convert = Callable[[pa.Array], pa.Array]


class Frame:
    """The layout of the target's batches, and their constant columns.

    Raises ValueError if the target does not come from `changes_schema`.
    """

    def __init__(
        self, target: pa.Schema, layout: Layout, physical_source: str, as_of: int | None
    ) -> None:
        if CHANGE_COLUMN not in target.names:
            raise ValueError(f"the target has no column {CHANGE_COLUMN}")
        self.target = target
        self.layout = layout
        self._change: pa.StructType = target.field(CHANGE_COLUMN).type
        self._before: pa.StructType | None = next(
            (field.type for field in self._change if field.name == "before"), None
        )
        self.has_before = self._before is not None
        self._physical_source = physical_source
        self._as_of = as_of
        self._constants: dict[Any, pa.Array] = {}

    def row_fields(self, source: str) -> list[pa.Field]:
        """Return the fields of a source's rows; raises SchemaError if the target has none."""
        if self.layout == "columns":
            return [field for field in self.target if field.name != CHANGE_COLUMN]
        if source not in self.target.names or source == CHANGE_COLUMN:
            raise RestartNeededError(
                f"source {source} came after the query was started: restart the query to take it in"
            )
        return list(self.target.field(source).type)

    def nulls(self, data_type: pa.DataType, rows: int) -> pa.Array:
        """Return an array of nulls."""
        return self._constant(("null", data_type), rows, lambda n: pa.nulls(n, data_type))

    def batch(
        self,
        source: str,
        schema_version: int | None,
        rows: RowBatch,
        row: list[pa.Array] | None,
        before: list[pa.Array] | None,
    ) -> pa.RecordBatch:
        """Return a batch of the target.

        `row` and `before` have the fields of `row_fields(source)`; None = all null.
        """
        n = rows.rows
        head = dict(zip(HEAD_TYPES, rows.head, strict=True))
        change = {
            **head,
            "physical_source": self._repeat(self._physical_source, pa.string(), n),
            "source": self._repeat(source, pa.string(), n),
            "schema_version": self._repeat(schema_version, pa.int32(), n),
            "as_of": head["scn"]
            if self._as_of is None
            else self._repeat(self._as_of, pa.int64(), n),
        }
        if self._before is not None:
            change["before"] = self._before_array(
                self._before, source, n, before, rows.before_valid
            )
        arrays = [change[field.name] for field in self._change]
        changes = pa.Array.from_buffers(self._change, n, [None], 0, children=arrays)
        columns = self._row_arrays(source, n, row)
        place = self.target.names.index(CHANGE_COLUMN)
        columns.insert(place, changes)
        return pa.RecordBatch.from_arrays(columns, schema=self.target)

    def _row_arrays(self, source: str, n: int, row: list[pa.Array] | None) -> list[pa.Array]:
        fields = [field for field in self.target if field.name != CHANGE_COLUMN]
        if row is None:
            return [self.nulls(field.type, n) for field in fields]
        if self.layout == "columns":
            return list(row)
        return self._by_source(fields, source, n, row, None)

    def _before_array(
        self,
        target: pa.StructType,
        source: str,
        n: int,
        before: list[pa.Array] | None,
        valid: pa.Buffer | None,
    ) -> pa.Array:
        if before is None:
            return self.nulls(target, n)
        if self.layout == "structs":
            before = self._by_source(list(target), source, n, before, valid)
        return pa.Array.from_buffers(target, n, [valid], children=before)

    def _by_source(
        self,
        fields: list[pa.Field],
        source: str,
        n: int,
        arrays: list[pa.Array],
        valid: pa.Buffer | None,
    ) -> list[pa.Array]:
        """Return one struct per source; those of other sources are null."""
        return [
            pa.Array.from_buffers(field.type, n, [valid], children=arrays)
            if field.name == source
            else self.nulls(field.type, n)
            for field in fields
        ]

    def _repeat(self, value: Any, data_type: pa.DataType, n: int) -> pa.Array:
        if value is None:
            return self.nulls(data_type, n)
        scalar = pa.scalar(value, data_type)
        return self._constant(("value", value, data_type), n, lambda n: pa.repeat(scalar, n))

    def _constant(self, key: Any, n: int, make: Callable[[int], pa.Array]) -> pa.Array:
        """Return a slice of a cached array, which is made again only for more rows."""
        held = self._constants.get(key)
        if held is None or len(held) < n:
            held = self._constants[key] = make(n)
        return held if len(held) == n else held.slice(0, n)


class ColumnPlan:
    """Converts rows of one schema version to batches of the target.

    Raises SchemaError with source, column and version if the target lacks a column
    (unless `on_new_column` is `ignore`), or has it with a type that does not fit.
    `known`: all known versions of the source.
    """

    def __init__(
        self,
        schema: WriterSchema,
        frame: Frame,
        on_new_column: str,
        as_text: Collection[str] = (),
        *,
        known: Sequence[WriterSchema] = (),
    ) -> None:
        self.schema = schema
        self._known = known
        self.columns = columns_of(schema)
        self.codec = row_codec(schema.text)
        self._frame = frame
        # Spark ignores the case of column names.
        places = {column.name.lower(): n for n, column in enumerate(self.columns)}
        self._converts: list[tuple[int, Convert | None, pa.DataType]] = []
        for field in frame.row_fields(schema.source):
            at = places.pop(field.name.lower(), -1)
            convert = None if at < 0 else self._convert(self.columns[at], field.type, as_text)
            self._converts.append((at, convert, field.type))
        if places and on_new_column != "ignore":
            new = self.columns[min(places.values())]
            raise RestartNeededError(
                f"{schema.source}, column {new.name!r}: it is new in schema version "
                f"{schema.version}, and the query was started without it: restart the query to "
                "add it, or set onNewColumn=ignore to leave it out"
            )

    def batch(self, rows: RowBatch) -> pa.RecordBatch:
        """Return rows as a batch of the target."""
        row = self._converted(rows.row, rows.rows)
        before = None if rows.before is None else self._converted(rows.before, rows.rows)
        return self._frame.batch(self.schema.source, self.schema.version, rows, row, before)

    def _converted(self, arrays: Sequence[pa.Array], n: int) -> list[pa.Array]:
        return [
            self._frame.nulls(data_type, n)
            if at < 0
            else arrays[at]
            if convert is None
            else convert(arrays[at])
            for at, convert, data_type in self._converts
        ]

    def _convert(
        self, column: AvroColumn, target: pa.DataType, as_text: Collection[str]
    ) -> Convert | None:
        """Return the conversion from the writer's type to the target's; None = the same type."""
        stored = stored_type(column)
        if stored == target:
            return None
        if is_wider(stored, target):
            return lambda array: array.cast(target)
        if target == pa.string() and is_as_text(self.schema.source, column.name, as_text):
            return _text_convert(column)
        # A restart would not help: the newest type does not hold this version's values either.
        if not self._fits_a_new_start(column, stored, as_text):
            raise ReloadNeededError(
                f"{self.schema.source}, column {column.name!r}: it is {column.type_text} in schema "
                f"version {self.schema.version} and {target} since, which cannot hold its values: "
                "older rows must be read again. Start the query with another checkpoint folder, or "
                f"read the column as text with option columnsAsText={column.name}"
            )
        raise RestartNeededError(
            f"{self.schema.source}, column {column.name!r}: it is {column.type_text} in schema "
            f"version {self.schema.version}, and the query was started with {target}: restart the "
            f"query, with option columnsAsText={column.name} if no type holds both"
        )

    def _fits_a_new_start(
        self, column: AvroColumn, stored: pa.DataType, as_text: Collection[str]
    ) -> bool:
        """Return whether a query started now would have a type that holds these values."""
        try:
            fields = arrow_schema(row_schema(self._known or [self.schema], as_text))
        except SchemaError:
            return False
        now = {field.name.lower(): field.type for field in fields}[column.name.lower()]
        return bool(stored == now) or is_wider(stored, now)


def _text_convert(column: AvroColumn) -> Convert:
    """Return the conversion of a column's values to the texts that `row_types` describes."""
    if column.kind is Kind.FLOAT:
        # Through text, for the shortest digits of the float and not those of its double.
        return lambda array: _texts(array.cast(pa.string()).cast(pa.float64()))
    if column.kind in (Kind.DOUBLE, Kind.DECIMAL, Kind.BYTES):
        return _texts
    return lambda array: pc.cast(array, pa.string())


def _texts(array: pa.Array) -> pa.Array:
    return pa.array([any_text(value) for value in array.to_pylist()], pa.string())
