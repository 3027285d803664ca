"""Whatever a source and its consumer do: versions are the table as of each SCN, and so on."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings, strategies as st

from databus.client.spark.modes.target import ModeTarget
from databus.client.spark.targets.changes import snapshots_in
from databus.client.spark.targets.target import Target
from databus.client.sql.modes import WriteMode
from tests.client.spark.changing_source import ChangingSource, Checkpoint, begun
from tests.client.spark.modes.memory_target import MemoryTarget

STEPS = 40


@dataclass
class Followed:
    """A source, what follows it, and of which SCNs a table must tell the truth."""

    source: ChangingSource
    checkpoint: Checkpoint
    chance: random.Random
    # From the SCN at which a snapshot had been read to the position when the next one began.
    known: set[int] = field(default_factory=set)
    since: int = 0
    apps: int = 0

    @property
    def reader(self) -> Any:
        return self.checkpoint.readers[0]

    def begin_again(self) -> None:
        self.apps += 1
        self.checkpoint = begun(f"app{self.apps}", [self.source])

    def plan(self) -> tuple[int, Any]:
        reading = bool(self.reader.ranges)
        at, batch = self.checkpoint.plan()
        if reading:
            self.since = self.source.scn
        return at, batch

    def note_known(self) -> None:
        """Note the SCNs of which a table that has all batches must tell the truth now."""
        if not self.reader.ranges and self.reader.mark_at is None:
            self.known |= set(range(self.since, self.reader.at + 1))


def followed(seed: int) -> Followed:
    source = ChangingSource("shop.person", "shop", random.Random(seed))
    chance = random.Random(f"{seed}c")
    for _ in range(chance.randrange(6)):
        source.commit()
    return Followed(source, begun("app0", [source]), chance)


def apply_next(targets: list[Target], one: Followed) -> None:
    """Apply the next batch, and now and then one from before it once more."""
    number, _ = one.plan()
    numbers = {number}
    if one.chance.random() < 0.3:
        numbers = set(range(one.chance.randint(max(0, number - 3), number), number + 1))
    for target in targets:
        for at in sorted(numbers):
            batch = one.checkpoint.batches[at]
            app = one.checkpoint.app_id if at == number else f"{one.checkpoint.app_id} again"
            if target.applied(one.checkpoint.app_id) is None and batch.num_rows:
                for name in snapshots_in(batch):
                    target.forget_as_of(name)
            target.apply(app, at, target.changes_of(batch, ["id"]))


def as_of(target: MemoryTarget, scn: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for row in target.read():
        if row["_databus_scn"] <= scn and not (
            row["_databus_to_scn"] is not None and row["_databus_to_scn"] <= scn
        ):
            assert row["id"] not in found, f"two versions of {row['id']} as of {scn}"
            found[row["id"]] = row["name"]
    return found


def mode_target(mode: WriteMode) -> tuple[MemoryTarget, ModeTarget]:
    inner = MemoryTarget()
    return inner, ModeTarget(inner, ["id"], source_column=False, mode=mode)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1_000_000))
def test_versions_tell_the_table_as_of_each_scn_that_was_followed(seed: int) -> None:
    one = followed(seed)
    inner, target = mode_target(WriteMode.SCD2)
    for _ in range(STEPS):
        step(one, [target])
    finish(one, [target])
    assert one.known
    for scn in one.known:
        assert as_of(inner, scn) == names_at(one.source, scn), f"as of {scn}"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1_000_000))
def test_rows_that_are_not_deleted_are_those_of_a_mirror_and_of_the_source(seed: int) -> None:
    one = followed(seed)
    mirror = MemoryTarget(["id"])
    inner, target = mode_target(WriteMode.SOFT_DELETE)
    for _ in range(STEPS):
        step(one, [mirror, target])
    finish(one, [mirror, target])
    live = {row["id"]: row["name"] for row in inner.read() if not row["_databus_deleted"]}
    assert live == {row["id"]: row["name"] for row in mirror.read()}
    assert live == names_at(one.source, one.source.scn)
    assert len({row["id"] for row in inner.read()}) == len(inner.read())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1_000_000))
def test_a_history_has_each_change_of_the_log_once_and_in_its_order(seed: int) -> None:
    one = followed(seed)
    inner, target = mode_target(WriteMode.APPEND_HISTORY)
    one.reader.ranges, one.reader.mark_at, one.reader.at = [], None, 0
    for _ in range(STEPS):
        for _ in range(one.chance.randrange(4)):
            one.source.commit()
        apply_next([target], one)
    finish(one, [target])
    expected: list[tuple[Any, ...]] = []
    for row in (row for window in one.source.log for row in window):
        told = row["_databus"]
        before = told["before"]
        is_move = before is not None and before["id"] != row["id"]
        place = (told["scn"], told["index"])
        if is_move:
            expected.append((*place, "delete", before["id"], before["name"]))
        expected.append(
            (*place, "insert" if is_move else told["op"], row.get("id"), row.get("name"))
        )
    names = ("_databus_scn", "_databus_index", "_databus_op", "id", "name")
    found = [tuple(row[name] for name in names) for row in inner.read()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1_000_000))
def test_current_versions_are_the_rows_of_a_mirror_at_each_step(seed: int) -> None:
    one = followed(seed)
    inner, target = mode_target(WriteMode.SCD2)
    for _ in range(STEPS):
        step(one, [target])
        if one.reader.mark_at is None and not one.reader.ranges and one.reader.at >= one.since:
            rows = [row for row in inner.read() if row["_databus_to_scn"] is None]
            assert {row["id"]: row["name"] for row in rows} == names_at(one.source, one.reader.at)
            assert all((row["_databus_to"] is None) for row in rows)


def names_at(source: ChangingSource, scn: int) -> dict[int, str]:
    return {key: name for key, (name, _scn) in source.rows_at(scn).items()}


def step(one: Followed, targets: list[Target]) -> None:
    for _ in range(one.chance.randrange(4)):
        one.source.commit()
    event = one.chance.random()
    if event < 0.07 and not one.reader.ranges:
        one.note_known()
        one.begin_again()
    elif event < 0.12 and not one.reader.ranges:
        one.note_known()
        one.reader.begin_snapshot()
    apply_next(targets, one)
    one.note_known()


def finish(one: Followed, targets: list[Target]) -> None:
    while not one.reader.is_done:
        apply_next(targets, one)
    one.note_known()
