"""A serving process knows when it does not know the state of a physical source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import RelaySettings
from databus.relay.relay import Relay
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.stream import StreamJob, run
from databus.relay.serving_processes.served_relay import PassOnError, ServedRelay
from databus.relay.serving_processes.shared_page import SharedPage, make_page
from databus.relay.serving_processes.states import StateTeller
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import RingError, TableStoppedError, UnusableSourceError
from tests.relay.fakes import ORDERS, PERSON, FakeSource
from tests.relay.ring.model import make_window

SIZE = 1 << 20


class Pair:
    """A relay that does not run, and what a serving process has of it."""

    def __init__(self, folder: Path, opened: ExitStack, **source: object) -> None:
        physical = {
            "name": "shop",
            "uri": "generator:",
            "sources": ["shop.person", "shop.orders"],
            "ring_bytes": 65536,
        }
        values = {"data_dir": str(folder), "physical_sources": [physical | source]}
        settings = build_settings(values, RelaySettings, "a test")
        self.relay = Relay(settings, lambda given: FakeSource(given, [PERSON, ORDERS]))
        opened.callback(self.relay.stop)
        fd = make_page()
        pages = [SharedPage(fd, 1), SharedPage(fd, 1)]
        os.close(fd)
        for page in pages:
            opened.callback(page.close)
        self.told = 0
        self.teller = StateTeller(self.relay, pages[0])
        self.teller.start(self._count, lambda: None)
        opened.callback(self.teller.stop)
        self.served = ServedRelay(settings, self.relay.catalog, pages[1])
        opened.callback(self.served.close)
        self.ring = self.relay.physical_sources["shop"].ring
        self.spans = self.relay.physical_sources["shop"].spans

    def _count(self) -> None:
        self.told += 1

    def tell(self) -> bool:
        """Tell what has changed; return whether anything has."""
        state = self.teller.changed()
        if state is not None:
            self.served.take(state)
        return state is not None

    def job(self, checkpoint: Checkpoint, **more: object) -> StreamJob:
        """Return a job of the serving process."""
        selection = Selection("shop", checkpoint, frozenset({1}), **more)  # type: ignore[arg-type]
        source = self.served.physical_source("shop")
        reader = source.reader_for(selection)
        return StreamJob(reader, selection, SIZE, None, source.spans_of(reader))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def pair(tmp_path: Path, opened: ExitStack) -> Pair:
    return Pair(tmp_path, opened)


def test_nothing_is_served_before_the_first_state(pair: Pair) -> None:
    with pytest.raises(PassOnError):
        pair.job(Checkpoint.flexible())
    assert pair.tell()
    assert not pair.tell()
    pair.ring.append([make_window(1), make_window(2)])
    assert run(pair.job(Checkpoint.at(1))).resume == (2, -1)


def test_a_stop_is_known_before_a_window_behind_it_can_be_read(pair: Pair) -> None:
    pair.tell()
    pair.ring.append([make_window(1), make_window(2)])
    job = pair.job(Checkpoint.at(1))
    assert pair.spans.stop(["shop.person"], "no idea what this is", 1.0)
    assert pair.told == 1
    pair.ring.append([make_window(3)])
    # Also by a request that has begun before.
    with pytest.raises(PassOnError):
        run(job)
    with pytest.raises(PassOnError):
        pair.job(Checkpoint.at(1))
    pair.tell()
    assert run(pair.job(Checkpoint.at(1))).resume == (2, -1)
    with pytest.raises(TableStoppedError):
        run(pair.job(Checkpoint.at(2)))


def test_a_change_that_nobody_counts_is_told_with_another_revision(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.tell()
    source = pair.served.physical_source("shop")
    before = source.revision
    watched = pair.relay.ring_watch.watched["shop"]
    monkeypatch.setattr(type(pair.relay.physical_sources["shop"]), "check_served", _refuse)
    assert watched.damages == ()
    assert pair.tell()
    assert source.revision == before + 1
    with pytest.raises(PassOnError, match="not served"):
        pair.job(Checkpoint.flexible())


def _refuse(_source: object) -> None:
    raise UnusableSourceError("shop", RingError("others have other SCNs"))


def test_what_the_relay_log_may_have_is_left_to_the_capturing_process(
    tmp_path: Path, opened: ExitStack
) -> None:
    pair = Pair(tmp_path, opened, log={})
    pair.tell()
    pair.ring.append([make_window(1), make_window(2)])
    with pytest.raises(PassOnError):
        pair.job(Checkpoint.flexible())
    assert run(pair.job(Checkpoint.at(1))).resume == (2, -1)


def test_a_ring_that_begins_anew_is_followed(pair: Pair) -> None:
    pair.tell()
    pair.ring.append([make_window(1), make_window(2)])
    assert run(pair.job(Checkpoint.at(1))).resume == (2, -1)
    pair.spans.lower(100, pair.ring.max_scn)
    pair.ring.restart_after(100)
    pair.spans.clear()
    pair.ring.append([make_window(101)])
    pair.tell()
    assert run(pair.job(Checkpoint.at(100))).resume == (101, -1)
