"""What is too old is deleted, oldest first and in small steps, and the floors move with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.bootstrap.store import retention
from databus.bootstrap.store.log_table import LogRange, OldRow
from databus.bootstrap.store.retention import Retention, find_cut
from databus.bootstrap.store.store import SourceState, Store
from databus.bootstrap.store.values import WHOLE_WINDOW
from databus.conf.loading import build_settings
from databus.conf.settings import BootstrapSettings
from tests.bootstrap.filled import ORDERS, PERSON, SRC_IDS, TEXTS, gone, put, stored

HOUR_S = 3600
NS = 1_000_000_000


class Kept:
    """A store whose clock the test moves."""

    def __init__(self, path: Path) -> None:
        self.now_s = 1_000_000
        self.store = Store.open(path, now_ns=lambda: self.now_s * NS)
        self.store.add_sources(SRC_IDS)
        for src_id, text in TEXTS.items():
            self.store.add_schemas(src_id, [(1, text)])
        self.store.begin_log(100)
        for name in SRC_IDS:
            self.store.begin_seeding(name, 100, 0)
            self.store.end_seeding(name, 100)
        self.store.apply_window(101, 1, [])
        self.store.activate_caught_up()

    def retain(self, **settings: Any) -> int:
        """Do all steps; return how many there were."""
        made = Retention(self.store, settings_of(**settings), lambda: self.now_s * NS)
        steps = 1
        while made.step():
            steps += 1
        return steps

    def log(self) -> list[tuple[int, int]]:
        page = self.store.log_page(LogRange([1, 2], (0, WHOLE_WINDOW), 10_000, {}), 1 << 30)
        return [(row.scn, row.row_index) for row in page.rows]

    def state(self, name: str = PERSON.source) -> SourceState:
        return self.store.source(name)


def settings_of(log_bytes: int = 1 << 30, **changes: Any) -> BootstrapSettings:
    source = {"name": "shop", "uri": "sqlite:/x", "sources": (PERSON.source,)}
    made = build_settings(
        {"data_dir": "/x", "relays": ("http://x",), "physical_sources": (source,), **changes},
        BootstrapSettings,
    )
    return made.model_copy(update={"log_retention_bytes": log_bytes})


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path / "shop.db")
    yield made
    made.store.close()


def test_windows_that_came_too_long_ago_go_and_the_floor_moves_with_them(kept: Kept) -> None:
    for scn in (110, 111, 112):
        kept.store.apply_window(scn, 1, [put(1, 1, scn), put(2, 1, scn)])
        kept.now_s += HOUR_S
    kept.retain(log_retention_s=2 * HOUR_S)
    assert kept.log() == [(111, 0), (111, 1), (112, 0), (112, 1)]
    assert {kept.state(name).log_floor_scn for name in SRC_IDS} == {110}
    assert kept.store.rows_by_key(PERSON.source, [1])[1].scn == 112
    kept.now_s += 100 * HOUR_S
    kept.retain(log_retention_s=2 * HOUR_S)
    assert kept.log() == []
    assert kept.state().log_floor_scn == 112
    assert kept.store.sizes().sources[PERSON.source].log_bytes == 0


def test_the_log_is_kept_below_its_bytes_by_whole_windows(kept: Kept) -> None:
    for scn in range(110, 120):
        kept.store.apply_window(scn, 1, [put(1, 1, scn), put(2, 1, scn)])
    sizes = kept.store.sizes().sources.values()
    window_bytes = sum(size.log_bytes for size in sizes) // 10
    kept.retain(log_bytes=4 * window_bytes + 1)
    assert kept.log() == [(scn, index) for scn in range(116, 120) for index in (0, 1)]
    assert kept.state().log_floor_scn == 115
    held = sum(size.log_bytes for size in kept.store.sizes().sources.values())
    assert held == 4 * window_bytes
    assert kept.retain(log_bytes=4 * window_bytes) == 1
    assert len(kept.log()) == 8


def test_nothing_is_deleted_that_is_neither_old_nor_too_much(kept: Kept) -> None:
    kept.store.apply_window(110, 1, [put(1, 1, 110), gone(1, 1, 110)])
    before = kept.store.sizes()
    kept.retain()
    assert kept.store.sizes() == before
    assert kept.state().log_floor_scn == 100
    assert kept.state().tombstone_floor_scn == 100


def test_a_source_that_is_being_seeded_keeps_what_came_after_its_scn(kept: Kept) -> None:
    for scn in (110, 111, 112):
        kept.store.apply_window(scn, 1, [put(1, 1, scn), gone(1, 2, scn)])
    kept.store.reset_source(PERSON.source)
    kept.store.begin_seeding(PERSON.source, 111, 0)
    kept.now_s += 100 * 24 * HOUR_S
    kept.retain()
    assert [scn for scn, _ in kept.log()] == [112, 112]
    assert kept.state().log_floor_scn == 111
    # A row that was read before it was deleted must not come back.
    kept.store.merge_chunk(PERSON.source, [stored(1, 2, 111, "read early")], None)
    assert kept.store.rows_by_key(PERSON.source, [2])[2].is_deleted
    kept.store.end_seeding(PERSON.source, 112)
    assert kept.store.activate_caught_up() == [PERSON.source]
    kept.retain()
    assert kept.log() == []
    assert kept.store.rows_by_key(PERSON.source, [2]) == {}
    assert kept.state().tombstone_floor_scn == 112


def test_tombstones_that_came_too_long_ago_go_oldest_scn_first(kept: Kept) -> None:
    for scn in (110, 111, 112):
        kept.store.apply_window(scn, 1, [gone(1, scn, scn), put(1, 1, scn)])
        kept.now_s += HOUR_S
    kept.retain(deleted_retention_s=2 * HOUR_S)
    found = kept.store.rows_by_key(PERSON.source, [1, 110, 111, 112])
    assert sorted(found) == [1, 111, 112]
    assert kept.state().tombstone_floor_scn == 110
    assert kept.state(ORDERS.source).tombstone_floor_scn == 100


def test_each_step_is_small(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 10)
    monkeypatch.setattr(retention.find_cut, "__defaults__", (10,))
    for scn in range(110, 120):
        events = [gone(1, scn * 10 + index, scn) for index in range(4)]
        kept.store.apply_window(scn, 1, events)
    kept.now_s += 100 * 24 * HOUR_S
    assert kept.retain() >= 4
    assert kept.log() == []
    assert kept.store.sizes().sources[PERSON.source].tombstones == 0
    assert (kept.state().log_floor_scn, kept.state().tombstone_floor_scn) == (119, 119)


def test_a_file_that_is_mostly_free_gives_space_back(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "STEP_PAGES", 20)
    for scn in range(110, 210):
        kept.store.apply_window(scn, 1, [put(1, key, scn, "x" * 900) for key in range(10)])
    before = kept.store.sizes()
    kept.now_s += 100 * 24 * HOUR_S
    assert kept.retain() > 2
    after = kept.store.sizes()
    assert after.file_bytes < before.file_bytes / 2
    assert after.free_bytes <= max(20 * 4096, after.file_bytes / 4)


def row(scn: int, at_ns: int, size_bytes: int = 10, src_id: int = 1) -> OldRow:
    return OldRow(scn, at_ns, size_bytes, src_id)


def test_a_cut_lies_between_windows_and_goes_past_its_size_by_one_window_at_most() -> None:
    rows = [row(scn, 5, src_id=src_id) for scn in range(1, 9) for src_id in (1, 2, 2)]
    cut = find_cut(rows, 9, 0, most_rows=4)
    assert (cut.scn, cut.freed_bytes, cut.is_more) == (2, {1: 20, 2: 40}, True)
    cut = find_cut(rows, 5, 31)
    assert (cut.scn, cut.is_more) == (2, False)
    assert find_cut(rows, 5, 0).scn == -1
    assert find_cut([], 9, 100).scn == -1
    assert find_cut(rows, 9, 0).scn == 8
