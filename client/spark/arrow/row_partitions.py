"""The partition of a row as a Spark column: the number that relays and clients compute.

`docs/formats/partitions.md` defines it. Texts of float and double are made in Python workers,
because Java does not always print the shortest digits. All others are Spark's own expressions.

A column of SQLite without a type is a string here (`row_types`), so bytes in it are hashed as
the text `x'…'`, by which the number differs from the relay's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from databus.client.spark.arrow.row_keys import checked_keys, quoted
from databus.schemas.errors import SettingsError
from databus.schemas.filters import MAX_PARTITIONS

_DAY_US = 86_400_000_000
_SECONDS_TEXT = 19  # characters of a date and a time without a fraction
_NULL = "\\N"


def partition_column(rows: DataFrame, partitions: int, by: Sequence[str] | None = None) -> Column:
    """Return the partition, an int, of each row of a DataFrame from `format("databus")`.

    By the primary key, or by the columns `by` in their order. Raises SettingsError without a
    primary key, and for a column that is missing or of a type that no key has.
    """
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise SettingsError(f"{partitions} partitions: there may be 1 to {MAX_PARTITIONS}")
    types = {field.name: field.dataType for field in rows.schema}
    texts = [
        sf.coalesce(_text(name, types[name]), sf.lit(_NULL)) for name in checked_keys(rows, by)
    ]
    return (sf.crc32(sf.concat_ws(",", *texts)) % partitions).cast("int")


def _text(name: str, data_type: DataType) -> Column:
    value = sf.col(quoted(name))
    match data_type:
        case StringType():
            escaped = sf.replace(value, sf.lit("\\"), sf.lit("\\\\"))
            return sf.replace(escaped, sf.lit(","), sf.lit("\\,"))
        case BinaryType():
            return sf.concat(sf.lit("\\x"), sf.lower(sf.hex(value)))
        case BooleanType():
            return value.cast("int").cast("string")
        case IntegralType() | DateType():
            return value.cast("string")
        case DecimalType(scale=scale):
            return sf.call_function("format_number", value, sf.lit(_decimal_format(scale)))
        case FloatType() | DoubleType():
            return _shortest(value.cast("double"))
        case TimestampNTZType():
            return _moment(value.cast("string"))
        case TimestampType():
            return _utc_moment(sf.unix_micros(value))
    raise SettingsError(f"column {name!r} is a {data_type.simpleString()}: it cannot be hashed")


def _decimal_format(scale: int) -> str:
    return "0." + "0" * scale if scale else "0"


def _moment(text: Column) -> Column:
    """Write a fraction with six digits or not at all, where Spark leaves out zeros at its end."""
    whole = sf.replace(sf.substring(text, 1, _SECONDS_TEXT), sf.lit(" "), sf.lit("T"))
    fraction = sf.rpad(sf.substring(text, _SECONDS_TEXT + 1, 7), 7, "0")
    return sf.when(sf.length(text) > _SECONDS_TEXT, sf.concat(whole, fraction)).otherwise(whole)


def _utc_moment(micros: Column) -> Column:
    # By numbers: a text would be of the session's time zone.
    of_day = sf.pmod(micros, sf.lit(_DAY_US))
    day = sf.date_from_unix_date(((micros - of_day) / _DAY_US).cast("int")).cast("string")
    second = ((of_day - of_day % 1_000_000) / 1_000_000).cast("int")
    clock = sf.format_string(
        "T%02d:%02d:%02d",
        (second / 3600).cast("int"),
        (second / 60).cast("int") % 60,
        second % 60,
    )
    fraction = of_day % 1_000_000
    shown = sf.when(fraction > 0, sf.format_string(".%06d", fraction)).otherwise("")
    return sf.concat(day, clock, shown, sf.lit("+00:00"))


def _shortest(value: Column) -> Column:
    def texts(values: pa.Array) -> pa.Array:
        found = [None if one is None else repr(one) for one in values.to_pylist()]
        return pa.array(found, pa.string())

    # arrow_udf reads the kind from the annotations; its stubs still require a parameter for it.
    make: Any = arrow_udf
    made: Callable[[Column], Column] = make(texts, "string")
    return made(value)
