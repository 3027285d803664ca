"""Texts of rows that a database, Spark and Python format identically, and their digests. Pure.

Equal rows have equal texts wherever they are made; different rows have different ones.
A row's text is the concatenation of its columns' texts, each followed by `;`; NULL is
`-;`. The text of a value:

    whole numbers           its digits
    FLOAT, DOUBLE           0, or sign, digits without zeros at either end, `e`, exponent:
                            -0.00125 is -125e-2, that is -0.125 * 10^-2
    DECIMAL                 its digits with all decimal places
    DATE                    2026-11-21
    DATETIME                2026-11-21 10:00:00.25, without trailing zeros of the fraction
    TIMESTAMP               microseconds since 1970 in UTC
    TIME                    microseconds
    CHAR, VARCHAR, ENUM …   length in UTF-8 bytes, `:`, the text: case and blanks count
    …TEXT, JSON             MD5 of the UTF-8 bytes
    BINARY, VARBINARY, BIT  hex digits, in capitals
    …BLOB, GEOMETRY         MD5
    INET6                   the 16 bytes, in hex
    SQLite: text, bytes     MD5; a value of NUMERIC or ANY: MD5 of its text in Spark

The digest of a row is the first 60 bits of the MD5 of its text. The digest of a chunk
is its row count and the XOR of the rows' digests, which does not depend on their order.
Equal digests do not cancel out, as rows of a chunk have different keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import md5
from ipaddress import IPv6Address
from typing import Any, Final

from databus.schemas.columns.avro_columns import AvroColumn, Kind

HEX_DIGITS: Final = 15  # of an MD5: 60 bits, never a negative number
NULL_TEXT: Final = "-;"
END: Final = ";"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONG = re.compile(
    "(tiny|medium|long)?(text|blob)|json|vector|geometry.*|geom.*|multi.*|point|linestring|polygon"
)
# Strings, which stay unchanged, and numbers.
_JSON_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')
_WITHOUT_EXPONENT = range(-14, 16)  # places of the point for which MySQL shows no exponent


class Form(Enum):
    """The forms of texts."""

    NUMBER = "number"
    DOUBLE = "double"
    DECIMAL = "decimal"
    WIDE_DECIMAL = "wide decimal"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TEXT = "text"
    TEXT_MD5 = "md5 of text"
    BYTES = "bytes"
    BYTES_MD5 = "md5 of bytes"
    INET6 = "inet6"
    JSON = "json"


_FORMS = {
    Kind.BOOLEAN: Form.NUMBER,
    Kind.INT: Form.NUMBER,
    Kind.LONG: Form.NUMBER,
    Kind.TIME: Form.NUMBER,
    Kind.FLOAT: Form.DOUBLE,
    Kind.DOUBLE: Form.DOUBLE,
    Kind.DECIMAL: Form.DECIMAL,
    Kind.WIDE_DECIMAL: Form.WIDE_DECIMAL,
    Kind.DATE: Form.DATE,
    Kind.DATETIME: Form.DATETIME,
    Kind.TIMESTAMP: Form.TIMESTAMP,
    Kind.ANY: Form.TEXT_MD5,
}


def form_of(column: AvroColumn, dialect: str) -> Form:
    """Return the form of a column's texts; `dialect` as in `Table`."""
    if column.kind not in (Kind.STRING, Kind.BYTES):
        return _FORMS[column.kind]
    name = base_type(column.sql_type)
    is_text = column.kind is Kind.STRING
    if dialect == "mysql" and name == "inet6":
        return Form.INET6
    if dialect == "mysql" and name == "json":
        return Form.JSON
    if dialect != "mysql" or _LONG.fullmatch(name):
        return Form.TEXT_MD5 if is_text else Form.BYTES_MD5
    return Form.TEXT if is_text else Form.BYTES


def base_type(sql_type: str) -> str:
    """Return an SQL type without its arguments: `varchar` for `varchar(20)`."""
    return re.split(r"[\s(]", sql_type.strip().lower(), maxsplit=1)[0]


def row_text(columns: Sequence[AvroColumn], dialect: str) -> Callable[[Sequence[Any]], str]:
    """Return the function from a row's values, in Spark's value space, to its text."""
    makers = [TEXTS[form_of(column, dialect)] for column in columns]

    def text(values: Sequence[Any]) -> str:
        return "".join(
            NULL_TEXT if value is None else make(value) + END
            for make, value in zip(makers, values, strict=True)
        )

    return text


def digest(text: str) -> int:
    """Return 60 bits of a text's MD5."""
    return int(_md5(text.encode())[:HEX_DIGITS], 16)


def double_text(value: float) -> str:
    """Return the digits and the exponent of a number; -0.0 is 0."""
    if not value:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    if not isinstance(exponent, int):
        return str(value)  # NaN or infinity, which a target may have, but no database
    shown = "".join(map(str, digits)).lstrip("0")
    return f"{'-' * sign}{shown.rstrip('0')}e{len(shown) + exponent}"


def inet6_text(value: str) -> str:
    """Return an address's bytes in hex."""
    return IPv6Address(value).packed.hex().upper()


def json_text(value: str) -> str:
    """Return the MD5 of JSON as MySQL prints it; the binlog decoder prints doubles differently.

    A decimal that looks like a double is treated as one. Then the digests differ, but the
    fetched rows are equal.
    """
    return _md5(_JSON_TOKEN.sub(_server_number, value).encode())


def _server_number(match: re.Match[str]) -> str:
    token = match[0]
    if match[1] or not ("e" in token or token.endswith(".0")):
        return token
    sign, digits, exponent = Decimal(token).as_tuple()
    assert isinstance(exponent, int)
    place, shown = len(digits) + exponent, "".join(map(str, digits)).rstrip("0")
    if not shown or (place in _WITHOUT_EXPONENT and "e" not in token):
        return token
    minus = "-" * sign
    if place in _WITHOUT_EXPONENT:
        return f"{minus}0.{'0' * -place}{shown}"
    fraction = f".{shown[1:]}" if shown[1:] else ""
    return f"{minus}{shown[0]}{fraction}e{place - 1}"


def _md5(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest()


def _text(value: str) -> str:
    return f"{len(value.encode())}:{value}"


def _datetime(value: datetime) -> str:
    shown = value.isoformat(" ", "microseconds")
    return shown.rstrip("0").rstrip(".")


def _date(value: date) -> str:
    return value.isoformat()


def _timestamp(value: datetime) -> str:
    return str((value - _EPOCH) // _MICROSECOND)


def _decimal(value: Decimal) -> str:
    return format(value, "f")


TEXTS: Final[Mapping[Form, Callable[[Any], str]]] = {
    Form.NUMBER: lambda value: str(int(value)),
    Form.DOUBLE: double_text,
    Form.DECIMAL: _decimal,
    Form.WIDE_DECIMAL: str,
    Form.DATE: _date,
    Form.DATETIME: _datetime,
    Form.TIMESTAMP: _timestamp,
    Form.TEXT: _text,
    Form.TEXT_MD5: lambda value: _md5(value.encode()),
    Form.BYTES: lambda value: value.hex().upper(),
    Form.BYTES_MD5: _md5,
    Form.INET6: inet6_text,
    Form.JSON: json_text,
}
