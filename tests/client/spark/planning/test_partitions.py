"""What the tasks of a batch read: shares of it, and the same again after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from databus.client.spark.planning.offsets import AtScn, Group, InSnapshot
from databus.client.spark.planning.partitions import PartitionPlanner
from databus.client.spark.planning.planner import Planner
from databus.client.spark.planning.ranges import LogRange, Range, SnapshotEnd, SnapshotRange
from databus.conf.named_places import ScnPlace
from databus.schemas.errors import BootstrapTooOldError
from tests.client.spark.planning.fake_servers import SOURCES, FakeBootstrap, FakeRelay, measuring_of


def again(
    relay: FakeRelay, bootstrap: FakeBootstrap | None, from_scn: int, to_scn: int
) -> Sequence[Range]:
    tasks = PartitionPlanner(measuring_of(relay, bootstrap), tasks=2)
    return tasks.planned_before(Group("shop", SOURCES), AtScn(from_scn), AtScn(to_scn))


@pytest.mark.parametrize(
    ("relay", "bootstrap"),
    [
        (FakeRelay(floor=50), FakeBootstrap(log_floor=90)),
        (FakeRelay(floor=61), FakeBootstrap(log_floor=90)),  # the very next window
        (FakeRelay(floor=80), FakeBootstrap(log_floor=60)),
        (FakeRelay(floor=80), FakeBootstrap(log_floor=60, is_seeded=False)),
        (FakeRelay(floor=80), None),  # the task says what is missing
    ],
    ids=["in the ring", "where the ring begins", "in the log", "in the log one day", "nowhere"],
)
def test_a_batch_planned_before_a_restart_is_what_it_was(
    relay: FakeRelay, bootstrap: FakeBootstrap | None
) -> None:
    found = again(relay, bootstrap, 60, 70)
    assert found == [LogRange("shop", SOURCES, 60, 70)]


def test_a_batch_that_no_log_has_any_more_is_what_changed_since_it_began() -> None:
    bootstrap = FakeBootstrap(log_floor=90)
    found = again(FakeRelay(floor=95), bootstrap, 60, 70)
    assert found == [
        SnapshotRange("shop", source, *rows, 100, 60, "http://fake", "store-1", is_final=True)
        for source in SOURCES
        for rows in ((0, 5), (5, 10))
    ]


def test_a_batch_of_which_deleted_rows_are_forgotten_is_the_whole_table_and_its_mark() -> None:
    bootstrap = FakeBootstrap(log_floor=90, knows_deleted_since=80, rows=dict.fromkeys(SOURCES, 0))
    found = again(FakeRelay(floor=95), bootstrap, 60, 70)
    assert found == [SnapshotEnd("shop", SOURCES, 100)]


def test_what_a_snapshot_has_not_of_a_batch_comes_from_the_log() -> None:
    bootstrap = FakeBootstrap(newest=65, log_floor=64, rows=dict.fromkeys(SOURCES, 0))
    found = again(FakeRelay(floor=95), bootstrap, 60, 70)
    assert found == [LogRange("shop", SOURCES, 65, 70)]


@pytest.mark.parametrize("log_floor", [0, 20_000], ids=["with a log", "with none"])
@pytest.mark.parametrize("floor", [0, 50_000], ids=["in the ring", "out of the ring"])
def test_tasks_share_the_rows_of_a_batch(floor: int, log_floor: int) -> None:
    relay = FakeRelay(newest=60_000, floor=floor)
    bootstrap = FakeBootstrap(newest=60_000, log_floor=log_floor)
    measure_client = measuring_of(relay, bootstrap)
    place = AtScn(5_000 if log_floor == 0 or floor == 0 else 50_000)
    for rows, tasks in ((40_000, 3), (12_000, 2), (9_000, 1)):
        end = Planner(measure_client, ScnPlace(0)).next_places({"shop": place}, rows)["shop"]
        assert isinstance(end, AtScn)
        found = PartitionPlanner(measure_client, 3).planned_now(Group("shop", SOURCES), place, end)
        assert len(found) == (tasks if end.scn - place.scn == rows else 1)
        after_restart = PartitionPlanner(measuring_of(relay, bootstrap), 3)
        assert after_restart.planned_before(Group("shop", SOURCES), place, end) == found
        assert [one.from_scn for one in found if isinstance(one, LogRange)] == [
            place.scn,
            *(one.to_scn for one in found[:-1] if isinstance(one, LogRange)),
        ]
        assert isinstance(found[-1], LogRange)
        assert found[-1].to_scn == end.scn


READ = InSnapshot(100, 0, "shop.orders", 4, "http://own", "store-1", left=("shop.people",))


def rows_again(bootstrap: FakeBootstrap | None, start: InSnapshot = READ) -> Sequence[Range]:
    tasks = PartitionPlanner(measuring_of(FakeRelay(floor=95), bootstrap), tasks=1)
    return tasks.planned_before(Group("shop", SOURCES), start, replace(start, row=8))


@pytest.mark.parametrize(
    "bootstrap",
    [FakeBootstrap(), FakeBootstrap(is_seeded=False), None],
    ids=["it is valid", "its server does not answer yet", "the task says what is missing"],
)
def test_rows_of_a_snapshot_planned_before_a_restart_are_what_they_were(
    bootstrap: FakeBootstrap | None,
) -> None:
    found = rows_again(bootstrap)
    assert found == [SnapshotRange("shop", "shop.orders", 4, 8, 100, 0, "http://own", "store-1")]
    assert bootstrap is None or bootstrap.preferred == ["http://own"]


@pytest.mark.parametrize("since", [0, 60])
def test_rows_of_a_snapshot_that_is_no_more_are_read_with_all_of_their_source(since: int) -> None:
    bootstrap = FakeBootstrap(newest=120, store="store-2")
    rows = SnapshotRange(
        "shop", "shop.orders", 0, 10, 120, since, "http://fake", "store-2", is_final=True
    )
    mark = [] if since else [SnapshotEnd("shop", ("shop.orders",), 120)]
    assert rows_again(bootstrap, replace(READ, since_scn=since)) == [rows, *mark]


def test_rows_of_a_snapshot_are_not_replaced_by_those_of_an_older_one() -> None:
    with pytest.raises(BootstrapTooOldError, match=r"as of scn 99 only, .* as of scn 100"):
        rows_again(FakeBootstrap(newest=99, store="store-2"))
