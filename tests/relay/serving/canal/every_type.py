"""A table with a column of every type, and rows with their least, greatest and odd values."""

from __future__ import annotations

from typing import NamedTuple


class Typed(NamedTuple):
    """One column and its values, as SQL."""

    name: str
    declared: str
    values: tuple[str, ...]


_INTS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}


def _ints() -> list[Typed]:
    found = []
    for name, bits in _INTS.items():
        half = 1 << (bits - 1)
        found.append(Typed(f"c_{name}", name, (str(-half), "0", str(half - 1))))
        unsigned = ("0", str(half - 1), str(half), str(2 * half - 1))
        found.append(Typed(f"u_{name}", f"{name} unsigned", unsigned))
    return found


_FLOATS = (
    *("0", "1", "-1.5", "1e7", "9999999", "1e-3", "1e-4", "0.1", "3.4028235e38"),
    *("-1.17549e-38", "123456.7", "16777216", "1e10"),
)
_DOUBLES = (
    *("0", "1", "-1.5", "1e7", "9999999.999", "1e-3", "1.23e-5", "0.1", "1.7976931348623157e308"),
    *("2.2250738585072014e-308", "12345678.9", "3.141592653589793", "1e22", "1e21"),
)

COMMON = (
    *_ints(),
    Typed("c_bool", "bool", ("TRUE", "FALSE")),
    Typed("c_decimal", "decimal(10,2)", ("10.5", "-99999999.99", "0", "0.01", "-0.01", "10", "-7")),
    Typed("c_large", "decimal(65,30)", ("12345678901234567890123456789012345.1", "-1e-30", "0")),
    Typed("c_whole", "decimal(20,0)", ("18446744073709551615", "-1")),
    Typed("c_float", "float", _FLOATS),
    Typed("c_double", "double", _DOUBLES),
    Typed("c_bit1", "bit(1)", ("b'0'", "b'1'")),
    Typed("c_bit10", "bit(10)", ("b'1000000001'", "b'0'", "b'11'")),
    Typed("c_bit64", "bit(64)", ("0x7FFFFFFFFFFFFFFF", "b'1'", "0xFFFFFFFFFFFFFFFF")),
    Typed("c_char", "char(10)", ("'x'", "''", "'ñ 中文 😀'", "'a  '")),
    Typed("c_varchar", "varchar(300)", ("'x'", "''", "'ñ 中文 😀'", "REPEAT('ab', 150)", "' a '")),
    Typed("c_latin", "varchar(20) character set latin1", ("'é€'", "'x'")),
    Typed("c_tinytext", "tinytext", ("'ñ 中文 😀'", "''")),
    Typed("c_text", "text", ("'ñ 中文 😀'", "REPEAT('z', 5000)")),
    Typed("c_mediumtext", "mediumtext", ("'ñ'", "''")),
    Typed("c_longtext", "longtext", ("'ñ'", "'\\0'")),
    Typed("c_binary", "binary(5)", ("x'0102'", "x'00FF80'", "x'0000000000'", "'abcde'")),
    Typed("c_varbinary", "varbinary(20)", ("x'00FF8000'", "''", "'abc'")),
    Typed("c_tinyblob", "tinyblob", ("x'00FF80'", "''")),
    Typed("c_blob", "blob", ("x'00FF80'", "'text'")),
    Typed("c_mediumblob", "mediumblob", ("x'FF'", "''")),
    Typed("c_longblob", "longblob", ("x'FF'", "''")),
    Typed("c_enum", "enum('a','b','c d')", ("'a'", "'c d'", "''")),
    Typed("c_set", "set('a','b','c d')", ("'a'", "'a,c d'", "''")),
    Typed("c_date", "date", ("'2024-02-29'", "'1000-01-01'", "'9999-12-31'")),
    Typed("c_time", "time", ("'00:00:00'", "'838:59:59'", "'-838:59:59'", "'-00:00:01'")),
    Typed("c_time3", "time(3)", ("'01:02:03.004'", "'-00:00:00.001'", "'-838:59:58.999'")),
    Typed("c_time6", "time(6)", ("'01:02:03.000004'", "'-100:00:00.999999'")),
    Typed("c_datetime", "datetime", ("'2024-02-29 01:02:03'", "'1000-01-01 00:00:00'",
                                     "'9999-12-31 23:59:59'")),
    Typed("c_datetime1", "datetime(1)", ("'2024-02-29 01:02:03.5'",)),
    Typed("c_datetime3", "datetime(3)", ("'2024-02-29 01:02:03.004'", "'2024-02-29 01:02:03'")),
    Typed("c_datetime6", "datetime(6)", ("'2024-02-29 01:02:03.000004'",)),
    Typed("c_timestamp", "timestamp null", ("'2024-02-29 01:02:03'", "'1970-01-02 00:00:00'",
                                            "'2038-01-19 03:14:07'", "'2024-07-01 12:00:00'")),
    Typed("c_timestamp3", "timestamp(3) null", ("'2024-11-03 05:30:00.123'",
                                                "'2024-11-03 06:30:00.120'")),
    Typed("c_timestamp6", "timestamp(6) null", ("'2024-03-10 07:00:00.000001'",)),
    Typed("c_year", "year", ("2024", "1901", "2155", "0")),
)  # fmt: skip
ZERO_DATES = (
    Typed("z_date", "date", ("'0000-00-00'", "'2024-00-10'", "'2024-01-00'")),
    Typed("z_datetime", "datetime", ("'0000-00-00 00:00:00'", "'2024-00-10 01:02:03'")),
    Typed("z_datetime3", "datetime(3)", ("'0000-00-00 00:00:00'",)),
    Typed("z_timestamp", "timestamp null", ("'0000-00-00 00:00:00'",)),
    Typed("z_timestamp3", "timestamp(3) null", ("'0000-00-00 00:00:00'",)),
)
SHAPES = (
    Typed("c_point", "point", ("ST_GeomFromText('POINT(1 2)')",)),
    Typed("c_geometry", "geometry", ("ST_GeomFromText('LINESTRING(0 0,1 1)')",)),
)
JSONS = (
    Typed("c_json", "json", (
        """'{"a": 1, "b": [true, null, "x"], "c": {"d": 1.5}}'""",
        "'[]'", "'{}'", "'null'", "'\"ñ\"'", "'-12345678901'", "'18446744073709551615'", "'1e10'",
        "'\"a\\\\\"b\\\\n\"'", "'[1.0, 0.1]'",
    )),
)  # fmt: skip


def create(table: str, columns: tuple[Typed, ...]) -> str:
    """Return the statement that makes a table of the columns."""
    listed = ", ".join(f"{one.name} {one.declared}" for one in columns)
    return f"CREATE TABLE {table} (id INT PRIMARY KEY, {listed}) CHARACTER SET utf8mb4"


def inserts(table: str, columns: tuple[Typed, ...]) -> list[str]:
    """Return statements that insert all values, and one row of NULLs."""
    count = max(len(one.values) for one in columns)
    rows = [
        ", ".join(one.values[number % len(one.values)] for one in columns)
        for number in range(count)
    ]
    rows.append(", ".join(["NULL"] * len(columns)))
    return [f"INSERT INTO {table} VALUES ({number}, {row})" for number, row in enumerate(rows)]


def updates(table: str, columns: tuple[Typed, ...]) -> list[str]:
    """Return statements that change some columns, and delete the rows."""
    first = columns[0].name
    return [
        f"UPDATE {table} SET {first} = NULL WHERE id < 2",
        f"UPDATE {table} SET {columns[-1].name} = NULL WHERE id = 2",
        f"UPDATE {table} SET {first} = {columns[0].values[0]} WHERE {first} IS NULL",
        f"DELETE FROM {table}",
    ]
