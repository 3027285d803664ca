"""Delta tables: other writers, tables that somebody else made, small files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from databus.client.spark.targets.changes import changes_of
from databus.client.spark.targets.delta import DeltaTarget
from databus.client.spark.targets.target import open_target
from databus.schemas.errors import ConsumerError
from tests.client.spark.changing_source import ROW, batch_of, change
from tests.client.spark.targets.target_rows import rows_of_target
from tests.s3_server import BUCKET, S3Server

pytestmark = pytest.mark.usefixtures("delta_runtime")


def test_writers_that_meet_do_over_what_the_other_was_faster_with(tmp_path: Path) -> None:
    uri = f"delta:{tmp_path}/person"

    def follow(app: str) -> None:
        target = open_target(uri, ["id"])
        for scn in range(1, 6):
            row = {"id": ord(app) * 10 + scn, "name": app}
            batch = batch_of([change("insert", scn, row, source=app, physical_source=app)])
            target.apply(app, scn, changes_of(batch, ["id"]))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(follow, "abc"))
    target = open_target(uri)
    assert len(rows_of_target(target)) == 15
    assert target.positions() == {"a": 5, "b": 5, "c": 5}
    assert [target.applied(app) for app in "abc"] == [5, 5, 5]


def test_a_commit_that_always_loses_is_given_up_with_a_word_on_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = DeltaTarget(f"delta:{tmp_path}/person", ["id"], attempts=2)
    rows = [change("insert", 1, {"id": 1, "name": "x"})]
    target.apply("app", 0, changes_of(batch_of(rows), ["id"]))
    merge = DeltaTarget._merge

    def overtaken(self: DeltaTarget, *args: object, **more: object) -> tuple[int, int]:
        # Between what was read and the commit, somebody else commits.
        schema = self.schema()
        assert schema is not None
        write_deltalake(str(tmp_path / "person"), schema.empty_table(), mode="append")
        return merge(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTarget, "_merge", overtaken)
    monkeypatch.setattr(DeltaTarget, "_table", stale_table(target))
    with pytest.raises(ConsumerError, match=r"other writers won 2 times .* raise attempts"):
        target.apply("app", 1, changes_of(batch_of(rows), ["id"]))


def stale_table(target: DeltaTarget) -> Callable[[DeltaTarget], DeltaTable]:
    """Return a way to open the table that does not look again while a batch is applied."""
    held = DeltaTable(target.uri.removeprefix("delta:"))
    return lambda _self: held


def test_a_table_that_somebody_else_made_is_given_what_is_missing(tmp_path: Path) -> None:
    rows = [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}]
    write_deltalake(str(tmp_path), pa.Table.from_pylist(rows, pa.schema(list(ROW))))
    target = open_target(f"delta:{tmp_path}", ["id"])
    batch = [change("insert", 1, {"id": 1, "name": "new"})]
    target.apply("app", 0, changes_of(batch_of(batch), ["id"]))
    assert {row["id"]: row["name"] for row in rows_of_target(target)} == {1: "new", 2: "old"}
    end = [change("snapshot_end", 0, index=None)]
    target.apply("app", 1, changes_of(batch_of(end), ["id"]))
    assert {row["id"]: row["name"] for row in rows_of_target(target)} == {1: "new"}


def test_small_files_are_put_together_and_old_ones_removed_each_so_many_batches(
    tmp_path: Path,
) -> None:
    target = open_target(f"delta:{tmp_path}", ["id"], optimize_every=4, vacuum_hours=0)
    for number in range(4):
        rows = [change("insert", number + 1, {"id": number, "name": "x"})]
        target.apply("app", number, changes_of(batch_of(rows), ["id"]))
    assert len(DeltaTable(str(tmp_path)).file_uris()) == 1
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert (target.applied("app"), target.positions()) == (3, {"shop": 4})
    assert len(rows_of_target(target)) == 4


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a bucket, which delta-rs has asked: it keeps threads and descriptors."""
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        for name, value in (
            ("ALLOW_HTTP", "true"),
            ("ACCESS_KEY_ID", "user"),
            ("SECRET_ACCESS_KEY", "secret"),
            ("REGION", "us-east-1"),
        ):
            patch.setenv(f"AWS_{name}", value)
        write_deltalake(f"s3://{BUCKET}/first", pa.table({"id": [1]}))
        yield f"s3://{BUCKET}"


@pytest.fixture(params=["file", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, s3: str) -> str:
    """The URL of a folder for tables."""
    return s3 if request.param == "s3" else f"file://{tmp_path}"


def test_a_table_at_a_url_is_removed_whole_and_no_other_one(lake: str) -> None:
    """So the next one of its name has neither its columns nor its commit log."""
    uri, beside = f"delta:{lake}/person", f"delta:{lake}/person__databus_reload"
    for number, place in enumerate((uri, beside, beside)):
        rows = [change("insert", number + 1, {"id": number, "name": "x"})]
        open_target(place).apply("app", number, changes_of(batch_of(rows), ["id"]))
    open_target(uri).take_over(beside, "reload:person", 9, {"shop": 9})
    assert (open_target(beside).schema(), open_target(beside).positions()) == (None, {})
    assert {row["id"] for row in rows_of_target(open_target(uri))} == {1, 2}

    rows = [change("insert", 1, {"id": 1, "name": "x"})]
    open_target(beside).apply("app", 0, changes_of(batch_of(rows), ["id"]))
    open_target(uri).remove()
    assert open_target(uri).schema() is None
    assert open_target(beside).positions() == {"shop": 1}
    open_target(uri).remove()
