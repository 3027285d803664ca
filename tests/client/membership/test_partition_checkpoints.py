"""The checkpoints of several partitions that one stream reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.client.checkpoints.fenced import RecordCheckpoints
from databus.client.membership.partition_checkpoints import PartitionCheckpoints
from databus.groups.names import checkpoint_name, consumed_scn
from databus.leases.errors import LeaseLostError, LeaseUnavailableError
from databus.leases.file_records import FileRecords
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import CheckpointError

SOURCES = ("shop.orders",)
START = Checkpoint.at(3)


class Terms:
    def __init__(self) -> None:
        self.held = {0: 1, 1: 1}

    def __call__(self, partition: int) -> int:
        if partition not in self.held:
            raise LeaseLostError(f"partition {partition}", 1, "it is not owned")
        return self.held[partition]


class Failing(RecordCheckpoints):
    is_down = False

    def save_under(self, *arguments: object) -> None:
        if self.is_down:
            raise CheckpointError("down") from LeaseUnavailableError("store", "down")
        super().save_under(*arguments)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Failing:
    return Failing(FileRecords(tmp_path))


def kept(store: RecordCheckpoints, partition: int) -> int:
    return consumed_scn(store.load(checkpoint_name("billing", 0, partition), SOURCES))


def begun(store: RecordCheckpoints, terms: Terms) -> PartitionCheckpoints:
    checkpoints = PartitionCheckpoints(store, "billing", SOURCES, terms)
    for partition in terms.held:
        checkpoints.begin(partition, 0, START)
    return checkpoints


def test_a_checkpoint_of_a_stream_is_that_of_each_partition_that_is_not_further(
    store: Failing,
) -> None:
    checkpoints = begun(store, Terms())
    assert checkpoints.read([0]) == {0: 3}
    checkpoints.save("x", SOURCES, Checkpoint.at(20))
    assert checkpoints.read([0, 1]) == {0: 20, 1: 3}
    checkpoints.save("x", SOURCES, Checkpoint.at(10))
    assert checkpoints.read([0, 1]) == {0: 20, 1: 10}
    assert (kept(store, 0), kept(store, 1)) == (20, 10)


def test_a_partition_that_was_lost_is_not_written_and_the_others_are(store: Failing) -> None:
    terms = Terms()
    checkpoints = begun(store, terms)
    checkpoints.read([0, 1])
    del terms.held[0]
    checkpoints.save("x", SOURCES, Checkpoint.at(10))
    assert (kept(store, 0), kept(store, 1)) == (-1, 10)


def test_a_partition_with_a_newer_owner_is_not_written(store: Failing) -> None:
    checkpoints = begun(store, Terms())
    checkpoints.read([0, 1])
    store.begin_term(checkpoint_name("billing", 0, 0), SOURCES, 2)
    checkpoints.save("x", SOURCES, Checkpoint.at(10))
    assert (kept(store, 0), kept(store, 1)) == (-1, 10)


def test_what_could_not_be_stored_is_consumed_all_the_same_and_stored_later(
    store: Failing,
) -> None:
    checkpoints = begun(store, Terms())
    checkpoints.read([0, 1])
    store.is_down = True
    with pytest.raises(CheckpointError):
        checkpoints.save("x", SOURCES, Checkpoint.at(10))
    assert checkpoints.read([0, 1]) == {0: 10, 1: 10}
    store.is_down = False
    checkpoints.save("x", SOURCES, Checkpoint.at(10))
    assert (kept(store, 0), kept(store, 1)) == (10, 10)


def test_a_bootstrap_is_stored_though_its_position_is_of_no_window(store: Failing) -> None:
    checkpoints = begun(store, Terms())
    checkpoints.read([0, 1])
    bootstrap = START.start_bootstrap("b")
    checkpoints.save("x", SOURCES, bootstrap)
    assert store.load(checkpoint_name("billing", 0, 1), SOURCES) == bootstrap
    assert checkpoints.read([0]) == {0: -1}
    checkpoints.save("x", SOURCES, Checkpoint.at(2))
    assert kept(store, 0) == 2
