"""Power cuts under a relay log, in their short form, and that the disk loses what it may."""

from __future__ import annotations

import os
import random
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.power_cuts.disk import Disk, PowerCut
from benchmarks.power_cuts.run import cut_often


def test_a_log_has_each_window_once_though_the_power_is_cut_again_and_again() -> None:
    outcome = cut_often(150, seed=7)
    assert outcome.problems == []
    assert outcome.cuts == 150
    assert outcome.windows > 500
    assert outcome.large > 10


def test_a_log_that_is_never_synced_is_found_out() -> None:
    with patch.object(Disk, "_sync", lambda _disk, sync: sync):
        assert cut_often(200, seed=7).problems


def write(folder: Path) -> None:
    """Take five steps."""
    fd = os.open(folder / "new", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, b"synced", 0)
        os.fdatasync(fd)
        os.pwrite(fd, b"more", 6)
        (folder / "old").rename(folder / "older")
    finally:
        os.close(fd)


def test_a_disk_loses_what_was_not_synced_and_nothing_else(tmp_path: Path) -> None:
    seen = set()
    for seed in range(200):
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / "old").write_bytes(b"old")
        disk = Disk(tmp_path, random.Random(seed), 5)
        with disk.watched(), pytest.raises(PowerCut):
            write(tmp_path)
        disk.fall_back()
        disk.close()
        seen.add(tuple(sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir())))
    olds = [("old", b"old")], [("older", b"old")]
    with_new = [("new", b"synced"), ("new", b"syncedmore")]
    assert (*olds[0],) in seen
    for new in with_new:
        assert (new, *olds[0]) in seen
        assert (new, *olds[1]) in seen
    # The names come in their order: the later one never without the earlier one.
    assert (*olds[1],) not in seen
