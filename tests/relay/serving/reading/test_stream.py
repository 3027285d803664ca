from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.registry.registry import SchemaRegistry
from databus.registry.store import MemoryStore
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.ring import reader as ring_reader
from databus.relay.ring.events import find_event
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import UNKNOWN_SCN, EncodedWindow, Ring
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading import stream
from databus.relay.serving.reading.multi_source_stream import MultiSourceJob, MultiSourceResponse
from databus.relay.serving.reading.stream import StreamJob, run
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import OtherLogError, ScnNotFoundError
from databus.schemas.event import v1 as event_v1
from databus.schemas.event.control import ddl_event, dml_event
from databus.schemas.event.event import Event, Opcode
from databus.schemas.event.v2 import encode
from databus.schemas.filters import ModFilter, RangeFilter
from databus.schemas.rendering import (
    AnswerForm,
    Output,
    Render,
    choose_render,
    render_version_1,
)
from databus.schemas.stream.stream_reader import walk
from tests.relay.fakes import ORDERS, PERSON, insert, transaction
from tests.relay.ring.model import make_event, make_window

pytestmark = pytest.mark.usefixtures("way")

FLEXIBLE = Checkpoint.flexible()


class Rings:
    """Makes rings and closes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: list[Ring | RingReader] = []

    def make(
        self, name: str = "a", capacity_bytes: int = 1 << 20, start_scn: int = 0
    ) -> tuple[Ring, RingReader]:
        path = self._folder / f"{name}.ring"
        ring = Ring.open(path, name, capacity_bytes, start_scn=start_scn)
        reader = RingReader.open(path)
        self._opened += [reader, ring]
        return ring, reader

    def close(self) -> None:
        for opened in self._opened:
            opened.close()


@pytest.fixture
def rings(tmp_path: Path) -> Iterator[Rings]:
    made = Rings(tmp_path)
    yield made
    made.close()


class TwoReaders:
    """A reader whose ring becomes another one."""

    def __init__(self, *readers: RingReader) -> None:
        self._readers = readers
        self.opening = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._readers[self.opening], name)


def job(
    reader: RingReader,
    checkpoint: Checkpoint = FLEXIBLE,
    size: int = 1 << 20,
    render: Render | None = None,
    **selected: Any,
) -> StreamJob:
    return StreamJob(reader, Selection("a", checkpoint, **selected), size, render)


def inside(scn: int, offset: int) -> Checkpoint:
    """Return where who has read so many events of a window goes on."""
    return Checkpoint.from_json(
        json.dumps(
            {
                "consumption_mode": "ONLINE_CONSUMPTION",
                "windowScn": scn,
                "windowOffset": offset,
            }
        )
    )


def test_everything_is_copied_straight_out_of_the_ring(rings: Rings) -> None:
    ring, reader = rings.make()
    windows = [make_window(scn) for scn in range(1, 50)]
    ring.append(windows)
    response = run(job(reader))
    assert response.body == b"".join(w.data for w in windows)
    assert response.resume == (49, -1)


def test_an_empty_ring_of_an_unknown_start_has_come_to_scn_0(rings: Rings) -> None:
    _, reader = rings.make(start_scn=UNKNOWN_SCN)
    response = run(job(reader, Checkpoint.at(0)))
    assert (response.is_ahead, response.is_caught_up) == (False, True)
    assert run(job(reader, Checkpoint.at(1))).is_ahead


def test_only_whole_windows_are_copied(rings: Rings) -> None:
    ring, reader = rings.make()
    windows = [make_window(scn) for scn in range(1, 50)]
    ring.append(windows)
    size = sum(len(w.data) for w in windows[:10]) + 20
    response = run(job(reader, size=size))
    assert response.body == b"".join(w.data for w in windows[:10])
    assert response.resume == (10, -1)


def test_reading_goes_on_after_the_window_of_the_checkpoint(rings: Rings) -> None:
    ring, reader = rings.make()
    windows = [make_window(scn) for scn in (3, 5, 8)]
    ring.append(windows)
    assert run(job(reader, Checkpoint.at(3))).body == windows[1].data + windows[2].data
    assert run(job(reader, Checkpoint.at(6))).body == windows[2].data


EVERY_ROW = {40: RangeFilter(0, 1 << 62)}  # nothing is left out, and each event is looked at


@pytest.mark.parametrize("filters", [{}, EVERY_ROW], ids=["copied", "walked"])
@pytest.mark.parametrize("size", [400, 1 << 20])
def test_reading_ends_with_the_window_that_it_is_told_to_end_with(
    rings: Rings, filters: dict[int, Any], size: int
) -> None:
    ring, reader = rings.make()
    windows = [make_window(scn) for scn in range(1, 50)]
    ring.append(windows)
    scn, got = 3, b""
    while scn < 40:
        response = run(job(reader, Checkpoint.at(scn), size=size, filters=filters, until_scn=40))
        assert response.resume is not None
        assert scn < response.resume[0] <= 40
        scn, got = response.resume[0], got + response.body
    assert got == b"".join(w.data for w in windows[3:40])
    for checkpoint in (Checkpoint.at(40), Checkpoint.at(41)):
        response = run(job(reader, checkpoint, filters=filters, until_scn=40))
        assert (response.body, response.resume) == (b"", (40, -1))


@pytest.mark.parametrize("filters", [{}, EVERY_ROW], ids=["copied", "walked"])
def test_the_oldest_is_read_up_to_any_end_that_is_held_and_not_to_one_that_is_gone(
    rings: Rings, filters: dict[int, Any]
) -> None:
    ring, reader = rings.make(capacity_bytes=4000)
    windows = [make_window(scn, [100]) for scn in range(300, 350)]
    ring.append(windows)
    held = [window for window in windows if window.scn > ring.prev_scn]
    assert 3 < len(held) < 50
    for number, last in enumerate(held, 1):
        response = run(job(reader, filters=filters, until_scn=last.scn))
        assert response.body == b"".join(window.data for window in held[:number])
        assert (response.resume, response.is_caught_up) == ((last.scn, -1), False)
    for gone in (ring.prev_scn, ring.prev_scn - 1):
        with pytest.raises(ScnNotFoundError):
            run(job(reader, filters=filters, until_scn=gone))


def test_an_end_that_is_yet_to_come_is_waited_for(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(1)])
    response = run(job(reader, until_scn=9))
    assert (response.body, response.resume) == (make_window(1).data, (1, -1))
    response = run(job(reader, Checkpoint.at(1), until_scn=9))
    assert response.is_caught_up


def test_who_is_past_the_end_is_done_though_the_ring_has_not_come_so_far(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(scn) for scn in range(1, 50)])
    response = run(job(reader, Checkpoint.at(60), until_scn=40))
    assert (response.resume, response.is_caught_up) == ((40, -1), False)
    assert run(job(reader, Checkpoint.at(60), until_scn=61)).is_caught_up


def test_an_end_before_the_oldest_window_is_gone(rings: Rings) -> None:
    ring, reader = rings.make(capacity_bytes=3000)
    ring.append([make_window(scn, [100]) for scn in range(1, 50)])
    with pytest.raises(ScnNotFoundError):
        run(job(reader, until_scn=3))


def test_a_request_begins_where_its_checkpoint_is(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(scn) for scn in range(1, 5)])
    for checkpoint, begin in ((FLEXIBLE, None), (Checkpoint.at(2), (2, -1))):
        asked = job(reader, checkpoint)
        assert asked.position is None
        asked.start()
        place = reader.head if begin is None else reader.find(*begin)
        assert (asked.begin, asked.position) == (begin, place)
    asked = job(reader, from_latest=True)
    asked.start()
    assert (asked.begin, asked.position) == ((4, -1), reader.tail)
    asked = job(reader, Checkpoint.at(9))
    asked.start()
    assert (asked.begin, asked.position) == ((9, -1), None)


def test_what_comes_next_is_known_once_the_place_is_found_and_something_lies_there(
    rings: Rings,
) -> None:
    ring, reader = rings.make(capacity_bytes=4000)
    ring.append([make_window(scn) for scn in range(1, 5)])
    for scn in range(4):
        asked = job(reader, Checkpoint.at(scn))
        assert asked.next_event() is None
        asked.start()
        following = asked.next_event()
        assert following is not None
        assert following.scn == scn + 1
    ring.append([make_window(scn) for scn in range(5, 60)])
    assert asked.next_event() is None, "the writer has come by"
    for scn in (59, 60, 70):
        asked = job(reader, Checkpoint.at(scn))
        asked.start()
        assert asked.next_event() is None


def test_only_who_has_read_a_part_of_a_window_is_inside_it(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(1), make_window(2, [10] * 4)])
    for offset in (0, 1, 3):
        asked = job(reader, inside(2, offset))
        asked.start()
        assert asked.is_inside_window == (offset > 0)
    for checkpoint in (FLEXIBLE, Checkpoint.at(1), Checkpoint.at(2), Checkpoint.at(9)):
        asked = job(reader, checkpoint)
        asked.start()
        assert not asked.is_inside_window


def test_few_windows_are_looked_at_in_one_step(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(scn) for scn in range(1, 50)])
    asked = job(reader, filters=EVERY_ROW)
    asked.start()
    assert asked.step() is None
    response = asked.step()
    assert response is not None
    assert response.resume == (49, -1)


def test_a_request_whose_ring_is_emptied_meanwhile_is_answered_from_the_new_one(
    rings: Rings,
) -> None:
    ring, old = rings.make()
    ring.append([make_window(scn) for scn in range(1, 50)])
    other, new = rings.make("b", start_scn=49)
    other.append([make_window(50)])
    reader = TwoReaders(old, new)
    asked = job(reader, Checkpoint.at(49))  # type: ignore[arg-type]
    asked.start()
    reader.opening = 1
    steps = [asked.step() for _ in range(3)]
    (response,) = {step.body for step in steps if step is not None}
    assert response == make_window(50).data


def test_a_window_larger_than_size_is_cut_at_an_event_and_continued(rings: Rings) -> None:
    ring, reader = rings.make()
    window = make_window(7, [100] * 10)
    ring.append([window])
    checkpoint, got, positions = FLEXIBLE, b"", []
    for _ in range(20):
        response = run(job(reader, checkpoint, size=500))
        if response.is_caught_up:
            break
        assert len(response.body) <= 500
        assert response.resume is not None
        got += response.body
        positions.append(response.resume)
        checkpoint = inside(*response.resume)
    assert got == window.data
    assert positions[0] == (7, 2)
    assert positions[-1] == (7, -1)


def test_the_offset_of_a_cut_window_counts_events_that_the_filter_left_out(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(7, [100] * 30)])  # keys 0 … 29
    filters = {40: ModFilter(10, 9, 10)}  # 9, 19, 29
    response = run(job(reader, size=200, filters=filters))
    assert [event.key for event in walk(response.body)] == [9]
    assert response.resume == (7, 19)


def test_an_event_larger_than_size_is_told_and_not_sent(rings: Rings) -> None:
    ring, reader = rings.make()
    window = make_window(7, [400])
    ring.append([window])
    response = run(job(reader, size=300))
    assert response.body == b""
    assert response.pending_event_bytes == next(len(window.data) - 53 for _ in walk(window.data))
    assert not response.is_caught_up
    assert run(job(reader, size=response.pending_event_bytes)).resume == (7, 1)


def test_an_event_larger_than_size_does_not_matter_when_it_is_filtered_out(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(7, [4000, 20])])
    response = run(job(reader, size=300, filters={40: ModFilter(2, 1, 2)}))
    assert [event.key for event in walk(response.body)] == [1, 0]


def ddl_window(scn: int) -> EncodedWindow:
    window = make_window(scn, [20, 30])
    make = dml_event if scn % 3 == 0 else ddl_event
    ddl = encode(make(scn, scn * 1000, 0, ("shop.person",), "shop", "ALTER TABLE person …"))
    return window._replace(data=ddl + window.data)


def test_ddl_goes_to_who_asks_for_it_only(rings: Rings) -> None:
    ring, reader = rings.make()
    windows = [make_window(5), ddl_window(7), ddl_window(9)]
    ring.append(windows)
    all_bytes = b"".join(window.data for window in windows)
    without = b"".join(make_window(scn, [20, 30]).data for scn in (5, 7, 9))
    assert run(job(reader, wants_ddl=True)).body == all_bytes
    for _ in range(2):  # what is known of the ring's bytes after the first time changes nothing
        assert run(job(reader)).body == without
        assert run(job(reader, Checkpoint.at(7))).body == make_window(9).data
        assert run(job(reader, Checkpoint.at(5))).body == without[len(windows[0].data) :]


def test_the_offset_of_a_cut_window_counts_ddl_that_was_left_out(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([ddl_window(7)])
    response = run(job(reader, size=120))
    assert [event.key for event in walk(response.body)] == [0]
    assert response.resume == (7, 2)


@pytest.mark.parametrize("wanted", [ModFilter(4, 3, 4), RangeFilter(100, 200)])
def test_an_emptied_table_passes_every_key_filter_of_its_source(
    rings: Rings, wanted: ModFilter | RangeFilter
) -> None:
    ring, reader = rings.make()
    emptied = encode(Event(7, 7000, 40, 0, b"", Opcode.DELETE, None, None))
    eop = make_window(7, []).data
    ring.append([EncodedWindow(7, emptied + eop, 7000)])
    assert run(job(reader, filters={40: wanted})).body == emptied + eop
    assert run(job(reader, src_ids=frozenset({41}), filters={40: wanted})).body == eop


def step_by(size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEP_BYTES", "COMPILED_STEP_BYTES"):
        monkeypatch.setattr(stream, name, size_bytes)


def test_an_event_larger_than_a_step_is_sent(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    step_by(512 << 10, monkeypatch)
    ring, reader = rings.make(capacity_bytes=8 << 20)
    window = make_window(7, [stream.STEP_BYTES + 1000])
    ring.append([window])
    response = run(job(reader, size=4 << 20, src_ids=frozenset({40})))
    assert response.body == window.data


@pytest.mark.parametrize("filters", [{}, EVERY_ROW], ids=["copied", "walked"])
def test_nothing_new_is_an_empty_answer_that_may_be_held(
    rings: Rings, filters: dict[int, Any]
) -> None:
    ring, reader = rings.make()
    ring.append([make_window(1)])
    response = run(job(reader, Checkpoint.at(1), filters=filters))
    assert (response.body, response.resume, response.is_caught_up) == (b"", (1, -1), True)
    assert not response.is_ahead


def test_an_empty_ring_is_not_ahead_of_anybody(rings: Rings) -> None:
    _, reader = rings.make()
    for checkpoint in (FLEXIBLE, Checkpoint.at(0)):
        response = run(job(reader, checkpoint))
        assert (response.body, response.is_caught_up, response.is_ahead) == (b"", True, False)


def test_a_point_newer_than_the_newest_window_is_said_to_be_ahead(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(1)])
    asked = job(reader, Checkpoint.at(5))
    assert run(asked).is_ahead
    ring.append([make_window(5), make_window(6)])
    assert run(asked).body == make_window(6).data


def test_the_latest_is_what_comes_after_the_request(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(1)])
    asked = job(reader, from_latest=True)
    first = run(asked)
    assert (first.body, first.resume) == (b"", (1, -1))
    ring.append([make_window(2)])
    assert run(asked).body == make_window(2).data


def test_the_latest_of_a_ring_that_never_held_a_window_is_all_that_will_come(rings: Rings) -> None:
    ring, reader = rings.make(start_scn=UNKNOWN_SCN)
    first = run(job(reader, from_latest=True))
    assert (first.body, first.resume, first.is_ahead) == (b"", (-1, -1), False)
    ring.append([make_window(1)])
    assert run(job(reader, FLEXIBLE)).body == make_window(1).data


def test_an_evicted_point_is_not_found(rings: Rings) -> None:
    ring, reader = rings.make(capacity_bytes=4096)
    for scn in range(1, 100):
        ring.append([make_window(scn, [100])])
    with pytest.raises(ScnNotFoundError):
        run(job(reader, Checkpoint.at(5)))


def test_a_flexible_read_overtaken_by_the_writer_starts_again_at_the_oldest(rings: Rings) -> None:
    ring, reader = rings.make(capacity_bytes=4096)
    ring.append([make_window(scn, [100]) for scn in range(1, 10)])
    asked = job(reader)
    asked.start()
    ring.append([make_window(scn, [100]) for scn in range(10, 100)])
    response = asked.step() or asked.step()
    assert response is not None
    assert next(walk(response.body)).scn == reader.min_scn


def test_a_held_read_overtaken_by_the_writer_gets_scn_not_found(rings: Rings) -> None:
    ring, reader = rings.make(capacity_bytes=4096)
    ring.append([make_window(1)])
    asked = job(reader, Checkpoint.at(1))
    assert run(asked).is_caught_up
    ring.append([make_window(scn, [100]) for scn in range(10, 100)])
    with pytest.raises(ScnNotFoundError):
        run(asked)


def test_whole_windows_found_before_the_writer_came_by_are_sent(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_by(400, monkeypatch)
    ring, reader = rings.make(capacity_bytes=4096)
    ring.append([make_window(scn, [100]) for scn in range(1, 10)])
    asked = job(reader, Checkpoint.at(0), src_ids=frozenset({40}))
    asked.start()
    assert asked.step() is None
    ring.append([make_window(scn, [100]) for scn in range(10, 100)])
    response = asked.step()
    assert response is not None
    assert response.body.startswith(make_window(1, [100]).data)
    assert response.resume is not None
    assert response.resume[1] == -1


def test_windows_cleared_of_ddl_before_the_writer_came_by_are_sent(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_by(600, monkeypatch)
    ring, reader = rings.make(capacity_bytes=4096)
    ring.append([ddl_window(scn) for scn in range(1, 6)])
    asked = job(reader, Checkpoint.at(0))
    asked.start()
    assert asked.step() is None
    ring.append([make_window(scn, [100]) for scn in range(10, 100)])
    response = asked.step()
    assert response is not None
    assert response.body.startswith(make_window(1, [20, 30]).data)


def test_where_sent_windows_end_is_known_to_whoever_goes_on_there(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reader = rings.make()
    ring.append([make_window(scn) for scn in range(1, 50)])
    size = sum(len(make_window(scn).data) for scn in range(1, 21))
    response = run(job(reader, size=size))
    walked = []

    def walk(file: Any, position: int, *asked: Any) -> tuple[int, int]:
        walked.append(position)
        return find_event(file, position, *asked)

    monkeypatch.setattr(ring_reader, "find_event", walk)
    assert reader.find(20, -1) == len(response.body)
    assert walked == [len(response.body)]


def test_a_long_look_without_a_match_ends_and_says_how_far_it_got(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_by(1000, monkeypatch)
    monkeypatch.setattr(stream, "MAX_SCAN_BYTES", 5000)
    ring, reader = rings.make()
    ring.append([make_window(7, [100] * 200)])
    response = run(job(reader, src_ids=frozenset({99})))
    assert response.body == b""
    assert not response.is_caught_up
    assert response.resume is not None
    assert response.resume[0] == 7
    assert 20 < response.resume[1] < 40
    events = len(make_event(7, 1, 100))
    assert response.resume[1] == 5 * (1000 // events + 1)


def test_sources_left_out_still_move_the_position(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(scn) for scn in range(1, 5)])
    response = run(job(reader, src_ids=frozenset({41})))
    assert [event.is_eop for event in walk(response.body)] == [True] * 4
    assert response.resume == (4, -1)


def test_version_1_has_the_same_events(rings: Rings) -> None:
    ring, reader = rings.make()
    windows = [make_window(scn) for scn in range(1, 9)]
    ring.append(windows)
    response = run(job(reader, render=render_version_1))
    old, new = list(walk(response.body)), list(walk(b"".join(w.data for w in windows)))
    assert [(e.scn, e.key, e.value, e.schema_id) for e in old] == [
        (e.scn, e.key, e.value, e.schema_id) for e in new
    ]
    assert event_v1.decode(response.body)[0].scn == 1
    assert response.resume == (8, -1)


@pytest.fixture
def encoded(rings: Rings) -> tuple[RingReader, SchemaRegistry]:
    ring, reader = rings.make()
    registry = SchemaRegistry(MemoryStore())
    registry.add_source(PERSON.source, 1)
    registry.add_source(ORDERS.source, 2)
    encoder = WindowEncoder(registry, {PERSON.source: 1, ORDERS.source: 2})
    ring.append([encoder.encode(transaction(5, insert(1, "Ann"), insert(2, "tea", ORDERS)))])
    return reader, registry


def render(output: Output, registry: SchemaRegistry) -> Callable[[bytes], bytes] | None:
    return choose_render(AnswerForm(1, output, 2), lambda schema_id: registry.by_id(schema_id).text)


def test_json_has_a_line_for_each_event(encoded: tuple[RingReader, SchemaRegistry]) -> None:
    reader, registry = encoded
    response = run(job(reader, render=render(Output.JSON, registry)))
    lines = [json.loads(line) for line in response.body.splitlines()]
    assert [line["srcId"] for line in lines] == [1, 2, -2]
    assert lines[2]["endOfPeriod"] is True


def test_json_plain_value_has_the_rows(encoded: tuple[RingReader, SchemaRegistry]) -> None:
    reader, registry = encoded
    response = run(job(reader, render=render(Output.JSON_PLAIN_VALUE, registry)))
    lines = [json.loads(line) for line in response.body.splitlines()]
    assert lines[0]["value"] == {"id": 1, "name": "Ann"}
    assert lines[1]["value"] == {"id": 2, "note": "tea"}


def run_together(jobs: list[StreamJob], size: int) -> MultiSourceResponse:
    together = MultiSourceJob(jobs, size)
    together.start()
    while (response := together.step()) is None:
        pass
    return response


def of(name: str, reader: RingReader, checkpoint: Checkpoint = FLEXIBLE) -> StreamJob:
    return StreamJob(reader, Selection(name, checkpoint), 1 << 20, None)


def test_the_windows_of_two_physical_sources_stand_one_source_after_the_other(
    rings: Rings,
) -> None:
    (ring_a, a), (ring_b, b) = rings.make("a"), rings.make("b")
    ring_a.append([make_window(5), make_window(6)])
    ring_b.append([make_window(3)])
    response = run_together([of("a", a), of("b", b)], 1 << 20)
    # b first: its next window is the older one.
    assert response.body == make_window(3).data + make_window(5).data + make_window(6).data
    assert response.resume == {"a": (6, -1), "b": (3, -1)}


def test_a_cut_window_is_followed_by_no_other_source_and_goes_on_first(rings: Rings) -> None:
    (ring_a, a), (ring_b, b) = rings.make("a"), rings.make("b")
    big = make_window(9, [100] * 10)
    ring_a.append([big])
    ring_b.append([make_window(20)])
    first = run_together([of("a", a), of("b", b)], 500)
    assert first.resume == {"a": (9, 2)}
    assert big.data.startswith(first.body)
    rest = run_together([of("a", a, inside(9, 2)), of("b", b)], 1 << 20)
    assert first.body + rest.body == big.data + make_window(20).data


def test_a_second_source_is_never_cut(rings: Rings) -> None:
    (ring_a, a), (ring_b, b) = rings.make("a"), rings.make("b")
    ring_a.append([make_window(1, [10])])
    ring_b.append([make_window(2, [300] * 5)])
    response = run_together([of("a", a), of("b", b)], 1000)
    assert response.body == make_window(1, [10]).data
    assert response.resume == {"a": (1, -1)}


def test_several_sources_with_nothing_new_may_be_held(rings: Rings) -> None:
    (_, a), (_, b) = rings.make("a"), rings.make("b")
    response = run_together([of("a", a), of("b", b)], 1000)
    assert response.is_caught_up
    assert not response.body


def marked(scn: int, at: int, timestamp_ns: int) -> Checkpoint:
    """Return where who has rows of window `at`, committed at a time, goes on after window `scn`."""
    return Checkpoint.at(scn).with_mark((at, timestamp_ns))


def test_a_window_that_a_consumer_has_rows_of_proves_that_the_log_is_the_same(rings: Rings) -> None:
    ring, reader = rings.make()
    ring.append([make_window(scn) for scn in range(10, 100, 10)])
    for scn in range(10, 100, 10):
        for after in (scn, 90):
            assert run(job(reader, marked(after, scn, scn * 1000))).resume == (90, -1)
        for other in ((scn, scn * 1000 + 1), (scn - 1, scn * 1000), (scn + 1, scn * 1000)):
            if 10 <= other[0] <= 90:
                with pytest.raises(OtherLogError, match=f"rows of window {other[0]}, committed at"):
                    run(job(reader, marked(90, *other)))


def test_a_window_that_the_ring_does_not_hold_proves_nothing(rings: Rings) -> None:
    ring, reader = rings.make(start_scn=5)
    assert not run(job(reader, marked(5, 4, 77))).body
    ring.append([make_window(scn) for scn in range(10, 100, 10)])
    assert run(job(reader, marked(5, 5, 77))).body  # evicted
    assert run(job(reader, marked(95, 95, 77))).is_ahead  # not here yet
