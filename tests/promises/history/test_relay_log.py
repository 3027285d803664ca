"""A relay with a log: nothing is lost between ring, log, kills and a full disk."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.log.directory import folders_aside
from databus.relay.sources.generator import GeneratorSource
from databus.relay.sources.source import RowChange
from tests.full_disk import small_disk
from tests.promises.running import Remembering, RunningRelay, consuming, running, wait_until

RING_BYTES = 256 << 10
SOURCES = ["load.a", "load.b"]
SEED = 20261124
KILLS = 4


def generator(folder: Path, **log: Any) -> dict[str, Any]:
    """Return the settings of a source of which each SCN has the same rows in every run."""
    return {
        "name": "shop",
        "uri": f"generator:?rate=4000&seed={SEED}&rows=3",
        "sources": SOURCES,
        "ring_bytes": RING_BYTES,
        "log": {"dir": str(folder), "segment_bytes": 128 << 10, "sync_ms": 5} | log,
    }


def log_status(relay: RunningRelay) -> Mapping[str, Any]:
    """Return what the relay says of its log."""
    found: dict[str, Any] = relay.get("/controlSources/status").json()["shop"]["relayLog"]
    return found


def has_written(relay: RunningRelay, size_bytes: int) -> bool:
    """Return whether the ring was given so much since the relay's start."""
    status = relay.get("/controlSources/status").json()["shop"]
    return int(status["bytes"]) >= size_bytes


def expected(folder: Path, until: int) -> list[tuple[int, str, int]]:
    """Return the changes of all transactions up to an SCN: SCN, source and key."""
    settings = build_settings(
        generator(folder) | {"uri": f"generator:?rate=0&seed={SEED}&rows=3"}, PhysicalSourceSettings
    )
    source = GeneratorSource(settings)
    source.open(None)
    found: list[tuple[int, str, int]] = []
    while not found or found[-1][0] < until:
        for one in source.read_transactions():
            changes = [change for change in one.changes if isinstance(change, RowChange)]
            found += [(one.scn, change.table.source, change.row["id"]) for change in changes]
    return [change for change in found if change[0] <= until]


def test_a_consumer_that_was_away_for_ten_rings_gets_every_change_in_order_though_relays_are_killed(
    tmp_path: Path,
) -> None:
    print("seed", SEED)
    rand = random.Random(SEED)
    consumer, checkpoints = Remembering(), {"checkpoint_dir": tmp_path / "checkpoints"}
    with running(RunningRelay(tmp_path, generator(tmp_path / "log"))) as relay:
        relay.start()
        with consuming([relay.url], SOURCES, consumer, **checkpoints):
            wait_until(lambda: consumer.scn > 10, "the consumer", relay.tell)
        left_at = consumer.scn
        for _ in range(KILLS):
            wanted = 11 * RING_BYTES // KILLS + rand.randrange(RING_BYTES)
            wait_until(partial(has_written, relay, wanted), "enough to be written", relay.tell)
            relay.child.kill()
            relay.start()
        relay.pause()
        newest = relay.max_scn()
        ring = relay.get("/bufferInfo/inbound/shop/0").json()
        with consuming([relay.url], SOURCES, consumer, **checkpoints):
            wait_until(lambda: consumer.scn >= newest, "the rest", relay.tell)
        assert log_status(relay)["beganAnew"] == ""
    assert left_at < ring["minScn"]
    assert (newest - left_at) > 10 * (newest - ring["minScn"])
    got = [(event.scn, event.source, event.row["id"]) for event in consumer.events]
    assert got == expected(tmp_path, newest)
    assert consumer.errors == []
    assert not folders_aside(tmp_path / "log")


def test_a_full_disk_of_the_log_stops_the_source_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no file system may be mounted, another test has the same with a failing sync."""
    print("seed", SEED)
    with small_disk(tmp_path / "disk", monkeypatch) as disk:
        if not disk.folder.is_mount():
            return
        physical = generator(disk.folder / "log", segment_bytes=64 << 10, compression="none")
        relay = RunningRelay(tmp_path, physical | {"ring_bytes": 64 << 10})
        with running(relay):
            relay.serve()
            problem = relay.wait_for_problem("capture waits, because the relay log")
            assert disk.says in problem
            assert log_status(relay)["durableScn"] <= relay.max_scn()
            relay.child.kill()  # while the disk is full
            relay.serve()
            relay.wait_for_problem("the relay log cannot be written")
            stopped_at = relay.max_scn()
            # As an administrator makes room: a larger file system.
            grow = ["mount", "-o", "remount,size=64m", str(disk.folder)]
            subprocess.run(grow, check=True, capture_output=True)
            relay.wait_for_scn(2 * stopped_at)
            wait_until(lambda: relay.get("/health").status == 200, "health", relay.tell)
            relay.pause()
            newest, consumer = relay.max_scn(), Remembering()
            with consuming([relay.url], SOURCES, consumer):
                wait_until(lambda: consumer.scn >= newest, "all", relay.tell)
            assert log_status(relay)["beganAnew"] == ""
        got = [(event.scn, event.source, event.row["id"]) for event in consumer.events]
        assert got == expected(tmp_path, newest)
