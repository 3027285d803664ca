"""The sink `sql` follows changes of the source's table, as its switches say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError
from tests.client.sinks.ready.altered_table import (
    ADDED,
    DROPPED,
    FIRST,
    NARROWER,
    RENAMED,
    T1,
    WIDER,
)
from tests.client.sinks.ready.sql.targets import OPENING, Source, Target, write

pytest_plugins = ["tests.mariadb", "tests.mysql", "tests.postgres"]


def follow(target: Target, then: list[Change], **switches: str) -> None:
    """Write the first rows and the rows after an ALTER in one flush."""
    write(target, [*FIRST, *then], ddl=switches)


def test_a_new_column_has_the_value_of_rows_at_rest(target: Target) -> None:
    follow(target, [ADDED.insert(3, 30, "z", 8, scn=3), ADDED.update(2, 20, "y", 9, scn=4)])
    held = target.table("t", "id", "a", "b", "c")
    assert held == [(1, 10, "x", 7), (2, 20, "y", 9), (3, 30, "z", 8)]


def test_a_new_column_may_be_left_out(target: Target) -> None:
    follow(target, [ADDED.insert(3, 30, "z", 8, scn=3)], add_column="ignore")
    write(target, [ADDED.insert(4, 40, "z", 8, scn=4)], ddl={"add_column": "ignore"})
    assert target.columns("t") == ["id", "a", "b"]
    assert [row[0] for row in target.table("t")] == [1, 2, 3, 4]


def test_a_wider_type_takes_its_values(target: Target) -> None:
    follow(target, [WIDER.insert(3, 1 << 40, "z", scn=3)])
    assert target.table("t", "id", "a") == [(1, 10), (2, 20), (3, 1 << 40)]


def test_a_renamed_column_keeps_its_values(target: Target) -> None:
    follow(target, [RENAMED.insert(3, 30, "z", scn=3)])
    assert target.columns("t") == ["id", "a", "z"]
    assert target.table("t", "id", "z") == [(1, "x"), (2, "y"), (3, "z")]


def test_a_renamed_column_may_stay_beside_the_new_one(target: Target) -> None:
    follow(target, [RENAMED.insert(3, 30, "z", scn=3)], rename_column="ignore")
    assert target.table("t", "id", "b", "z") == [(1, "x", None), (2, "y", None), (3, None, "z")]


def test_a_dropped_column_stays_and_is_null_in_new_rows(target: Target) -> None:
    follow(target, [DROPPED.insert(3, "z", scn=3)])
    assert target.table("t", "id", "a") == [(1, 10), (2, 20), (3, None)]


def test_a_dropped_column_may_be_dropped(target: Target) -> None:
    follow(target, [DROPPED.insert(3, "z", scn=3)], drop_column="apply")
    assert target.columns("t") == ["id", "b"]


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
    target: Target, source: Source, row: tuple[Any, ...], key: str
) -> None:
    with pytest.raises(SinkError, match=f'ddl.{key} = "stop": alter its table as it should be'):
        follow(target, [source.insert(*row, scn=3)], **{key: "stop"})
    write(target, FIRST)
    assert target.columns("t") == ["id", "a", "b"]


def test_a_table_that_is_not_there_is_left_out_or_stops_the_sink(target: Target) -> None:
    write(target, FIRST, ddl={"create_table": "ignore"})
    with pytest.raises(SinkError, match=r"there is no table t for shop\.t, and ddl\.create_table"):
        write(target, FIRST, ddl={"create_table": "stop"})
    write(target, FIRST)
    assert len(target.table("t")) == 2


def test_a_truncate_may_be_ignored_or_stop_the_sink(target: Target) -> None:
    write(target, FIRST)
    write(target, [T1.made("truncate", scn=3)], ddl={"truncate": "ignore"})
    with pytest.raises(SinkError, match="was emptied at SCN 4"):
        write(target, [T1.made("truncate", scn=4)], ddl={"truncate": "stop"})
    assert len(target.table("t")) == 2
    write(target, [T1.made("truncate", scn=5)])
    assert target.table("t") == []


def test_an_unknown_change_that_may_be_a_rename_stops_the_sink(target: Target) -> None:
    write(target, FIRST)
    later = Source({"id": "int", "a": "int", "z": "varchar(9)"}, version=5)
    with pytest.raises(SinkError, match="lost b and has the new z, which may be the same") as found:
        write(target, [later.insert(3, 30, "z", scn=3)])
    assert "it is not known whether to rename: alter its table" in str(found.value)
    assert '= "stop"' not in str(found.value)  # that is not what the settings say
    write(target, [later.insert(3, 30, "z", scn=3)], ddl={"rename_column": "ignore"})
    assert target.table("t", "id", "b", "z") == [(1, "x", None), (2, "y", None), (3, None, "z")]


def test_another_key_stops_the_sink(target: Target) -> None:
    write(target, FIRST)
    two = Source({"id": "int", "a": "int", "b": "varchar(9)"}, keys=2, version=2)
    with pytest.raises(SinkError, match="has another primary key since schema version 2"):
        write(target, [two.insert(3, 30, "z", scn=3)])


def test_rows_of_an_older_version_come_again_after_a_rename(target: Target) -> None:
    write(target, [*FIRST, RENAMED.insert(3, 30, "z", scn=3)], exactly_once=False)
    write(target, [*FIRST, RENAMED.insert(3, 30, "z", scn=3)], exactly_once=False)
    assert target.columns("t") == ["id", "a", "z"]
    assert target.table("t", "id", "a", "z") == [(1, 10, "x"), (2, 20, "y"), (3, 30, "z")]


def test_an_alter_that_was_made_before_a_crash_is_not_made_again(target: Target) -> None:
    for after, row in ((ADDED, (3, 30, "z", 8)), (RENAMED, (3, 30, "z"))):
        write(target, FIRST)
        with target.connection() as connection:
            noted = connection.exec_driver_sql("SELECT columns FROM databus_tables").scalar_one()
        write(target, [after.insert(*row, scn=3)])
        # As if the process had been killed between the ALTER and the note of it.
        with target.connection() as connection:
            mark = "?" if target.dialect == "sqlite" else "%s"
            text = f"UPDATE databus_tables SET columns = {mark}, version = 1"
            connection.exec_driver_sql(text, (noted,))
        write(target, [after.update(*row, scn=4)])
        assert target.columns("t") == list(after.columns)
        assert len(target.table("t")) == 3
        target.run("DROP TABLE t", "DROP TABLE databus_tables", "DROP TABLE databus_positions")


@pytest.mark.parametrize("target", ["postgresql", "mariadb", "mysql"], indirect=True)
def test_a_table_in_a_schema_that_is_named_is_altered(target: Target) -> None:
    schema = "public" if target.dialect == "postgresql" else make_url(target.url).database
    for rows in (FIRST, [RENAMED.insert(3, 30, "z", scn=3)]):
        write(target, rows, target_schema=schema)
    assert target.table("t", "id", "z") == [(1, "x"), (2, "y"), (3, "z")]


@pytest.mark.parametrize("target", ["mariadb", "mysql"], indirect=True)
def test_names_that_changed_with_each_other_before_a_crash_are_not_changed_back(
    target: Target,
) -> None:
    plain = Source({"id": "int", "a": "int", "b": "int"})
    swapped = plain.altered(plain.columns, renamed={"a": "b", "b": "a"})
    write(target, [plain.insert(1, 10, 20, scn=1)])
    (noted,) = target.rows("SELECT columns FROM databus_tables")
    write(target, [swapped.insert(2, 200, 100, scn=2)])
    with target.connection() as connection:
        # As if the process had been killed between the ALTER and the note of it.
        connection.exec_driver_sql("UPDATE databus_tables SET columns = %s, version = 1", noted)
    write(target, [swapped.update(2, 201, 100, scn=3)])
    assert target.table("t", "id", "a", "b") == [(1, 20, 10), (2, 201, 100)]


def renames(count: int) -> list[Change]:
    """Return rows, with the column `b` renamed to `z` and back between them."""
    made, table = [T1.insert(1, 10, "0", scn=1)], T1
    for at in range(1, count):
        old, new = ("b", "z") if "b" in table.columns else ("z", "b")
        table = table.altered({"id": "int", "a": "int", new: "varchar(9)"}, renamed={new: old})
        made.append(table.update(1, 10, str(at), scn=at + 1))
    return made


def test_many_renames_are_followed_in_one_flush(target: Target) -> None:
    write(target, renames(16))
    assert target.columns("t") == ["id", "a", "z"]
    assert target.table("t") == [(1, 10, "15")]


def test_many_changes_of_all_kinds_are_followed_in_one_flush(target: Target) -> None:
    target.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9) UNIQUE)")
    table, made = T1, [T1.insert(1, 10, "x", scn=1)]
    for at in range(2, 14):
        wide = table.altered(table.columns | {"a": "bigint", f"c{at}": "int"}, added={f"c{at}": at})
        named = {("d" if name == f"c{at}" else name): kind for name, kind in wide.columns.items()}
        renamed = wide.altered(named, renamed={"d": f"c{at}"})
        narrow = renamed.altered({"id": "int", "a": "int", "b": "varchar(9)"}, reload={})
        for step, row in ((wide, (1, 1 << 40, "x", at)), (renamed, (1, at, "y", at))):
            made.append(step.update(*row, scn=at))
        made.append(narrow.update(1, at, f"{at}", scn=at))
        table = narrow
    write(target, made, ddl={"drop_column": "apply", "narrow_column": "ignore"})
    assert target.columns("t") == ["id", "a", "b"]
    assert target.table("t") == [(1, 13, "13")]


def test_another_one_alters_the_table_while_the_sink_runs(target: Target) -> None:
    target.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9) UNIQUE)")
    retype = {"sqlite": "", "postgresql": "ALTER TABLE t ALTER a TYPE BIGINT"}
    with target.opened() as sink:
        for at in range(1, 12):
            sink.write([T1.update(1, at, str(at), scn=at)])
            sink.flush()
        if statement := retype.get(target.dialect, "ALTER TABLE t MODIFY a BIGINT"):
            target.run(statement)
        sink.write([T1.update(1, 12, "12", scn=12)])
        sink.flush()
    assert target.table("t") == [(1, 12, "12")]


def test_what_versions_without_rows_did_to_rows_at_rest_is_done(target: Target) -> None:
    second = T1.altered(T1.columns | {"c": "int", "d": "int"}, added={"c": 5, "d": 6})
    swapped = {"id": "int", "a": "int", "z": "varchar(9)", "d": "int", "c": "int"}
    third = second.altered(swapped, renamed={"z": "b", "d": "c", "c": "d"})
    fourth = third.altered(swapped | {"e": "varchar(9)"}, added={"e": "é"})
    versions = [one.schema for one in (T1, second, third, fourth)]
    sink = target.sink()
    sink.open(replace(OPENING, versions=lambda _source: versions))
    sink.write([*FIRST, fourth.insert(3, 30, "z", 1, 2, "f", scn=3)])
    sink.flush()
    sink.close()
    assert target.table("t", "id", "a", "z", "d", "c", "e") == [
        (1, 10, "x", 5, 6, "é"),
        (2, 20, "y", 5, 6, "é"),
        (3, 30, "z", 1, 2, "f"),
    ]


# In one statement: a name is given up, and used again at once.


def test_a_column_that_was_dropped_and_added_again_has_the_new_value_in_all_rows(
    target: Target,
) -> None:
    first = Source({"id": "int", "v": "varchar(9)"})
    text = first.altered({"id": "int", "v": "varchar(60)"}, added={"v": "q"})
    number = text.altered({"id": "int", "v": "int"}, added={"v": 7})
    nothing = number.altered({"id": "int", "v": "int"}, added={"v": None})
    write(target, [first.insert(1, "2", scn=1)])
    write(target, [text.insert(2, "x", scn=200)])
    assert target.table("t", "id", "v") == [(1, "q"), (2, "x")]
    write(target, [number.insert(3, 8, scn=300)])
    assert target.table("t", "id", "v") == [(1, 7), (2, 7), (3, 8)]
    write(target, [nothing.insert(4, 9, scn=400)])
    assert target.table("t", "id", "v") == [(1, None), (2, None), (3, None), (4, 9)]


def test_a_name_that_a_renamed_column_has_left_is_another_column(target: Target) -> None:
    first = Source({"id": "int", "v": "varchar(9)"})
    columns = {"id": "int", "x": "varchar(9)", "v": "int"}
    altered = first.altered(columns, renamed={"x": "v"}, added={"v": 5})
    write(target, [first.insert(1, "a", scn=1)])
    write(target, [altered.insert(2, "b", 6, scn=200)])
    assert target.table("t", "id", "x", "v") == [(1, "a", 5), (2, "b", 6)]


def test_a_column_gets_the_name_of_one_that_is_dropped(target: Target) -> None:
    first = Source({"id": "int", "v": "varchar(9)", "n": "int"})
    columns = {"id": "int", "n": "varchar(9)", "v": "int"}
    altered = first.altered(columns, renamed={"n": "v"}, added={"v": 5})
    write(target, [first.insert(1, "a", 3, scn=1)])
    write(target, [altered.insert(2, "b", 6, scn=200)])
    assert target.table("t", "id", "n", "v") == [(1, "a", 5), (2, "b", 6)]
