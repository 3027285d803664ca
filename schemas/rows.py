"""Rows to Avro bytes and back.

A row is a mapping from the column names of the table to values of Avro's
space; which Python type belongs to which SQL type is in `table_schema`. A
value that does not fit raises RowError with the column's name: it is never
cut, rounded or guessed, and a missing column is not taken for null.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import md5
from io import BytesIO
from typing import Any

import fastavro

from databus.schemas.errors import IncompatibleSchemaError, ProtocolError, RowError, SchemaError

Row = Mapping[str, Any]

_write = fastavro.schemaless_writer
_read = fastavro.schemaless_reader

# What fastavro raises for a value or for bytes that do not fit their schema.
_DOES_NOT_FIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_UNREADABLE = (EOFError, MemoryError, *_DOES_NOT_FIT)


def schema_id(text: str) -> bytes:
    """Return the MD5 of a schema's text: its id on the wire."""
    return md5(text.encode(), usedforsecurity=False).digest()


@lru_cache(maxsize=4096)
def row_codec(text: str) -> RowCodec:
    """Return the codec of a schema's text, the same one each time."""
    return RowCodec(text)


class RowCodec:
    """Write and read the rows of one schema; any thread may use it.

    Raises SchemaError when the text is not the Avro schema of a record.
    """

    def __init__(self, text: str) -> None:
        self._load(text, text)

    @classmethod
    def resolving(cls, writer_text: str, reader_text: str) -> RowCodec:
        """Return a codec that reads what `writer_text` wrote as rows of `reader_text`.

        It encodes with the reader's schema. Raises IncompatibleSchemaError on
        reading when the two cannot be resolved; `registry.compatibility`
        tells beforehand.
        """
        codec = cls.__new__(cls)
        codec._load(writer_text, reader_text)
        return codec

    def _load(self, writer_text: str, reader_text: str) -> None:
        self.text = reader_text
        definition = _parse_text(reader_text)
        self.source: str = _meta(definition).get("source", definition["name"])
        self._schema = _parse(definition)
        is_resolving = writer_text != reader_text
        self._writer = _parse(_parse_text(writer_text)) if is_resolving else self._schema
        self._reader = self._schema if is_resolving else None
        columns = {_column_of(field): field["name"] for field in definition["fields"]}
        self._columns = columns.keys()
        # Empty for nearly all tables: then rows need no renaming at all.
        self._renamed = {column: name for column, name in columns.items() if column != name}
        self._checks = tuple(
            (_column_of(field), check)
            for field in definition["fields"]
            if (check := _check_of(field["type"])) is not None
        )

    def encode(self, row: Row) -> bytes:
        """Return the row's Avro bytes; raises RowError naming the column that does not fit."""
        if row.keys() != self._columns:
            raise self._wrong_columns(row)
        for column, fits in self._checks:
            if not fits(row[column]):
                raise self._misfit(column, row[column], "")
        stream = BytesIO()
        try:
            _write(stream, self._schema, self._to_fields(row))
        except _DOES_NOT_FIT as error:
            raise self._find_misfit(row, error) from error
        return stream.getvalue()

    def decode(self, data: bytes) -> dict[str, Any]:
        """Return the row that `data` holds.

        Raises ProtocolError when it is not a row of this schema,
        IncompatibleSchemaError when it cannot be resolved to the reader's.
        """
        stream = BytesIO(data)
        try:
            row: Any = _read(stream, self._writer, self._reader)
        except fastavro.read.SchemaResolutionError as error:
            raise IncompatibleSchemaError(self.source, "", str(error)) from error
        except _UNREADABLE as error:
            raise ProtocolError(
                f"not a row of {self.source}: {error!r}", min(stream.tell(), len(data))
            ) from error
        if stream.read(1):
            raise ProtocolError(f"bytes after the row of {self.source}", stream.tell() - 1)
        if self._renamed:
            return {column: row[self._renamed.get(column, column)] for column in self._columns}
        return row  # type: ignore[no-any-return]

    def _to_fields(self, row: Row) -> dict[str, Any]:
        renamed = self._renamed
        if not renamed:
            return row if type(row) is dict else dict(row)
        return {renamed.get(column, column): value for column, value in row.items()}

    def _wrong_columns(self, row: Row) -> RowError:
        missing = [column for column in self._columns if column not in row]
        if missing:
            return RowError(self.source, missing[0], "is not in the row")
        extra = sorted(set(row) - set(self._columns))
        return RowError(self.source, extra[0], "is in the row and not in the table's schema")

    def _find_misfit(self, row: Row, error: Exception) -> RowError:
        """Say which column it was: the first that cannot be written alone."""
        for field in self._schema["fields"]:
            column = _column_of(field)
            alone = {"type": "record", "name": "Alone", "fields": [field]}
            try:
                _write(BytesIO(), fastavro.parse_schema(alone), {field["name"]: row[column]})
            except _DOES_NOT_FIT as reason:
                return self._misfit(column, row[column], f": {reason}")
        return RowError(self.source, "?", f"cannot be written: {error}")

    def _misfit(self, column: str, value: Any, reason: str) -> RowError:
        shown = repr(value)
        if len(shown) > 60:
            shown = f"{shown[:57]}..."
        return RowError(
            self.source, column, f"{type(value).__name__} {shown} does not fit its type{reason}"
        )


def _parse_text(text: str) -> dict[str, Any]:
    try:
        definition = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"schema is not JSON: {error}") from error
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise SchemaError("schema is not that of a record")
    return definition


def _parse(definition: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(_with_plain_times(definition))
    except (fastavro.schema.SchemaParseException, *_DOES_NOT_FIT) as error:
        raise SchemaError(f"schema of {definition.get('name')}: {error!r}") from error


def _with_plain_times(definition: dict[str, Any]) -> dict[str, Any]:
    """Make fastavro leave SQL TIMEs alone: they are no times of a day."""
    fields = []
    for field in definition["fields"]:
        is_sql_time = str(_meta(field).get("sqlType", "")).lower().startswith("time")
        fields.append({**field, "type": _plain_time(field["type"])} if is_sql_time else field)
    return {**definition, "fields": fields}


def _plain_time(avro_type: Any) -> Any:
    if isinstance(avro_type, list):
        return [_plain_time(branch) for branch in avro_type]
    return "long" if _logical_type(avro_type) == "time-micros" else avro_type


def _meta(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = holder.get("meta")
    return meta if isinstance(meta, dict) else {}


def _column_of(field: Mapping[str, Any]) -> str:
    name: str = _meta(field).get("column", field["name"])
    return name


def _logical_type(avro_type: Any) -> str | None:
    return avro_type.get("logicalType") if isinstance(avro_type, dict) else None


def _check_of(avro_type: Any) -> Callable[[Any], bool] | None:
    """Return what must be asked of a value that fastavro would bend until it fits."""
    branches = avro_type if isinstance(avro_type, list) else [avro_type]
    for branch in branches:
        logical_type = _logical_type(branch)
        if logical_type in _LOGICAL_CHECKS:
            return _LOGICAL_CHECKS[logical_type]
    # In a union fastavro looks at the value's type itself, outside of one it does not.
    return _PLAIN_CHECKS.get(avro_type) if isinstance(avro_type, str) else None


def _is_int(value: Any) -> bool:
    return type(value) is int and -0x80000000 <= value <= 0x7FFFFFFF


def _is_long(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) is float or type(value) is int


def _is_aware(value: Any) -> bool:
    return value is None or (isinstance(value, datetime) and value.tzinfo is not None)


def _is_naive(value: Any) -> bool:
    return value is None or (isinstance(value, datetime) and value.tzinfo is None)


_PLAIN_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "long": _is_long,
    "float": _is_number,
    "double": _is_number,
}
_LOGICAL_CHECKS: dict[str | None, Callable[[Any], bool]] = {
    "timestamp-micros": _is_aware,
    "local-timestamp-micros": _is_naive,
}
