"""Writes rows as the field `RowData` of Canal's messages.

RowData   1 beforeColumns, 2 afterColumns (Column*)
Column    1 index, 2 sqlType, 3 name, 4 isKey, 5 updated, 6 isNull, 7 props (Pair*),
          8 value, 9 length (never written), 10 mysqlType
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple

from databus.relay.serving.columns.column_plan import PlannedColumn, plan_columns
from databus.relay.serving.columns.compiled_plan import compile_columns, zone_changes
from databus.relay.serving.columns.texts import value_text
from databus.relay.serving.protobuf import bytes_field, number_field, text_field
from databus.schemas.avro_rows import row_codec
from databus.schemas.event.metadata import Notes, Op

try:
    from databus.relay.serving.columns._column_writer import CompiledWriter
except ImportError:  # not built: Python writes every row
    is_compiled = False
else:
    is_compiled = True

_OPS = {op: number for number, op in enumerate(Op)}
BEFORE_COLUMNS, AFTER_COLUMNS = 1, 2
_NO_NOTES = Notes()
_NONE: Any = object()  # in place of a value that is not there


class Image(NamedTuple):
    """A row's Avro bytes, and the notes on it; see `metadata.Notes`."""

    row: bytes
    absent: Collection[int] = ()
    raw: Mapping[str, str] = {}


@lru_cache(maxsize=1024)
def column_writer(schema_text: str, zone: tzinfo = UTC) -> ColumnWriter:
    """Return the writer of a schema's rows, the same one each time."""
    return ColumnWriter(schema_text, zone)


class ColumnWriter:
    """Writes the rows of one schema. Any thread may use it."""

    def __init__(self, schema_text: str, zone: tzinfo = UTC) -> None:
        """`zone` is that of TIMESTAMPs."""
        self._columns = plan_columns(schema_text)
        self._codec = row_codec(schema_text)
        self._zone = zone
        self.compiled = self._compile()  # what writes most rows; None = Python writes all

    def _compile(self) -> Any:
        if not is_compiled:
            return None
        planned = compile_columns(self._columns, self._codec.column_plans)
        return None if planned is None else CompiledWriter(planned, *zone_changes(self._zone))

    def row_data(
        self, op: Op, row: bytes, before: bytes | None = None, notes: Notes | None = None
    ) -> bytes:
        """Return the bytes of the RowData of one change, as an event's metadata describes it.

        An update without the row before it has its key only. Raises ProtocolError for bytes that
        are no row.
        """
        notes = notes or _NO_NOTES
        if self.compiled is not None:
            told = notes.absent, notes.before_absent, dict(notes.raw), dict(notes.before_raw)
            data: bytes | None = self.compiled.row_data(_OPS[op], row, before, *told)
            if data is not None:
                return data
        return self.python_row_data(op, row, before, notes)

    def python_row_data(self, op: Op, row: bytes, before: bytes | None, notes: Notes) -> bytes:
        """Return the same, without compiled code."""
        image = Image(row, notes.absent, notes.raw)
        if op is Op.DELETE:
            return self._before(self._values(image))
        after = self._values(image)
        if op is not Op.UPDATE:
            return self._after(after, None)
        if before is None:
            keys = [one if column.is_key else _NONE for column, one in self._planned(after)]
            return self._before(keys) + self._after(after, None)
        former = self._values(Image(before, notes.before_absent, notes.before_raw))
        return self._before(former) + self._after(after, former)

    def _planned(self, values: list[Any]) -> list[tuple[PlannedColumn, Any]]:
        return list(zip(self._columns, values, strict=True))

    def _values(self, image: Image) -> list[Any]:
        """Return each column's text and type; None for null, `_NONE` for what is absent."""
        row = self._codec.decode(image.row, image.absent)
        return [self._text_of(column, row, image.raw) for column in self._columns]

    def _text_of(
        self, column: PlannedColumn, row: Mapping[str, Any], raw: Mapping[str, str]
    ) -> Any:
        if column.name not in row:
            return _NONE
        value = row[column.name]
        sql_type = column.sql_types[_branch_of(column, value)]
        if value is None:
            text = raw.get(column.name)
            if text is not None:  # what has no value in Avro has its type all the same
                sql_type = column.sql_types[-1]
            return text, sql_type
        if column.wide_from and value >= column.wide_from:
            sql_type = column.wide_type
        return value_text(column, value, self._zone), sql_type

    def _before(self, values: list[Any]) -> bytes:
        return b"".join(
            bytes_field(BEFORE_COLUMNS, _column(column, value, updated=False))
            for column, value in self._planned(values)
            if value is not _NONE
        )

    def _after(self, values: list[Any], former: list[Any] | None) -> bytes:
        found = []
        for at, (column, value) in enumerate(self._planned(values)):
            if value is _NONE:
                continue
            updated = former is None or former[at] is _NONE or former[at][0] != value[0]
            found.append(bytes_field(AFTER_COLUMNS, _column(column, value, updated=updated)))
        return b"".join(found)


def _branch_of(column: PlannedColumn, value: Any) -> int:
    if value is None:
        return column.branches.index("null")
    others = [at for at, name in enumerate(column.branches) if name != "null"]
    if len(others) == 1:
        return others[0]
    names = next((names for kind, names in _PYTHON if isinstance(value, kind)), ())
    return next((at for at in others if column.branches[at] in names), others[0])


# Where a column has several types.
_PYTHON: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("int", "long")),
    (float, ("float", "double")),
    (str, ("string", "enum")),
    (bytes, ("bytes", "fixed")),
)


def _column(column: PlannedColumn, value: tuple[str | None, int], *, updated: bool) -> bytes:
    text, sql_type = value
    return b"".join(
        (
            number_field(1, column.position),
            number_field(2, sql_type),
            text_field(3, column.name),
            number_field(4, column.is_key),
            number_field(5, updated),
            number_field(6, text is None),
            b"" if text is None else text_field(8, text),
            text_field(10, column.mysql_type),
        )
    )
