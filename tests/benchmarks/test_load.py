"""The load's transactions are all there, and its stamps survive the way through a file."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.shared.load import Stop, commit_at_rate, create_table, read_numbers, write_numbers
from databus.demo.databases import Database, Session


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    opened = Database("sqlite", f"sqlite:{tmp_path / 'load.db'}").connect()
    opened.execute(create_table("sqlite"))
    yield opened
    opened.close()


@pytest.fixture
def stop() -> Iterator[Stop]:
    before = signal.getsignal(signal.SIGTERM)
    yield Stop()
    signal.signal(signal.SIGTERM, before)


def test_each_transaction_is_committed_and_stamped(session: Session, stop: Stop) -> None:
    stamps = commit_at_rate(session, 10_000, range(1, 31), 5, stop)
    assert session.rows("SELECT n, filler FROM ticks") == [(n, "xxxxx") for n in range(1, 31)]
    assert len(stamps) == 60
    assert list(stamps) == sorted(stamps)


def test_a_load_told_to_stop_stops(session: Session, stop: Stop) -> None:
    signal.raise_signal(signal.SIGTERM)
    assert len(commit_at_rate(session, 10_000, range(1, 31), 5, stop)) == 0


def test_stamps_survive_a_file(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.stamps", [1, -2, 2**62, 4])
    assert read_numbers(tmp_path / "a.stamps", 2) == [(1, -2), (2**62, 4)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.stamps"]
