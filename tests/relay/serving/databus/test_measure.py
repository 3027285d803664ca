"""Measuring against a plain list, and against what the stream then brings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from databus.relay.ring.event_selector import EventSelector
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import UNKNOWN_SCN, EncodedWindow, Ring
from databus.relay.ring.row_count import Limits, RowCount
from databus.relay.ring.selection import Selection
from databus.relay.serving.databus import measure
from databus.relay.serving.databus.measure import BACK_NS, Measured, MeasureJob
from databus.relay.serving.databus.parameters import MeasureRequest
from databus.relay.serving.reading.stream import StreamJob, run
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.control import ddl_event, end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from databus.schemas.filters import EventFilter, ModFilter, PartitionFilter, RangeFilter
from databus.schemas.scn import MAX_SCN
from databus.schemas.stream.stream_reader import walk
from tests.relay.ring.compiled import WAYS, ring_work

FLEXIBLE = Checkpoint.flexible()
MINUTE_NS = 60 * 10**9


class Window(NamedTuple):
    """A window of the list: what is sent of it, EOP and all."""

    scn: int
    timestamp_ns: int
    events: list[Event]

    def encode(self) -> EncodedWindow:
        return EncodedWindow(self.scn, b"".join(map(encode, self.events)), self.timestamp_ns)


def make_window(scn: int, rows: Sequence[tuple[int, int]], at_ns: int | None = None) -> Window:
    """Return a window of rows (src_id, key): 0 is a DDL statement, key -1 an emptied table."""
    time_ns = scn * 1000 if at_ns is None else at_ns
    events = [_make_event(scn, time_ns, src_id, key) for src_id, key in rows]
    return Window(scn, time_ns, [*events, end_of_period(scn, time_ns)])


def _make_event(scn: int, time_ns: int, src_id: int, key: int) -> Event:
    if src_id == 0:
        return ddl_event(scn, time_ns, 0, (), "", "DROP TABLE t")
    if key == -1:
        return Event(scn, time_ns, src_id, 0, b"", Opcode.DELETE, None, None)
    name = key if key % 3 else b"%d" % key
    row = Part(bytes(key), b"m" * 16, 1)
    return Event(scn, time_ns, src_id, 0, name, Opcode.UPSERT, row, None)


@contextmanager
def make_ring(
    windows: Sequence[Window] = (), capacity_bytes: int = 1 << 20, start_scn: int = 0
) -> Iterator[tuple[Ring, RingReader]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.ring"
        ring = Ring.open(path, "a", capacity_bytes, block_bytes=256, start_scn=start_scn)
        reader = RingReader.open(path)
        try:
            ring.append([window.encode() for window in windows])
            yield ring, reader
        finally:
            reader.close()
            ring.close()


def job(
    reader: RingReader,
    checkpoint: Checkpoint = FLEXIBLE,
    since_ns: int | None = None,
    limits: Limits | None = None,
    **selected: Any,
) -> MeasureJob:
    selection = Selection("a", checkpoint, **selected)
    chosen = limits or Limits()
    request = MeasureRequest(selection, chosen._replace(until_scn=selection.until_scn), since_ns)
    return MeasureJob(reader, request)


def run_job(made: MeasureJob) -> Measured:
    while (found := made.step()) is None:
        pass
    return found


def ask(reader: RingReader, *arguments: Any, **named: Any) -> Measured:
    return run_job(job(reader, *arguments, **named))


# -- against a list ------------------------------------------------------------------------

FILTERS: list[dict[int, EventFilter]] = [
    {},
    {1: ModFilter(3, 0, 1)},
    {1: RangeFilter(0, 20), 2: ModFilter(2, 1, 2)},
    {1: PartitionFilter(3, frozenset((0, 2)))},
]
WINDOWS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 60)), max_size=9),
    ),
    min_size=1,
    max_size=25,
)


def make_windows(shapes: Sequence[tuple[int, list[tuple[int, int]]]]) -> list[Window]:
    scn, windows = 0, []
    for rise, rows in shapes:
        scn += rise
        windows.append(make_window(scn, rows))
    return windows


def rows_of(events: Sequence[Event], selection: Selection) -> list[Event]:
    """Return the events that count."""
    return [event for event in events if not event.is_control and wants(selection, event)]


def wants(selection: Selection, event: Event) -> bool:
    if selection.src_ids is not None and event.src_id not in selection.src_ids:
        return False
    wanted = selection.filters.get(event.src_id)
    return wanted is None or event.key == b"" or wanted.matches(event.key)


def expected(
    windows: Sequence[Window], selection: Selection, limits: Limits
) -> tuple[int, int, int]:
    """Return SCN, rows and bytes of what lies after the selection's checkpoint."""
    begin, offset = selection.checkpoint.window_scn, selection.checkpoint.window_offset
    scn, rows, size = begin, 0, 0
    for window in windows:
        events = window.events
        if window.scn == begin and offset >= 0:
            events = events[offset:]
        elif window.scn <= begin:
            continue
        found = rows_of(events, selection)
        found_bytes = sum(len(encode(event)) for event in found)
        fits = rows + len(found) <= limits.rows and size + found_bytes <= limits.size_bytes
        if window.scn > limits.until_scn or (found and rows and not fits):
            break
        if events:
            scn, rows, size = window.scn, rows + len(found), size + found_bytes
    return scn, rows, size


@pytest.mark.parametrize("way", WAYS)
@given(
    WINDOWS,
    st.data(),
    st.none() | st.frozensets(st.integers(1, 4)),
    st.sampled_from(FILTERS),
    st.builds(
        Limits,
        st.integers(1, 30) | st.just(MAX_SCN),
        st.integers(1, 4000) | st.just(MAX_SCN),
        st.integers(0, 80) | st.just(MAX_SCN),
        before_ns=st.just(MAX_SCN),
    ),
    st.integers(1, 3000),
)
@settings(max_examples=150, deadline=None)
def test_it_is_the_last_window_within_the_limits(
    way: str,
    shapes: list[tuple[int, list[tuple[int, int]]]],
    data: st.DataObject,
    src_ids: frozenset[int] | None,
    filters: dict[int, EventFilter],
    limits: Limits,
    step_bytes: int,
) -> None:
    windows = make_windows(shapes)
    newest = windows[-1].scn
    scn = data.draw(st.integers(0, newest))
    offset = data.draw(st.integers(0, 10) | st.just(-1))
    checkpoint = Checkpoint(ConsumptionMode.ONLINE, scn, offset, prev_scn=scn)
    selection = Selection("a", checkpoint, src_ids, filters, until_scn=max(limits.until_scn, scn))
    limits = limits._replace(until_scn=selection.until_scn)
    with ring_work(way), make_ring(windows) as (_, reader), pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "STEP_BYTES", step_bytes)
        patch.setattr(measure, "COMPILED_STEP_BYTES", step_bytes)
        found = run_job(MeasureJob(reader, MeasureRequest(selection, limits)))
    assert (found.scn, found.rows, found.size_bytes) == expected(windows, selection, limits)
    assert (found.from_scn, found.max_scn, found.is_ahead) == (scn, newest, False)
    times = {window.scn: window.timestamp_ns for window in windows}
    assert found.timestamp_ns in (times.get(found.scn, 0), 0)
    assert found.timestamp_ns or found.scn == scn
    assert found.max_timestamp_ns == times[newest]


@pytest.mark.parametrize("way", WAYS)
@given(
    WINDOWS,
    st.integers(1, 12),
    st.integers(200, 3000),
    st.sampled_from(FILTERS),
    st.sampled_from([None, frozenset({1, 2})]),
)
@settings(max_examples=60, deadline=None)
def test_readings_as_measured_bring_each_event_once(
    way: str,
    shapes: list[tuple[int, list[tuple[int, int]]]],
    rows: int,
    size: int,
    filters: dict[int, EventFilter],
    src_ids: frozenset[int] | None,
) -> None:
    windows = make_windows(shapes)
    selected = Selection("a", FLEXIBLE, src_ids, filters)
    got: list[Event] = []
    with ring_work(way), make_ring(windows) as (_, reader):
        scn = 0
        while True:
            asked = Checkpoint.at(scn)
            found = ask(
                reader, asked, limits=Limits(rows), src_ids=selected.src_ids, filters=filters
            )
            if found.scn == scn:
                break
            events = read_until(reader, scn, found.scn, size, selected)
            assert len(events) == found.rows
            assert sum(len(encode(event)) for event in events) == found.size_bytes
            assert events or found.scn == found.max_scn
            got += events
            scn = found.scn
        assert scn == windows[-1].scn
    assert got == rows_of([event for window in windows for event in window.events], selected)


def read_until(
    reader: RingReader, scn: int, until_scn: int, size: int, selected: Selection
) -> list[Event]:
    """Read (scn, until_scn] in small answers, as a reader does; return the rows."""
    events: list[Event] = []
    offset = -1
    while (scn, offset) != (until_scn, -1):
        checkpoint = Checkpoint(ConsumptionMode.ONLINE, scn, offset, prev_scn=scn)
        asked = Selection("a", checkpoint, selected.src_ids, selected.filters, until_scn=until_scn)
        response = run(StreamJob(reader, asked, size, None))
        assert response.pending_event_bytes is None
        assert not response.is_caught_up
        assert response.resume is not None
        events += walk(response.body)
        assert all(event.scn <= until_scn for event in events)
        scn, offset = response.resume
    return [event for event in events if not event.is_control]


# -- one by one ----------------------------------------------------------------------------

ONE = [(1, 1)]


@pytest.mark.usefixtures("way")
class TestRules:
    def test_the_first_window_with_rows_counts_however_large_it_is(self) -> None:
        windows = [make_window(1, []), make_window(2, [(1, 1)] * 9), make_window(3, ONE)]
        with make_ring(windows) as (_, reader):
            found = ask(reader, Checkpoint.at(0), limits=Limits(rows=5))
        assert (found.from_scn, found.scn, found.rows) == (0, 2, 9)

    def test_windows_without_rows_are_gone_over_to_the_newest(self) -> None:
        windows = [make_window(1, ONE), *(make_window(scn, [(2, 5)]) for scn in range(2, 90))]
        with make_ring(windows) as (_, reader):
            found = ask(reader, Checkpoint.at(0), limits=Limits(rows=1), src_ids=frozenset({1}))
        assert (found.scn, found.rows, found.max_scn) == (89, 1, 89)

    def test_an_emptied_table_is_a_row_and_a_ddl_statement_is_none(self) -> None:
        with make_ring([make_window(1, [(0, 0), (1, -1), (0, 0)])]) as (_, reader):
            found = ask(reader, Checkpoint.at(0), wants_ddl=True)
        assert (found.rows, found.size_bytes) == (1, 49)

    def test_ahead_of_the_ring_nothing_moves(self) -> None:
        with make_ring([make_window(5, ONE)]) as (_, reader):
            found = ask(reader, Checkpoint.at(9))
        assert found == Measured(9, 9, 0, 0, 0, 5, 5000, is_ahead=True)

    def test_at_the_newest_window_nothing_is_left(self) -> None:
        with make_ring([make_window(5, ONE)]) as (_, reader):
            assert ask(reader, Checkpoint.at(5)) == Measured(5, 5, 0, 0, 5000, 5, 5000)
            assert ask(reader, from_latest=True) == Measured(5, 5, 0, 0, 5000, 5, 5000)

    def test_what_is_evicted_is_not_found(self) -> None:
        windows = [make_window(scn, ONE * 5) for scn in range(1, 200)]
        with make_ring(windows, capacity_bytes=4096) as (_, reader):
            oldest = reader.prev_scn
            assert oldest > 1
            found = ask(reader)
            assert (found.from_scn, found.scn, found.rows) == (oldest, 199, 5 * (199 - oldest))
            with pytest.raises(ScnNotFoundError):
                ask(reader, Checkpoint.at(oldest - 1))

    def test_a_ring_that_grows_while_it_is_measured_is_measured_to_where_it_was(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(measure, "STEP_BYTES", 300)
        monkeypatch.setattr(measure, "COMPILED_STEP_BYTES", 300)
        with make_ring([make_window(scn, ONE * 5) for scn in range(1, 5)]) as (ring, reader):
            made = job(reader, Checkpoint.at(0))
            assert made.step() is None
            ring.append([make_window(9, ONE).encode()])
            found = run_job(made)
        assert (found.scn, found.rows, found.max_scn) == (4, 20, 4)

    def test_overtaken_it_begins_again_at_the_oldest_or_says_that_it_is_gone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(measure, "STEP_BYTES", 300)
        monkeypatch.setattr(measure, "COMPILED_STEP_BYTES", 300)
        first = [make_window(scn, ONE * 5) for scn in range(1, 9)]
        more = [make_window(scn, ONE * 5).encode() for scn in range(9, 200)]
        with make_ring(first, capacity_bytes=4096) as (ring, reader):
            oldest, asked = job(reader), job(reader, Checkpoint.at(0))
            assert (oldest.step(), asked.step()) == (None, None)
            ring.append(more)
            found = run_job(oldest)
            assert (found.from_scn, found.scn) == (reader.prev_scn, 199)
            with pytest.raises(ScnNotFoundError):
                run_job(asked)

    def test_where_nobody_knows_what_came_before_it_is_the_oldest_window_alone(self) -> None:
        windows = [make_window(scn, ONE) for scn in range(1, 200)]
        with make_ring(windows[:9], 4096, UNKNOWN_SCN) as (ring, reader):
            found = ask(reader)
            assert (found.from_scn, found.scn, found.rows) == (-1, 1, 1)
            ring.append([window.encode() for window in windows[9:]])
            gone = Selection("a", FLEXIBLE, until_scn=1)
            with pytest.raises(ScnNotFoundError):
                run(StreamJob(reader, gone, 1 << 20, None))

    def test_an_empty_ring_has_nothing_to_measure(self) -> None:
        with make_ring(start_scn=7) as (_, reader):
            assert ask(reader) == Measured(7, 7, 0, 0, 0, 7, 0)
            assert ask(reader, Checkpoint.at(7)).rows == 0
        with make_ring(start_scn=UNKNOWN_SCN) as (_, reader):
            assert ask(reader) == Measured(-1, -1, 0, 0, 0, -1, 0)

    def test_damage_is_not_counted_over(self) -> None:
        with make_ring([make_window(1, ONE * 3)]) as (ring, reader):
            ring.append([make_window(2, ONE).encode()])
            selector = EventSelector(Selection("a", FLEXIBLE), None)
            with pytest.raises(Exception, match="no event begins here"):
                reader.count(RowCount(3), 100, reader.tail, selector, Limits())


# -- from a time on -----------------------------------------------------------------------


def timed_windows(minutes: Sequence[float]) -> list[Window]:
    return [make_window(scn, ONE, int(at * MINUTE_NS)) for scn, at in enumerate(minutes, 1)]


@pytest.mark.usefixtures("way")
class TestTimes:
    @pytest.mark.parametrize(
        ("minute", "scn"), [(0, 0), (10, 0), (10.5, 1), (40, 3), (41, 4), (99, 90), (200, 90)]
    )
    def test_it_begins_after_the_newest_window_before_a_time(self, minute: float, scn: int) -> None:
        minutes = [10.0, 20, 30, 40, *(50 + n / 10 for n in range(86))]
        with make_ring(timed_windows(minutes)) as (_, reader):
            found = ask(reader, since_ns=int(minute * MINUTE_NS), limits=Limits(rows=2))
        assert (found.from_scn, found.rows) == (scn, min(2, 90 - scn))

    def test_equal_times_are_all_from_that_time_on(self) -> None:
        with make_ring(timed_windows([1, 2, 2, 2, 2, 3])) as (_, reader):
            assert ask(reader, since_ns=2 * MINUTE_NS).from_scn == 1

    def test_no_window_of_that_time_or_later_is_left_out_though_times_go_back(self) -> None:
        chosen = random.Random(4)
        back = BACK_NS / MINUTE_NS
        minutes = [n / 10 + chosen.random() * back * 0.99 for n in range(1500)]
        with make_ring(timed_windows(minutes)) as (_, reader):
            for since in [chosen.random() * 155 for _ in range(60)]:
                first = next((n for n, at in enumerate(minutes) if at >= since), len(minutes))
                found = ask(reader, since_ns=int(since * MINUTE_NS))
                assert found.from_scn == first

    def test_a_time_before_the_oldest_window_held_is_not_found_when_some_are_gone(self) -> None:
        with make_ring(timed_windows(range(1, 200)), capacity_bytes=4096) as (_, reader):
            assert reader.prev_scn > 100
            with pytest.raises(ScnNotFoundError):
                ask(reader, since_ns=50 * MINUTE_NS)
            assert ask(reader, since_ns=198 * MINUTE_NS).from_scn == 197

    def test_a_time_before_the_first_window_that_there_was_begins_with_it(self) -> None:
        with make_ring(timed_windows([5, 6]), start_scn=UNKNOWN_SCN) as (_, reader):
            found = ask(reader, since_ns=0)
        assert (found.from_scn, found.scn) == (-1, 1)

    def test_an_empty_ring_that_begins_somewhere_cannot_say(self) -> None:
        with make_ring(start_scn=7) as (_, reader), pytest.raises(ScnNotFoundError):
            ask(reader, since_ns=0)

    def test_overtaken_it_looks_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measure, "STEP_BYTES", 100)
        monkeypatch.setattr(measure, "COMPILED_STEP_BYTES", 100)
        windows = timed_windows([n / 100 for n in range(400)])
        with make_ring(windows[:30], capacity_bytes=4096) as (ring, reader):
            made = job(reader, since_ns=39 * MINUTE_NS // 10)
            assert made.step() is None
            ring.append([window.encode() for window in windows[30:]])
            assert run_job(made).from_scn == 390


def test_the_window_where_capture_began_is_where_the_oldest_changes_begin() -> None:
    """It stands for rows that were never captured: nobody can read on inside it."""
    began, first, second = make_window(30, []), make_window(40, [(1, 1)]), make_window(50, [(1, 2)])
    with make_ring([began, first, second], start_scn=-1) as (_, reader):
        found = ask(reader)
        assert (found.from_scn, found.scn, found.rows) == (30, 50, 2)
        after = Checkpoint(ConsumptionMode.ONLINE, found.from_scn, -1, prev_scn=found.from_scn)
        assert ask(reader, after).rows == 2
    with make_ring([began], start_scn=-1) as (_, reader):
        assert (ask(reader).from_scn, ask(reader).scn) == (30, 30)
    with make_ring([first, second], start_scn=-1) as (_, reader):
        assert (ask(reader).from_scn, ask(reader).scn) == (-1, 40)
