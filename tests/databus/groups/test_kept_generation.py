"""Where the partitions of a resized group begin, in the records of its coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.groups.generations import Generation, Vector
from databus.groups.kept_generation import (
    KeptGeneration,
    forget_former,
    generation_record,
    read_generation,
    write_generation,
)
from databus.leases.errors import LeaseError
from databus.leases.file_records import FileRecords
from databus.schemas.checkpoint import Checkpoint

KEPT = KeptGeneration(
    Generation(1, Vector((10, -1)), (Vector((10, 20, 30)),)), {10: Checkpoint.at(10, 5)}
)


def test_what_is_written_is_read_and_says_where_partitions_begin(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    write_generation(records, "billing", KEPT)
    assert read_generation(records, "billing", 1) == KEPT
    assert KEPT.begins(0) == Checkpoint.at(10, 5)
    assert KEPT.begins(1) is None
    assert read_generation(records, "billing", 0) is None


def test_what_former_partitions_had_is_forgotten_for_a_bootstrap(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    forget_former(records, "billing", 0)
    write_generation(records, "billing", KEPT)
    forget_former(records, "billing", 1)
    found = read_generation(records, "billing", 1)
    assert found is not None
    assert (found.generation.former, found.generation.checkpoints) == ((), Vector((10, -1)))


def test_a_record_that_is_missing_damaged_or_another_groups_is_refused(tmp_path: Path) -> None:
    records = FileRecords(tmp_path)
    with pytest.raises(LeaseError, match="restore it from a copy"):
        read_generation(records, "billing", 1)
    write_generation(records, "billing", KEPT)
    stored = records.read(generation_record("billing", 1))
    assert stored is not None
    records.replace(generation_record("other", 1), stored.data, None)
    with pytest.raises(LeaseError, match="it is that of 'billing'"):
        read_generation(records, "other", 1)
    records.replace(generation_record("billing", 1), stored.data.replace(b"10", b"11"), stored)
    with pytest.raises(LeaseError, match="checksum"):
        read_generation(records, "billing", 1)
