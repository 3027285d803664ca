"""What the relay that captures leaves for the next one, and who may no longer write it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from databus.leases.errors import LeaseError, StaleTermError
from databus.leases.file_records import FileRecords
from databus.relay.capture.standby.handover import Handover, HandoverRecord
from databus.relay.sources.epochs import Epoch, Executed

EPOCH = Epoch(
    1, "uuid", "mysql://databus@db", 100, 90, "bin.000007", 100, "uuid:1-5", 1_790_000_000
)
LEFT = Handover("http://a:1", {"shop.orders": 3, "shop.ä": 7}, (EPOCH,), Executed(120, "uuid:1-9"))


def record(folder: Path) -> HandoverRecord:
    return HandoverRecord(FileRecords(folder), "shop")


def test_the_next_owner_reads_what_was_left_and_nothing_before(tmp_path: Path) -> None:
    assert record(tmp_path).read() is None
    record(tmp_path).write(LEFT, 4)
    assert record(tmp_path).read() == LEFT
    record(tmp_path).write(Handover(), 5)
    assert record(tmp_path).read() == Handover("", {}, (), None)


def test_an_owner_of_before_changes_nothing(tmp_path: Path) -> None:
    record(tmp_path).write(LEFT, 5)
    with pytest.raises(StaleTermError, match="its term is 4, and term 5 has begun"):
        record(tmp_path).write(Handover(), 4)
    assert record(tmp_path).read() == LEFT


def test_a_term_that_another_relay_has_had_is_over(tmp_path: Path) -> None:
    record(tmp_path).write(LEFT, 5)
    with pytest.raises(StaleTermError):
        record(tmp_path).write(replace(LEFT, owner="http://b:1"), 5)
    record(tmp_path).write(LEFT, 5)
    record(tmp_path).write(replace(LEFT, owner="http://b:1"), 6)


def test_a_damaged_record_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    record(tmp_path).write(LEFT, 5)
    (path,) = (tmp_path / "handover").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b'"shop.orders": 3', b'"shop.orders": 4'))
    with pytest.raises(LeaseError, match=r"checksum is wrong.*remove the record"):
        record(tmp_path).read()
    with pytest.raises(LeaseError, match="cannot be read"):
        record(tmp_path).write(LEFT, 6)
