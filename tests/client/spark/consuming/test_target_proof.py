"""A job goes on with the target that it was left with, and ends with a word of any other."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from databus.client.spark import register
from databus.client.spark.consuming.apply import apply_changes
from databus.client.spark.consuming.checkpoint_folder import CheckpointFolder
from databus.client.spark.consuming.target_proof import (
    TargetNote,
    TargetProof,
    TargetState,
    is_as_left,
)
from databus.client.spark.jobs import sync as sync_job
from databus.client.spark.jobs.load import load
from databus.client.spark.jobs.sync import SyncProgress, sync
from databus.client.spark.sql.job_file import parse_job
from databus.client.spark.sql.run import RunSummary, run
from databus.client.spark.targets.iceberg import IcebergTarget
from databus.client.spark.targets.target import open_target
from databus.schemas.errors import CheckpointError, ConsumerError, OtherTargetError, SettingsError
from tests.client.spark.source.table_shop import TableShop, table_shop
from tests.promises.running import wait_until

of_each_kind = pytest.mark.parametrize("jobs", ["delta", "sqlite"], indirect=True)
JOIN = (
    "SELECT o.id AS id, o.note, p.name FROM shop.orders o "
    "LEFT JOIN shop.names p ON p.id = o.id WHERE o.id > 0"
)
SELECT = "SELECT id, note FROM shop.orders WHERE id > 0"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableShop]:
    names = "names (id INTEGER PRIMARY KEY, name TEXT)"
    with table_shop(tmp_path_factory.mktemp("other"), 20, names) as running:
        yield running


class Jobs:
    """Jobs on targets in one folder, each a path that may be removed, copied and put back."""

    def __init__(self, spark: SparkSession, shop: TableShop, folder: Path, kind: str) -> None:
        self.spark = spark
        self.shop = shop
        self.folder = folder
        self.kind = kind
        self.checkpoint = folder / "checkpoint"

    def path(self, name: str = "one") -> Path:
        return self.folder / name

    def uri(self, name: str = "one") -> str:
        if self.kind == "sqlite":
            return f"sqlite:///{self.path(name)}#orders"
        if self.kind == "iceberg":
            return f"iceberg:lake.tests.{self.folder.name}_{name}"
        return f"{self.kind}:{self.path(name)}"

    def sync(self, name: str = "one", **more: Any) -> SyncProgress:
        given: dict[str, Any] = {
            "relays": [self.shop.relay.url],
            "bootstrap_servers": [self.shop.server],
            "checkpoint": str(self.checkpoint),
            "available_now": True,
        }
        return sync(self.spark, "shop.orders", self.uri(name), **(given | more))

    def run(self, select: str, name: str = "one") -> RunSummary:
        head = {
            "target": self.uri(name),
            "relays": self.shop.relay.url,
            "bootstrap_servers": self.shop.server,
            "checkpoint": str(self.checkpoint),
        }
        lines = "".join(f"-- {key}: {value}\n" for key, value in head.items())
        return run(parse_job(lines + select), self.spark, available_now=True)

    def drop(self) -> None:
        """Remove the table while somebody has it open: of SQLite he would keep the file."""
        if self.kind != "sqlite":
            remove(self.path())
            return
        with closing(sqlite3.connect(self.path())) as database:
            database.execute("DROP TABLE orders")

    def rows(self, name: str = "one") -> set[tuple[int, str]]:
        with closing(open_target(self.uri(name))) as target:
            if target.schema() is None:
                return set()
            return {(row["id"], row["note"]) for row in target.rows(self.spark).collect()}

    def wanted(self) -> set[tuple[int, str]]:
        return set(self.shop.place.run("SELECT id, note FROM orders"))

    def change(self, *statements: str) -> None:
        self.shop.place.run(*statements)
        self.shop.scn()

    def insert(self) -> None:
        """Commit one more row."""
        ids = "SELECT max(id) + 1, 'later' FROM orders"
        self.change(f"INSERT INTO orders (id, note) {ids}")


@pytest.fixture(params=["delta"])
def jobs(
    request: pytest.FixtureRequest, spark: SparkSession, shop: TableShop, tmp_path: Path
) -> Jobs:
    return Jobs(spark, shop, tmp_path, request.param)


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def copy(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to)
    else:
        shutil.copyfile(path, to)


@of_each_kind
def test_another_target_is_refused_before_anything_and_the_first_one_loses_nothing(
    jobs: Jobs,
) -> None:
    jobs.sync()
    with pytest.raises(OtherTargetError) as refused:
        jobs.sync("two")
    said = str(refused.value)
    assert f"checkpoint {jobs.checkpoint} goes on only with " in said
    assert f" went to {jobs.uri()}, but target {jobs.uri('two')} has no table. " in said
    assert f"rm -r {jobs.checkpoint}, then the same command" in said
    jobs.insert()
    with pytest.raises(OtherTargetError):
        jobs.sync("two")
    with closing(open_target(jobs.uri("two"))) as two:
        assert two.schema() is None
    assert jobs.sync().rows == 1
    assert jobs.rows() == jobs.wanted()


@of_each_kind
def test_a_target_that_was_removed_is_missed_and_filled_again_as_the_error_says(
    jobs: Jobs,
) -> None:
    jobs.sync()
    remove(jobs.path())
    with pytest.raises(OtherTargetError, match="has no table"):
        jobs.sync()  # nothing is new
    jobs.insert()
    with pytest.raises(OtherTargetError, match="has no table"):
        jobs.sync()
    remove(jobs.checkpoint)
    jobs.sync()
    assert jobs.rows() == jobs.wanted()


@of_each_kind
def test_a_target_from_a_backup_is_behind_its_checkpoint_and_followed_from_where_it_is(
    jobs: Jobs,
) -> None:
    jobs.sync()
    copy(jobs.path(), jobs.path("backup"))
    jobs.insert()
    jobs.sync()
    remove(jobs.path())
    copy(jobs.path("backup"), jobs.path())
    with pytest.raises(OtherTargetError, match=r"has its batches up to \d+ only"):
        jobs.sync()
    remove(jobs.checkpoint)
    assert jobs.sync().rows == 1
    assert jobs.rows() == jobs.wanted()


@pytest.mark.usefixtures("delta_runtime", "iceberg_catalog")
@pytest.mark.parametrize("jobs", ["delta", "iceberg"], indirect=True)
def test_a_target_that_its_own_format_has_set_back_is_as_one_from_a_backup(jobs: Jobs) -> None:
    jobs.sync()
    place = place_in(jobs.uri())
    jobs.insert()
    jobs.sync()
    set_back(jobs.uri(), place)
    with pytest.raises(OtherTargetError, match=r"has its batches up to \d+ only"):
        jobs.sync()  # nothing is new
    jobs.insert()
    with pytest.raises(OtherTargetError, match=r"has its batches up to \d+ only"):
        jobs.sync()
    remove(jobs.checkpoint)
    assert jobs.sync().rows == 2
    assert jobs.rows() == jobs.wanted()
    set_back(jobs.uri(), place)
    with pytest.raises(OtherTargetError):
        jobs.sync()
    load(jobs.spark, "shop.orders", jobs.uri(), bootstrap_servers=[jobs.shop.server], again=True)
    remove(jobs.checkpoint)
    jobs.insert()
    jobs.sync()
    assert jobs.rows() == jobs.wanted()


def place_in(uri: str) -> int:
    """Return the version, or the snapshot, that a table is at."""
    if uri.startswith("delta:"):
        return DeltaTable(uri.removeprefix("delta:")).version()
    with closing(IcebergTarget(uri)) as target:
        snapshot = target._read_table().current_snapshot()
        assert snapshot is not None
        return int(snapshot.snapshot_id)


def set_back(uri: str, place: int) -> None:
    """Set a table back to a version, or a snapshot."""
    if uri.startswith("delta:"):
        DeltaTable(uri.removeprefix("delta:")).restore(place)
        return
    with closing(IcebergTarget(uri)) as target:
        target._read_table().manage_snapshots().rollback_to_snapshot(place).commit()


def test_a_target_of_another_checkpoint_is_refused(jobs: Jobs) -> None:
    jobs.sync()
    jobs.sync("two", checkpoint=str(jobs.folder / "checkpoint2"))
    with pytest.raises(OtherTargetError, match=r"has no batch of it and is at scn \d+ of shop"):
        jobs.sync("two")


@pytest.mark.parametrize("jobs", ["sqlite"], indirect=True)
def test_a_loaded_target_is_missed_though_no_batch_has_changed_it_yet(jobs: Jobs) -> None:
    jobs.change("INSERT INTO names (name) VALUES ('x')")
    load(jobs.spark, "shop.orders", jobs.uri(), bootstrap_servers=[jobs.shop.server])
    for _ in range(2):
        # Windows of another table: batches without a row.
        jobs.change("INSERT INTO names (name) VALUES ('x')")
        jobs.sync()
    assert list((jobs.checkpoint / "commits").glob("[0-9]"))
    remove(jobs.path())
    with pytest.raises(OtherTargetError, match=r"it began with .* at scn \d+ of shop, .* no table"):
        jobs.sync()
    remove(jobs.checkpoint)
    jobs.sync()
    assert jobs.rows() == jobs.wanted()


def test_a_load_anew_of_the_same_target_needs_no_other_checkpoint(jobs: Jobs) -> None:
    jobs.sync()
    jobs.insert()
    load(jobs.spark, "shop.orders", jobs.uri(), bootstrap_servers=[jobs.shop.server], again=True)
    jobs.insert()
    jobs.sync()
    assert jobs.rows() == jobs.wanted()


@pytest.mark.parametrize(
    ("jobs", "lost"),
    [("delta", "the note and the commit"), ("sqlite", "the commit")],
    indirect=["jobs"],
)
def test_a_kill_after_the_target_s_commit_leaves_a_target_that_is_ahead_and_right(
    jobs: Jobs, lost: str
) -> None:
    jobs.sync()
    before = jobs.folder / "before"
    shutil.copytree(jobs.checkpoint, before)
    jobs.insert()
    jobs.sync()
    newest = max(int(one.name) for one in (jobs.checkpoint / "commits").glob("[0-9]*"))
    for name in (f"{newest}", f".{newest}.crc"):
        (jobs.checkpoint / "commits" / name).unlink()
    if lost == "the note and the commit":
        for one in before.glob("*databus-target*"):
            shutil.copyfile(one, jobs.checkpoint / one.name)
    assert jobs.sync().rows == 0
    jobs.insert()
    assert jobs.sync().rows == 1
    assert jobs.rows() == jobs.wanted()


def test_a_first_run_that_ends_before_its_first_batch_is_in_the_target_goes_on(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*given: Any, **more: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(sync_job, "apply_changes", die)
        with pytest.raises(ConsumerError):
            jobs.sync(most_restarts=0)
    assert list((jobs.checkpoint / "offsets").glob("0"))
    assert not list((jobs.checkpoint / "commits").glob("0"))
    jobs.sync()
    assert jobs.rows() == jobs.wanted()


@of_each_kind
def test_a_target_that_is_removed_under_a_running_job_ends_it(jobs: Jobs) -> None:
    stop, told = threading.Event(), list[SyncProgress]()
    with ThreadPoolExecutor(1) as pool:
        more: dict[str, Any] = {"available_now": False, "every_s": 0.1}
        job = pool.submit(jobs.sync, **more, stop=stop, report=told.append)
        try:
            wait_until(lambda: job.done() or (told and told[-1].lag_s == 0), "all is read")
            jobs.drop()
            jobs.insert()
            wait_until(job.done, "its end")
        finally:
            stop.set()
    with pytest.raises(OtherTargetError, match="has no table"):
        job.result()


@pytest.mark.parametrize(
    ("jobs", "select"), [("delta", SELECT), ("delta", JOIN)], indirect=["jobs"]
)
def test_a_job_of_a_select_goes_on_with_its_own_target_alone(jobs: Jobs, select: str) -> None:
    jobs.change("INSERT INTO names (name) VALUES ('x')")
    jobs.run(select)
    jobs.insert()
    copy(jobs.path(), jobs.path("backup"))
    jobs.run(select)
    assert jobs.rows() == jobs.wanted()
    remove(jobs.path())
    with pytest.raises(OtherTargetError, match="has no table"):
        jobs.run(select)
    copy(jobs.path("backup"), jobs.path())
    with pytest.raises(OtherTargetError, match="has its batches up to") as refused:
        jobs.run(select)
    assert f"rm -r {jobs.checkpoint}, " in str(refused.value)
    remove(jobs.checkpoint)
    jobs.run(select)
    assert jobs.rows() == jobs.wanted()


def test_a_join_and_the_copy_of_one_table_do_not_share_a_target(jobs: Jobs) -> None:
    jobs.change("INSERT INTO names (name) VALUES ('x')")
    jobs.run(JOIN)
    rows = jobs.rows()
    words = "has the rows of JOIN of shop.orders, shop.names, and these are of shop.orders: "
    with pytest.raises(SettingsError, match=words):
        jobs.sync(checkpoint=str(jobs.folder / "checkpoint2"))
    assert jobs.rows() == rows
    jobs.sync("two", checkpoint=str(jobs.folder / "checkpoint2"))
    remove(jobs.checkpoint)
    with pytest.raises(SettingsError, match=r"has the rows of shop\.orders, and these are of JOIN"):
        jobs.run(JOIN, "two")


def test_a_query_of_one_s_own_has_the_same_proof(jobs: Jobs) -> None:
    options = {
        "mode": "changes",
        "sources": "shop.orders",
        "relays": jobs.shop.relay.url,
        "bootstrapServers": jobs.shop.server,
        "start": "beginning",
    }

    def consume(name: str, *, looks_first: bool = True) -> None:
        register(jobs.spark)
        checkpoint = str(jobs.checkpoint)
        with closing(open_target(jobs.uri(name))) as target:
            proof = TargetProof(jobs.spark, checkpoint, target, name="orders")
            if looks_first:
                proof.check()

            def apply(batch: DataFrame, batch_id: int) -> None:
                with proof.batch():
                    apply_changes(batch, batch_id, target)

            changes = jobs.spark.readStream.format("databus").options(**options).load()
            writer = changes.writeStream.foreachBatch(apply)
            writer = writer.option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()

    consume("one", looks_first=False)
    assert jobs.rows() == jobs.wanted()
    jobs.insert()
    with pytest.raises(OtherTargetError):
        consume("two")
    with pytest.raises(Exception, match=r"OtherTargetError: checkpoint .* goes on only with"):
        consume("two", looks_first=False)
    consume("one")
    assert jobs.rows() == jobs.wanted()


def test_a_checkpoint_without_a_note_is_taken_by_the_target_that_has_its_batches_alone(
    jobs: Jobs,
) -> None:
    jobs.sync()
    for note in jobs.checkpoint.glob("*databus-target*"):
        note.unlink()
    with pytest.raises(OtherTargetError, match="records that batches were applied"):
        jobs.sync("two")
    jobs.sync()
    assert list(jobs.checkpoint.glob("databus-target*"))


def test_a_note_that_was_cut_off_leaves_the_one_before_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = CheckpointFolder(spark, str(tmp_path / "c"))
    assert folder.read_note("n") is None
    for batch in range(3):
        folder.write_note("n", {"batch": batch})
    found = folder.read_note("n")
    assert found is not None
    assert found["batch"] == 2
    (tmp_path / "c" / "n.0").write_text('{"numb')
    found = folder.read_note("n")
    assert found is not None
    assert found["batch"] == 1


def test_a_note_that_makes_no_sense_is_said_and_not_guessed_at(
    jobs: Jobs,
) -> None:
    jobs.sync()
    CheckpointFolder(jobs.spark, str(jobs.checkpoint)).write_note("databus-target", {"batch": "?"})
    with pytest.raises(CheckpointError, match="has a malformed note about its target"):
        jobs.sync()


AT = {"shop": 7}


@pytest.mark.parametrize(
    ("left", "batch", "positions", "is_it"),
    [
        (TargetNote("t", 4), 4, AT, True),
        (TargetNote("t", 4), 5, AT, True),  # ahead: killed before the note
        (TargetNote("t", 4), 3, AT, False),
        (TargetNote("t", 4), None, AT, False),
        (TargetNote("t"), None, {}, True),  # nothing was there, and nothing is
        (TargetNote("t"), None, AT, False),  # and another one is
        (TargetNote("t"), 0, AT, True),
        (TargetNote("t", begun_at=AT), None, AT, True),
        (TargetNote("t", begun_at=AT), None, {"shop": 8}, True),
        (TargetNote("t", begun_at=AT), None, {"shop": 6}, False),
        (TargetNote("t", begun_at=AT), None, {"other": 9}, False),
        (TargetNote("t", begun_at={"shop": 0}), None, {}, True),
        (None, 0, {}, True),
        (None, None, AT, False),
    ],
)
def test_what_is_the_target_that_was_left(
    left: TargetNote | None, batch: int | None, positions: Mapping[str, int], is_it: bool
) -> None:
    assert is_as_left(left, TargetState(True, batch, positions)) is is_it
