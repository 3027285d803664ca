"""Values of rows as BSON has them: none is rounded, and those of a column have one type."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, DecimalException
from functools import cache
from typing import Any, Literal

from bson import Decimal128, Int64

from databus.client.sinks.contract import Row
from databus.client.sinks.formats.sql_texts import time_text
from databus.schemas.columns.avro_columns import WriterSchema, columns_of

Dates = Literal["exact", "milliseconds", "text"]
Decimals = Literal["decimal128", "text"]
JsonColumns = Literal["document", "text"]
_Convert = Callable[[Any], Any]  # of a value that is not NULL; raises ValueError

_DIGITS = re.compile(r"\((\d+)\)")
_MILLISECONDS = 3  # digits of a date of BSON
_JSON = frozenset({"json", "jsonb"})
_MOST_LEVELS = 99  # MongoDB has 100, with that of the document
_INT64 = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class ValueRules:
    """What the options say of values."""

    dates: Dates = "exact"
    decimals: Decimals = "decimal128"
    json_columns: JsonColumns = "document"

    def values_of(self, row: Row, schema: WriterSchema | None) -> dict[str, Any]:
        """Return the row's values; raise ValueError with the name of a column."""
        types: Mapping[str, str] = {} if schema is None else _sql_types(schema)
        return {name: self._value(name, value, types.get(name, "")) for name, value in row.items()}

    def _value(self, name: str, value: Any, sql_type: str) -> Any:
        if value is None or isinstance(value, bool | float | bytes):
            return value
        try:
            if isinstance(value, str):
                is_json = sql_type in _JSON and self.json_columns == "document"
                return json_document(value) if is_json else value
            if isinstance(value, int):
                return _whole(value)
            if isinstance(value, Decimal):
                return f"{value:f}" if self.decimals == "text" else _decimal(value)
            if isinstance(value, datetime):
                return self._moment(value, sql_type)
            if isinstance(value, date):
                return self._day(value)
        except ValueError as error:
            raise ValueError(f"column {name}: {error}") from error
        assert isinstance(value, timedelta), type(value)
        return time_text(value)

    def _moment(self, value: datetime, sql_type: str) -> datetime | str:
        is_finer = fraction_digits(sql_type) > _MILLISECONDS or value.microsecond % 1000 > 0
        if self.dates == "text" or (self.dates == "exact" and is_finer):
            return value.isoformat(timespec="microseconds")
        return value

    def _day(self, value: date) -> datetime | str:
        if self.dates == "text":
            return value.isoformat()
        return datetime(value.year, value.month, value.day, tzinfo=UTC)


def fraction_digits(sql_type: str) -> int:
    """Return how many digits the seconds of a type have: all six if it does not say."""
    found = _DIGITS.search(sql_type)
    if found is not None:
        return int(found[1])
    return 0 if sql_type in ("datetime", "timestamp") else 6  # as MySQL and MariaDB have them


def json_document(text: str) -> Any:
    """Return the value of a JSON text without loss; raise ValueError."""
    try:
        found = json.loads(
            text,
            parse_int=lambda digits: _whole(int(digits)),
            parse_float=_real,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
        is_deep = _depth(found) > _MOST_LEVELS
    except RecursionError:
        is_deep = True
    if is_deep:
        raise ValueError(f"its JSON has more than {_MOST_LEVELS} levels: set json_columns = 'text'")
    return found


@cache
def _sql_types(schema: WriterSchema) -> Mapping[str, str]:
    return {one.name: one.sql_type.lower() for one in columns_of(schema)}


def _whole(value: int) -> Int64 | Decimal128:
    return Int64(value) if value in _INT64 else _decimal(Decimal(value))


def _decimal(value: Decimal) -> Decimal128:
    try:
        return Decimal128(value)
    except DecimalException:
        digits = len(value.as_tuple().digits)
        raise ValueError(
            f"a number of {digits} digits does not fit into Decimal128, which has 34: "
            "decimals = 'text' writes texts"
        ) from None


def _real(digits: str) -> float | Decimal128:
    value = float(digits)
    return value if Decimal(repr(value)) == Decimal(digits) else _decimal(Decimal(digits))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its JSON has a name twice: json_columns = 'text' writes it as it is")
    return found


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, dict | list) else 0


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON: json_columns = 'text' writes it as it is")
