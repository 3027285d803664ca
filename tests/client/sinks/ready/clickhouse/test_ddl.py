"""The sink `clickhouse` follows changes of the source's table, as its switches say."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkRefusedError
from tests.client.sinks.clickhouse_server import PrivateClickHouse
from tests.client.sinks.ready.altered_table import (
    ADDED,
    DROPPED,
    FIRST,
    NARROWER,
    RENAMED,
    T1,
    WIDER,
)
from tests.client.sinks.ready.clickhouse.targets import OPENING, columns, opened, put, rows, write
from tests.client.sinks.ready.sql.targets import Source

pytest_plugins = ["tests.client.sinks.clickhouse_fixtures"]


def follow(server: PrivateClickHouse, then: list[Change], **switches: str) -> None:
    """Write the first rows and the rows after an ALTER in one flush."""
    write(server, [*FIRST, *then], ddl=switches)


def test_a_new_column_has_the_value_of_rows_at_rest(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [ADDED.insert(3, 30, "z", 8, scn=3), ADDED.update(2, 20, "y", 9, scn=4)])
    assert rows(clickhouse) == [(1, 10, "x", 7), (2, 20, "y", 9), (3, 30, "z", 8)]
    assert clickhouse.rows("SELECT * FROM system.mutations WHERE NOT is_done") == []
    # Rows from before the ALTER come again.
    write(clickhouse, FIRST)
    assert rows(clickhouse) == [(1, 10, "x", 7), (2, 20, "y", 9), (3, 30, "z", 8)]


@pytest.mark.parametrize("kind", ["Nullable(Int32)", "Int32", "String", "Int8"])
def test_a_column_of_the_table_that_the_source_gets_too_has_its_value(
    clickhouse: PrivateClickHouse, kind: str
) -> None:
    write(clickhouse, FIRST)
    clickhouse.run(
        f"ALTER TABLE shop.t ADD COLUMN c {kind} DEFAULT 5",
        "ALTER TABLE shop.t MATERIALIZE COLUMN c SETTINGS mutations_sync = 1",
    )
    write(clickhouse, [ADDED.insert(3, 30, "z", 8, scn=3)])
    write(clickhouse, FIRST[:1])  # it comes again
    held = rows(clickhouse, what="id, toString(c)")
    assert held == [(1, "7"), (2, "7"), (3, "8")]


def test_a_column_that_somebody_has_dropped_stops_the_sink(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, FIRST)
    clickhouse.run("ALTER TABLE shop.t DROP COLUMN b")
    with pytest.raises(SinkError, match=r"a column is not there.*\bb\b"):
        write(clickhouse, [T1.insert(3, 30, "z", scn=3)])


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("varchar(9)", "'\\`\0é", "'\\`\0é"),
        ("varbinary(9)", b"\xff\0'", "FF0027"),
        ("decimal(40,2)", Decimal("-1E+30"), "-1" + "0" * 30),
        ("bigint unsigned", Decimal((1 << 64) - 1), str((1 << 64) - 1)),
        ("double", 0.1, "0.1"),
        ("date", date(1900, 1, 1), "1900-01-01"),
        ("datetime(6)", datetime(2020, 1, 1, 0, 0, 0, 1), "2020-01-01 00:00:00.000001"),
        ("timestamp(6)", datetime(2020, 1, 1, tzinfo=UTC), "2020-01-01 00:00:00.000000"),
        ("time(6)", -1_000_001, "-00:00:01.000001"),
    ],
)
def test_rows_at_rest_get_a_value_of_any_type(
    clickhouse: PrivateClickHouse, kind: str, value: Any, shown: str
) -> None:
    altered = T1.altered(T1.columns | {"c": kind}, added={"c": value})
    own = timedelta(microseconds=value) if kind == "time(6)" else value
    follow(clickhouse, [altered.insert(3, 30, "z", own, scn=3)])
    what = "hex(c)" if kind == "varbinary(9)" else "toString(c)"
    assert rows(clickhouse, what=f"id, {what}") == [(1, shown), (2, shown), (3, shown)]


def test_a_value_of_rows_at_rest_that_would_be_clamped_stops_the_sink(
    clickhouse: PrivateClickHouse,
) -> None:
    altered = T1.altered(T1.columns | {"c": "date"}, added={"c": date(1000, 1, 1)})
    with pytest.raises(SinkError, match="c of rows at rest: 1000-01-01 is not in the range"):
        follow(clickhouse, [altered.insert(3, 30, "z", None, scn=3)])
    assert list(columns(clickhouse)) == ["id", "a", "b"]


def test_a_new_column_may_be_left_out(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [ADDED.insert(3, 30, "z", 8, scn=3)], add_column="ignore")
    write(clickhouse, [ADDED.insert(4, 40, "z", 8, scn=4)], ddl={"add_column": "ignore"})
    assert list(columns(clickhouse)) == ["id", "a", "b"]
    assert rows(clickhouse, what="id") == [(1,), (2,), (3,), (4,)]


def test_a_wider_type_takes_its_values(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [WIDER.insert(3, 1 << 40, "z", scn=3)])
    held = rows(clickhouse, what="id, toString(a)")
    assert held == [(1, "10"), (2, "20"), (3, str(1 << 40))]
    assert columns(clickhouse)["a"] == "Nullable(Int64)"


def test_a_wider_type_that_is_ignored_refuses_rows_that_do_not_fit(
    clickhouse: PrivateClickHouse,
) -> None:
    small = WIDER.insert(3, 30, "z", scn=3)
    large = WIDER.insert(4, 1 << 40, "z", scn=4)
    with pytest.raises(SinkRefusedError, match=f"{1 << 40} is no Int32") as refused:
        follow(clickhouse, [small, large], widen_column="ignore")
    assert refused.value.change is large


def test_a_column_that_may_be_null_since_an_alter_is_made_nullable(
    clickhouse: PrivateClickHouse,
) -> None:
    strict = Source({"id": "int", "v": "int not null", "w": "int not null"})
    loose = strict.altered({"id": "int", "v": "int", "w": "bigint"})
    write(clickhouse, [strict.insert(1, 1, 1)])
    assert columns(clickhouse) == {"id": "Int32", "v": "Int32", "w": "Int32"}
    write(clickhouse, [loose.insert(2, None, None, scn=2)])
    assert rows(clickhouse, what="id, v, toString(w)") == [(1, 1, "1"), (2, None, None)]
    write(clickhouse, [strict.insert(3, 3, 3, scn=1)])  # of an older version
    assert columns(clickhouse)["w"] == "Nullable(Int64)"


def test_a_narrower_integer_needs_no_alter(clickhouse: PrivateClickHouse) -> None:
    smaller = T1.altered(T1.columns | {"a": "tinyint"})
    follow(clickhouse, [smaller.insert(3, 30, "z", scn=3)])
    assert columns(clickhouse)["a"] == "Nullable(Int32)"
    assert len(rows(clickhouse)) == 3


def test_a_renamed_column_keeps_its_values(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [RENAMED.insert(3, 30, "z", scn=3)])
    assert rows(clickhouse) == [(1, 10, "x"), (2, 20, "y"), (3, 30, "z")]
    assert list(columns(clickhouse)) == ["id", "a", "z"]


def test_a_renamed_column_may_stay_beside_the_new_one(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [RENAMED.insert(3, 30, "z", scn=3)], rename_column="ignore")
    held = rows(clickhouse, what="id, b, z")
    assert held == [(1, "x", None), (2, "y", None), (3, None, "z")]


def test_columns_swap_their_names(clickhouse: PrivateClickHouse) -> None:
    first = Source({"id": "int", "a": "int", "b": "int"})
    swapped = first.altered({"id": "int", "b": "int", "a": "int"}, renamed={"a": "b", "b": "a"})
    write(clickhouse, [first.insert(1, 10, 20), swapped.insert(2, 100, 200, scn=2)])
    assert rows(clickhouse, what="id, a, b") == [(1, 20, 10), (2, 200, 100)]


def test_an_exchange_of_names_that_a_crash_has_cut_off_is_made_anew(
    clickhouse: PrivateClickHouse,
) -> None:
    first = Source({"id": "int", "a": "int", "b": "int"})
    swapped = first.altered({"id": "int", "b": "int", "a": "int"}, renamed={"a": "b", "b": "a"})
    write(clickhouse, [first.insert(1, 10, 20)])
    names = (f"RENAME COLUMN {one} TO _databus_passing_{one}" for one in ("a", "b"))
    clickhouse.run(f"ALTER TABLE shop.t {', '.join(names)}")
    write(clickhouse, [swapped.insert(2, 100, 200, scn=2)])
    assert rows(clickhouse, what="id, a, b") == [(1, 20, 10), (2, 200, 100)]


def test_a_dropped_column_stays_and_is_null_in_new_rows(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [DROPPED.insert(3, "z", scn=3)])
    assert rows(clickhouse, what="id, a") == [(1, 10), (2, 20), (3, None)]


def test_a_dropped_column_without_null_that_was_added_before_is_null_in_new_rows(
    clickhouse: PrivateClickHouse,
) -> None:
    first = Source({"id": "int"})
    added = first.altered({"id": "int", "v": "int not null"}, added={"v": 7})
    write(clickhouse, [first.insert(1, scn=1), added.insert(2, 8, scn=200)])
    assert columns(clickhouse)["v"] == "Int32"
    write(clickhouse, [added.altered({"id": "int"}).insert(3, scn=300)])
    assert rows(clickhouse) == [(1, 7), (2, 8), (3, None)]
    # One of an older version comes again: what it had in the column is not known any more.
    write(clickhouse, [first.insert(1, scn=1)])
    assert rows(clickhouse) == [(1, None), (2, 8), (3, None)]


def test_a_dropped_column_may_be_dropped(clickhouse: PrivateClickHouse) -> None:
    follow(clickhouse, [DROPPED.insert(3, "z", scn=3)], drop_column="apply")
    assert list(columns(clickhouse)) == ["id", "b"]


@pytest.mark.parametrize(
    ("source", "row", "key"),
    [
        (ADDED, (3, 30, "z", 8), "add_column"),
        (WIDER, (3, 30, "z"), "widen_column"),
        (RENAMED, (3, 30, "z"), "rename_column"),
        (DROPPED, (3, "z"), "drop_column"),
        (NARROWER, (3, None, "z"), "narrow_column"),
    ],
)
def test_a_change_may_stop_the_sink(
    clickhouse: PrivateClickHouse, source: Source, row: tuple[Any, ...], key: str
) -> None:
    with pytest.raises(SinkError, match=f'ddl.{key} = "stop": alter its table as it should be'):
        follow(clickhouse, [source.insert(*row, scn=3)], **{key: "stop"})
    assert list(columns(clickhouse)) == ["id", "a", "b"]


def test_a_table_that_is_not_there_is_left_out_or_stops_the_sink(
    clickhouse: PrivateClickHouse,
) -> None:
    write(clickhouse, FIRST, ddl={"create_table": "ignore"})
    with pytest.raises(SinkError, match=r"there is no table t for shop\.t, and ddl\.create_table"):
        write(clickhouse, FIRST, ddl={"create_table": "stop"})
    assert columns(clickhouse) == {}


def test_a_truncate_may_be_ignored_or_stop_the_sink(clickhouse: PrivateClickHouse) -> None:
    write(clickhouse, FIRST)
    write(clickhouse, [T1.made("truncate", scn=3)], ddl={"truncate": "ignore"})
    with pytest.raises(SinkError, match="was emptied at SCN 4"):
        write(clickhouse, [T1.made("truncate", scn=4)], ddl={"truncate": "stop"})
    assert len(rows(clickhouse)) == 2


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (Source({"id": "bigint", "a": "int", "b": "varchar(9)"}, version=2), r"id .*\(Int64\)"),
        (
            T1.altered({"n": "int", "a": "int", "b": "varchar(9)"}, renamed={"n": "id"}),
            "id .*anoth",
        ),
    ],
)
def test_an_alter_of_the_key_that_clickhouse_cannot_make_stops_the_sink_with_what_to_do(
    clickhouse: PrivateClickHouse, after: Source, told: str
) -> None:
    write(clickhouse, FIRST)
    with pytest.raises(SinkError, match=f"has altered {told}.* DROP the table, delete its row of"):
        write(clickhouse, [after.insert(3, 30, "z", scn=3)])
    assert columns(clickhouse) == {"id": "Int32", "a": "Nullable(Int32)", "b": "Nullable(String)"}
    # As the text says.
    clickhouse.run("DROP TABLE shop.t SYNC", "DELETE FROM shop.databus_tables WHERE name = 't'")
    write(clickhouse, [after.insert(3, 30, "z", scn=3)])
    assert len(rows(clickhouse)) == 1


def test_rows_of_an_older_version_come_again_after_a_rename(clickhouse: PrivateClickHouse) -> None:
    for _ in range(2):
        write(clickhouse, [*FIRST, RENAMED.insert(3, 30, "z", scn=3)])
        assert list(columns(clickhouse)) == ["id", "a", "z"]
        assert rows(clickhouse) == [(1, 10, "x"), (2, 20, "y"), (3, 30, "z")]


def test_an_alter_that_was_made_before_a_crash_is_not_made_again(
    clickhouse: PrivateClickHouse,
) -> None:
    for after, row in ((ADDED, (3, 30, "z", 8)), (RENAMED, (3, 30, "z"))):
        write(clickhouse, FIRST)
        clickhouse.run(
            "CREATE TABLE shop.was ENGINE = Log AS SELECT * REPLACE (noted + 50 AS noted) "
            "FROM shop.databus_tables FINAL"
        )
        write(clickhouse, [after.insert(*row, scn=3)])
        # As if the process had been killed between the ALTER and the note of it.
        clickhouse.run("INSERT INTO shop.databus_tables SELECT * FROM shop.was")
        write(clickhouse, [after.update(*row, scn=4)])
        assert list(columns(clickhouse)) == list(after.columns)
        assert len(rows(clickhouse)) == 3
        clickhouse.clear()


def test_another_lane_that_has_altered_the_table_is_not_followed_again(
    clickhouse: PrivateClickHouse,
) -> None:
    with opened(clickhouse) as first, opened(clickhouse) as second:
        put(first, FIRST[0])
        put(second, FIRST[1])
        put(first, ADDED.insert(3, 30, "z", 8, scn=3))
        put(second, ADDED.insert(4, 40, "z", 9, scn=4))
    assert rows(clickhouse, what="id, c") == [(1, 7), (2, 7), (3, 8), (4, 9)]


def test_many_changes_of_all_kinds_are_followed_in_one_flush(clickhouse: PrivateClickHouse) -> None:
    table, made = T1, [T1.insert(1, 10, "x", scn=1)]
    for at in range(2, 6):
        wide = table.altered(table.columns | {"a": "bigint", f"c{at}": "int"}, added={f"c{at}": at})
        named = {("d" if name == f"c{at}" else name): kind for name, kind in wide.columns.items()}
        renamed = wide.altered(named, renamed={"d": f"c{at}"})
        narrow = renamed.altered({"id": "int", "a": "int", "b": "varchar(9)"}, reload={})
        for step, row in ((wide, (1, 1 << 40, "x", at)), (renamed, (1, at, "y", at))):
            made.append(step.update(*row, scn=at))
        made.append(narrow.update(1, at, f"{at}", scn=at, index=1))
        table = narrow
    write(clickhouse, made, ddl={"drop_column": "apply", "narrow_column": "ignore"})
    assert rows(clickhouse, what="id, toString(a), b") == [(1, "5", "5")]


def test_what_versions_without_rows_did_to_rows_at_rest_is_done(
    clickhouse: PrivateClickHouse,
) -> None:
    second = T1.altered(T1.columns | {"c": "int", "d": "int"}, added={"c": 5, "d": 6})
    swapped = {"id": "int", "a": "int", "z": "varchar(9)", "d": "int", "c": "int"}
    third = second.altered(swapped, renamed={"z": "b", "d": "c", "c": "d"})
    fourth = third.altered(swapped | {"e": "varchar(9)"}, added={"e": "é"})
    versions = [one.schema for one in (T1, second, third, fourth)]
    opening = replace(OPENING, versions=lambda _source: versions)
    with opened(clickhouse, opening) as sink:
        put(sink, *FIRST, fourth.insert(3, 30, "z", 1, 2, "f", scn=3))
    assert rows(clickhouse, what="id, a, z, d, c, e") == [
        (1, 10, "x", 5, 6, "é"),
        (2, 20, "y", 5, 6, "é"),
        (3, 30, "z", 1, 2, "f"),
    ]


def test_a_column_that_was_dropped_and_added_again_has_the_new_value_in_all_rows(
    clickhouse: PrivateClickHouse,
) -> None:
    first = Source({"id": "int", "v": "varchar(9)"})
    text = first.altered({"id": "int", "v": "varchar(60)"}, added={"v": "q"})
    number = text.altered({"id": "int", "v": "int"}, added={"v": 7})
    nothing = number.altered({"id": "int", "v": "int"}, added={"v": None})
    write(clickhouse, [first.insert(1, "2", scn=1)])
    write(clickhouse, [text.insert(2, "x", scn=200)])
    assert rows(clickhouse) == [(1, "q"), (2, "x")]
    write(clickhouse, [number.insert(3, 8, scn=300)])
    assert rows(clickhouse) == [(1, 7), (2, 7), (3, 8)]
    write(clickhouse, [nothing.insert(4, 9, scn=400)])
    assert rows(clickhouse) == [(1, None), (2, None), (3, None), (4, 9)]


def test_a_name_that_another_column_has_left_is_another_column(
    clickhouse: PrivateClickHouse,
) -> None:
    first = Source({"id": "int", "v": "varchar(9)"})
    altered = first.altered(
        {"id": "int", "x": "varchar(9)", "v": "int"}, renamed={"x": "v"}, added={"v": 5}
    )
    write(clickhouse, [first.insert(1, "a", scn=1)])
    write(clickhouse, [altered.insert(2, "b", 6, scn=200)])
    assert rows(clickhouse, what="id, x, v") == [(1, "a", 5), (2, "b", 6)]
    clickhouse.clear()
    first = Source({"id": "int", "v": "varchar(9)", "n": "int"})
    altered = first.altered(
        {"id": "int", "n": "varchar(9)", "v": "int"}, renamed={"n": "v"}, added={"v": 5}
    )
    write(clickhouse, [first.insert(1, "a", 3, scn=1)])
    write(clickhouse, [altered.insert(2, "b", 6, scn=200)])
    assert rows(clickhouse, what="id, n, v") == [(1, "a", 5), (2, "b", 6)]
