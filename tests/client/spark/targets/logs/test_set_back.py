"""A table that its own format has set back to an earlier version has the commit log of then."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.delta import DeltaTarget
from databus.client.spark.targets.iceberg import IcebergTarget
from databus.client.spark.targets.logs import delta_log, iceberg_log
from databus.client.spark.targets.target import Target, open_target
from databus.client.sql.modes import WriteMode
from tests.client.spark.changing_source import batch_of, change
from tests.client.spark.conftest import TABLE_NUMBERS
from tests.client.spark.targets.target_rows import rows_of_target

pytestmark = pytest.mark.usefixtures("delta_on_executors", "iceberg_on_executors")

FORMS = ["delta", "delta+spark", "iceberg", "iceberg+spark"]
of_both_formats = pytest.mark.parametrize("table", ["delta", "iceberg"], indirect=True)


class SetBack:
    """A table of some form, and what other programs do to it."""

    def __init__(self, form: str, folder: Path) -> None:
        self.is_delta = form.startswith("delta")
        self.path = f"{folder}/person"
        self.name = f"tests.b{next(TABLE_NUMBERS)}"
        self.uri = f"{form}:{self.path}" if self.is_delta else f"{form}:lake.{self.name}"
        self.target = self.opened()

    def opened(self) -> Target:
        return open_target(self.uri, ["id"])

    def batch(self, number: int, app: str = "app", target: Target | None = None) -> None:
        """Apply a row, whose id, SCN and batch are a number."""
        row = {"id": number, "name": app}
        changes = changes_of(batch_of([change("insert", number, row)]), ["id"])
        (target or self.target).apply(app, number, changes)

    def place(self) -> int:
        """Return what `back_to` takes to come back here."""
        if self.is_delta:
            return DeltaTable(self.path).version()
        snapshot = self._iceberg().current_snapshot()
        assert snapshot is not None
        return int(snapshot.snapshot_id)

    def back_to(self, place: int) -> None:
        if self.is_delta:
            DeltaTable(self.path).restore(place)
        else:
            self._iceberg().manage_snapshots().set_current_snapshot(place).commit()

    def append(self) -> None:
        """Have somebody else add no row, in a version of its own."""
        schema = self.target.schema()
        assert schema is not None
        if self.is_delta:
            write_deltalake(self.path, schema.empty_table(), mode="append")
        else:
            self._iceberg().append(self._iceberg().scan().to_arrow().slice(0, 0))

    def _iceberg(self) -> Any:
        target = self.target
        assert isinstance(target, IcebergTarget)
        return target._catalog.load_table(self.name)

    def says(self, *apps: str) -> tuple[list[int | None], dict[str, int]]:
        """Return the batches of apps and the positions, which a newly opened target has, too."""
        with closing(self.opened()) as other:
            found = [other.applied(app) for app in apps], other.positions()
        assert found == ([self.target.applied(app) for app in apps], self.target.positions())
        return found

    def ids(self) -> set[int]:
        return {row["id"] for row in rows_of_target(self.target)}


@pytest.fixture(params=FORMS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SetBack]:
    made = SetBack(request.param, tmp_path)
    yield made
    made.target.close()


def test_the_commit_log_goes_back_with_the_rows_and_on_from_there(table: SetBack) -> None:
    table.batch(1)
    table.batch(2)
    place = table.place()
    table.batch(3)
    table.batch(3, "later")
    table.back_to(place)
    assert table.says("app", "later") == ([2, None], {"shop": 2})
    table.append()  # does not hide it
    assert table.says("app", "later") == ([2, None], {"shop": 2})
    table.batch(4)
    assert table.says("app", "later") == ([4, None], {"shop": 4})
    # The same number as before, which is in the table's app transactions.
    table.batch(3, "later")
    assert table.says("app", "later") == ([4, 3], {"shop": 3})
    assert table.ids() == {1, 2, 3, 4}


def test_the_same_batch_again_is_recorded_although_its_number_was_already(table: SetBack) -> None:
    table.batch(1)
    place = table.place()
    table.batch(2)
    table.back_to(place)
    table.batch(2)
    table.append()
    assert table.says("app") == ([2], {"shop": 2})
    assert table.ids() == {1, 2}


@of_both_formats
def test_a_table_set_forward_again_has_what_it_had(table: SetBack) -> None:
    table.batch(1)
    first = table.place()
    table.batch(2)
    last = table.place()
    table.back_to(first)
    back = table.place()
    assert table.says("app") == ([1], {"shop": 1})
    table.back_to(last)
    assert table.says("app") == ([2], {"shop": 2})
    # The version of a RESTORE, which has rows of an earlier one.
    table.back_to(back)
    assert table.says("app") == ([1], {"shop": 1})
    table.batch(2)
    assert (table.says("app"), table.ids()) == (([2], {"shop": 2}), {1, 2})


def as_before(patched: pytest.MonkeyPatch) -> None:
    """Have targets write their commit logs as earlier versions did."""
    recording = delta_log.DeltaEntries.recording

    def unmarked(self: Any, after: Any) -> Any:
        properties = recording(self, after)
        properties.custom_metadata = None
        return properties

    patched.setattr(delta_log.DeltaEntries, "recording", unmarked)
    place = "databus.client.spark.targets.iceberg"
    patched.setattr(f"{place}.in_summary", lambda _: {})
    patched.setattr(f"{place}.in_properties", lambda _, entries: iceberg_log.in_summary(entries))


@of_both_formats
def test_a_table_of_an_earlier_version_is_believed_until_it_is_set_back(
    table: SetBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        as_before(patched)
        table.batch(1)
        place = table.place()
        table.batch(2)
    assert table.says("app") == ([2], {"shop": 2})
    table.batch(3)
    table.back_to(place)
    # An Iceberg table of then does not tell what its rows have.
    then = ([1], {"shop": 1}) if table.is_delta else ([None], {})
    assert table.says("app") == then


@of_both_formats
def test_batches_of_an_earlier_version_do_not_hide_that_it_was_set_back(
    table: SetBack, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.batch(1)
    place = table.place()
    table.batch(2)
    table.back_to(place)
    with monkeypatch.context() as patched:
        as_before(patched)
        # It believed the batches that it found.
        patched.setattr(delta_log, "_last_restore", lambda *_: None)
        with closing(table.opened()) as older:
            table.batch(3, target=older)
    assert table.says("app") == ([1], {"shop": 1})


def test_a_version_that_is_not_there_any_more_tells_only_what_the_table_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SetBack("delta", tmp_path)
    table.target.close()
    uri = f"delta:{tmp_path}/versions"
    with closing(open_target(uri, ["id"], mode="scd2")) as target:
        rows = [change("insert", 1, {"id": 1, "name": "x"})]
        target.apply("app", 1, target.changes_of(batch_of(rows), ["id"], "shop.person"))
    restored = DeltaTable(f"{tmp_path}/versions")
    write_deltalake(restored, pa.table(restored.to_pyarrow_table()).slice(0, 0), mode="append")
    restored.restore(restored.version() - 1)
    monkeypatch.setattr(delta_log, "_at", lambda *_: None)
    with closing(open_target(uri)) as target:
        assert (target.applied("app"), target.positions()) == (None, {})
        assert (target.mode, target.sources()) == (WriteMode.SCD2, ["shop.person"])


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ({"version": "7"}, 7),
        ({"version": 0}, 0),
        ({"version": None, "timestamp": "2026-11-30 10:00:00"}, -1),
        ({}, -1),
    ],
)
def test_the_version_that_a_restore_went_back_to_is_told_or_not_known(
    tmp_path: Path, told: dict[str, Any], version: int
) -> None:
    assert delta_log._back_to(str(tmp_path), None, told) == version


def test_a_restore_to_a_time_is_followed_to_its_version(tmp_path: Path) -> None:
    table = SetBack("delta", tmp_path)
    table.batch(1)
    then = dt.datetime.now(dt.UTC)
    table.batch(2)
    DeltaTable(table.path).restore(then)
    assert table.says("app") == ([1], {"shop": 1})
    table.target.close()


def test_a_job_s_own_commits_are_not_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SetBack("delta", tmp_path)
    table.batch(1)
    table.batch(2)
    looked = list[int]()
    last_restore: Callable[..., Any] = delta_log._last_restore

    def look(*given: Any) -> Any:
        looked.append(given[1])
        return last_restore(*given)

    monkeypatch.setattr(delta_log, "_last_restore", look)
    for number in (3, 4, 5):
        table.batch(number)
        assert table.target.applied("app") == number
    assert not looked
    version = table.place()
    table.append()
    assert table.target.applied("app") == 5
    assert looked == [version]
    assert isinstance(table.target, DeltaTarget)
    table.target.close()
