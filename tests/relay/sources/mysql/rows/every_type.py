"""Every column type with values at its edges, and their texts as a server prints them.

What capture yields is turned into the text that SELECT answers (in utf8mb4, in
UTC, over a driver that leaves the server's text alone), so that nothing but the
server's own printing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from databus.relay.sources.mysql.rows.charsets import byte_table
from databus.relay.sources.mysql.rows.columns import parse_sql_type
from tests.relay.sources.mysql.rows.test_charsets import (
    SINGLE_BYTE,
    THREE_BYTES,
    TWO_BYTES,
    UNICODE,
)
from tests.relay.sources.mysql.rows.test_values import TYPES

Family = Mapping[str, Sequence[str]]  # a column's type → literals

_NUMBERS = (
    "INT",
    "TINY",
    "SMALL",
    "MEDIUM",
    "BIG",
    "BOOL",
    "FLOAT",
    "DOUBLE",
    "DEC",
    "BIT",
    "YEAR",
)
_TEMPORAL = ("DATE", "TIME")
_MEMBERS = ("ENUM", "SET")
_TEXTS = ("CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT")
_BYTES = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")

_MARIADB_ONLY = ("UUID", "INET4", "INET6")
NONE_DATES: dict[str, list[str]] = {
    "DATE NULL": ["'0000-00-00'", "'2020-00-15'", "'2020-05-00'", "'2020-02-30'", "'0000-01-01'"],
    "DATETIME NULL": ["'0000-00-00 00:00:00'", "'2020-00-15 12:13:14'", "'2021-02-29 23:59:59'"],
    "DATETIME(1) NULL": ["'0000-00-00 00:00:00'", "'2020-01-00 00:00:00.5'"],
    "DATETIME(3) NULL": ["'2020-01-00 00:00:00.5'", "'2020-00-00 01:02:03.004'"],
    "DATETIME(6) NULL": ["'0000-00-00 00:00:00'", "'2020-04-31 00:00:00.000009'"],
    "TIMESTAMP NULL": ["'0000-00-00 00:00:00'"],
    "TIMESTAMP(2) NULL": ["'0000-00-00 00:00:00'"],
    "TIMESTAMP(6) NULL": ["'0000-00-00 00:00:00'", "'2001-09-09 01:46:40.000001'"],
}

# Also for columns in the formats that MariaDB had before it took those of MySQL 5.6.
OLD_TIMES: dict[str, list[str]] = {
    f"{kind}({digits}) NULL": literals
    for digits in range(7)
    for kind, literals in (
        ("TIME", ["'-838:59:58.999999'", "'838:59:59.999999'", "'-00:00:00.123456'", "'0:0:1.5'"]),
        ("DATETIME", ["'9999-12-31 23:59:59.999999'", "'1000-01-01 00:00:00.000001'", "0"]),
        ("TIMESTAMP", ["'2038-01-19 03:14:07.999999'", "'2001-09-09 01:46:40.123456'", "0"]),
    )
}

# Letters that a set has, where "ñ" is none of them.
_LETTERS = {
    **dict.fromkeys(("armscii8",), "Ա"), **dict.fromkeys(("geostd8",), "ა"),
    **dict.fromkeys(("greek",), "λ"), **dict.fromkeys(("hebrew",), "ש"),
    **dict.fromkeys(("cp1251", "cp866", "koi8r", "koi8u"), "ж"),
    **dict.fromkeys(("cp1256",), "ب"), **dict.fromkeys(("tis620",), "ก"),
    **dict.fromkeys(("cp1250", "cp852", "latin2", "macce", "keybcs2"), "č"),
    **dict.fromkeys(("cp1257", "latin7"), "š"), "swe7": "ö", "ascii": "n",
    **dict.fromkeys(("big5", "gbk", "gb2312", "gb18030"), "中"),
    **dict.fromkeys(("cp932", "sjis", "ujis", "eucjpms"), "日"), "euckr": "한",
    **dict.fromkeys(("utf16", "utf16le", "utf32", "utf8mb4"), "😀"),
    **dict.fromkeys(("ucs2", "utf8mb3"), "漢"),
}  # fmt: skip
_PYTHON = {
    "eucjpms": "euc_jp", "ujis": "euc_jp", "sjis": "shift_jis", "euckr": "cp949",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "utf8mb3": "utf-8", "utf8mb4": "utf-8",
}  # fmt: skip


# What these sets were given later than the servers' tables; SELECT answers "?".
_BEYOND_THE_SERVER = {"cp1256": b"\x8a\x8f\x98\x9a\x9f\xaa\xc0\xff", "greek": b"\xa4\xa5\xaa"}


def letter(charset: str) -> str:
    """Return a letter that a character set has and ASCII has not."""
    return _LETTERS.get(charset, "ñ")


def _all_characters(charset: str) -> bytes:
    table = byte_table(charset)
    if table is None:
        return f"a{letter(charset)}b".encode(_PYTHON.get(charset, charset))
    beyond = _BEYOND_THE_SERVER.get(charset, b"")
    return bytes(c for c in range(1, 256) if table[c] != "\ufffe" and c not in beyond)


def families(*, is_mariadb: bool) -> dict[str, Family]:
    """Return tables' worth of columns, as the kind of server has them."""
    types = {n: of for n, of in TYPES.items() if is_mariadb or not _is_of_mariadb(n)}
    charsets = [*SINGLE_BYTE, *TWO_BYTES, *THREE_BYTES, *UNICODE]
    if not is_mariadb:
        types |= _mysql_types()
        charsets.append("gb18030")
    found: dict[str, Family] = {
        "numbers": _of(types, _NUMBERS),
        "temporal": {**_of(types, _TEMPORAL), **NONE_DATES},
        "members": {**_of(types, _MEMBERS), **_members(charsets)},
        "texts": _of(types, _TEXTS),
        "bytes": _of(types, _BYTES),
        "characters": {
            f"{kind} CHARACTER SET {charset} NULL": [
                f"_{charset} x'{value.hex()}'" for value in _samples(charset, kind)
            ]
            for charset in charsets
            for kind in ("VARCHAR(255)" if charset in SINGLE_BYTE else "VARCHAR(9)", "CHAR(5)")
        },
    }
    taken = {name for family in found.values() for name in family}
    found["others"] = {name: of for name, of in types.items() if name not in taken}
    return found


def _is_of_mariadb(sql_type: str) -> bool:
    return sql_type in _MARIADB_ONLY or sql_type.endswith(" COMPRESSED")


def _of(types: Family, prefixes: tuple[str, ...]) -> dict[str, Sequence[str]]:
    return {name: of for name, of in types.items() if name.startswith(prefixes)}


def _mysql_types() -> dict[str, list[str]]:
    json = [
        "'1'", "'-5000000000'", "'18446744073709551615'", "'1.5'", "'true'", "'null'", "'[]'",
        "'{}'", r"""'"ñ😀\\"\\n\\u0001/"'""", "CAST(12345678901234567890.12345 AS JSON)",
        "JSON_ARRAY(TIMESTAMP'2020-01-02 03:04:05.000006', POINT(1, 2), TIME'-12:00:01.5')",
        "JSON_ARRAY(CAST(1.5 AS DECIMAL(10,3)), DATE'2020-01-02', x'00ff', b'101')",
        "JSON_OBJECT('b', 1, 'a', JSON_ARRAY(1, 2.5), 'aa', NULL)",
        "JSON_ARRAY(REPEAT('x', 70000), 1, 70000, JSON_OBJECT('k', REPEAT('y', 300)))",
    ]  # fmt: skip
    return {
        "JSON": json,
        "TIME(6)": ["'-838:59:58.999999'", "'-00:00:00.000001'", "'838:59:59.000000'"],
        "TIMESTAMP(6)": ["'2038-01-19 03:14:07.499999'", "'1970-01-01 00:00:01.000001'"],
        "POINT SRID 4326": ["ST_GeomFromText('POINT(1 2)', 4326)"],
        "GEOMETRYCOLLECTION": ["ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 2))')"],
        "VARCHAR(20) COLLATE utf8mb4_0900_as_cs": ["'aé漢😀'"],
    }


def _members(charsets: Sequence[str]) -> dict[str, list[str]]:
    # The server's catalogue has members in utf8mb3, so beyond that not even it knows them.
    letters = {charset: letter(charset) for charset in charsets}
    letters |= {charset: "漢" for charset, text in letters.items() if ord(text) > 0xFFFF}
    columns = {}
    for charset, text in letters.items():
        columns[f"ENUM('a','{text}','') CHARACTER SET {charset}"] = ["1", "2", "3"]
        columns[f"SET('a','{text}') CHARACTER SET {charset}"] = ["0", "1", "2", "3"]
    return columns


def _samples(charset: str, kind: str) -> list[bytes]:
    table, codec = byte_table(charset), _PYTHON.get(charset, charset)
    is_single = table is not None
    text = bytes([table.index(letter(charset))]) if table else letter(charset).encode(codec)
    space = b" " if is_single else " ".encode(codec)
    samples = [b"", space + text + space, space + text + space + space]
    return samples if kind == "CHAR(5)" else [*samples, _all_characters(charset)]


def expression(sql_type: str, name: str) -> str:
    """Return what to select: a FLOAT is printed with six digits, as a DOUBLE it is what it is."""
    return f"CAST({name} AS DOUBLE)" if sql_type.startswith("FLOAT") else name


def printed(sql_type: str, value: Any, raw: str | None = None) -> bytes | None:
    """Return what a server prints for a captured value; `raw` is its text where that is null."""
    if value is None:
        return None if raw is None else raw.encode("ascii")
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    sql = parse_sql_type(sql_type.lower())
    digits = sql.arguments[0] if sql.arguments else 0
    return _PRINTERS[type(value)](value, sql.name, digits).encode("ascii")


def as_compared(sql_type: str, text: bytes | None) -> bytes | None:
    """Return what SELECT answered, in one form for what has several."""
    if text is None or not sql_type.startswith(("FLOAT", "DOUBLE")):
        return text
    return repr(float(text)).encode("ascii")


def _int(value: int, kind: str, digits: int) -> str:
    if kind == "time":
        return _time(value, digits)
    return f"{value:04}" if kind == "year" else f"{value:0{digits}}" if digits else str(value)


def _time(micros: int, digits: int) -> str:
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, micros = divmod(micros, 1_000_000)
    clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    assert micros % 10 ** (6 - digits) == 0
    return clock + (f".{micros:06}"[: digits + 1] if digits else "")


def _datetime(value: datetime, kind: str, digits: int) -> str:
    assert value.tzinfo is (UTC if kind == "timestamp" else None)
    assert value.microsecond % 10 ** (6 - digits) == 0
    text = value.replace(microsecond=0, tzinfo=None).isoformat(" ")
    return text + (f".{value.microsecond:06}"[: digits + 1] if digits else "")


_PRINTERS: Mapping[type, Callable[[Any, str, int], str]] = {
    int: _int,
    float: lambda value, _kind, _digits: repr(value),
    Decimal: lambda value, _kind, _digits: format(value, "f"),
    date: lambda value, _kind, _digits: value.isoformat(),
    datetime: _datetime,
}
