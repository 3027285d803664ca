"""The catch-up's cost: the rows that were changed by the snapshot, every change by the log."""

from __future__ import annotations

from pathlib import Path

from benchmarks.catch_up import BASE_SCN, Size, pair_of
from databus.schemas.checkpoint import Checkpoint


def test_a_snapshot_has_each_changed_row_once_and_the_log_every_change(tmp_path: Path) -> None:
    with pair_of(tmp_path, Size(rows=3000, updates=2000, keys=200)) as pair:
        assert pair.catch_up(Checkpoint.at(BASE_SCN)).events == 200
        assert pair.replay().events == 2000
    assert list(tmp_path.iterdir()) == []
