"""Which sources have rows in the windows that were appended lately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from databus.relay.capture.appended_sources import MOST_BYTES, AppendedSources
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import DDL_SRC_ID, Event, Opcode, Part
from databus.schemas.event.v2 import encode


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    with closing(Ring.open(tmp_path / "a.ring", "a", 1 << 20, start_scn=0)) as made:
        yield made


@pytest.fixture
def appended(ring: Ring, tmp_path: Path) -> Iterator[AppendedSources]:
    with closing(RingReader.open(tmp_path / "a.ring")) as reader:
        yield AppendedSources(reader)


def append(ring: Ring, *src_ids: int, size: int = 10) -> None:
    scn = ring.max_scn + 1
    part = Part(bytes(size), bytes(16), 1)
    rows = [encode(Event(scn, scn, id_, 0, 1, Opcode.UPSERT, part, None)) for id_ in src_ids]
    ring.append([EncodedWindow(scn, b"".join((*rows, encode(end_of_period(scn, scn)))), scn)])


def test_the_sources_of_all_windows_since_the_last_call(
    ring: Ring, appended: AppendedSources
) -> None:
    append(ring, 1, 2)
    append(ring, 2, 5)
    append(ring)
    assert appended.take() == frozenset({1, 2, 5})
    assert appended.take() == frozenset()
    append(ring, 7)
    appended.begin()
    append(ring, 8)
    assert appended.take() == frozenset({8})


def test_a_bulk_load_may_be_of_any_source(ring: Ring, appended: AppendedSources) -> None:
    append(ring, 1, size=MOST_BYTES)
    assert appended.take() is None
    append(ring, 1)
    assert appended.take() == frozenset({1})


def test_a_statement_may_concern_any_source(ring: Ring, appended: AppendedSources) -> None:
    append(ring, DDL_SRC_ID)
    assert appended.take() is None
