"""Values of every common type, compared with what SELECT says of the same row."""

from __future__ import annotations

from datetime import UTC, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from databus.relay.sources.mysql.source import MysqlSource
from databus.schemas.avro_rows import row_codec
from databus.schemas.errors import SourceStoppedError
from databus.schemas.event.metadata import Notes
from databus.schemas.table_schema import avro_schema
from tests.mariadb_server import Database
from tests.relay.sources.mysql.reading import opened, read_changes, watching

pytest_plugins = ["tests.mariadb"]
pytestmark = pytest.mark.mariadb

# Declared type → literals. NULL is tried with each.
TYPES: dict[str, list[str]] = {
    "TINYINT": ["0", "1", "-1", "127", "-128"],
    "TINYINT UNSIGNED": ["0", "128", "255"],
    "BOOL": ["TRUE", "FALSE"],
    "SMALLINT": ["-32768", "32767"],
    "SMALLINT UNSIGNED": ["0", "65535"],
    "MEDIUMINT": ["-8388608", "8388607", "-1"],
    "MEDIUMINT UNSIGNED": ["0", "8388608", "16777215"],
    "INT": ["-2147483648", "2147483647"],
    "INT UNSIGNED": ["0", "4294967295"],
    "INT(5) ZEROFILL": ["42", "4294967295"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
    "BIGINT UNSIGNED": ["0", "9223372036854775808", "18446744073709551615"],
    "FLOAT": ["0", "1.1", "-3.4e38", "16777216", "1e-38"],
    "FLOAT UNSIGNED": ["0", "2.5"],
    "DOUBLE": ["0", "1.1", "-1.7976931348623157e308", "5e-324", "0.1"],
    "DECIMAL(10,2)": ["0", "-0.01", "12345678.90", "-99999999.99", "7"],
    "DECIMAL(65,30)": ["1.5", f"-{'9' * 35}.{'0' * 29}1"],
    "DECIMAL(18,9)": ["123456789.123456789", "-1.000000001"],
    "DECIMAL(5,0)": ["99999", "-99999", "0"],
    "DECIMAL(3,3)": ["0.999", "-0.001"],
    "DECIMAL(20,4) UNSIGNED": ["1234567890123456.7891"],
    "BIT(1)": ["b'0'", "b'1'"],
    "BIT(17)": ["b'10000000000000001'", "1", "0"],
    "BIT(64)": ["18446744073709551615", "1"],
    "YEAR": ["1901", "2155", "0", "2024"],
    "DATE": ["'1000-01-01'", "'9999-12-31'", "'2024-02-29'"],
    "TIME": ["'00:00:00'", "'-00:00:01'", "'838:59:59'", "'-838:59:59'", "'12:34:56'"],
    "TIME(1)": ["'-00:00:00.5'", "'12:34:56.7'", "'-12:34:56.1'"],
    "TIME(2)": ["'-00:00:00.01'", "'838:59:58.99'", "'-00:00:01.00'"],
    "TIME(3)": ["'-00:00:00.001'", "'-01:02:03.456'", "'17:51:04.777'"],
    "TIME(4)": ["'-00:00:59.9999'"],
    "TIME(6)": ["'-838:59:58.999999'", "'838:59:59.999999'", "'-00:00:00.000001'"],
    "DATETIME": ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"],
    "DATETIME(1)": ["'2024-01-01 00:00:00.9'"],
    "DATETIME(3)": ["'2024-01-01 00:00:00.001'"],
    "DATETIME(6)": ["'9999-12-31 23:59:59.999999'", "'2024-05-06 07:08:09.000010'"],
    "TIMESTAMP": ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"],
    "TIMESTAMP(3)": ["'2001-09-09 01:46:40.123'"],
    "TIMESTAMP(6)": ["'2038-01-19 03:14:07.999999'", "'1970-01-01 00:00:00.000001'"],
    "CHAR(5)": ["''", "'a'", "'ab   '", "'ñandú'", "'😀'"],
    "CHAR(255)": ["''", "REPEAT('é', 255)"],
    "CHAR(3) CHARACTER SET latin1": ["'ñ'", "CHAR(0x80, 0x81)"],
    "BINARY(4)": ["''", "x'01'", "x'00000000'", "x'01000200'", "x'20202020'"],
    "BINARY(255)": ["x'ff00'"],
    "VARCHAR(10)": ["''", "' a '", "'ñ'", "'0123456789'"],
    "VARCHAR(300)": ["''", "REPEAT('x', 300)", "REPEAT('😀', 300)"],
    "VARCHAR(20) CHARACTER SET ucs2": ["'aé漢'"],
    "VARCHAR(20) CHARACTER SET utf16": ["'aé漢😀'"],
    "VARCHAR(20) CHARACTER SET utf32": ["'aé漢😀'"],
    "VARCHAR(20) CHARACTER SET sjis": ["'日本語ｱ'"],
    "VARCHAR(20) CHARACTER SET gbk": ["'中文'"],
    "VARCHAR(200) COMPRESSED": ["''", "'short'", "REPEAT('q', 150)"],
    "VARBINARY(10)": ["''", "x'00'", "x'ff00ff00'"],
    "VARBINARY(300)": ["REPEAT(x'00', 300)"],
    "TINYTEXT": ["''", "'é'"],
    "TEXT": ["''", "REPEAT('é', 20000)"],
    "TEXT COMPRESSED": ["''", "REPEAT('é', 1000)"],
    "MEDIUMTEXT": ["REPEAT('x', 70000)"],
    "LONGTEXT": ["'é'"],
    "TINYBLOB": ["''", "x'00ff'"],
    "BLOB": ["''", "x'00ff80'"],
    "BLOB COMPRESSED": ["REPEAT(x'00', 1000)"],
    "MEDIUMBLOB": ["REPEAT(x'00', 70000)"],
    "LONGBLOB": ["x'00'"],
    "ENUM('a','b','ñ')": ["'a'", "'ñ'"],
    "ENUM('it''s','back\\\\slash','a,b') CHARACTER SET latin1": ["1", "2", "3"],
    "SET('x','y','ñ')": ["''", "'x'", "'x,ñ'", "'x,y,ñ'"],
    "SET('a','b','c','d','e','f','g','h','i') CHARACTER SET latin1": ["'a,i'", "''"],
    "JSON": ["'{\"a\": [1, 2.5, \"é\"]}'", "'null'"],
    "UUID": ["'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"],
    "INET4": ["'1.2.3.4'", "'0.0.0.0'", "'255.255.255.0'"],
    "INET6": ["'::'", "'::1'", "'2001:db8::ff00:42:8329'", "'::ffff:1.2.3.4'", "'::1.2.3.4'",
              "'fe80::'", "'1:0:0:2:0:0:0:3'", "'::1:2'"],
    "GEOMETRY": ["POINT(1, 2)"],
    "POINT": ["POINT(-1.5, 0)"],
    "POLYGON": ["ST_GeomFromText('POLYGON((0 0,0 1,1 1,0 0))')"],
}  # fmt: skip
_MANY = ",".join(f"'m{n}'" for n in range(300))
TYPES[f"ENUM({_MANY})"] = ["'m0'", "'m254'", "'m255'", "'m299'"]
_SIXTY_FOUR = ",".join(f"'s{n}'" for n in range(64))
TYPES[f"SET({_SIXTY_FOUR})"] = ["'s0,s63'", "'s31,s32'"]


def as_delivered(sql_type: str, value: Any) -> Any:
    """Turn what PyMySQL returns into what the source is to deliver."""
    if value is None:
        return None
    kind = sql_type.split("(")[0].split()[0]
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if kind == "TIMESTAMP":
        return value.replace(tzinfo=UTC)
    if sql_type == "BIGINT UNSIGNED":
        return Decimal(value)
    return value


def selected(database: Database, sql_type: str) -> list[Any]:
    # SELECT prints a FLOAT with six digits; as a DOUBLE it is what it is.
    column = "CAST(v AS DOUBLE)" if sql_type.startswith("FLOAT") else "v"
    rows = database.run(f"SELECT {column} FROM t ORDER BY id")
    return [as_delivered(sql_type, row[0]) for row in rows]


@pytest.mark.parametrize("sql_type", TYPES, ids=lambda t: t[:40])
def test_values_are_what_select_says(database: Database, tmp_path: Path, sql_type: str) -> None:
    literals = [*TYPES[sql_type], "NULL"]
    database.run(
        "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'",
        f"CREATE TABLE t (id INT PRIMARY KEY, v {sql_type} NULL, z INT DEFAULT 7)",
    )
    with opened(watching(database, tmp_path, "t")) as source:
        for number, literal in enumerate(literals):
            database.run(f"INSERT INTO t (id, v) VALUES ({number}, {literal})")
        changes = read_changes(source, len(literals))
        assert [change.row["v"] for change in changes] == selected(database, sql_type)
        # What follows a value shows that it was neither too long nor too short.
        assert {change.row["z"] for change in changes} == {7}
        check_avro_round_trip(source, changes)


def check_avro_round_trip(source: MysqlSource, changes: list[Any]) -> None:
    codec = row_codec(avro_schema(source.tables()[0]))
    for change in changes:
        decoded = codec.decode(codec.encode(change.row))
        assert decoded["id"] == change.row["id"]
        if not isinstance(change.row["v"], float):
            assert decoded["v"] == change.row["v"]


def test_every_type_in_one_row_with_every_pattern_of_nulls(
    database: Database, tmp_path: Path
) -> None:
    names = [f"c{number}" for number in range(12)]
    database.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'{n} INT' for n in names)})")
    with opened(watching(database, tmp_path, "t")) as source:
        for number in range(64):
            values = ["NULL" if number * 67 >> i & 1 else str(i) for i in range(12)]
            database.run(f"INSERT INTO t VALUES ({number}, {', '.join(values)})")
        for change in read_changes(source, 64):
            number = change.row["id"]
            wanted = [None if number * 67 >> i & 1 else i for i in range(12)]
            assert [change.row[name] for name in names] == wanted


def test_generated_and_invisible_columns_are_delivered(database: Database, tmp_path: Path) -> None:
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT AS (id + 1) VIRTUAL, s INT AS (id * 2) STORED,"
        " i INT INVISIBLE DEFAULT 5)"
    )
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("INSERT INTO t (id) VALUES (10)")
        assert read_changes(source, 1)[0].row == {"id": 10, "v": 11, "s": 20, "i": 5}


@pytest.mark.parametrize(
    ("sql_type", "literal"),
    [
        ("DATE", "'0000-00-00'"),
        ("DATE", "'2020-00-15'"),
        ("DATETIME", "'0000-00-00 00:00:00'"),
        ("DATETIME(3)", "'2020-01-00 00:00:00.5'"),
        ("TIMESTAMP", "0"),
        ("TIMESTAMP(6)", "0"),
    ],
)
def test_a_date_that_is_none_stops_or_is_null_as_the_settings_say(
    database: Database, tmp_path: Path, sql_type: str, literal: str
) -> None:
    database.run(
        "SET sql_mode = ''", f"CREATE TABLE t (id INT PRIMARY KEY, v {sql_type} NOT NULL, z INT)"
    )
    strict, lenient = (
        watching(database, tmp_path, "t", zero_dates=choice) for choice in ("stop", "null")
    )
    with opened(strict) as first, opened(lenient) as second:
        database.run(f"INSERT INTO t VALUES (1, {literal}, 7)")
        change = read_changes(second, 1)[0]
        assert change.row == {"id": 1, "v": None, "z": 7}
        ((text,),) = database.run("SELECT CAST(v AS CHAR) FROM t")
        assert change.notes == Notes(raw={"v": text})
        with pytest.raises(SourceStoppedError, match=r"column 'v' .*zero_dates = \"null\""):
            read_changes(first, 1)


def test_an_enum_value_that_is_no_member_is_the_empty_string(
    database: Database, tmp_path: Path
) -> None:
    database.run("SET sql_mode = ''", "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a'))")
    with opened(watching(database, tmp_path, "t")) as source:
        database.run("INSERT INTO t VALUES (1, 'zzz')")
        assert read_changes(source, 1)[0].row["e"] == ""
