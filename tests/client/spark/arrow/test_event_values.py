"""Each type's values, from a row's bytes to a batch: compiled and not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest

from databus.client.arrow.batch_builder import BatchBuilder
from databus.schemas.event.control import end_of_period
from databus.schemas.event.metadata import (
    Op,
)
from tests.client.spark.arrow.made_events import (
    EXTREMES,
    FOREIGN,
    WAYS,
    make_columns,
    read,
    read_by,
    row_event,
    target_of,
    version,
)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Read once with the compiled decoder going ahead and once without it."""
    with read_by(request.param):
        yield request.param


WIDE = Decimal("0.000000000000000000000000000001")


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    ("dialect", "sql_type", "values"), EXTREMES, ids=[f"{d} {t}" for d, t, _ in EXTREMES]
)
def test_each_types_values_come_as_they_are(
    dialect: str, sql_type: str, values: list[Any], nullable: bool, way: str
) -> None:
    schema = version(1, {"c": sql_type}, dialect=dialect, nullable=nullable)
    values = [*values, None] if nullable else values
    columns = make_columns([schema])
    events = [
        row_event(schema, {"c": value}, Op.UPDATE, before={"c": values[-1]}, index=n)
        for n, value in enumerate(values)
    ]
    rows = read(columns, *events)
    assert [row["c"] for row in rows] == values
    assert {str(row["_databus"]["before"]["c"]) for row in rows} == {str(values[-1])}


TEXTS: list[tuple[str, str, list[tuple[Any, str]]]] = [
    (
        "mysql",
        "decimal(65,30)",
        [(WIDE, f"{WIDE:f}"), (Decimal(-(10**34)), f"-1{'0' * 34}.{'0' * 30}")],
    ),
    ("mysql", "decimal(65,0)", [(Decimal(10**65 - 1), "9" * 65), (Decimal(0), "0")]),
    (
        "sqlite",
        "NUMERIC",
        [
            (0, "0"),
            (-(1 << 63), "-9223372036854775808"),
            ((1 << 63) - 1, "9223372036854775807"),
            (1.0, "1.0"),
            (-0.1, "-0.1"),
            (1e16, "1e+16"),
            (5e-324, "5e-324"),
            (float("inf"), "inf"),
            ("", ""),
            ("'ü'", "'ü'"),
            (b"", "x''"),
            (b"\x00\xaf\xff", "x'00afff'"),
        ],
    ),
]


@pytest.mark.parametrize(("dialect", "sql_type", "pairs"), TEXTS, ids=[t for _, t, _ in TEXTS])
def test_what_has_no_type_comes_as_text(
    dialect: str, sql_type: str, pairs: list[tuple[Any, str]], way: str
) -> None:
    schema = version(1, {"c": sql_type}, dialect=dialect)
    pairs = [*pairs, (None, None)]  # type: ignore[list-item]
    events = [row_event(schema, {"c": value}, index=n) for n, (value, _) in enumerate(pairs)]
    rows = read(make_columns([schema]), *events)
    assert [row["c"] for row in rows] == [text for _, text in pairs]


PLAIN = [*EXTREMES, *((dialect, t, [v for v, _ in pairs]) for dialect, t, pairs in TEXTS)]


@pytest.mark.parametrize(("dialect", "sql_type", "values"), PLAIN, ids=[t for _, t, _ in PLAIN])
def test_the_compiled_way_leaves_no_plain_row_to_the_other(
    dialect: str, sql_type: str, values: list[Any]
) -> None:
    schema = version(1, {"c": sql_type}, dialect=dialect)
    events = [
        row_event(schema, {"c": value}, Op.UPDATE, index=n, before={"c": None}, key=key)
        for n, value in enumerate([*values, None])
        for key in (1, b"1,2")
    ]
    columns = make_columns([schema])
    with patch.object(BatchBuilder, "append", side_effect=AssertionError(sql_type)):
        assert len(read(columns, *events, end_of_period(5, 5))) == len(events)
    assert columns.window_scn == 5


AS_TEXT: list[tuple[str, Any, str]] = [
    ("int", -5, "-5"),
    ("bigint", 1 << 62, str(1 << 62)),
    ("decimal(38,30)", Decimal("1").scaleb(-30), "0." + "0" * 29 + "1"),
    ("decimal(10,2)", Decimal("1.20"), "1.20"),
    ("decimal(65,30)", WIDE, f"{WIDE:f}"),
    ("float", 0.1, "0.1"),
    ("double", 1.0, "1.0"),
    ("double", 1e20, "1e+20"),
    ("date", date(2020, 1, 2), "2020-01-02"),
    ("time", -1_000_000, "-1000000"),
    ("datetime", datetime(2020, 1, 2, 3, 4, 5), "2020-01-02 03:04:05.000000"),
    ("timestamp", datetime(2020, 1, 2, 3, 4, 5, 6, UTC), "2020-01-02 03:04:05.000006Z"),
    ("blob", b"\xab\x00", "x'ab00'"),
    ("varchar(9)", "ü", "ü"),
]


@pytest.mark.parametrize(("sql_type", "value", "text"), AS_TEXT, ids=[t for t, _, _ in AS_TEXT])
def test_a_column_is_delivered_as_text_where_it_is_asked_for(
    sql_type: str, value: Any, text: str, way: str
) -> None:
    schemas = [version(1, {"id": "int", "c": sql_type}), version(2, {"id": "int", "c": "json"})]
    target = target_of(schemas, as_text=["c"])
    events = [
        row_event(schemas[0], {"id": 1, "c": value}, index=0),
        row_event(schemas[0], {"id": 1, "c": None}, index=1),
        row_event(schemas[1], {"id": 1, "c": "{}"}, index=2),
    ]
    rows = read(make_columns(schemas, target, as_text=["c"]), *events)
    assert [row["c"] for row in rows] == [text, None, "{}"]


def test_unions_as_other_relays_have_them_are_read(way: str) -> None:
    given: list[dict[str, Any]] = [
        {"a": "x", "b": True, "c": None, "d": 7, "e": b"\1"},
        {"a": None, "b": False, "c": True, "d": -7, "e": None},
        {"a": "", "b": True, "c": False, "d": 0, "e": 0.5},
    ] * 4
    events = [row_event(FOREIGN, row, index=n) for n, row in enumerate(given)]
    texts: dict[Any, Any] = {b"\1": "x'01'", None: None, 0.5: "0.5"}
    rows = read(make_columns([FOREIGN]), *events)
    assert [{k: v for k, v in row.items() if k != "_databus"} for row in rows] == [
        {**row, "e": texts[row["e"]]} for row in given
    ]
