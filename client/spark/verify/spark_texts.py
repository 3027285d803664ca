"""The texts of `texts` as Spark columns.

Texts that Spark would format differently are made in Python workers: doubles, as
Java does not always print the shortest digits, and MySQL's addresses and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, functions as sf
from pyspark.sql.pandas.functions import arrow_udf

from databus.client.spark.arrow.row_keys import quoted
from databus.client.spark.arrow.row_types import spark_type
from databus.client.spark.verify.texts import END, HEX_DIGITS, NULL_TEXT, TEXTS, Form, form_of
from databus.schemas.columns.avro_columns import AvroColumn

_IN_PYTHON = frozenset({Form.DOUBLE, Form.INET6, Form.JSON})


def value_of(column: AvroColumn) -> Column:
    """Return a target's column, cast to the type that the source's stream has."""
    return sf.col(quoted(column.name)).cast(spark_type(column))


def digest_of(columns: Sequence[AvroColumn], dialect: str) -> Column:
    """Return the digest of a row as a column."""
    texts = (_text(form_of(column, dialect), value_of(column)) for column in columns)
    parts = [sf.coalesce(sf.concat(text, sf.lit(END)), sf.lit(NULL_TEXT)) for text in texts]
    # conv() yields an unsigned number as text; 60 bits fit a bigint.
    first = sf.substring(sf.md5(sf.concat(*parts).cast("binary")), 1, HEX_DIGITS)
    return sf.conv(first, 16, 10).cast("bigint")


def _text(form: Form, value: Column) -> Column:
    if form in _IN_PYTHON:
        given = value.cast("double") if form is Form.DOUBLE else value
        return _python_text(form)(given)
    match form:
        case Form.TEXT:
            return sf.concat(sf.octet_length(value).cast("string"), sf.lit(":"), value)
        case Form.TEXT_MD5 | Form.BYTES_MD5:
            return sf.md5(value.cast("binary"))
        case Form.BYTES:
            return sf.hex(value)
        case Form.TIMESTAMP:
            return sf.unix_micros(value).cast("string")
        case Form.NUMBER:
            return value.cast("bigint").cast("string")
        case _:
            return value.cast("string")


def _python_text(form: Form) -> Callable[[Column], Column]:
    make = TEXTS[form]

    def texts(values: pa.Array) -> pa.Array:
        found = [None if value is None else make(value) for value in values.to_pylist()]
        return pa.array(found, pa.string())

    return in_python(texts, "string")


def in_python(function: Callable[[pa.Array], pa.Array], result: str) -> Callable[[Column], Column]:
    """Return a column function that runs a Python function in the workers."""
    # arrow_udf reads the kind from the annotations; its stubs still require a parameter for it.
    make: Any = arrow_udf
    made: Callable[[Column], Column] = make(function, result)
    return made
