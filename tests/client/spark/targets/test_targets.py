"""What every kind of target does with a batch, by the rules of `targets.changes`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from databus.client.spark.jobs.target_template import check_target, target_of
from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.sql_tables import table_of as sql_table_of
from databus.client.spark.targets.target import Applied, Put, Target, check_same_source, open_target
from databus.schemas.errors import IncompatibleSchemaError, SettingsError
from tests.client.spark.changing_source import META_ALONE, ROW, Change, batch_of, change
from tests.client.spark.targets.target_rows import rows_of_target, table_of

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]
IDS = pa.schema([("id", pa.int32())])
# A row with a value of each type that a source has, and the types.
EVERY_TYPE: dict[str, Any] = {
    "id": 1,
    "key": "Ä ",
    "name": "日本 ' \" \\ 😀",
    "Number": 2**62,
    "real": 0.1,
    "small": 0.5,
    "price": Decimal("12345678901234567890.123456"),
    "raw": b"\x00\xff'",
    "day": dt.date(1, 1, 1),
    "local": dt.datetime(2026, 3, 29, 2, 30, 0, 123456),
    "instant": dt.datetime(2026, 3, 29, 2, 30, 0, 999999, tzinfo=dt.UTC),
    "is_it": True,
}
TYPES = [
    pa.int32(), pa.string(), pa.string(), pa.int64(), pa.float64(), pa.float32(),
    pa.decimal128(26, 6), pa.binary(), pa.date32(), pa.timestamp("us"),
    pa.timestamp("us", tz="UTC"), pa.bool_(),
]  # fmt: skip


def apply(target: Target, batch_id: int, changes: Sequence[Change], app: str = "app") -> Applied:
    """Apply changes as a batch."""
    batch = changes_of(batch_of(changes), ["id"], source_column=target.source_column)
    return target.apply(app, batch_id, batch)


def person(key: int, name: str = "x") -> dict[str, Any]:
    return {"id": key, "name": name}


def names(target: Target) -> dict[int, str]:
    """Return the rows of a target as its names by id."""
    return {row["id"]: row["name"] for row in rows_of_target(target)}


def scns(target: Target) -> dict[int, int]:
    """Return the rows' SCNs by id."""
    return {row["id"]: row["_databus_scn"] for row in table_of(target).to_pylist()}


def test_a_batch_is_applied_once_and_says_what_it_did(opened: Open) -> None:
    target = opened()
    assert (target.applied("app"), target.positions(), target.schema()) == (None, {}, None)
    first = [change("insert", 5, person(1)), change("insert", 6, person(2))]
    assert apply(target, 0, first) == Applied(2, 0, positions={"shop": 6})
    second = [
        change("update", 8, person(1, "y")),
        change("delete", 7, person(2)),
        change("delete", 9, person(7)),
    ]
    assert apply(target, 1, second) == Applied(1, 1, positions={"shop": 9})
    again = opened()
    assert apply(again, 1, second) == Applied(is_skipped=True, positions={"shop": 9})
    assert apply(again, 0, first) == Applied(is_skipped=True, positions={"shop": 9})
    assert (again.applied("app"), again.keys) == (1, ("id",))
    assert names(again) == {1: "y"}


def test_numbers_of_batches_that_stand_for_other_changes_since_skip_none_of_these(
    opened: Open,
) -> None:
    """As after a checkpoint is set back, or restored from a backup: it plans larger batches."""
    target = opened()
    for number in range(3):
        apply(target, number, [change("insert", 5 + number, person(number))])
    larger = [change("insert", 6, person(1)), change("update", 9, person(0, "y"))]
    assert not apply(opened(), 1, larger).is_skipped
    assert names(opened()) == {0: "y", 1: "x", 2: "x"}
    assert (opened().applied("app"), opened().positions()) == (2, {"shop": 9})
    assert apply(opened(), 2, [change("delete", 10, person(2))]) == Applied(
        deletes=1, positions={"shop": 10}
    )
    assert apply(opened(), 2, [change("delete", 10, person(2))]).is_skipped
    # Of rows of a snapshot no position tells whether they are those.
    assert not apply(opened(), 2, [change("snapshot", 4, person(8), as_of=11)]).is_skipped
    assert names(opened()) == {0: "y", 1: "x", 8: "x"}


def test_a_batch_that_changes_nothing_moves_the_position_all_the_same(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", 5, person(1))])
    assert apply(target, 1, [change("delete", 8, person(7))]) == Applied(positions={"shop": 8})
    assert apply(target, 2, []) == Applied(positions={"shop": 8})
    assert (target.applied("app"), opened().positions()) == (1, {"shop": 8})


def test_rows_of_a_snapshot_do_not_move_the_position_but_its_end_does(opened: Open) -> None:
    target = opened()
    rows = [change("snapshot", 7, person(1)), change("snapshot", 3, person(2), as_of=5)]
    assert apply(target, 0, rows).positions == {}
    assert apply(target, 1, [change("snapshot_end", 5, index=None)]).positions == {"shop": 5}
    assert apply(target, 2, [change("snapshot_end", 4, index=None)]).positions == {"shop": 5}
    assert scns(target) == {1: 7, 2: 3}


def test_changes_older_than_the_row_do_nothing_and_equal_ones_are_written(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("snapshot", 9, person(1)), change("snapshot", 9, person(2))])
    older = [change("update", 8, person(1, "old")), change("delete", 8, person(2))]
    assert apply(target, 1, older) == Applied(positions={"shop": 8})
    apply(target, 2, [change("update", 9, person(1, "same")), change("delete", 9, person(2))])
    assert names(target) == {1: "same"}


def test_a_truncate_takes_what_is_older_in_the_table_and_in_its_batch(opened: Open) -> None:
    target = opened()
    rows = [change("snapshot", scn, person(key)) for key, scn in ((1, 5), (2, 10), (3, 11))]
    apply(target, 0, rows)
    batch = [
        change("insert", 9, person(4)),
        change("insert", 10, person(5), index=1),
        change("truncate", 10, index=2),
        change("insert", 10, person(6), index=3),
        change("insert", 12, person(1, "new")),
        change("update", 4, person(2, "stale")),
    ]
    assert apply(target, 1, batch) == Applied(2, 1, positions={"shop": 12})
    assert names(target) == {1: "new", 3: "x", 6: "x"}


def test_the_end_of_a_snapshot_takes_what_the_snapshot_did_not_bring(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", key, person(key)) for key in (1, 2, 3, 4)])
    apply(target, 1, [change("snapshot", 1, person(1), as_of=3)])
    rest = [
        change("snapshot", 3, person(3), as_of=3),
        change("insert", 9, person(5)),
        change("snapshot_end", 3, index=None),
    ]
    assert apply(target, 2, rest) == Applied(2, 1, positions={"shop": 9})
    assert names(target) == {1: "x", 3: "x", 4: "x", 5: "x"}


def test_the_first_snapshot_of_another_checkpoint_takes_what_it_did_not_bring(
    opened: Open,
) -> None:
    target = opened()
    apply(target, 0, [change("snapshot", key, person(key), as_of=6) for key in (1, 2)], "one")
    apply(target, 0, [change("snapshot", 2, person(2), as_of=7)], "two")
    end = change("snapshot_end", 7, index=None)
    assert apply(target, 1, [end], "two") == Applied(0, 1, positions={"shop": 7})
    assert names(target) == {2: "x"}
    # What the first one still does is not older than what the second one brought.
    apply(target, 1, [change("insert", 8, person(3))], "one")
    assert names(target) == {2: "x", 3: "x"}


def test_a_snapshot_of_other_rows_as_of_the_same_scn_takes_what_it_did_not_bring(
    opened: Open,
) -> None:
    target = opened(source_column=True)
    target.forget_as_of("shop.person")
    rows = [change("snapshot", key, person(key), as_of=7) for key in (1, 2)]
    apply(target, 0, [*rows, change("insert", 7, person(3), source="other")], "one")
    target.forget_as_of("shop.person")
    apply(target, 0, [change("snapshot", 2, person(2), as_of=7)], "two")
    apply(target, 1, [change("snapshot_end", 7, index=None)], "two")
    apply(target, 1, [change("snapshot_end", 7, index=None, source="other")], "one")
    assert names(target) == {2: "x", 3: "x"}


def test_a_snapshot_of_another_log_replaces_rows_whose_scns_are_cleared(opened: Open) -> None:
    target, old = opened(source_column=True), 12 << 32
    rows = [change("insert", old + key, person(key, "old")) for key in (1, 2)]
    apply(target, 0, [*rows, change("insert", old, person(1, "kept"), source="other")], "one")
    target.forget_as_of("shop.person", also_scn=True)
    found = [change("snapshot", 6, person(key, "new"), as_of=9) for key in (1, 3)]
    assert apply(target, 0, found, "two").upserts == 2
    apply(target, 1, [change("snapshot_end", 9, index=None)], "two")
    held = [(one["id"], one["name"], one["_databus_scn"]) for one in table_of(target).to_pylist()]
    assert sorted(held) == [(1, "kept", old), (1, "new", 6), (3, "new", 6)]


def test_a_row_that_is_newer_than_its_snapshot_stays_when_that_ends(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", 5, person(1)), change("insert", 5, person(2), index=1)])
    row = pa.Table.from_pylist([person(1, "put")], pa.schema(list(ROW)))
    target.put(row, physical_source="shop", scn=8)
    apply(target, 1, [change("snapshot", 5, person(1), as_of=9)])
    apply(target, 2, [change("snapshot_end", 9, index=None)])
    assert names(target) == {1: "put"}


def test_several_sources_share_a_table_with_equal_keys(opened: Open) -> None:
    target = opened(source_column=True)
    rows = [
        change("insert", 5, person(1, source), source=source, physical_source=source)
        for source in ("a", "b")
    ]
    apply(target, 0, rows)
    assert set(target.keys) == {"id", "_databus_source"}
    apply(target, 1, [change("truncate", 9, source="a", physical_source="a")])
    assert rows_of_target(target) == [{"source": "b", "id": 1, "name": "b"}]
    assert target.positions() == {"a": 9, "b": 5}
    with pytest.raises(SettingsError, match="go into one table"):
        changes_of(batch_of(rows), ["id"])


def test_rows_are_put_unless_the_target_has_newer_ones(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", key, person(key)) for key in (1, 2, 3, 9)])
    rows = pa.Table.from_pylist(
        [person(1, "put"), person(9, "old"), person(5)], pa.schema(list(ROW))
    )
    gone = pa.Table.from_pylist([{"id": 2}, {"id": 9}], IDS).slice(0, 1)
    late = target.put(rows, gone, physical_source="shop", scn=4)
    assert late == Put(1, 1, took_new_rows=False)
    assert names(target) == {1: "put", 3: "x", 9: "x"}
    assert target.put(rows.slice(2), physical_source="shop", scn=9) == Put(1, 0, True)
    assert scns(target) == {1: 4, 3: 3, 9: 9, 5: 9}
    assert (target.applied("app"), target.positions()) == (0, {"shop": 9})
    with pytest.raises(SettingsError, match="twice"):
        target.put(pa.concat_tables([rows, rows]), physical_source="shop", scn=9)


def test_a_position_of_another_checkpoint_is_taken_as_it_is(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", 9, person(1))], "one")
    apply(target, 0, [change("insert", 4, person(2))], "two")
    assert target.positions() == {"shop": 4}
    apply(target, 1, [change("insert", 3, person(3))], "two")
    assert target.positions() == {"shop": 4}


def test_whose_rows_a_table_has_is_noted_with_them_and_found_in_tables_of_before(
    opened: Open,
) -> None:
    target = opened()
    assert target.sources() == []
    rows = batch_of([change("insert", 5, person(1))])
    batch = changes_of(rows, ["id"])
    target.apply("shape:before", 3, batch)
    assert opened().sources() == ["before"]
    for number, source in enumerate(("one", "two", "two", "one")):
        target.apply("app", number, replace(batch, source=source))
        assert opened().sources() == [source]
    target.apply("app", 9, batch)
    assert opened().sources() == ["one"]
    check_same_source(target, "one")
    with pytest.raises(SettingsError, match=r"has the rows of one, and these are of two: give"):
        check_same_source(target, "two")


@pytest.mark.parametrize(
    "target_uri",
    ["sqlite", "mariadb", pytest.param("postgres", marks=pytest.mark.postgres)],
    indirect=True,
)
def test_of_a_table_that_somebody_has_dropped_nothing_is_known_any_more(
    opened: Open, target_uri: str
) -> None:
    target = opened()
    apply(target, 4, [change("insert", 5, person(1))])
    engine = sa.create_engine(target_uri.rpartition("#")[0])
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE person"))
    engine.dispose()
    for seen in (target, opened(None)):
        known = (seen.applied("app"), seen.positions(), seen.sources(), seen.schema())
        assert known == (None, {}, [], None)
    assert opened(None).keys == ()
    # Of an earlier number, and by another key: it is a new table.
    batch = changes_of(batch_of([change("insert", 3, person(2))]), ["id", "name"])
    again = opened(["id", "name"])
    assert again.apply("app", 0, batch) == Applied(1, 0, positions={"shop": 3})
    assert names(again) == {2: "x"}


def test_columns_that_are_new_are_added_and_those_that_are_gone_stay(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", 5, person(1)), change("insert", 5, person(2))])
    row = pa.struct([("id", pa.int32()), ("the age", pa.int64())])
    grown = batch_of(
        [change("update", 6, {"id": 1, "the age": 7}), change("insert", 6, {"id": 3}, index=1)],
        pa.schema([*row, ("_databus", META_ALONE)]),
    )
    target.apply("app", 1, changes_of(grown, ["id"]))
    rows = {row["id"]: (row["name"], row["the age"]) for row in rows_of_target(target)}
    assert rows == {1: ("x", 7), 2: ("x", None), 3: (None, None)}
    wrong = pa.schema([("id", pa.int32()), ("name", pa.int64()), ("_databus", META_ALONE)])
    batch = batch_of([change("insert", 9, {"id": 4, "name": 5})], wrong)
    with pytest.raises(IncompatibleSchemaError, match="field 'name': changes have type int64"):
        target.apply("app", 2, changes_of(batch, ["id"]))
    assert target.applied("app") == 1


def test_every_value_comes_back_as_it_was(opened: Open) -> None:
    row = EVERY_TYPE
    schema = pa.schema([*zip(row, TYPES, strict=True), ("_databus", META_ALONE)])
    nothing = {**dict.fromkeys(row), "id": 1, "key": "ä"}
    other = {**row, "key": "ä "}
    batch = batch_of([change("insert", 1, part) for part in (row, nothing, other)], schema)
    target = opened(["id", "key"])
    target.apply("app", 0, changes_of(batch, ["id", "key"]))
    found = {row["key"]: row for row in rows_of_target(target)}
    assert found == {part["key"]: {"source": None, **part} for part in (row, nothing, other)}
    batch = batch.slice(0, 1).set_column(2, "name", pa.array(["new"]))
    target.apply("app", 1, changes_of(batch, ["id", "key"]))
    target.put(deletes=batch.select(["id", "key"]).slice(1), physical_source="shop", scn=1)
    assert {row["key"]: row["name"] for row in rows_of_target(target)} == {
        "Ä ": "new", "ä": None, "ä ": row["name"],
    }  # fmt: skip


def test_a_column_of_each_type_is_added_to_a_table_that_has_none_of_it(opened: Open) -> None:
    target = opened()
    apply(target, 0, [change("insert", 1, {"id": 1, "name": "x"})])
    columns = list(zip(EVERY_TYPE, TYPES, strict=True))[3:]
    for number, (name, kind) in enumerate(columns, 1):
        schema = pa.schema([*ROW, (name, kind), ("_databus", META_ALONE)])
        row = {"id": number, "name": "x", name: EVERY_TYPE[name]}
        batch = batch_of([change("insert", number + 1, row)], schema)
        target.apply("app", number, changes_of(batch, ["id"]))
    found = {row["id"]: row for row in rows_of_target(target)}
    for number, (name, _) in enumerate(columns, 1):
        others = dict.fromkeys(dict(columns))
        expected = {"source": None, "id": number, "name": "x", **others, name: EVERY_TYPE[name]}
        assert found[number] == expected


def test_columns_of_any_name_are_made_and_added_and_found_again(opened: Open) -> None:
    names = ["back`tick", 'quo"te', "per%cent", "%s", "co:lon", "(pa)", "a.b", "op", "2x", "ä ☃"]
    row = {"id": 1, **{name: name for name in names}}
    for number, wanted in enumerate((names[::2], names, names), 1):
        columns = [pa.field("id", pa.int32()), *(pa.field(n, pa.string()) for n in wanted)]
        schema = pa.schema([*columns, ("_databus", META_ALONE)])
        batch = batch_of([change("insert", number, {**row, "id": number})], schema)
        opened().apply("app", number, changes_of(batch, ["id"]))
    found = {row["id"]: row for row in rows_of_target(opened())}
    assert found[3] == {"source": None, **row, "id": 3}
    assert found[1] == {**found[3], "id": 1, **dict.fromkeys(names[1::2])}


@pytest.mark.parametrize(
    ("dialect", "name"), [(postgresql, "ä" * 32), (postgresql, "x" * 64), (mysql, "x" * 65)]
)
def test_a_name_that_the_database_would_cut_is_refused(dialect: ModuleType, name: str) -> None:
    for table, column in ((name, "name"), ("people", name)):
        schema = pa.schema([("id", pa.int32()), (column, pa.string())])
        with pytest.raises(SettingsError, match=r"6\d at most: give the table another name"):
            sql_table_of(table, schema, ["id"], dialect.dialect())
        sql_table_of(table[:-1], pa.schema([("id", pa.int32())]), ["id"], dialect.dialect())


def test_another_key_than_the_tables_is_refused(opened: Open) -> None:
    apply(opened(), 0, [change("insert", 5, person(1))])
    target = opened(None)
    assert target.keys == ("id",)
    batch = changes_of(batch_of([change("insert", 6, person(1))]), ["name"])
    with pytest.raises(SettingsError, match=r"has the key \(id\), changes come with \(name\)"):
        target.apply("app", 1, batch)


def test_keys_that_are_null_or_not_there_are_refused() -> None:
    batch = batch_of([change("insert", 6, {"name": "x"})])
    with pytest.raises(SettingsError, match="'id' is null in 1 rows, the first of SCN 6"):
        changes_of(batch, ["id"])
    with pytest.raises(SettingsError, match="key column 'ident' is not there; columns: id, name"):
        changes_of(batch, ["ident"])
    with pytest.raises(SettingsError, match="no key columns"):
        changes_of(batch, [])


def test_forms_and_options_that_are_not_known_are_refused_with_those_that_are(
    tmp_path: Path,
) -> None:
    with pytest.raises(SettingsError, match=r"known are delta:<path or url>, iceberg:<cat"):
        open_target("hudi:/lake/orders")
    with pytest.raises(SettingsError, match=r"no option bucket; it takes storage_options, "):
        open_target(f"delta:{tmp_path}", bucket=3)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda uri: open_target(uri, bucket=3),
        lambda uri: open_target(f"parquet:{uri}"),
        lambda uri: check_target(uri, "shop.*"),
        lambda uri: target_of(uri, "shop.orders"),
    ],
    ids=["unknown option", "removed form", "one table", "no template"],
)
def test_a_target_is_refused_without_its_password(refuse: Callable[[str], object]) -> None:
    with pytest.raises(SettingsError, match="target") as caught:
        refuse("mysql+pymysql://app:s3cret@db/lake#orders")
    assert "s3cret" not in str(caught.value)


def test_the_form_that_was_removed_is_refused_with_the_way_on(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"form was removed: .* again into delta:<path or url>"):
        open_target(f"parquet:{tmp_path}")
