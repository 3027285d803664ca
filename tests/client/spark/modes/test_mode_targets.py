"""Modes in real targets: what they hold, that it is there once, and which mode is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.client.spark.modes.target import ModeTarget
from databus.client.spark.targets.delta import DeltaTarget
from databus.client.spark.targets.iceberg import IcebergTarget
from databus.client.spark.targets.iceberg_files import IcebergFiles, Storage
from databus.client.spark.targets.target import Applied, Target
from databus.schemas.errors import SettingsError
from tests.client.spark.changing_source import ROW, Change, batch_of, change
from tests.client.spark.targets.target_rows import table_of

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]


def apply(target: Target, batch_id: int, changes: Sequence[Change], app: str = "app") -> Applied:
    return target.apply(app, batch_id, target.changes_of(batch_of(changes), ["id"]))


def person(key: int, name: str = "x") -> dict[str, Any]:
    return {"id": key, "name": name}


def told(target: Target, *names: str) -> list[tuple[Any, ...]]:
    """Return some columns of a table's rows, in order."""
    assert isinstance(target, ModeTarget)
    rows = table_of(target.inner).to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def versions(target: Target) -> list[tuple[Any, ...]]:
    return told(target, "id", "name", "_databus_scn", "_databus_to_scn")


FIRST = [
    change("insert", 5, person(1, "a")),
    change("insert", 5, person(2, "b"), index=1),
    change("update", 6, person(1, "c")),
    change("update", 6, person(1, "d"), index=1),
]
SECOND = [
    change("delete", 7, person(1, "d")),
    change("update", 8, person(3, "b"), before=person(2, "b")),
    change("insert", 9, person(1, "e")),
]


def test_a_table_of_versions_has_them_once_and_ends_them(opened: Open) -> None:
    target = opened(mode="scd2")
    assert apply(target, 0, FIRST).upserts == 3
    apply(target, 1, SECOND)
    expected = [
        (1, "a", 5, 6), (1, "d", 6, 7), (1, "e", 9, None), (2, "b", 5, 8), (3, "b", 8, None),
    ]  # fmt: skip
    assert versions(target) == expected
    again = opened(None)
    assert (again.mode, again.keys) == ("scd2", ("id",))
    assert apply(again, 1, SECOND).is_skipped
    for number, batch in enumerate((FIRST, SECOND)):
        apply(again, number, batch, "another")
        assert versions(again) == expected
    apply(again, 2, [change("truncate", 12)])
    assert [row[3] for row in versions(again)] == [6, 7, 12, 8, 12]
    assert again.positions() == {"shop": 12}


def test_a_snapshot_begins_versions_where_something_is_new_and_ends_what_it_has_not(
    opened: Open,
) -> None:
    target = opened(mode="scd2")
    rows = [change("snapshot", scn, person(key), as_of=9) for key, scn in ((1, 3), (2, 9))]
    apply(target, 0, [*rows, change("snapshot_end", 9, index=None)])
    apply(target, 1, [change("update", 11, person(1, "y"))])
    before = versions(target)
    # The same rows once more, as of a later SCN, and one that is older than what is known.
    known = [change("snapshot", 20, person(1, "y"), as_of=20), change("snapshot", 9, person(2))]
    apply(target, 2, [*known, change("snapshot", 10, person(1, "old"), as_of=10)])
    assert versions(target) == before
    rows = [change("snapshot", 30, person(1, "z")), change("snapshot_end", 30, index=None)]
    apply(target, 3, rows)
    expected = [(1, "x", 3, 11), (1, "y", 11, 30), (1, "z", 30, None), (2, "x", 9, 30)]
    assert versions(target) == expected


def test_a_history_has_a_row_for_each_change_and_none_twice(opened: Open) -> None:
    target = opened(None, mode="append_history")
    batch = [*FIRST, change("snapshot", 4, person(9), index=None), change("truncate", 6, index=2)]
    apply(target, 0, batch)
    apply(target, 1, SECOND)
    expected = [
        ("insert", 5, 0, 1, "a", "5:0"),
        ("insert", 5, 1, 2, "b", "5:1"),
        ("update", 6, 0, 1, "c", "6:0"),
        ("update", 6, 1, 1, "d", "6:1"),
        ("truncate", 6, 2, None, None, "6:2"),
        ("delete", 7, 0, 1, "d", "7:0"),
        ("delete", 8, 0, 2, "b", "8:0:delete"),
        ("insert", 8, 0, 3, "b", "8:0"),
        ("insert", 9, 0, 1, "e", "9:0"),
    ]
    names = ("_databus_op", "_databus_scn", "_databus_index", "id", "name", "_databus_id")
    found = told(target, *names)
    (read,) = [row for row in found if row[0] == "snapshot"]
    assert read[:5] == ("snapshot", 4, None, 9, "x")
    assert {row for row in found if row != read} == set(expected)
    apply(target, 0, batch, "another")
    assert told(opened(None), *names) == found


def data_files(target: Target) -> list[Path]:
    """Return the files of a table on this machine."""
    if isinstance(target, DeltaTarget):
        table = target._table()
        assert table is not None
        return [Path(uri) for uri in table.file_uris()]
    assert isinstance(target, IcebergTarget)
    table_now = target._read_table()
    files = IcebergFiles(table_now, Storage.of(table_now), target.uri).data_files
    return [Path(path.removeprefix("file://")) for path in files]


@pytest.mark.parametrize("target_uri", ["delta", "iceberg"], indirect=True)
def test_a_history_grows_without_a_look_at_its_older_changes(opened: Open) -> None:
    target = opened(None, mode="append_history")
    assert isinstance(target, ModeTarget)
    apply(target, 0, FIRST)
    (older,) = data_files(target.inner)
    content = older.read_bytes()
    older.unlink()
    apply(target, 1, SECOND)
    # Those of a batch that comes again are looked for among those of its SCNs.
    apply(target, 1, SECOND, "another")
    older.write_bytes(content)
    assert len(told(target, "_databus_id")) == 8


def test_a_deleted_row_stays_with_its_last_values_and_a_mark(opened: Open) -> None:
    target = opened(mode="soft_delete")
    apply(target, 0, FIRST)
    apply(target, 1, SECOND[:2])
    names = ("id", "name", "_databus_deleted", "_databus_scn")
    rows = [(1, "d", True, 7), (2, "b", True, 8), (3, "b", False, 8)]
    assert told(target, *names) == rows
    apply(target, 2, [change("insert", 4, person(1, "late")), change("insert", 9, person(2, "z"))])
    apply(target, 3, [change("truncate", 10)])
    rows = [(1, "d", True, 7), (2, "z", True, 10), (3, "b", True, 10)]
    assert told(target, *names) == rows
    apply(target, 4, [change("snapshot", 3, person(5), as_of=10), change("insert", 11, person(3))])
    assert told(target, *names)[2:] == [(3, "x", False, 11), (5, "x", False, 3)]
    apply(target, 5, [change("snapshot_end", 12, index=None)])
    assert [row[2] for row in told(target, *names)] == [True, True, True, True]


def test_rows_are_put_into_versions_and_marks_and_not_into_a_history(opened: Open) -> None:
    target = opened(mode="scd2")
    apply(target, 0, FIRST)
    row = pa.Table.from_pylist([person(1, "put"), person(7, "new")], pa.schema(list(ROW)))
    gone = pa.Table.from_pylist([{"id": 2}], pa.schema([("id", pa.int32())]))
    put = target.put(row, gone, physical_source="shop", scn=6)
    assert put.took_new_rows
    # What is known up to the position stays: 6 is followed.
    assert versions(target) == [
        (1, "a", 5, 6), (1, "put", 6, None), (2, "b", 5, 7), (7, "new", 7, None),
    ]  # fmt: skip
    late = target.put(row.slice(1), physical_source="shop", scn=3)
    assert not late.took_new_rows


def test_what_another_writer_commits_meanwhile_is_seen(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = opened(mode="scd2"), opened(mode="scd2")
    apply(target, 0, FIRST)
    assert isinstance(target, ModeTarget)
    read, finds = target.inner.find, iter([True])

    def find(*given: Any) -> pa.Table:
        found = read(*given)
        if next(finds, False):
            row = pa.Table.from_pylist([person(2, "put")], pa.schema(list(ROW)))
            other.put(row, physical_source="shop", scn=6)
        return found

    monkeypatch.setattr(target.inner, "find", find)
    apply(target, 1, [change("update", 9, person(2, "new"))])
    found = [row for row in versions(target) if row[0] == 2]
    assert found == [(2, "b", 5, 7), (2, "new", 9, None), (2, "put", 7, 9)]


def test_a_target_stays_in_its_mode_and_says_which(opened: Open) -> None:
    before, target = opened(), opened(mode="scd2")
    with pytest.raises(SettingsError, match="mode 'log_update' is not known; known are mirror"):
        opened(mode="log_update")
    apply(target, 0, FIRST)
    with pytest.raises(SettingsError, match=r"of mode scd2, .*mirror: open it with mode=scd2"):
        opened(mode="mirror")
    with pytest.raises(SettingsError, match="would lose what it holds"):
        target.take_over("delta:x", "app", 1, {})
    with pytest.raises(SettingsError, match=r"of mode mirror|has the key"):
        apply(before, 0, FIRST)
