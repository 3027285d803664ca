"""Rows that compiled code writes from the server's texts are those that Python makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from databus.bootstrap.seeder.row_encoder import RowEvents
from databus.relay.sources.mysql.rows.layout import DefinedColumn
from databus.relay.sources.mysql.scan.chunk_rows import ChunkRows
from databus.relay.sources.mysql.scan.columns import MisfitError, RawRow, rows_of, selected
from databus.relay.sources.table_scan import Chunk
from databus.schemas.errors import RowError
from databus.schemas.table import Column, Table
from tests.relay.sources.mysql.scan.sent import read, texts_of

# By type (with a set of characters, where there is one): texts as the server sends them.
TEXTS: dict[str, list[bytes]] = {
    "tinyint": [b"-128", b"0", b"127"],
    "int unsigned": [b"4294967295"],
    "int(5) unsigned zerofill": [b"00042"],
    "bigint": [b"-9223372036854775808", b"9223372036854775807", b"-1"],
    "bigint unsigned": [b"0", b"127", b"128", b"9223372036854775808", b"18446744073709551615"],
    "decimal(10,2)": [b"0.00", b"-0.01", b"1.27", b"1.28", b"-1.28", b"99999999.99"],
    "decimal(18,0)": [b"999999999999999999", b"-999999999999999999"],
    "decimal(7,3) unsigned zerofill": [b"0001.500"],
    "decimal(40,4)": [b"123456789012345678901234567890.1234", b"-0.0001", b"0.0000"],
    "float": [
        b"0",
        b"-0",
        b"3.4028234663852886e38",
        b"1.401298464324817e-45",
        b"0.10000000149011612",
    ],
    "double": [b"0", b"-0", b"0.1", b"1e23", b"9007199254740993", b"1e+20", b"1e22", b"-1.5"],
    "double unsigned": [b"2.2250738585072014e-308", b"123456789012345678e-5", b"5e-324"],
    "double(20,3)": [b"1.7976931348623157e308"],
    "year": [b"0000", b"1901", b"2155"],
    "time": [b"00:00:00", b"-838:59:59", b"838:59:59"],
    "time(3)": [b"-00:00:00.500", b"01:02:03.004"],
    "time(6)": [b"-00:00:00.000001"],
    "date": [b"2024-02-29", b"0001-01-01", b"9999-12-31", b"0000-00-00", b"2023-02-29"],
    "datetime": [b"1000-01-01 00:00:00", b"2024-12-31 23:59:59", b"2024-00-15 01:02:03"],
    "datetime(1)": [b"2024-12-31 23:59:59.9"],
    "datetime(6)": [b"1969-12-31 23:59:59.999999", b"0000-00-00 00:00:00.000000"],
    "timestamp(3)": [b"1970-01-01 00:00:01.001", b"0000-00-00 00:00:00.000"],
    "enum('a','','b')": [b"0", b"1", b"2", b"3"],
    "set('x','y','z')": [b"0", b"1", b"5", b"7"],
    "bit(9)": [b"\x01\xff"],
    "binary(3)": [b"a\0\0"],
    "varbinary(400)": [b"", b"\xff" * 300],
    "longblob": [b"x" * 70_000],
    "json": [b'{"a": [1, 1.5e20, "1e5", 0.00001]}'],
    "uuid": [b"123e4567-e89b-12d3-a456-426655440000"],
    "inet4": [b"10.0.0.1"],
    "inet6": [b"::ffff:1.2.3.4", b"2001:db8::1"],
    "varchar(20) utf8mb4": ["Zoë, \\ 😀".encode(), b""],
    "char(4) latin1": [b"\xe9\x80"],
    "text sjis": ["日本".encode("cp932")],
}
# Texts that no value is made of. A server sends none of these.
MISFITS: dict[str, list[bytes]] = {
    "int": [b"", b"-", b"1 ", b"0x1", b"12a"],
    "bigint": [b"9223372036854775808"],
    "enum('a')": [b"2"],
    "set('a')": [b"2"],
    "date": [b"2024-1-1", b""],
    "datetime": [b"2024-01-01"],
    "varchar(9) utf8mb4": [b"\xff", b"\xed\xa0\x80"],
    "char(9) ascii": [b"\xe9"],
}


def defined(kind: str, name: str = "v") -> DefinedColumn:
    """Return a column of a type, whose text is in the set that follows it."""
    sql_type, _, charset = kind.rpartition(" ")
    if sql_type.startswith(("varchar", "char", "text")):
        return DefinedColumn(name, sql_type, True, charset)
    return DefinedColumn(name, kind, True)


def table_of(columns: Sequence[DefinedColumn], key: Sequence[str]) -> Table:
    """Return the table of these columns."""
    return Table(
        "shop.t",
        tuple(
            Column(
                column.name,
                column.sql_type,
                at,
                column.name not in key,
                key.index(column.name) if column.name in key else None,
            )
            for at, column in enumerate(columns)
        ),
    )


def both(
    columns: Sequence[DefinedColumn], rows: Sequence[RawRow], key: Sequence[str], *, nulls: bool
) -> tuple[object, object]:
    """Return the events that compiled code writes and those of Python; an error as its type."""
    chosen = tuple(selected(column, zero_dates_are_null=nulls) for column in columns)
    table = table_of(columns, key)
    events = RowEvents(table, 40, 1000, 5_000)
    sent = ChunkRows(read(rows, len(columns)), len(rows), chosen, lambda raw: rows_of(chosen, raw))
    written = sent.write_events(events._form)
    try:
        made = events.encode(rows_of(chosen, rows))
    except (MisfitError, RowError):
        return written, None
    if written is not None:
        assert events.encode_chunk(Chunk(table, sent, None, sent.write_events)) == made
    return written, [(event.key, event.event) for event in made]


@pytest.mark.parametrize("nulls", [True, False])
@pytest.mark.parametrize("kind", TEXTS)
def test_the_event_of_every_value_is_the_one_that_python_makes(kind: str, nulls: bool) -> None:
    columns = [DefinedColumn("id", "int", False), defined(kind)]
    for value in [*TEXTS[kind], None]:
        written, made = both(columns, [[b"7", value]], ["id"], nulls=nulls)
        assert written == made, value
        assert made is not None or (not nulls and "dat" in kind) or "timestamp" in kind


@pytest.mark.parametrize("kind", TEXTS)
def test_the_key_of_every_value_is_the_one_that_python_makes(kind: str) -> None:
    columns = [defined(kind, "k"), DefinedColumn("l", "varchar(9)", True, "utf8mb4")]
    for value in TEXTS[kind]:
        for key in (["k"], ["l", "k"], []):
            written, made = both(columns, [[value, b"a,\\"]], key, nulls=True)
            # A time is a number, and Python alone makes its key.
            is_left = kind.partition("(")[0] == "time" and key == ["k"]
            assert written == (None if is_left else made), (value, key)


@pytest.mark.parametrize("kind", MISFITS)
def test_a_value_that_does_not_fit_leaves_the_rows_to_python(kind: str) -> None:
    columns = [DefinedColumn("id", "int", False), defined(kind)]
    for value in MISFITS[kind]:
        written, _ = both(
            columns, [[b"7", TEXTS.get(kind, [None])[0]], [b"8", value]], ["id"], nulls=False
        )
        assert written is None, value


@given(
    numbers=st.lists(
        st.tuples(
            st.floats(allow_nan=False, allow_infinity=False),
            st.integers(-(10**18) + 1, 10**18 - 1),
            st.integers(-(2**63), 2**63 - 1),
        ),
        min_size=1,
    ),
    piece=st.integers(1, 40),
)
def test_numbers_of_any_size_are_those_of_python(
    numbers: list[tuple[float, int, int]], piece: int
) -> None:
    kinds = ("bigint", "double", "decimal(18,4)", "double", "bigint")
    columns = [DefinedColumn(f"c{at}", kind, True) for at, kind in enumerate(kinds)]
    rows = []
    for at, (real, amount, number) in enumerate(numbers):
        unscaled = f"{abs(amount):05}"
        digits = f"{'-' if amount < 0 else ''}{unscaled[:-4]}.{unscaled[-4:]}"
        texts = (at, repr(real), digits, f"{real:.15g}", number)
        rows.append([str(one).encode() for one in texts])
    written, made = both(columns, rows, ["c0"], nulls=False)
    assert written == made
    assert texts_of(read(rows, 5, piece)) == [tuple(row) for row in rows]
