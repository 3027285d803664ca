"""Rows to Avro bytes and back.

A row is a mapping from the column names of the table to values of Avro's
space; which Python type belongs to which SQL type is in `table_schema`. A
value that does not fit raises RowError with the column's name: it is never
cut, rounded or guessed, and a missing column is not taken for null. Only what
is said to be absent, by its position among the columns, has no key in a row:
in the bytes a filler stands there, null or else the zero of the type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property, lru_cache
from hashlib import md5
from io import BytesIO
from types import NoneType
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS, SchemaResolutionError
from fastavro.schema import SchemaParseException
from fastavro.write import LOGICAL_WRITERS

from databus.schemas.avro_meta import column_of, field_meta, record_meta
from databus.schemas.avro_normal_form import normal_form
from databus.schemas.errors import IncompatibleSchemaError, ProtocolError, RowError, SchemaError
from databus.schemas.rows.row_decoding import (
    ColumnPlan,
    DecodeFrom,
    decode_from,
    decode_slice,
    plan_columns,
)

Row = Mapping[str, Any]

_write = fastavro.schemaless_writer
_read = fastavro.schemaless_reader

# What fastavro raises for a value or for bytes that do not fit their schema.
_DOES_NOT_FIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
_UNREADABLE = (EOFError, MemoryError, *_DOES_NOT_FIT)


@lru_cache(maxsize=4096)
def schema_id(text: str) -> bytes:
    """Return the MD5 of a schema's normal form: its id on the wire.

    A text that Avro 1.4.0 cannot read has the MD5 of itself. No client of LinkedIn's could
    read it in any case, and ours know it by the same rule.
    """
    with suppress(SchemaError):
        text = normal_form(text)
    # Java, too, writes a question mark for half a character.
    return md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()


@lru_cache(maxsize=4096)
def row_codec(text: str, *, has_durations: bool = False) -> RowCodec:
    """Return the codec of a schema's text, the same one each time; see `RowCodec`."""
    return RowCodec(text, has_durations=has_durations)


class RowCodec:
    """Write and read the rows of one schema; any thread may use it.

    An SQL TIME is a number of microseconds, or a timedelta with `has_durations`. Raises
    SchemaError when the text is not the Avro schema of a record.
    """

    def __init__(self, text: str, *, has_durations: bool = False) -> None:
        self._load(text, text, has_durations)

    @classmethod
    def resolving(
        cls, writer_text: str, reader_text: str, *, has_durations: bool = False
    ) -> RowCodec:
        """Return a codec that reads what `writer_text` wrote as rows of `reader_text`.

        It encodes with the reader's schema. Raises IncompatibleSchemaError on
        reading when the two cannot be resolved; `registry.compatibility`
        tells beforehand.
        """
        codec = cls.__new__(cls)
        codec._load(writer_text, reader_text, has_durations)
        return codec

    @cached_property
    def with_numbers(self) -> RowCodec:
        """The codec of the same rows in which an SQL TIME is a number of microseconds."""
        return self.resolving(self._writer_text, self.text)

    def _load(self, writer_text: str, reader_text: str, has_durations: bool) -> None:
        self._writer_text, self.text = writer_text, reader_text
        times = _DURATION if has_durations else "long"
        definition = _with_times_as(times, _parse_text(reader_text))
        self.source: str = record_meta(definition).get("source", definition["name"])
        self._schema = _parse(definition)
        is_resolving = writer_text != reader_text
        writer = _with_times_as(times, _parse_text(writer_text)) if is_resolving else definition
        self._writer = _parse(writer) if is_resolving else self._schema
        self._reader = self._schema if is_resolving else None
        self._fields = tuple(
            (column_of(field), field["name"], _kinds_of(field["type"]))
            for field in definition["fields"]
        )
        self._columns = {column: name for column, name, _ in self._fields}
        key = record_meta(writer).get("key")
        # None: the schema does not say; empty: the table has no primary key.
        self.key_columns = None if key is None else tuple(map(str, key))
        # By position, as the writer counts them: what may be said to be absent.
        self.written_columns = tuple(column_of(field) for field in writer["fields"])
        self._is_renamed = any(column != name for column, name in self._columns.items())

    @cached_property
    def decode_from(self) -> DecodeFrom:
        """(bytes, offset, end) -> the row between, in compiled code if it can; errors as `decode`.

        Planned when the first row is read: who only writes rows needs no plan.
        """
        if self._reader is not None:
            return decode_slice(self._read)
        return decode_from(self._schema, self.written_columns, self._read)

    @property
    def column_plans(self) -> tuple[ColumnPlan, ...] | None:
        """How the columns of the bytes are decoded; None if compiled code cannot."""
        return plan_columns(self._writer)

    def encode(self, row: Row, absent: Iterable[int] = ()) -> bytes:
        """Return the row's Avro bytes; raises RowError naming the column that does not fit.

        `absent` are positions of columns that the row lacks, from 0.
        """
        if absent:
            row = {**row, **self._fillers(row, absent)}
        if row.keys() != self._columns.keys():
            raise self._wrong_columns(row)
        values = {}
        for column, name, kinds in self._fields:
            value = row[column]
            if kinds is not None:
                try:
                    branch, fits = kinds[type(value)]
                except KeyError:
                    raise self._misfit(column, value, "") from None
                if fits is not None and not fits(value):
                    raise self._misfit(column, value, "")
                if branch is not None:
                    value = (branch, value)
            values[name] = value
        stream = BytesIO()
        try:
            _write(stream, self._schema, values)
        except _DOES_NOT_FIT as error:
            raise self._find_misfit(values, error) from error
        return stream.getvalue()

    def _fillers(self, row: Row, absent: Iterable[int]) -> dict[str, Any]:
        fields = self._schema["fields"]
        fillers = {}
        for position in absent:
            if not 0 <= position < len(fields):
                raise RowError(self.source, "?", f"column {position} is absent: there is none")
            field = fields[position]
            column = column_of(field)
            if column in row:
                raise RowError(self.source, column, "is said to be absent, and is in the row")
            fillers[column] = _filler(field["type"])
        return fillers

    def decode(self, data: bytes, absent: Iterable[int] = ()) -> dict[str, Any]:
        """Return the row that `data` holds; columns at the positions `absent` are left out.

        Positions are those of the writer's schema, from 0. Raises ProtocolError
        when it is not a row of this schema, IncompatibleSchemaError when it
        cannot be resolved to the reader's.
        """
        row = self.decode_from(data, 0)
        for position in absent:
            if not 0 <= position < len(self.written_columns):
                raise ProtocolError(f"column {position} of {self.source} is absent: there is none")
            row.pop(self.written_columns[position], None)
        return row

    def _read(self, data: bytes) -> dict[str, Any]:
        """Decode a row by fastavro: each one that the compiled decoder leaves to it."""
        stream = BytesIO(data)
        try:
            row: Any = _read(stream, self._writer, self._reader)
        except SchemaResolutionError as error:
            raise IncompatibleSchemaError(self.source, "", str(error)) from error
        except _UNREADABLE as error:
            # fastavro's own text for bytes that end too early has the address of an object.
            reason = "the bytes end within it" if isinstance(error, EOFError) else repr(error)
            raise ProtocolError(
                f"not a row of {self.source}: {reason}", min(stream.tell(), len(data))
            ) from error
        if stream.read(1):
            raise ProtocolError(f"bytes after the row of {self.source}", stream.tell() - 1)
        if self._is_renamed:
            row = {column: row[name] for column, name in self._columns.items()}
        return row  # type: ignore[no-any-return]

    def _wrong_columns(self, row: Row) -> RowError:
        missing = [column for column in self._columns if column not in row]
        if missing:
            return RowError(self.source, missing[0], "is not in the row")
        extra = sorted(set(row) - set(self._columns))
        return RowError(self.source, extra[0], "is in the row and not in the table's schema")

    def _find_misfit(self, values: dict[str, Any], error: Exception) -> RowError:
        """Return the error with its column: the first that cannot be written alone."""
        for field in self._schema["fields"]:
            name = field["name"]
            alone = {"type": "record", "name": "Alone", "fields": [field]}
            try:
                _write(BytesIO(), fastavro.parse_schema(alone), {name: values[name]})
            except _DOES_NOT_FIT as reason:
                value = values[name][1] if isinstance(values[name], tuple) else values[name]
                return self._misfit(column_of(field), value, f": {reason}")
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
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"schema is not JSON: {error}") from error
    if not (
        isinstance(definition, dict)
        and definition.get("type") == "record"
        and isinstance(definition.get("name"), str)
        and isinstance(definition.get("fields"), list)
        and all(isinstance(field, dict) and "name" in field for field in definition["fields"])
        and all("type" in field for field in definition["fields"])
    ):
        raise SchemaError("schema is not that of a record with a name and fields")
    return definition


def _parse(definition: dict[str, Any]) -> Any:
    try:
        return fastavro.parse_schema(definition)
    except (SchemaParseException, *_DOES_NOT_FIT) as error:
        raise SchemaError(f"schema of {definition['name']}: {error!r}") from error


def _with_times_as(found: Any, definition: dict[str, Any]) -> dict[str, Any]:
    """Give SQL TIMEs another Avro type: they are no times of a day, as fastavro would have it."""
    fields = []
    for field in definition["fields"]:
        is_sql_time = str(field_meta(field).get("sqlType", "")).lower().startswith("time")
        changed = _time_as(found, field["type"]) if is_sql_time else field["type"]
        fields.append({**field, "type": changed})
    return {**definition, "fields": fields}


def _time_as(found: Any, avro_type: Any) -> Any:
    if isinstance(avro_type, list):
        return [_time_as(found, branch) for branch in avro_type]
    return found if _logical_type(avro_type) == "time-micros" else avro_type


def _read_duration(micros: int, _writer: Any = None, _reader: Any = None) -> timedelta:
    return timedelta(microseconds=micros)


def _write_duration(value: Any, _schema: Any = None) -> Any:
    return value // _MICROSECOND if isinstance(value, timedelta) else value


# A logical type of this file alone: no schema's text has it.
_DURATION_TYPE = "databus-duration-micros"
_DURATION = {"type": "long", "logicalType": _DURATION_TYPE}
_MICROSECOND = timedelta(microseconds=1)
LOGICAL_READERS[f"long-{_DURATION_TYPE}"] = _read_duration
LOGICAL_WRITERS[f"long-{_DURATION_TYPE}"] = _write_duration


def captured_table(text: str) -> str | None:
    """Return the table that a generated schema was made of; None for another text."""
    meta = record_meta(json.loads(text))
    found = meta.get("table") or meta.get("source")
    return None if found is None else str(found)


def _logical_type(avro_type: Any) -> str | None:
    name = avro_type.get("logicalType") if isinstance(avro_type, dict) else None
    return name if isinstance(name, str) else None


def _kinds_of(avro_type: Any) -> _Kinds | None:
    """Return which Python types a field takes, or None to leave it all to fastavro.

    Outside of a union fastavro bends a value until it fits (1.5 is the int 1),
    and in one it tries the value on each branch, which is slow: so both are
    decided here, by the value's type.
    """
    is_union = isinstance(avro_type, list)
    kinds: _Kinds = {}
    for branch in avro_type if is_union else [avro_type]:
        plain = branch.get("type") if isinstance(branch, dict) else branch
        known = _KINDS.get(_logical_type(branch) or (plain if isinstance(plain, str) else ""))
        if known is None:
            return None
        types, fits = known
        if not kinds.keys().isdisjoint(types):
            return None  # as int and long in one union
        tag = plain if is_union and plain != "null" else None
        kinds.update(dict.fromkeys(types, (tag, fits)))
    return kinds


def _filler(avro_type: Any) -> Any:
    """Return what stands in the bytes for a value that is absent."""
    branches = avro_type if isinstance(avro_type, list) else [avro_type]
    if "null" in branches:
        return None
    branch = branches[0]
    kind = branch["type"] if isinstance(branch, dict) else branch
    return _FILLERS[_logical_type(branch) or kind]


def _is_int(value: int) -> bool:
    return -0x80000000 <= value <= 0x7FFFFFFF


def _is_long(value: int) -> bool:
    return -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF


def _is_float(value: float) -> bool:
    return -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT or not math.isfinite(value)


def _is_aware(value: datetime) -> bool:
    return value.tzinfo is not None


def _is_naive(value: datetime) -> bool:
    return value.tzinfo is None


_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
_Fits = Callable[[Any], bool]
_Kinds = dict[type, tuple[str | None, _Fits | None]]  # Python type: branch to name, check

# By logical type, or else by type.
_KINDS: dict[str, tuple[tuple[type, ...], _Fits | None]] = {
    "null": ((NoneType,), None),
    "boolean": ((bool,), None),
    "int": ((int,), _is_int),
    "long": ((int,), _is_long),
    "float": ((float,), _is_float),
    "double": ((float,), None),
    "string": ((str,), None),
    "bytes": ((bytes,), None),
    "decimal": ((Decimal,), None),
    "date": ((date,), None),
    "time-micros": ((time,), None),
    _DURATION_TYPE: ((timedelta,), None),
    "timestamp-micros": ((datetime,), _is_aware),
    "local-timestamp-micros": ((datetime,), _is_naive),
}

# The same keys; all of them zeros in the bytes.
_FILLERS: dict[str, Any] = {
    "boolean": False,
    "int": 0,
    "long": 0,
    "float": 0.0,
    "double": 0.0,
    "string": "",
    "bytes": b"",
    "decimal": Decimal(0),
    "date": date(1970, 1, 1),
    "time-micros": time(0),
    _DURATION_TYPE: timedelta(0),
    "timestamp-micros": datetime(1970, 1, 1, tzinfo=UTC),
    "local-timestamp-micros": datetime(1970, 1, 1),
}
