"""Where the entries of a Delta table are found that was restored, and when they are looked for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from databus.client.spark.targets.logs import delta_log
from databus.client.spark.targets.target import open_target
from databus.client.sql.modes import WriteMode
from tests.client.spark.changing_source import batch_of, change
from tests.client.spark.targets.logs.set_back_table import SetBack

pytestmark = pytest.mark.usefixtures("delta_runtime")


def test_a_version_that_is_not_there_any_more_tells_only_what_the_table_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    table.target.close()
