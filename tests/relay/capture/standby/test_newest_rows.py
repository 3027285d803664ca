"""The newest window with rows is found behind any number of empty ones."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from databus.relay.capture.standby.newest_rows import newest_rows, newest_rows_in
from databus.relay.capture.window_encoder import encode_empty
from databus.relay.ring.events import decoded_events
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.schemas.windows import EmptyWindow
from tests.relay.log.gtids.windows import window


@pytest.mark.parametrize("empty", [0, 1, 3000])
def test_empty_windows_behind_it_are_passed_over(tmp_path: Path, empty: int) -> None:
    path = tmp_path / "shop.ring"
    with closing(Ring.open(path, "shop", 1 << 20)) as ring:
        ring.append([window(scn, None) for scn in range(1, 200)])
        wanted = 199
        for number in range(empty):
            ring.append([encode_empty(EmptyWindow(1000 + number, 5))])
    found = newest_rows_in(path)
    assert found is not None
    assert found.scn == wanted


def test_a_ring_without_rows_has_none(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    with closing(Ring.open(path, "shop", 1 << 20)) as ring:
        assert newest_rows_in(path) is None
        ring.append([encode_empty(EmptyWindow(1000, 5))])
    assert newest_rows_in(path) is None


def test_up_to_an_scn_those_of_the_window_before_it_are_found(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    with closing(Ring.open(path, "shop", 1 << 20)) as ring:
        ring.append([window(scn, None) for scn in range(10, 200, 10)])
        ring.append([encode_empty(EmptyWindow(195, 5))])
    with closing(RingReader.open(path)) as reader:
        wanted = {9: None, 10: 10, 11: 10, 119: 110, 190: 190, 195: 190, 500: 190}
        for until_scn, scn in wanted.items():
            found = newest_rows(reader, until_scn)
            assert (found and found[0]) == scn
        assert newest_rows(reader, most_blocks=0) is None


def test_rows_of_some_sources_are_found_behind_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "shop.ring"
    with closing(Ring.open(path, "shop", 1 << 20)) as ring:
        ring.append([window(scn, None) for scn in range(10, 200, 10)])
    with closing(RingReader.open(path)) as reader:
        (src_id,) = {event.src_id for event in decoded_events(reader, reader.head)} - {-2, -1}
        assert newest_rows(reader, 55, src_ids={src_id, 99}) == newest_rows(reader, 55)
        assert newest_rows(reader, 55, src_ids={99}) is None
