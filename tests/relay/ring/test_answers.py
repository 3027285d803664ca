"""What a ring's reader answers at its edges: damage, a writer that comes by, what it looked at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from databus.relay.ring import event_selector, reader as ring_reader
from databus.relay.ring.layout import FIRST, MASK, NEXT, TAIL
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.ring.row_count import Limits, RowCount
from databus.schemas.errors import (
    DamagedWindowsError,
    ProtocolError,
    RingCorruptError,
    ScnNotFoundError,
)
from databus.schemas.event.control import ddl_event
from databus.schemas.event.v2 import encode
from tests.relay.instructions import looks_at_each_instruction
from tests.relay.ring.model import make_window

pytestmark = pytest.mark.usefixtures("way")

CAPACITY = 4000
WRITER_MODULES = tuple(f"databus.relay.ring.{name}" for name in ("ring", "layout", "scn_index"))
ONE = len(make_window(1).data)
NOTHING: Any = None  # what the function that would ask for it is replaced


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.ring"


@pytest.fixture
def ring(path: Path) -> Iterator[Ring]:
    opened = Ring.open(path, "shop", CAPACITY, 256, start_scn=0)
    yield opened
    opened.close()


@pytest.fixture
def reader(ring: Ring, path: Path) -> Iterator[RingReader]:
    opened = RingReader.open(path)
    yield opened
    opened.close()


class Way(NamedTuple):
    """A question that walks through windows, by which function, and the answer when overtaken."""

    function: str
    ask: Callable[[RingReader, int], object]
    overtaken: Callable[[RingReader, int], object] | None = None  # None: it is not found


WAYS = {
    "find": Way("find_event", lambda reader, at: reader.find(at // ONE + 1, 1)),
    "select": Way(
        "select_events", lambda reader, at: reader.select(at, 100, NOTHING, NOTHING, 100)
    ),
    "count": Way(
        "count_rows",
        lambda reader, at: reader.count(RowCount(at), 100, reader.tail, NOTHING, Limits()),
    ),
    "end": Way("last_end", lambda reader, at: reader.end_of_windows(at, 40), lambda _, at: at),
    "newest": Way("steps", lambda reader, _: reader.newest(), lambda reader, _: (59, reader.tail)),
}


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("way_to_ask", WAYS.values(), ids=WAYS)
def test_harm_on_the_way_is_damage_unless_the_writer_came_by_meanwhile(
    ring: Ring, reader: RingReader, monkeypatch: pytest.MonkeyPatch, way_to_ask: Way, window: int
) -> None:
    ring.append([make_window(1), make_window(2)])
    position = (window - 1) * ONE
    walk = getattr(ring_reader, way_to_ask.function)
    walks: list[int] = []

    def stop_publishing() -> None:
        ring._cells[TAIL + 1] = (ring.tail + 200) ^ MASK  # `newest` has to walk then

    def meet_damage(*_asked: Any) -> None:
        walks.append(1)
        assert len(walks) == 1, "it does not go away by asking again"
        raise ProtocolError("a CRC is wrong")

    def be_overtaken(*asked: Any) -> object:
        walks.append(1)
        if len(walks) > 1:
            return walk(*asked)
        ring.append([make_window(scn) for scn in range(3, 60)])
        raise ProtocolError("a CRC is wrong")

    stop_publishing()
    monkeypatch.setattr(ring_reader, way_to_ask.function, meet_damage)
    with pytest.raises(RingCorruptError, match="a CRC is wrong"):
        way_to_ask.ask(reader, position)
    walks.clear()
    monkeypatch.setattr(ring_reader, way_to_ask.function, be_overtaken)
    if way_to_ask.overtaken is None:
        with pytest.raises(ScnNotFoundError):
            way_to_ask.ask(reader, position)
    else:
        answer = way_to_ask.ask(reader, position)
        assert answer == way_to_ask.overtaken(reader, position)
    assert walks


@pytest.mark.parametrize("asked", ["find", "end", "newest"])
def test_harm_done_after_the_writing_is_told_with_the_windows_and_the_ways_on(
    ring: Ring, reader: RingReader, asked: str
) -> None:
    ring.append([make_window(scn) for scn in range(1, 6)])
    position = {"find": ONE, "end": ONE, "newest": 4 * ONE}[asked]
    ring._file.copy_in(position, b"\xff" * 20)
    ring._cells[TAIL + 1] = (ring.tail + 200) ^ MASK
    with pytest.raises(DamagedWindowsError, match="bootstrap server"):
        WAYS[asked].ask(reader, position)


def test_a_ring_that_ends_before_it_begins_is_damaged_not_empty(
    ring: Ring, reader: RingReader
) -> None:
    ring.append([make_window(scn) for scn in range(1, 300)])
    assert ring._cells[FIRST] > 1
    ring._cells[NEXT] = 1
    for ask in (reader.extent, lambda: reader.find(3, -1), lambda: reader.min_scn):
        with pytest.raises(RingCorruptError, match="its index is damaged"):
            ask()


def test_between_any_two_instructions_of_a_writer_the_ring_holds_what_is_published_and_the_rest(
    ring: Ring, reader: RingReader
) -> None:
    """All SCNs follow each other, so that each extent shows whether its parts belong together."""
    for scn in range(1, 40, 3):
        windows = [make_window(scn), make_window(scn + 1, [CAPACITY - 140]), make_window(scn + 2)]
        published = {ring.tail: scn - 1}
        for window in windows:
            published[max(published) + len(window.data)] = window.scn
        looks = looks_at_each_instruction(
            partial(ring.append, windows), reader.extent, WRITER_MODULES
        )
        assert {look.tail for look in looks} == set(published)
        for look in looks:
            if look.head == look.tail:
                assert (look.min_scn, look.prev_scn) == (-1, published[look.tail])
                assert look.first == look.end
            else:
                assert look.prev_scn + 1 == look.min_scn <= published[look.tail]
                assert look.first < look.end
                assert reader._index.begin_of(look.end - 1)[0] < look.tail


@pytest.mark.parametrize("slack_bytes", [0, 300, 1 << 20])
def test_who_has_room_for_all_gets_all_and_nothing_is_walked(
    ring: Ring, reader: RingReader, monkeypatch: pytest.MonkeyPatch, slack_bytes: int
) -> None:
    ring.append([make_window(scn) for scn in range(1, 60)])
    monkeypatch.setattr(ring_reader, "last_end", None)
    for position in range(ring.head, ring.tail + 1, ONE):
        for more in (0, 1, 500):
            room_bytes = ring.tail - position + more
            assert reader.end_of_windows(position, room_bytes, slack_bytes) == ring.tail
    assert reader.end_of_windows(ring.tail + 7, 100, slack_bytes) == ring.tail + 7


def test_where_there_is_no_ddl_is_said_rightly_and_looked_for_once(
    ring: Ring, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model: one stretch is known, which grows with what touches it, or else is replaced."""
    with_ddl = {4, 11}
    chosen, looked, starts, data = random.Random(3), [0], [0], []
    for scn in range(16):
        ddl = encode(ddl_event(scn + 1, 7, 0, ("shop.person",), "shop", "ALTER TABLE person"))
        data.append((ddl if scn in with_ddl else b"") + make_window(scn + 1).data)
        starts.append(starts[-1] + len(data[-1]))

    def look(windows: bytes) -> bool:
        looked[0] += 1
        return event_selector.has_optional(windows)

    monkeypatch.setattr(ring_reader, "has_optional", look)
    for _ in range(40):
        reader = RingReader.open(path)
        low = high = 0
        for _ in range(12):
            begin, end = sorted(chosen.sample(range(17), 2))
            looked[0], has_ddl = 0, not with_ddl.isdisjoint(range(begin, end))
            assert reader.has_optional(starts[begin], b"".join(data[begin:end])) == has_ddl
            assert looked[0] == (not (low <= begin and end <= high))
            if not has_ddl:
                touches = begin <= high and low <= end
                low, high = (min(low, begin), max(high, end)) if touches else (begin, end)
        reader.close()


def test_what_was_known_to_have_no_ddl_is_forgotten_when_a_restarted_writer_wrote_it_anew(
    ring: Ring, reader: RingReader, path: Path
) -> None:
    ring.append([make_window(1)])
    assert not reader.has_optional(0, make_window(1).data)
    ring.close()
    ring = Ring.open(path, "shop", CAPACITY, 256)
    assert reader.find(1, -1) == ring.tail
    ddl = encode(ddl_event(1, 7, 0, ("shop.person",), "shop", "ALTER TABLE person"))
    try:
        assert reader.has_optional(0, ddl[:ONE])
    finally:
        ring.close()
