"""The damaging of files at rest in its short form, and that it can find something."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from benchmarks.flipped_bytes.damage import CUT, FLIP, RUN, ZEROS, damaged
from benchmarks.flipped_bytes.files import make_files
from benchmarks.flipped_bytes.run import FOUND, KINDS, WRONG, Rounds, do_rounds
from databus.bootstrap.store import log_table, snapshot_pages
from databus.bootstrap.store.watch import StoreWatch
from databus.groups import kept_checkpoint as checkpoints
from databus.registry import sqlite_store
from databus.registry.sqlite_store import SqliteStore
from databus.relay.ring import recovery as ring_recovery
from databus.relay.ring.check import RingCheck

WIDE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_files(folder, WIDE_BYTES)
    return folder


@pytest.fixture
def rounds(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    # A restart looks at the end of this small ring only, as it does of a large one.
    monkeypatch.setattr(ring_recovery, "_CHECKED_BYTES", 1)
    return Rounds(files, tmp_path / "work", Random(4))


def test_no_damage_of_a_file_at_rest_is_delivered_or_shown(rounds: Rounds) -> None:
    do_rounds(rounds, 60, KINDS, Random(4))
    assert rounds.findings == []
    assert set(rounds.counts) == {kind.name for kind in KINDS}
    assert sum(counts["found"] for counts in rounds.counts.values()) >= 15


def test_a_ring_without_its_oldest_windows_is_found_if_its_start_names_them(
    files: Path, tmp_path: Path
) -> None:
    (ring,) = [kind for kind in KINDS if kind.name == "ring, windows"]
    path = Path(shutil.copy(files / ring.pattern, tmp_path))
    whole = ring.read(path)
    path = Path(shutil.copy(files / ring.pattern, tmp_path))
    begin, _ = ring.span(path)
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes([data[begin] ^ 1]) + data[begin + 1 :])
    rest = ring.read(path)
    assert 0 < len(rest.all_rows.data) < len(whole.all_rows.data)
    assert ring.judge(path, whole, rest) == FOUND
    assert ring.judge(path, whole, rest._replace(dropped="")) == WRONG


def _nothing(*_arguments: object, **_named: object) -> None:
    """Check nothing."""


def _all(_check: RingCheck, _position: int, end: int) -> int:
    return end


def _unchecked(store: SqliteStore, path: Path) -> object:
    with store._database(path) as database:
        return sqlite_store._rows_of(database)


@pytest.mark.parametrize(
    ("kind", "owner", "check", "off"),
    [
        ("ring, windows", RingCheck, "reach", _all),
        ("schemas.db", SqliteStore, "_read", _unchecked),
        ("bootstrap store", StoreWatch, "admit", _nothing),
        ("checkpoint", checkpoints, "_check_whole", _nothing),
    ],
)
def test_with_a_check_switched_off_it_says_what_is_wrong(
    rounds: Rounds,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    owner: object,
    check: str,
    off: object,
) -> None:
    monkeypatch.setattr(owner, check, off)
    if owner is StoreWatch:  # a store has a second line: what is sent is checked once more
        for module in (snapshot_pages, log_table):
            monkeypatch.setattr(module, "check_events", _nothing)
    (chosen,) = [one for one in KINDS if one.name == kind]
    for _ in range(200):
        if rounds.round(chosen, FLIP) == WRONG:
            break
    assert rounds.counts[kind][WRONG] == 1
    assert rounds.findings[0].kind == kind


def test_each_damage_is_another() -> None:
    data = bytes(range(256)) * 64
    for kind in (FLIP, RUN, ZEROS, CUT):
        changed = damaged(data, kind, Random(2))
        assert changed != data
        assert changed == damaged(data, kind, Random(2))
    assert sum(a != b for a, b in zip(data, damaged(data, FLIP, Random(3)), strict=True)) == 1
