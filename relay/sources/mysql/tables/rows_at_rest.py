"""Derives the unlogged effect of an ALTER TABLE on existing rows. Pure.

Renamed and widened columns keep their values. A new column has the same value in every
row: its default, or the server's implicit default for a NOT NULL column. Where the values
are not certain (a narrower type, another character set, a computed default, a generated
column, another key), the result says that the rows must be read again, and why.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from databus.relay.sources.mysql.rows.charsets import stored_text
from databus.relay.sources.mysql.rows.columns import SqlType, parse_sql_type
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Definition
from databus.relay.sources.mysql.tables.alter import Changes
from databus.relay.sources.mysql.tables.column_spec import ColumnSpec, Rules
from databus.relay.sources.mysql.tables.ddl_tokens import Token
from databus.relay.sources.mysql.tables.sql_mode import (
    EMPTY_STRING_IS_NULL,
    PAD_CHAR_TO_FULL_LENGTH,
    is_strict,
)
from databus.schemas.table_change import WHOLE_TABLE, TableChange

_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_DIGITS = {"tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "bigint": 20}
_TEXT_BYTES = {"tinytext": 0xFF, "text": 0xFFFF, "mediumtext": 0xFFFFFF, "longtext": 0xFFFFFFFF}
_BLOB_BYTES = {"tinyblob": 0xFF, "blob": 0xFFFF, "mediumblob": 0xFFFFFF, "longblob": 0xFFFFFFFF}
_WITH_FRACTION = frozenset({"time", "datetime", "timestamp"})
# Every character of these sets is one character of utf8mb4.
_IN_UTF8MB4 = frozenset({"ascii", "latin1", "utf8mb3"})
_UNREADABLE = "\ufffd"  # of a statement that could not be decoded
_SECONDS = parse_sql_type("timestamp")  # without a fraction, whatever the session's time zone is
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_NO_ROW_CHANGES = TableChange(-1, "")


class _NotConstantError(ValueError):
    """Only the server can compute this default."""


def rows_at_rest(
    before: Definition, after: Definition, changes: Changes, rules: Rules
) -> TableChange:
    """Return the effect of an ALTER on existing rows; the caller adds its SCN and version."""
    if changes.lost:
        return TableChange.unknown(-1, "", changes.lost)
    names = {column.name.lower(): column for column in after.columns}
    new_names = _new_names(before, changes)
    is_lax = changes.ignores or not is_strict(rules.sql_mode)
    renamed, added, reload = {}, {}, {}
    for column in before.columns:
        name = new_names.get(column.name.lower())
        if name is None:
            continue
        now = names[name.lower()]
        if now.name != column.name:
            renamed[now.name] = column.name
        spec = changes.changed.get(column.name.lower())
        if why := _why_not_kept(column, now, spec, rules, is_lax=is_lax):
            reload[now.name] = why
    for spec in changes.columns:
        now = names[spec.name.lower()]
        try:
            added[now.name] = _value_of_new(spec, now, rules)
        except _NotConstantError as error:
            reload[now.name] = str(error)
    if why := _why_others(before, after, new_names):
        reload[WHOLE_TABLE] = why
    return replace(_NO_ROW_CHANGES, renamed=renamed, added=added, reload=reload)


def _new_names(before: Definition, changes: Changes) -> Mapping[str, str]:
    """Return the new names of columns by their old names, in lower case."""
    found = {}
    for column in before.columns:
        name = column.name.lower()
        if name in changes.changed:
            found[name] = changes.changed[name].name
        elif name not in changes.dropped:
            found[name] = changes.renamed.get(name, column.name)
    return found


def _why_others(before: Definition, after: Definition, new_names: Mapping[str, str]) -> str:
    """Return the reason why all values of the rows may differ; "" if there is none."""
    key = [new_names.get(name.lower()) for name in before.key]
    if [name and name.lower() for name in key] != [name.lower() for name in after.key]:
        return "it has another primary key"
    is_same = [(c.name, c.sql_type) for c in before.columns] == [
        (c.name, c.sql_type) for c in after.columns
    ]
    if not after.key and not is_same:
        return "it has no primary key, and rows are told apart by all their columns"
    return ""


def _why_not_kept(
    before: DefinedColumn,
    now: DefinedColumn,
    spec: ColumnSpec | None,
    rules: Rules,
    *,
    is_lax: bool,
) -> str:
    """Return the reason why a column's values may differ; "" if they are unchanged."""
    if spec is not None and spec.is_generated:
        return "it is generated"
    if spec is not None and spec.is_counted:
        return "AUTO_INCREMENT may number rows"
    if before.nullable and not now.nullable:
        if spec is not None and spec.kind == "timestamp":
            return "NULL became NOT NULL, and a TIMESTAMP"
        if is_lax:
            return "NULL became NOT NULL, and the statement or its session is not strict"
    if before.sql_type == now.sql_type and before.charset == now.charset:
        return ""
    if _is_wider(before, now, rules):
        return ""
    one, other = (f"{c.sql_type} {c.charset or ''}".strip() for c in (before, now))
    return f"{one} → {other}"


def _is_wider(before: DefinedColumn, now: DefinedColumn, rules: Rules) -> bool:
    """Whether each value of one type is the same value in the other."""
    old, new = parse_sql_type(before.sql_type), parse_sql_type(now.sql_type)
    if old.name in _INTEGERS:
        return _holds_integers(old, new)
    if old.name == "decimal" == new.name:
        # As many digits on both sides of the point.
        (p, s), (q, r) = old.arguments, new.arguments
        return r >= s and q - r >= p - s and (old.is_unsigned or not new.is_unsigned)
    if old.name in ("float", "double") and new.name in (old.name, "double"):
        # FLOAT(7,2) rounds values.
        is_plain = not old.arguments and not new.arguments
        return is_plain and (old.is_unsigned or not new.is_unsigned)
    if old.name in ("enum", "set") and new.name == old.name and before.charset == now.charset:
        # Values are stored by number, which appended members do not change.
        return new.members[: len(old.members)] == old.members
    if old.name in _WITH_FRACTION and new.name == old.name:
        return sum(new.arguments) >= sum(old.arguments)
    if before.charset is not None and now.charset is not None:
        return _holds_texts(before, now, old, new, rules)
    if before.charset is None and now.charset is None:
        return _holds_bytes(old, new)
    return False


def _holds_integers(old: SqlType, new: SqlType) -> bool:
    if new.name == "decimal":
        precision, scale = new.arguments
        has_room = precision - scale >= _DIGITS[old.name]
        return has_room and (old.is_unsigned or not new.is_unsigned)
    if new.name not in _INTEGERS:
        return False
    if old.is_unsigned == new.is_unsigned:
        return _INTEGERS[new.name] >= _INTEGERS[old.name]
    # Negative numbers fit into no unsigned type.
    return old.is_unsigned and _INTEGERS[new.name] > _INTEGERS[old.name]


def _holds_texts(
    before: DefinedColumn, now: DefinedColumn, old: SqlType, new: SqlType, rules: Rules
) -> bool:
    is_same = before.charset == now.charset
    if not is_same and not (now.charset == "utf8mb4" and before.charset in _IN_UTF8MB4):
        return False
    if old.name in ("char", "varchar"):
        if old.name == "char" and rules.sql_mode & PAD_CHAR_TO_FULL_LENGTH:
            return False
        characters = old.arguments[0]
        if new.name in (old.name, "varchar"):
            return new.arguments[0] >= characters
        most = characters * rules.char_bytes(now.charset or "")
        return most <= _TEXT_BYTES.get(new.name, 0)
    if old.name not in _TEXT_BYTES or new.name not in _TEXT_BYTES:
        return False
    most = _TEXT_BYTES[old.name] * (1 if is_same else rules.char_bytes("utf8mb4"))
    return min(most, 0xFFFFFFFF) <= _TEXT_BYTES[new.name]


def _holds_bytes(old: SqlType, new: SqlType) -> bool:
    if old.name == "varbinary":
        if new.name == "varbinary":
            return new.arguments[0] >= old.arguments[0]
        return old.arguments[0] <= _BLOB_BYTES.get(new.name, 0)
    if old.name in _BLOB_BYTES:
        return _BLOB_BYTES[old.name] <= _BLOB_BYTES.get(new.name, 0)
    if old.name == "year" == new.name:
        return True
    if old.name == "bit" == new.name:
        # Consumers get a BIT as bytes: with another number of bytes it is another value.
        (one,), (other,) = old.arguments, new.arguments
        return one <= other and (one + 7) // 8 == (other + 7) // 8
    return False


def _value_of_new(spec: ColumnSpec, column: DefinedColumn, rules: Rules) -> Any:
    """Return the value of a new column in every row; raises _NotConstantError."""
    if spec.is_generated or spec.period:
        raise _NotConstantError("it is generated")
    if spec.is_counted:
        raise _NotConstantError("AUTO_INCREMENT numbers the rows")
    sql = parse_sql_type(column.sql_type)
    if spec.default is None:
        return None if column.nullable else _empty_value(sql, rules)
    if sql == _SECONDS and rules.time_s and _is_now(spec.default):
        return datetime.fromtimestamp(rules.time_s, UTC)
    literal = _literal(spec.default)
    if literal is None:
        return None
    try:
        if not _is_of_its_type(literal, sql, rules, is_string=_is_string(spec.default)):
            raise ValueError(literal)
        _check_characters(literal, column.charset)
        return _read_value(literal, sql, rules)
    except (KeyError, ValueError, InvalidOperation, OverflowError, struct.error):
        shown = " ".join(token.text for token in spec.default)[:60]
        raise _NotConstantError(f"only the server can tell what its default {shown!r} is") from None


def _is_of_its_type(literal: str, sql: SqlType, rules: Rules, *, is_string: bool) -> bool:
    """Whether a default is written like a value of its column's type.

    If not, the server converts it, by rules that depend on type and server: a bare 1 is an
    ENUM's first member, '0' the YEAR 2000, '-7' is 0 in an unsigned column, and -0 is not
    negative zero. In MariaDB's EMPTY_STRING_IS_NULL mode '' is NULL.
    """
    kind = sql.name
    if is_string and not literal and _takes_empty_for_null(rules):
        return False
    if kind in _NUMBERS:
        is_minus_zero = literal.startswith("-") and not literal.strip("-0.")
        is_below = literal.startswith("-") and sql.is_unsigned
        return bool(_NUMERAL.fullmatch(literal)) and not is_minus_zero and not is_below
    if kind == "year":
        return literal != "0" or not is_string
    if is_string:
        return literal != "0" or kind in _PLAIN or kind in ("enum", "set")
    if kind in _PLAIN:
        return bool(_WHOLE.fullmatch(literal))
    return literal == "0" and kind in _ZERO_DATES


def _empty_value(sql: SqlType, rules: Rules) -> Any:
    """Return the server's implicit default for a NOT NULL column."""
    if sql.name == "timestamp" and not rules.explicit_timestamps:
        raise _NotConstantError("a TIMESTAMP without a default may be the time of the statement")
    if sql.name in _DATES and not rules.dialect.zero_dates_are_null:
        raise _NotConstantError("its rows have the date 0000-00-00, which is none")
    if sql.name == "enum":
        return sql.members[0]
    if sql.name in _EMPTY:
        return _EMPTY[sql.name]
    if sql.name == "bit":
        return bytes((sql.arguments[0] + 7) // 8)
    if sql.name == "decimal":
        return _decimal("0", sql)
    if sql.name == "bigint":
        return Decimal(0) if sql.is_unsigned else 0
    raise _NotConstantError(f"what an empty {sql.name} is, only the server can tell")


_NUMBERS = frozenset({*_INTEGERS, "decimal", "float", "double"})
_DATES = frozenset({"date", "datetime", "timestamp"})
_ZERO_DATES = _DATES | {"time"}
_NUMERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_PLAIN = frozenset({"char", "varchar", "varbinary", *_TEXT_BYTES, *_BLOB_BYTES})
_EMPTY: Mapping[str, Any] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "year", "time"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    **dict.fromkeys(("char", "varchar", "set", *_TEXT_BYTES), ""),
    **dict.fromkeys(("varbinary", *_BLOB_BYTES), b""),
    **dict.fromkeys(_DATES, None),
}


def _literal(default: Sequence[Token]) -> str | None:
    """Return a constant's text, None for NULL; raises _NotConstantError."""
    found = list(default)
    while len(found) > 2 and found[0].upper == "(" and found[-1].upper == ")":
        found = found[1:-1]
    sign = ""
    if len(found) == 2 and found[0].upper in ("-", "+"):
        sign = found.pop(0).text.replace("+", "")
    if len(found) == 1:
        token = found[0]
        if token.is_string and not sign:
            return token.text
        if token.upper == "NULL" and not sign:
            return None
        if token.upper in ("TRUE", "FALSE") and not sign:
            return str(int(token.upper == "TRUE"))
        if _NUMBER.fullmatch(token.upper):
            # Each type converts a number with a fraction differently.
            return sign + token.text
    shown = " ".join(token.text for token in default)[:60]
    raise _NotConstantError(f"its default {shown!r} is no constant")


def _is_now(default: Sequence[Token]) -> bool:
    """Whether a default is the time of the statement."""
    words = [token.upper for token in default]
    return words[0] in _NOW and words[1:] in ([], ["(", ")"])


def _check_characters(literal: str, charset: str | None) -> None:
    """Raise ValueError if a text has characters that its column, or its statement, cannot have."""
    if literal.isascii():
        return
    # In a column of bytes the text has the character set of the session.
    if charset is None or _UNREADABLE in literal or stored_text(literal, charset) != literal:
        raise ValueError(literal)


def _is_string(default: Sequence[Token]) -> bool:
    return any(token.is_string for token in default)


def _takes_empty_for_null(rules: Rules) -> bool:
    return rules.dialect.is_mariadb and bool(rules.sql_mode & EMPTY_STRING_IS_NULL)


def _read_value(literal: str, sql: SqlType, rules: Rules) -> Any:
    value = _READERS[sql.name](literal, sql)
    if value is None and not rules.dialect.zero_dates_are_null:
        raise ValueError(literal)
    return value


_NUMBER = re.compile(r"0|[1-9][0-9]*|[0-9]*\.[0-9]+|[0-9]+(?:\.[0-9]*)?E[+-]?[0-9]+")


def _integer(text: str, sql: SqlType) -> int | Decimal:
    number = int(text)
    bits = _INTEGERS[sql.name]
    low = 0 if sql.is_unsigned else -(1 << bits - 1)
    if not low <= number < low + (1 << bits):
        raise ValueError(text)
    return Decimal(number) if sql.name == "bigint" and sql.is_unsigned else number


def _year(text: str, sql: SqlType) -> int:  # noqa: ARG001 - one shape for all
    number = int(text)
    if text in ("0", "0000") or (len(text) == 4 and 1901 <= number <= 2155):
        return number
    raise ValueError(text)


def _decimal(text: str, sql: SqlType) -> Decimal:
    precision, scale = sql.arguments
    number = Decimal(text).quantize(Decimal(1).scaleb(-scale))
    if number != Decimal(text) or len(number.as_tuple().digits) > precision:
        raise ValueError(text)
    return number


def _float(text: str, sql: SqlType) -> float:
    if sql.arguments:
        raise ValueError(text)
    number: float = float(text)
    if sql.name == "float":
        (number,) = struct.unpack("<f", struct.pack("<f", number))
    return number


def _text(text: str, sql: SqlType) -> str:
    return text.rstrip(" ") if sql.name == "char" else text  # as the server returns a CHAR


def _bytes(text: str, sql: SqlType) -> bytes:  # noqa: ARG001
    return text.encode("ascii")


def _enum(text: str, sql: SqlType) -> str:
    if text not in sql.members:
        raise ValueError(text)
    return text


def _set(text: str, sql: SqlType) -> str:
    wanted = text.split(",") if text else []
    if not all(member in sql.members for member in wanted):
        raise ValueError(text)
    # Stored as bits: in the order of the definition, each member once.
    return ",".join(member for member in sql.members if member in wanted)


def _date(text: str, sql: SqlType) -> date | None:  # noqa: ARG001
    if text in ("0", "0000-00-00"):
        return None
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError(text)
    return date.fromisoformat(text)


def _datetime(text: str, sql: SqlType) -> datetime | None:
    if text in ("0", "0000-00-00", "0000-00-00 00:00:00"):
        return None
    digits = sum(sql.arguments)
    match = re.fullmatch(r"\d{4}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.(\d{1,6}))?)?", text)
    if match is None or len(match[1] or "") > digits:
        raise ValueError(text)
    if match[1]:
        text = f"{text[: -len(match[1])]}{match[1]:0<6}"
    return datetime.fromisoformat(text)


def _timestamp(text: str, sql: SqlType) -> None:
    # Other forms depend on the session's time zone.
    if _datetime(text, sql) is not None:
        raise ValueError(text)


def _time(text: str, sql: SqlType) -> int:
    if text == "0":
        return 0
    match = re.fullmatch(r"(-?)(\d{2,3}):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?", text)
    if match is None or len(match[5] or "") > sum(sql.arguments):
        raise ValueError(text)
    seconds = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])
    if seconds > 838 * 3600 + 59 * 60 + 59:  # beyond the range of TIME
        raise ValueError(text)
    micros = seconds * 1_000_000 + int(f"{match[5] or '':0<6}")
    return -micros if match[1] else micros


_READERS: Mapping[str, Any] = {
    **dict.fromkeys(_INTEGERS, _integer),
    "year": _year,
    "decimal": _decimal,
    **dict.fromkeys(("float", "double"), _float),
    **dict.fromkeys(("char", "varchar", *_TEXT_BYTES), _text),
    **dict.fromkeys(("varbinary", *_BLOB_BYTES), _bytes),
    "enum": _enum,
    "set": _set,
    "date": _date,
    "datetime": _datetime,
    "timestamp": _timestamp,
    "time": _time,
}
