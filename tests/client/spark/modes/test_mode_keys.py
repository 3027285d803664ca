"""Keys of every type, in every mode and every kind of target."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from databus.client.spark.modes.target import ModeTarget
from databus.client.spark.targets.target import MODES, Target
from tests.client.spark.changing_source import META, batch_of, change
from tests.client.spark.targets.target_rows import table_of

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]
MIDNIGHT = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
NOON = dt.datetime(2026, 3, 29, 12, 0, 0, 1)


class Key(NamedTuple):
    """A type of a key column, and three values."""

    type: pa.DataType
    values: tuple[Any, Any, Any]


KEYS = {
    "int": Key(pa.int32(), (-1, 0, 7)),
    "bigint": Key(pa.int64(), (-(2**62), 0, 2**62)),
    "text": Key(pa.string(), ("", "it's", "日本")),
    "binary": Key(pa.binary(), (b"\x00", b"a", b"\xff'")),
    "decimal": Key(pa.decimal128(26, 6), (Decimal("-1.5"), Decimal(0), Decimal("12345678901.5"))),
    "date": Key(pa.date32(), (dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 11, 30))),
    "local": Key(pa.timestamp("us"), (NOON, NOON.replace(hour=13), NOON.replace(year=2027))),
    "instant": Key(
        pa.timestamp("us", tz="UTC"),
        (NOON.replace(tzinfo=dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC), MIDNIGHT),
    ),
    "double": Key(pa.float64(), (-0.5, 0.1, 1e300)),
    "bool": Key(pa.bool_(), (False, True, True)),
}
ALONE = [(name,) for name in KEYS if name != "bool"]
TOGETHER = [("int", "text"), ("text", "binary"), ("bool", "bigint"), tuple(KEYS)]
IN_ALL_TARGETS = [("text",), tuple(KEYS)]


def rows_of(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return three rows without their values, each of another key."""
    return [{name: KEYS[name].values[at] for name in names} for at in range(3)]


def batch_for(names: tuple[str, ...], *changes: dict[str, Any]) -> pa.Table:
    row = pa.struct([*((name, KEYS[name].type) for name in names), ("v", pa.string())])
    before = [pa.field("before", row) if one.name == "before" else one for one in META]
    return batch_of(changes, pa.schema([*row, ("_databus", pa.struct(before))]))


def live(target: Target, names: tuple[str, ...]) -> list[tuple[dict[str, Any], str]]:
    """Return the keys and values of the rows that a target says are the source's."""
    rows = table_of(target.inner if isinstance(target, ModeTarget) else target)
    if target.mode == "scd2":
        rows = rows.filter(pc.is_null(rows["_databus_to_scn"]))
    if target.mode == "soft_delete":
        rows = rows.filter(pc.invert(rows["_databus_deleted"]))
    found = rows.select([*names, "v"]).to_pylist()
    return sorted(((row, row.pop("v")) for row in found), key=repr)


def follow(opened: Open, names: tuple[str, ...], mode: str, *, source_column: bool) -> Target:
    """Insert three rows; change one, delete one, and give one the key of the deleted; twice."""
    one, two, three = rows_of(names)

    def apply(number: int, *changes: dict[str, Any], app: str = "app") -> Target:
        # As after a restart: its files are read again.
        keys = names if mode != "append_history" else None
        target = opened(keys, mode=mode, source_column=source_column)
        target.apply(app, number, target.changes_of(batch_for(names, *changes), names))
        return target

    def row(key: Mapping[str, Any], value: str) -> dict[str, Any]:
        return {**key, "v": value}

    batches = [
        [change("insert", 5, row(key, "a"), index=at) for at, key in enumerate((one, two, three))],
        [change("update", 6, row(one, "b"), before=row(one, "a"))],
        [
            change("delete", 7, row(two, "a")),
            change("update", 8, row(two, "c"), before=row(three, "a")),
        ],
    ]
    for app in ("app", "another"):
        for number, batch in enumerate(batches):
            target = apply(number, *batch, app=app)
    return target


def check(opened: Open, names: tuple[str, ...], mode: str, *, source_column: bool = False) -> None:
    target = follow(opened, names, mode, source_column=source_column)
    one, two, three = rows_of(names)
    if mode == "append_history":
        changes = [(one, "a"), (two, "a"), (three, "a"), (one, "b"), (two, "a"), (three, "a")]
        assert live(target, names) == sorted([*changes, (two, "c")], key=repr)
        return
    assert live(target, names) == sorted([(one, "b"), (two, "c")], key=repr)
    # It has not read the first row again, so that is gone.
    end = target.changes_of(batch_for(names, change("snapshot_end", 8, index=None)), names)
    target.apply("app", 3, end)
    put = pa.Table.from_pylist(
        [{**three, "v": "put"}],
        pa.schema([*((n, KEYS[n].type) for n in names), ("v", pa.string())]),
    )
    target.put(put, physical_source="shop", scn=9, source="shop.person")
    rows = [(two, "c"), (three, "put")]
    assert live(target, names) == sorted(rows, key=repr)
    batch = target.changes_of(batch_for(names, change("truncate", 11)), names)
    target.apply("app", 4, batch)
    assert live(target, names) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("names", [*ALONE, *TOGETHER], ids="+".join)
@pytest.mark.parametrize("target_uri", ["delta"], indirect=True)
def test_delta_follows_a_table_by_a_key_of_each_type(
    opened: Open, names: tuple[str, ...], mode: str
) -> None:
    check(opened, names, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("names", IN_ALL_TARGETS, ids="+".join)
def test_a_target_of_each_kind_follows_a_table_by_a_key_of_text(
    opened: Open, names: tuple[str, ...], mode: str
) -> None:
    check(opened, names, mode)


@pytest.mark.parametrize("mode", MODES)
def test_names_that_steps_on_the_way_could_use_are_those_of_the_table(
    opened: Open, mode: str
) -> None:
    """Each of two columns of the key, and each of the others, has such a name."""
    names = ("_index", "_time", "_op", "_file", "_part", "_n", "_row", "_picked", "_count", "c0")
    row = pa.struct([*((name, pa.int32()) for name in names), ("v", pa.string())])
    before = [pa.field("before", row) if one.name == "before" else one for one in META]
    schema = pa.schema([*row, ("_databus", pa.struct(before))])
    first = {name: number for number, name in enumerate(names)}
    for keys in (names[:2], names[3:5]):
        for number, value in enumerate(("a", "b")):
            target = opened(keys if mode != "append_history" else None, mode=mode)
            changes = [change("insert" if value == "a" else "update", 5 + number, first)]
            changes[0]["v"] = value
            target.apply("app", number, target.changes_of(batch_of(changes, schema), keys))
        values = [(first, "a")] if mode == "append_history" else []
        assert live(target, names) == [*values, (first, "b")]
        target.remove()


@pytest.mark.parametrize("mode", MODES)
def test_tables_of_several_sources_are_followed_by_a_key_of_text(opened: Open, mode: str) -> None:
    check(opened, ("text",), mode, source_column=True)
