"""What a schema version says of rows at rest, and what a chain of versions makes of them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from databus.registry.compatibility import check_new_version
from databus.registry.differences import differences
from databus.schemas.avro_rows import RowCodec, row_codec, schema_id
from databus.schemas.errors import SchemaError
from databus.schemas.table import Column, Table
from databus.schemas.table_change import (
    Kind,
    TableChange,
    Versions,
    change_of,
    describes,
    renewed,
    shape,
    shape_id,
    step,
    with_change,
)
from databus.schemas.table_schema import avro_schema


def bare(*columns: tuple[str, str] | tuple[str, str, bool]) -> str:
    """Return the shape of a table with a key `id` and these columns, nullable unless told."""
    made = [Column("id", "bigint(20)", 0, nullable=False, key_position=0)]
    for place, (name, sql_type, *nullable) in enumerate(columns, 1):
        made.append(Column(name, sql_type, place, nullable=not nullable or bool(nullable[0])))
    return avro_schema(Table("shop.t", tuple(made)))


def after(before: str, now: str, scn: int, **what: Any) -> str:
    return with_change(now, TableChange(scn, shape_id(before), **what))


CITY = bare(("city", "varchar(20)"))
TOWN = bare(("town", "varchar(20)"))


def test_a_version_says_what_it_did_to_rows_and_is_another_version_by_that() -> None:
    plain, told = TOWN, after(CITY, TOWN, 7, renamed={"town": "city"})
    assert change_of(plain) is None
    assert change_of(told) == TableChange(7, shape_id(CITY), renamed={"town": "city"})
    assert shape(told) == plain
    assert schema_id(told) != schema_id(plain) == schema_id(shape(told))


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        ("int(11)", 7),
        ("bigint(20) unsigned", Decimal(18446744073709551615)),
        ("decimal(10,2)", Decimal("-7.50")),
        ("double", 1.5),
        ("varchar(5)", "né"),
        ("varbinary(5)", b"\x00\xff"),
        ("date", date(2020, 2, 29)),
        ("datetime(6)", datetime(2020, 1, 2, 3, 4, 5, 600)),
        ("timestamp", datetime(2020, 1, 2, tzinfo=UTC)),
        ("time", -3_600_000_000),
        ("int(11)", None),
    ],
)
def test_the_value_of_an_added_column_comes_back_as_it_was(sql_type: str, value: Any) -> None:
    now = bare(("c", sql_type, value is None))
    text = after(bare(), now, 7, added={"c": value})
    change = change_of(text)
    assert change is not None
    assert change.added == {"c": value}
    row = step(bare(), text).row({"id": 1}, has_durations=False)
    assert row == {"id": 1, "c": value}
    assert row_codec(text).decode(row_codec(text).encode(row)) == row


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [("int(11)", 7), ("varchar(9)", "né"), ("double", -1.5)],
)
def test_any_avro_reader_finds_the_default_of_a_column_that_cannot_be_null(
    sql_type: str, value: Any
) -> None:
    text = after(bare(), bare(("c", sql_type, False)), 7, added={"c": value})
    check_new_version(bare(), text)
    data = row_codec(bare()).encode({"id": 1})
    assert RowCodec.resolving(bare(), text).decode(data) == {"id": 1, "c": value}


def test_any_avro_reader_finds_a_renamed_column_and_the_registry_says_renamed() -> None:
    text = after(CITY, TOWN, 7, renamed={"town": "city"})
    data = row_codec(CITY).encode({"id": 1, "city": "Ulm"})
    assert RowCodec.resolving(CITY, text).decode(data) == {"id": 1, "town": "Ulm"}
    assert [(d.kind, d.text) for d in differences(CITY, text)] == [("renamed", "city → town")]


def test_each_column_has_its_fate() -> None:
    before = bare(("a", "int(11)"), ("b", "float"), ("c", "int(11)"), ("d", "int(11)"))
    now = bare(("a", "bigint(20)"), ("bb", "double"), ("d", "int(11)"), ("e", "int(11)"))
    text = after(before, now, 7, renamed={"bb": "b"}, added={"e": 7}, reload={"d": "why"})
    found = {f.column: (f.kind, f.was) for f in step(before, text).fates}
    assert found == {
        "id": (Kind.SAME, "id"),
        "a": (Kind.WIDENED, "a"),
        "bb": (Kind.RENAMED, "b"),
        "d": (Kind.RELOAD, "d"),
        "e": (Kind.ADDED, None),
        "c": (Kind.DROPPED, "c"),
    }
    assert step(before, text).why_reload == "d: why"
    with pytest.raises(SchemaError, match="read again: d: why"):
        step(before, text).row({"id": 1})


def test_two_columns_that_change_names_change_values() -> None:
    both = bare(("a", "int(11)"), ("b", "int(11)"))
    text = after(both, both, 7, renamed={"a": "b", "b": "a"})
    assert step(both, text).row({"id": 1, "a": 2, "b": 3}) == {"id": 1, "a": 3, "b": 2}


def test_a_name_that_was_given_away_and_taken_again_is_another_column() -> None:
    one, two = bare(("a", "int(11)")), bare(("b", "int(11)"), ("a", "int(11)"))
    v2 = after(one, bare(("b", "int(11)")), 7, renamed={"b": "a"})
    v3 = after(v2, two, 8, added={"a": None})
    steps = Versions([one, v2, v3]).since(one, 5, 9)
    assert renewed({"id": 1, "a": 2}, steps) == {"id": 1, "b": 2, "a": None}
    at_once = after(one, two, 7, renamed={"b": "a"}, added={"a": None})
    assert step(one, at_once).row({"id": 1, "a": 2}) == {"id": 1, "b": 2, "a": None}


def test_a_column_that_is_dropped_and_added_again_has_its_default_in_older_rows_only() -> None:
    s1, s2 = bare(), bare(("x", "int(11)"))
    v2 = after(s1, s2, 10, added={"x": 7})
    v3 = after(s2, s1, 20)
    v4 = after(s1, s2, 30, added={"x": 7})
    known = Versions([v4, s1, v3, v2])
    written = {"id": 1, "x": 9}
    assert schema_id(v4) != schema_id(v2)
    assert renewed(written, known.since(v2, 15, 99)) == {"id": 1, "x": 7}
    assert renewed(written, known.since(v4, 35, 99)) == written
    assert renewed(written, known.since(v2, 15, 19)) == written
    assert renewed({"id": 1}, known.since(s1, 5, 99)) == {"id": 1, "x": 7}


def test_a_change_that_nobody_saw_needs_a_reload() -> None:
    found = step(CITY, TOWN)
    assert found.needs_reload
    assert all(fate.kind in (Kind.RELOAD, Kind.DROPPED) for fate in found.fates)
    other = after(bare(), TOWN, 7, renamed={"town": "city"})
    assert step(CITY, other).needs_reload  # it speaks of another version


def test_a_dropped_table_leaves_nothing_to_read_again() -> None:
    change = TableChange(7, shape_id(CITY), is_emptied=True, reload={"": "another table"})
    found = step(CITY, with_change(TOWN, change))
    assert found.is_emptied
    assert not found.needs_reload


def test_the_same_table_as_another_relay_or_the_seeder_saw_it_is_the_same_version() -> None:
    v2 = after(CITY, TOWN, 10, renamed={"town": "city"})
    known = Versions([CITY, v2, TOWN])  # TOWN: another relay began after the statement
    assert known.since(TOWN, 12, 99) == []
    assert known.since(TOWN, 5, 99) == []  # read from the database while it was altered
    lost = with_change(TOWN, TableChange.unknown(11, shape_id(CITY)))
    assert not any(s.needs_reload for s in Versions([CITY, v2, lost]).since(CITY, 5, 99))


def test_the_version_in_force_is_found_by_scn() -> None:
    v2 = after(CITY, TOWN, 10, renamed={"town": "city"})
    known = Versions([v2, CITY])
    assert [known.at(scn) for scn in (9, 10)] == [CITY, v2]
    assert Versions([]).at(5) is None


def test_an_integer_that_became_a_decimal_is_one() -> None:
    now = bare(("n", "bigint(20) unsigned"))
    before = bare(("n", "int(10) unsigned"))
    text = after(before, now, 7)
    row = step(before, text).row({"id": 1, "n": 4000000000})
    assert row_codec(text).decode(row_codec(text).encode(row))["n"] == Decimal(4000000000)


@pytest.mark.parametrize(
    ("type_before", "value"),
    [
        ("decimal(10,2)", Decimal("1.50")),
        ("int(11)", 7),
        ("decimal(60,1)", Decimal("9" * 59 + ".5")),
    ],
)
def test_a_value_of_a_wider_decimal_is_in_text_as_one_that_is_read_now(
    type_before: str, value: Any
) -> None:
    before, now = bare(("d", type_before)), bare(("d", "decimal(65,4)"))
    text = after(before, now, 7)
    row = step(before, text).row({"id": 1, "d": value})
    assert str(row["d"]) == str(row_codec(text).decode(row_codec(text).encode(row))["d"])
    assert row["d"] == value


def test_a_row_without_columns_that_were_not_logged_lacks_them_afterwards() -> None:
    text = after(CITY, TOWN, 7, renamed={"town": "city"})
    assert step(CITY, text).row({"id": 1}) == {"id": 1}


@pytest.mark.parametrize("text", ["", "[]", '{"fields": 3}', '{"fields": [{}]}'])
def test_a_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="not the schema of a table"):
        change_of(text)


def test_a_schema_of_somebody_else_has_no_change() -> None:
    text = json.dumps({"type": "record", "name": "t", "fields": [{"name": "a", "type": "int"}]})
    assert change_of(text) is None
    assert shape(text) == text


@pytest.mark.parametrize(
    ("member", "is_it"),
    [("ü😊", True), ("ü?", True), ("ü\ufffd", True), ("üx", False), ("ü", False), ("ü😊😊", False)],
)
def test_a_character_that_the_database_cannot_show_may_be_one_beyond_the_catalogue(
    member: str, is_it: bool
) -> None:
    def text(member: str) -> str:
        return avro_schema(Table("d.t", (Column("e", f"enum('','x','{member}')", 0),)))

    known = text(member)
    later = with_change(known, TableChange(5, "", is_emptied=True))
    assert describes(known, text("ü\ufffd")) is describes(later, text("ü\ufffd")) is is_it
    assert describes(known, known)
    assert not describes(known, text(f"{member}!"))
