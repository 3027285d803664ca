"""Whatever a source and its consumer do, the target has the source's rows at the end.

Also where a process is killed while it applies a batch.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest

from databus.client.spark.targets.changes import AS_OF, SCN, changes_of
from databus.client.spark.targets.merge_plan import merged
from databus.client.spark.targets.target import Target, merges_on_executors
from tests.client.spark.changing_source import (
    META_ALONE,
    ChangingSource,
    Checkpoint,
    batch_of,
    begun,
    change,
)
from tests.client.spark.targets.killed_apply import APP, BATCHES, a_source
from tests.client.spark.targets.target_rows import rows_of_target
from tools.repository import ROOT

pytest_plugins = ["tests.mariadb", "tests.postgres"]

Open = Callable[..., Target]
STEPS = 30
# A merge on executors takes a second of a machine with two cores.
STEPS_ON_EXECUTORS = 15
PERSON = pa.schema([("id", pa.int64()), ("note", pa.string()), ("_databus", META_ALONE)])


@pytest.mark.parametrize(("count", "seed"), [(1, 1), (2, 2)])
def test_after_any_changes_replays_and_new_checkpoints_a_target_equals_its_sources(
    opened: Open, target_uri: str, seed: int, count: int
) -> None:
    chance = random.Random(seed)
    sources = [
        ChangingSource(f"shop{n}.person", f"shop{n}", random.Random(f"{seed}.{n}"))
        for n in range(count)
    ]
    target = opened(source_column=count > 1)
    checkpoint = begun("app0", sources)
    for step in range(STEPS_ON_EXECUTORS if merges_on_executors(target_uri) else STEPS):
        for source in sources:
            for _ in range(chance.randrange(4)):
                source.commit()
        event = chance.random()
        if event < 0.05:
            target.close()
            target = opened(source_column=count > 1)
        elif event < 0.12:
            chance.choice(checkpoint.readers).begin_snapshot()
        elif event < 0.15:
            checkpoint = begun(f"app{step}", sources)
        elif event < 0.30 and target.schema() is not None:
            put_some(target, chance.choice(sources), chance)
        apply_next(target, checkpoint, chance)
    while not all(reader.is_done for reader in checkpoint.readers):
        apply_next(target, checkpoint, chance)
    held = {(row["source"], row["id"]): row["name"] for row in rows_of_target(target)}
    assert held == {
        (source.name if count > 1 else None, key): name
        for source in sources
        for key, (name, _scn) in source.rows.items()
    }
    assert target.positions() == {source.physical: source.scn for source in sources}


def apply_next(target: Target, checkpoint: Checkpoint, chance: random.Random) -> None:
    """Apply the next batch, once or twice, and now and then one from before it again."""
    batch_id, batch = checkpoint.plan()
    for number in sorted({batch_id, chance.randint(max(0, batch_id - 3), batch_id)}):
        changes = changes_of(checkpoint.batches[number], ["id"], source_column=target.source_column)
        target.apply(checkpoint.app_id, number, changes)
    if batch.num_rows:
        assert target.applied(checkpoint.app_id) == batch_id


def put_some(target: Target, source: ChangingSource, chance: random.Random) -> None:
    """Put some rows as they were in the source a little before, as a repair does."""
    scn = chance.randint(max(0, source.scn - 6), source.scn)
    then = source.rows_at(scn)
    keys = chance.sample(range(40), 10)
    rows = [{"id": key, "name": then[key][0]} for key in keys if key in then]
    gone = [{"id": key} for key in keys if key not in then]
    target.put(
        pa.Table.from_pylist(rows, pa.schema([("id", pa.int32()), ("name", pa.string())])),
        pa.Table.from_pylist(gone, pa.schema([("id", pa.int32())])),
        physical_source=source.physical,
        scn=scn,
        source=source.name,
    )


@pytest.mark.parametrize("target_uri", ["delta", "iceberg", "sqlite"], indirect=True)
def test_a_table_equals_its_source_after_kills_in_mid_apply_and_replays(
    target_uri: str, opened: Open
) -> None:
    seed = 5
    command = [
        sys.executable,
        "-m",
        "tests.client.spark.targets.killed_apply",
        target_uri,
        str(seed),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert int(done.stdout) > 0
    target, source = opened(), a_source(seed)
    assert {row["id"]: row["name"] for row in rows_of_target(target)} == {
        key: name for key, (name, _scn) in source.rows.items()
    }
    assert (target.applied(APP), target.positions()) == (BATCHES - 1, {"shop": source.scn})


def held(*rows: tuple[int, str, int]) -> pa.Table:
    """Return rows (id, note, SCN) of a target."""
    ids, notes, scns = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "note": pa.array(notes, pa.string()),
            SCN: pa.array(scns, pa.int64()),
            AS_OF: pa.nulls(len(rows), pa.int64()),
        }
    )


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("op", "scn", "left"),
    [("delete", 9, ["other"]), ("update", 9, ["new", "other"]), ("delete", 5, ["a", "b", "other"])],
)
def test_a_change_finds_all_rows_of_its_key_unless_one_is_newer(
    op: str, scn: int, left: list[str], order: int
) -> None:
    """Several rows of a key are of a writer other than databus."""
    table = held((1, "a", 3), (1, "b", 6), (2, "other", 4)).take([0, 1, 2][::order])
    changes = changes_of(batch_of([change(op, scn, {"id": 1, "note": "new"})], PERSON), ["id"])
    after, written, removed = merged(table, changes)
    assert sorted(after["note"].to_pylist()) == left
    assert (written, removed) == {"update": (1, 0), "delete": (0, 3 - len(left))}[op]
