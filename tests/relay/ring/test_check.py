"""Rings that were damaged while nobody wrote: what is given out, to whom, and what is said."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import HttpSettings
from databus.relay.catalog import Catalog
from databus.relay.ring import recovery as ring_recovery
from databus.relay.ring.check import Block, RingCheck
from databus.relay.ring.layout import open_file
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.ring.selection import Selection
from databus.relay.serving.databus.measure import MeasureJob
from databus.relay.serving.databus.parameters import parse_measure_request
from databus.relay.serving.reading.stream import StreamJob, run
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DamagedWindowsError, ScnNotFoundError
from databus.schemas.event.layout import V2
from databus.schemas.filters import ModFilter
from databus.schemas.stream.stream_reader import walk
from tests.relay.ring.model import window_of

pytestmark = pytest.mark.usefixtures("way")

CAPACITY = 256 << 10
LAST = 600
FLIPS = 40


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ring of many blocks, of which a restart looks at the newest two only."""
    monkeypatch.setattr(ring_recovery, "_CHECKED_BYTES", 1)
    path = tmp_path / "shop.ring"
    ring = Ring.open(path, "shop", CAPACITY, start_scn=0)
    ring.append([window_of(scn) for scn in range(1, LAST + 1)])
    ring.close()
    return path


@contextmanager
def opened(path: Path) -> Iterator[RingReader]:
    """The ring, as a relay that starts has it."""
    ring = Ring.open(path, "shop", CAPACITY)
    reader = RingReader.open(path, follows=True)
    try:
        yield reader
    finally:
        reader.close()
        ring.close()


def flip(path: Path, at: int, bit: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ bit]))


def old_byte(path: Path, part: float) -> int:
    """Return where a byte lies of the windows before the newest blocks."""
    with path.open("rb") as file:
        layout = open_file(path, file.fileno(), writable=False)
        used = layout.cells[64]
        layout.close()
    return layout.data_at + int((used - 4 * layout.layout.block_bytes) * part)


def follow(reader: RingReader, scn: int | None, size: int = 5000, **selected: Any) -> list[int]:
    """Read on to the end as a client does; the SCNs that came, each window as it must be."""
    seen: list[int] = []
    checkpoint = Checkpoint.flexible() if scn is None else Checkpoint.at(scn)
    while True:
        selection = Selection("shop", checkpoint, **selected)
        response = run(StreamJob(reader, selection, size, None))
        if not selected:
            expected = b"".join(window_of(e.scn).data for e in walk(response.body) if e.is_eop)
            assert response.body == expected
        seen += [event.scn for event in walk(response.body) if event.is_eop]
        if response.is_caught_up or response.resume is None:
            return seen
        checkpoint = Checkpoint.at(response.resume[0])
        follow.came_to = response.resume[0]  # type: ignore[attr-defined]


def test_no_byte_of_a_damaged_window_is_given_out_and_none_is_jumped(path: Path) -> None:
    chosen = random.Random(5)
    whole = path.read_bytes()
    for _ in range(FLIPS):
        path.write_bytes(whole)
        flip(path, old_byte(path, chosen.random()), 1 << chosen.randrange(8))
        with opened(path) as reader:
            with pytest.raises(DamagedWindowsError) as caught:
                follow(reader, 0)
            after, until = caught.value.scn, caught.value.until
            assert follow.came_to == after  # type: ignore[attr-defined]
            assert follow(reader, until) == list(range(until + 1, LAST + 1))
            for scn in {after, (after + until) // 2, until - 1}:
                with pytest.raises(DamagedWindowsError):
                    follow(reader, scn)


@pytest.mark.parametrize(
    "selected", [{"filters": {40: ModFilter(2, 0, 1)}}, {"src_ids": frozenset({41})}]
)
def test_a_request_that_looks_at_each_event_ends_before_the_damage(
    path: Path, selected: dict[str, Any]
) -> None:
    flip(path, old_byte(path, 0.6))
    with opened(path) as reader:
        with pytest.raises(DamagedWindowsError) as caught:
            follow(reader, 0, **selected)
        assert follow.came_to == caught.value.scn  # type: ignore[attr-defined]
        until = caught.value.until
        assert follow(reader, until, **selected) == list(range(until + 1, LAST + 1))


def test_who_asks_for_the_oldest_is_told_and_does_not_wait_for_ever(path: Path) -> None:
    flip(path, old_byte(path, 0.0) + 60)
    with opened(path) as reader:
        with pytest.raises(DamagedWindowsError, match="damaged at byte"):
            follow(reader, None)
        selections = {"sources": "shop.orders", "rows": "100000"}
        catalog = Catalog({"shop.orders": 40}, {"shop": ("shop.orders",)})
        request = parse_measure_request(selections, catalog, HttpSettings())
        job = MeasureJob(reader, request)
        with pytest.raises(DamagedWindowsError):
            deque(iter(job.step, 0), maxlen=0)


def test_the_error_names_the_file_the_windows_and_the_ways_on(path: Path) -> None:
    at = old_byte(path, 0.4)
    flip(path, at)
    with opened(path) as reader, pytest.raises(ScnNotFoundError) as caught:
        follow(reader, 0)
    text = str(caught.value)
    assert isinstance(caught.value, DamagedWindowsError)
    for part in (str(path), f"after scn {caught.value.scn}", "bootstrap server", "/restart"):
        assert part in text


def test_what_came_to_harm_after_it_was_written_is_found_and_refused(path: Path) -> None:
    with opened(path) as reader:
        assert follow(reader, 0) == list(range(1, LAST + 1))
        extent = reader.extent()
        ring_file = reader._file
        at = ring_file.data_at + extent.tail - 100
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff\xff\xff\xff")
        for number in range(extent.first, extent.end):
            reader.check.check_block(number)
        (damage,) = reader.check.damages()
        with pytest.raises(DamagedWindowsError):
            follow(reader, 0)
        assert follow.came_to == damage.after_scn  # type: ignore[attr-defined]


def test_what_was_checked_before_a_restart_is_checked_again_after_it(path: Path) -> None:
    with closing(RingReader.open(path)) as reader:
        assert follow(reader, 0) == list(range(1, LAST + 1))
        flip(path, old_byte(path, 0.5))
        with opened(path), pytest.raises(DamagedWindowsError):
            follow(reader, 0)


def test_the_time_of_a_damaged_window_is_not_known(path: Path) -> None:
    flip(path, old_byte(path, 0.0) + 60)
    with opened(path) as reader:
        assert reader.first_timestamp_ns == 0
        assert reader.timestamp_at(reader.head) == 0


def test_no_block_is_chosen_by_the_time_of_one_that_is_damaged(path: Path) -> None:
    with opened(path) as reader:
        extent, data_at = reader.extent(), reader._file.data_at
        entries = [reader._index.get(number) for number in range(extent.first, extent.end - 4)]
        times = [entry.scn * 1000 for entry in entries if entry is not None]
        assert [reader.block_before(at_ns + 1) for at_ns in times] == entries
        assert [reader.block_before(at_ns) for at_ns in times[1:]] == entries[:-1]
        assert reader.block_before(0) == entries[0]
    whole = path.read_bytes()
    for entry in entries[1::3]:
        assert entry is not None
        path.write_bytes(whole)
        flip(path, data_at + entry.position + V2.timestamp_ns.offset)
        with opened(path) as reader, pytest.raises(DamagedWindowsError):
            reader.block_before(entry.scn * 1000 + 1)


def test_what_was_checked_once_is_not_checked_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as reader:
        looked: list[int] = []
        look = RingCheck._verify

        def note(check: RingCheck, block: Block) -> None:
            looked.append(block.number)
            look(check, block)

        monkeypatch.setattr(RingCheck, "_verify", note)
        assert follow(reader, 0) == follow(reader, 0)
        extent = reader.extent()
        assert looked == list(range(extent.first, extent.end))


def test_a_ring_made_smaller_begins_behind_the_damage(path: Path) -> None:
    flip(path, old_byte(path, 0.5))
    Ring.open(path, "shop", 2 * CAPACITY).close()
    ring = Ring.open(path, "shop", 2 * CAPACITY)
    reader = RingReader.open(path)
    try:
        assert ring.prev_scn > 0
        assert follow(reader, ring.prev_scn) == list(range(ring.prev_scn + 1, LAST + 1))
        with pytest.raises(ScnNotFoundError):
            follow(reader, 0)
    finally:
        reader.close()
        ring.close()
