"""Packets, packed decimals, MySQL's binary JSON, column descriptions: bytes in, values out."""

from __future__ import annotations

import struct
from decimal import Decimal

import pytest
from hypothesis import given, strategies as st
from pymysqlreplication.constants import BINLOG

from databus.relay.sources.mysql.binlog.packets import PacketReader, StreamEnded
from databus.relay.sources.mysql.rows.columns import (
    LoggedColumn,
    SqlType,
    clean_sql_type,
    parse_sql_type,
    parse_table_map,
)
from databus.relay.sources.mysql.rows.decimals import decimal_of, decimal_size
from databus.relay.sources.mysql.rows.json_text import json_text
from databus.relay.sources.mysql.rows.layout import DefinedColumn, Dialect, derive, difference
from tests.relay.sources.mysql.binlog import events_made as made

DIALECT = Dialect(
    collations={8: "latin1", 45: "utf8mb4", 63: "binary"}, char_bytes={"utf8mb4": 4, "latin1": 1}
)


def packet(payload: bytes, number: int = 1) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


# An event says how long it is, and the reader compares that with its packet.
whole_events = st.binary(max_size=50).map(lambda body: made.event(BINLOG.QUERY_EVENT, body))


@given(st.lists(whole_events, max_size=10), st.lists(st.integers(1, 30), min_size=1))
def test_packets_are_cut_alike_however_they_arrive(events: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(packet(b"\0" + event, number) for number, event in enumerate(events, 1))
    reader = PacketReader()
    found = []
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        found += list(reader.receive(stream[at : at + size]))
        at, turn = at + size, turn + 1
    assert found == events


def test_an_event_of_several_packets_is_put_together() -> None:
    event = b"x" * (0xFFFFFF * 2 - 1)
    stream = packet(b"\0" + event[: 0xFFFFFF - 1]) + packet(event[0xFFFFFF - 1 :], 2)
    stream += packet(b"", 3)
    reader = PacketReader()
    found = [
        e
        for at in range(0, len(stream), 1 << 20)
        for e in reader.receive(stream[at : at + (1 << 20)])
    ]
    assert found == [event]


def test_the_servers_good_bye_comes_after_the_events_before_it() -> None:
    stream = packet(b"\0abc") + packet(b"\xff\xd4\x04#HY000no such file", 2)
    stream += packet(b"\0lost", 3)
    reader = PacketReader()
    events = reader.receive(stream)
    assert next(events) == b"abc"
    with pytest.raises(StreamEnded, match="no such file") as caught:
        next(events)
    assert caught.value.code == 1236
    with pytest.raises(StreamEnded, match="ended"):
        list(PacketReader().receive(packet(b"\xfe\0\0\0\0")))


def packed_decimal(digits: int, scale: int, value: int) -> bytes:
    """Pack a number as the server does; written independently of the reader."""
    odd = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
    text = f"{abs(value):0{digits}d}"
    whole, part = text[: digits - scale], text[digits - scale :]
    out = b""
    first = len(whole) % 9
    if first:
        out += int(whole[:first]).to_bytes(odd[first], "big")
    for at in range(first, len(whole), 9):
        out += int(whole[at : at + 9]).to_bytes(4, "big")
    for at in range(0, len(part), 9):
        group = part[at : at + 9]
        out += int(group).to_bytes(odd[len(group)], "big")
    if value < 0:
        out = bytes(byte ^ 0xFF for byte in out)
    return bytes([out[0] ^ 0x80]) + out[1:]


@given(st.data())
def test_decimals_of_every_size_are_unpacked(data: st.DataObject) -> None:
    digits = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(30, digits)))
    value = data.draw(st.integers(-(10**digits) + 1, 10**digits - 1))
    packed = packed_decimal(digits, scale, value)
    assert len(packed) == decimal_size(digits, scale)
    found = decimal_of(packed, digits, scale)
    assert found == Decimal(f"{value}e-{scale}")
    assert found.as_tuple().exponent == -scale


SMALL = {
    "04 00": "null",
    "04 01": "true",
    "04 02": "false",
    "05 feff": "-2",
    "06 ffff": "65535",
    "07 ffffffff": "-1",
    "08 ffffffff": "4294967295",
    "09 0000000000000080": "-9223372036854775808",
    "0a ffffffffffffffff": "18446744073709551615",
    "0b 000000000000f03f": "1.0",
    "0b 0000000000000080": "-0.0",
    "0c 02 c3b1": '"ñ"',
    "0c 01 22": r'"\""',
    "00 0000 0400": "{}",
    "02 0000 0400": "[]",
    # {"a": 1, "bb": [true, "x"]}
    "00 0200 2300 1200 0100 1300 0200 05 0100 02 1500 61 6262"
    " 0200 0c00 04 0100 0c 0a00 01 78": '{"a": 1, "bb": [true, "x"]}',
    # a DECIMAL(4,2) inside JSON
    "0f f6 04 0402 8c 22": "12.34",
}


@pytest.mark.parametrize(("data", "text"), SMALL.items())
def test_binary_json_is_written_as_the_server_writes_it(data: str, text: str) -> None:
    assert json_text(bytes.fromhex(data.replace(" ", ""))) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.5e-15, "0.0000000000000015"),
        (1e-16, "1e-16"),
        (-1.5e-16, "-1.5e-16"),
        (999999999999999.0, "999999999999999.0"),
        (1e15, "1e15"),
        (-3239626504787283.5, "-3239626504787283.5"),
        (1.2345678901234568e17, "1.2345678901234568e17"),
        (5e-324, "5e-324"),
    ],
)
def test_a_double_inside_json_has_the_exponent_that_the_server_writes(
    number: float, text: str
) -> None:
    assert json_text(b"\x0b" + struct.pack("<d", number)) == text


def test_dates_inside_json_are_texts() -> None:
    def opaque(kind: int, whole: int, micros: int, sign: int = 1) -> str:
        packed = sign * (whole << 24 | micros)
        return json_text(bytes([15, kind, 8]) + struct.pack("<q", packed))

    day = (2015 * 13 + 1) << 5 | 15
    clock = 23 << 12 | 24 << 6 | 25
    assert opaque(12, day << 17 | clock, 500_000) == '"2015-01-15 23:24:25.500000"'
    assert opaque(10, day << 17, 0) == '"2015-01-15"'
    assert opaque(11, clock, 120_000) == '"23:24:25.120000"'
    assert opaque(11, clock, 120_000, -1) == '"-23:24:25.120000"'
    assert json_text(bytes([15, 252, 1, 0xFF])) == '"base64:type252:/w=="'


@given(st.binary(max_size=60))
def test_damaged_json_raises_value_error_only(data: bytes) -> None:
    try:
        text = json_text(data)
    except ValueError:
        return
    assert text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("int(10) unsigned", SqlType("int", (10,), True)),
        ("int(5) unsigned zerofill", SqlType("int", (5,), True)),
        ("decimal(10,2)", SqlType("decimal", (10, 2))),
        ("double", SqlType("double")),
        ("datetime(3)", SqlType("datetime", (3,))),
        (
            "enum('a','it''s','x,y','b\\\\s','')",
            SqlType("enum", members=("a", "it's", "x,y", "b\\s", "")),
        ),
        ("set('A(1)')", SqlType("set", members=("A(1)",))),
    ],
)
def test_declared_types_are_taken_apart(text: str, wanted: SqlType) -> None:
    assert parse_sql_type(text) == wanted


def test_the_servers_own_comments_are_no_part_of_a_type() -> None:
    assert clean_sql_type("varchar(100) /*M!100301 COMPRESSED*/") == "varchar(100)"
    assert clean_sql_type("datetime /* mariadb-5.3 */") == "datetime"
    assert clean_sql_type("enum('/*x*/','Y')") == "enum('/*x*/','Y')"


def test_full_metadata_of_mysql_is_read() -> None:
    # id INT UNSIGNED, name VARCHAR(10) utf8mb4, kind ENUM('a','b') latin1; key (name, id)
    optional = b"".join(
        [
            b"\x01\x01\x80",
            b"\x02\x01\x2d",
            b"\x04\x0d\x02id\x04name\x04kind",
            b"\x06\x05\x02\x01a\x01b",
            b"\x08\x02\x01\x00",
            b"\x0a\x01\x08",
        ]
    )
    made_one = made.table_map(b"\x03\x0f\xfe", b"\x28\x00\xf7\x01", nullable=6, optional=optional)
    table = parse_table_map(made_one[19:], is_mariadb=False)
    assert (table.database, table.name, table.key, table.has_names) == ("d", "t", (1, 0), True)
    assert table.columns == (
        LoggedColumn(3, 0, False, "id", True),
        LoggedColumn(15, 40, True, "name", None, 45),
        LoggedColumn(247, 1, True, "kind", None, 8, (b"a", b"b")),
    )
    derived = [derive(column, DIALECT).sql_type for column in table.columns]
    assert derived == ["int(10) unsigned", "varchar(10)", "enum('a','b')"]


@pytest.mark.parametrize(
    ("column", "sql_type", "charset", "says"),
    [
        (LoggedColumn(3, 0, True), "bigint", None, "logged as type 3"),
        (LoggedColumn(15, 40, True), "varchar(11)", "utf8mb4", "length 40"),
        (LoggedColumn(3, 0, False), "int", None, "not nullable"),
        (LoggedColumn(3, 0, True, is_unsigned=True), "int", None, "unsigned"),
        (LoggedColumn(15, 10, True, collation_id=8), "varchar(10)", None, "latin1"),
        (LoggedColumn(247, 1, True, collation_id=8, members=(b"x",)), "enum('a')", "latin1", "mem"),
        (LoggedColumn(246, 10 << 8 | 2, True), "decimal(10,3)", None, "length"),
        (LoggedColumn(16, 7, True), "bit(8)", None, "length 7"),
        (LoggedColumn(19, 3, True), "time(6)", None, "length 3"),
        (LoggedColumn(3, 0, True), "hyperint", None, "not known"),
    ],
)
def test_differences_between_log_and_definition_are_said(
    column: LoggedColumn, sql_type: str, charset: str | None, says: str
) -> None:
    assert says in difference(column, DefinedColumn("c", sql_type, True, charset), DIALECT)
