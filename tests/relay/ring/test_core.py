"""The compiled module and the Python beside it: the same answers, whatever lies there."""

from __future__ import annotations

import os
import random
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

from databus.relay.ring import (
    _core as ring_core,
    event_selector,
    events as ring_walk,
    layout as ring_layout,
)
from databus.relay.ring._core import RingData
from databus.relay.ring.event_selector import EventSelector, has_optional, select_events
from databus.relay.ring.events import find_event, find_run, last_end, sound_windows, stamp_events
from databus.relay.ring.layout import (
    MOST_ASKED_BYTES,
    NEVER,
    PAGE_BYTES,
    UNASKED_BYTES,
    Layout,
    PagesAhead,
    RingFile,
    create_file,
    open_file,
)
from databus.relay.ring.ring import Ring
from databus.relay.ring.scn_index import IndexEntry, ScnIndex
from databus.relay.ring.selection import Selection
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, InvalidParameterError, ProtocolError
from databus.schemas.event.control import ddl_event, dml_event, end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from databus.schemas.filters import (
    AnyOf,
    EventFilter,
    ModFilter,
    NoFilter,
    PartitionFilter,
    RangeFilter,
)
from databus.schemas.windows import MARK, EncodedWindow
from tests import PATIENCE_S
from tests.relay.ring.model import make_window

CAPACITY = 1500
MiB = 1 << 20
LARGE = Layout("shop", 100 * MOST_ASKED_BYTES, 32 << 10)
LAP = LARGE.capacity_bytes
LAP_BEGIN = 7 * MOST_ASKED_BYTES + 5
DATA = bytearray(64), 0, 64, True
FLIPS = 1500
SCNS = (3, 5, 8, 9)
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1


class TwoFiles:
    """A ring file that is read once with the compiled module and once without it."""

    def __init__(self, path: Path, begin: int) -> None:
        self.begin = begin
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        layout = Layout("shop", CAPACITY, 200)
        create_file(path, fd, layout, 0)
        self.compiled, self.plain = (open_file(path, fd, writable=True) for _ in range(2))
        os.close(fd)
        assert self.plain.core is not None
        self.plain.core.release()
        self.plain.core = None
        self.layout = layout

    def put(self, data: bytes) -> int:
        """Write the data; return where it ends."""
        self.plain.copy_in(self.begin, data)
        return self.begin + len(data)

    def both(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return what both say, which must be the same."""
        answers = []
        for ring_file in (self.compiled, self.plain):
            try:
                answers.append(work(ring_file, *arguments))
            except DatabusError as error:
                answers.append((type(error), str(error)))
        assert answers[0] == answers[1]
        return answers[0]

    def close(self) -> None:
        self.compiled.close()
        self.plain.close()


@pytest.fixture(params=[0, CAPACITY - 300, 7 * CAPACITY - 20], ids=["start", "wrapped", "cut"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoFiles]:
    opened = TwoFiles(tmp_path / "shop.ring", request.param)
    yield opened
    opened.close()


def some_windows() -> bytes:
    return b"".join(make_window(scn, [20, 0, 60]).data for scn in SCNS)


def damaged(data: bytes, chosen: random.Random) -> bytes:
    """Return the data with a few bytes of it changed, most of them in headers' lengths."""
    changed = bytearray(data)
    starts = [at for at in range(len(data)) if data.startswith(b"\x02\xca\xfe\xde\xed", at)]
    for _ in range(chosen.randrange(1, 4)):
        at = chosen.choice(starts) + chosen.choice([*range(24), *range(31, 53)])
        changed[min(at, len(data) - 1)] ^= 1 << chosen.randrange(8)
    return bytes(changed)


def all_sound(ring_file: RingFile, begin: int, end: int, after_scn: int) -> list[Any]:
    return [tuple(window) for window in sound_windows(ring_file, begin, end, after_scn)]


def stamped(ring_file: RingFile, begin: int, end: int, data: bytes) -> bytes:
    ring_file.copy_in(begin, data)
    error = b""
    try:
        stamp_events(ring_file, begin, end, 77, 123456789)
    except ProtocolError as raised:
        error = str(raised).encode()
    return ring_file.copy_out(begin, end - begin) + error


def test_whole_windows_are_walked_checked_and_stamped_alike(files: TwoFiles) -> None:
    data = some_windows()
    end = files.put(data)
    for scn in range(11):
        for to_skip in range(-1, 6):
            files.both(find_event, files.begin, end, scn, to_skip)
    for limit in range(files.begin, end + 2, 3):
        files.both(last_end, files.begin, end, limit)
    windows = files.both(all_sound, files.begin, end, 0)
    assert [window[0] for window in windows] == list(SCNS)
    assert files.both(all_sound, files.begin, end, 3) == []
    files.both(stamped, files.begin, end, data)
    assert len(files.both(all_sound, files.begin, end, 0)) == 1, "one SCN for all of them"


def test_more_windows_than_are_checked_at_a_time_are_all_found(tmp_path: Path) -> None:
    data = b"".join(encode(end_of_period(scn, scn)) for scn in range(1, 10_001))
    core = RingData(bytearray(data), 0, len(data), False)
    found = core.check_windows(0, len(data), 0)
    assert 0 < len(found) < 10_000
    with patch.object(ring_walk, "_sound_windows", None):
        windows = list(sound_windows(FakeFile(core), 0, len(data), 0))
    assert [window.scn for window in windows] == list(range(1, 10_001))


class FakeFile(RingFile):
    """Nothing but the compiled part."""

    def __init__(self, core: RingData) -> None:
        self.core = core


def test_damage_is_answered_alike_and_never_believed(files: TwoFiles) -> None:
    data = some_windows()
    chosen = random.Random(5)
    errors = set()
    for _ in range(FLIPS):
        hit = damaged(data, chosen)
        end = files.put(hit)
        scn, to_skip = chosen.randrange(10), chosen.randrange(-1, 4)
        found = files.both(find_event, files.begin, end, scn, to_skip)
        errors.add(found[0])
        files.both(last_end, files.begin, end, chosen.randrange(files.begin, end))
        files.both(all_sound, files.begin, end, 0)
        files.both(stamped, files.begin, end, hit)
    assert ProtocolError in errors
    assert len(errors) > 1


@pytest.mark.parametrize("length", [1, 299, 300, 301, CAPACITY])
def test_bytes_are_copied_alike(
    files: TwoFiles, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_layout, "LARGE_BYTES", 1)
    data = random.Random(7).randbytes(length)
    for ring_file in (files.compiled, files.plain):
        files.plain.copy_in(files.begin, bytes(CAPACITY))
        ring_file.copy_in(files.begin, data)
        assert files.both(RingFile.copy_out, files.begin, CAPACITY) == data.ljust(CAPACITY, b"\0")
        assert files.both(RingFile.copy_out, files.begin, length) == data


# -- filters -----------------------------------------------------------------------------------

NUMBERS = st.sampled_from([LONG_MIN, LONG_MIN + 1, -10, -1, 0, 1, 7, 10, LONG_MAX]) | st.integers(
    LONG_MIN, LONG_MAX
)
TEXTS = st.sampled_from(
    [
        b"",
        b"0",
        b"-0",
        b"+7",
        b"-7",
        b"+",
        b"-",
        b"007",
        b"abc",
        b"a" * 300,
        b"0" * 41,
        b"1_0",
        b" 7",
        b"%d" % LONG_MAX,
        b"%d" % LONG_MIN,
        b"%d" % (LONG_MAX + 1),
        b"%d" % (LONG_MIN - 1),
        b"9" * 40,
        b"18446744073709551617",
        "ж".encode(),
        "٣".encode(),
        b"\xff\xfe",
        b"x" * 1000,
    ]
)
KEYS = NUMBERS | TEXTS | st.binary(max_size=12) | st.integers(-99, 99).map(lambda n: b"%d" % n)
MODS = st.builds(
    ModFilter, st.sampled_from([1, 2, 10, LONG_MAX]), st.integers(-9, 9), st.integers(-9, 11)
)
RANGES = st.builds(RangeFilter, NUMBERS, NUMBERS)
PARTITIONS = st.builds(PartitionFilter, st.just(9), st.frozensets(st.integers(0, 8), min_size=1))
FILTERS: st.SearchStrategy[EventFilter] = st.one_of(
    MODS,
    RANGES,
    PARTITIONS,
    st.just(NoFilter()),
    st.lists(MODS, min_size=1, max_size=3).map(lambda those: AnyOf(tuple(those))),
    st.lists(RANGES, min_size=1, max_size=3).map(lambda those: AnyOf(tuple(those))),
)


STATEMENTS = st.sampled_from([ddl_event, dml_event])


@st.composite
def changes(draw: st.DrawFn) -> list[Event]:
    scn = draw(st.sampled_from(SCNS))
    opcode = draw(st.sampled_from([Opcode.UPSERT, Opcode.DELETE]))
    payload = draw(
        st.none() | st.builds(Part, st.binary(max_size=20), st.just(bytes(16)), st.just(1))
    )
    row = Event(scn, 1, draw(st.integers(1, 4)), 0, draw(KEYS), opcode, payload, None)
    return draw(
        st.sampled_from(
            [[row], [row, end_of_period(scn, 1)], [draw(STATEMENTS)(scn, 1, 0, (), "", "DROP")]]
        )
    )


@contextmanager
def two_files(begin: int) -> Iterator[TwoFiles]:
    with tempfile.TemporaryDirectory() as folder:
        files = TwoFiles(Path(folder) / "shop.ring", begin)
    try:
        yield files
    finally:
        files.close()


@given(
    st.lists(changes(), max_size=12).map(lambda lists: [event for some in lists for event in some]),
    st.none() | st.frozensets(st.integers(1, 5)),
    st.dictionaries(st.integers(1, 5), FILTERS, max_size=3),
    st.booleans(),
    st.booleans(),
    st.integers(0, 400) | st.just(CAPACITY),
    st.integers(0, CAPACITY),
    st.integers(1, CAPACITY),
)
def test_a_selector_passes_the_same_events_either_way(
    events: list[Event],
    src_ids: frozenset[int] | None,
    filters: dict[int, EventFilter],
    wants_ddl: bool,
    wants_truncates: bool,
    room: int,
    begin: int,
    step: int,
) -> None:
    data = b"".join(map(encode, events))
    if not 0 < len(data) <= CAPACITY:
        return
    selection = Selection(
        "a",
        Checkpoint.flexible(),
        src_ids,
        filters,
        wants_ddl=wants_ddl,
        wants_truncates=wants_truncates,
    )
    with two_files(begin) as files:
        end = files.put(data)
        files.both(select_all, EventSelector(selection, None), begin, end, step, room)


def select_all(
    ring_file: RingFile, made: EventSelector, begin: int, end: int, step: int, room: int
) -> list[Any]:
    """Return what comes of all steps; how far each one got is its own affair."""
    position, place, data, whole = begin, (-1, 0), b"", (-1, -1)
    while position < end:
        asked = (position, min(position + step, end), end)
        found = select_events(ring_file, *asked, made, place, room - len(data))
        if found.whole_scn >= 0:
            whole = len(data) + found.whole_bytes, found.whole_scn
        position, place = found.position, (found.scn, found.offset)
        data += found.data
        if found.overflow_bytes >= 0:
            return [position, place, data, whole, found.overflow_bytes]
    return [position, place, data, whole]


def test_a_range_of_keys_that_are_no_numbers_is_refused_either_way(files: TwoFiles) -> None:
    event = Event(3, 1, 1, 0, b"abc", Opcode.UPSERT, None, None)
    end = files.put(encode(event))
    asked = Selection("a", Checkpoint.flexible(), filters={1: RangeFilter(0, 9)})
    found = files.both(select_all, EventSelector(asked, None), files.begin, end, CAPACITY, CAPACITY)
    assert found[0] is InvalidParameterError


def test_damage_is_reported_alike_when_selecting(files: TwoFiles) -> None:
    chosen = random.Random(6)
    data = some_windows()
    asked = EventSelector(
        Selection("a", Checkpoint.flexible(), filters={40: ModFilter(2, 0, 1)}), render=None
    )
    for _ in range(FLIPS):
        end = files.put(damaged(data, chosen))
        files.both(select_all, asked, files.begin, end, CAPACITY, CAPACITY)


def test_a_filter_of_a_kind_that_the_compiled_module_does_not_know_is_asked_itself() -> None:
    class Odd:
        def matches(self, key: int | bytes) -> bool:
            return int(key) % 2 == 1

        def to_json_value(self) -> dict[str, Any]:
            return {}

    asked = Selection("a", Checkpoint.flexible(), filters={1: Odd()})
    assert EventSelector(asked, None).plan is None


@pytest.mark.parametrize("way", ["compiled", "python"])
def test_statements_and_truncates_are_seen_in_whole_windows(way: str) -> None:
    windows = some_windows()
    truncate = encode(Event(9, 1, 1, 0, b"", Opcode.DELETE, None, None))
    ddl, dml = (encode(make(9, 1, 0, (), "", "DROP")) for make in (ddl_event, dml_event))
    found = ring_core.find_optional if way == "compiled" else None
    with patch.object(event_selector, "find_optional", found):
        for event in (ddl, dml, truncate):
            assert [has_optional(data) for data in (windows, windows + event)] == [False, True]
    assert ring_core.find_optional(windows + ddl) == len(windows)
    assert ring_core.find_optional(windows + dml) == len(windows)
    assert ring_core.find_optional(windows + truncate) == len(windows)


# -- the index and the marks ------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 11), st.integers(-1, 30))
def test_a_run_of_windows_ends_at_the_same_one(rises: list[int], number: int, limit: int) -> None:
    scn, marks = 0, b""
    for at, rise in enumerate(rises):
        scn += rise
        marks += MARK.pack(scn, 3 * at, 0, 0)
    number = min(number, len(rises))
    assert ring_core.find_run(marks, number, 1, limit) == find_run(marks, number, 1, limit)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.integers(0, 100),
    st.integers(0, 700),
    st.integers(0, 12 * 32 - 1),
    st.booleans(),
)
def test_index_entries_are_found_and_checked_alike(
    rises: list[int], first: int, wanted: int, hit: int, is_hit: bool
) -> None:
    slots = 12
    buffer = bytearray(PAGE_BYTES + slots * 32 + 64)
    core = RingData(buffer, PAGE_BYTES + slots * 32, 64, True)
    with memoryview(buffer) as view, view[: PAGE_BYTES + slots * 32].cast("Q") as cells:
        plain, compiled = ScnIndex(cells, slots), ScnIndex(cells, slots, core)
        scn = 0
        for number, rise in enumerate(rises, first):
            plain.put(number, IndexEntry(scn + rise, 10 * scn, scn - 1))
            scn += rise
        if is_hit:
            view[PAGE_BYTES + hit] ^= 0x10
        end = first + len(rises)
        for number in range(first, end + 2):
            assert compiled.get(number) == plain.get(number)
        assert compiled.find_scn(wanted, first, end) == plain.find_scn(wanted, first, end)
        positions = [index.find_position(wanted, first, end) for index in (plain, compiled)]
        assert positions[0] == positions[1]
    core.release()


def test_nothing_is_read_outside_of_the_mapping_or_after_its_release() -> None:
    for data_at, capacity in ((-1, 10), (0, 0), (60, 41)):
        with pytest.raises(ValueError, match="not all in the mapping"):
            RingData(bytearray(100), data_at, capacity, True)
    core = RingData(bytearray(200), 0, 200, False)
    with pytest.raises(ValueError, match="not to be written"):
        core.stamp(0, 100, 1, 1)
    with pytest.raises(ValueError, match="no such position"):
        core.find_event(-1, 100, 1, 1)
    with pytest.raises(ValueError, match="slots"):
        core.index_entry(0, 1)
    for asked in (-1, 201):
        with pytest.raises(ValueError, match="so many bytes"):
            core.copy_out(0, asked)
    core.release()
    core.release()
    with pytest.raises(ValueError, match="closed"):
        core.last_end(0, 100, 100)
    with pytest.raises(ValueError, match="no such bytes"):
        ring_core.stamp(bytearray(10), 0, 11, 1, 1)


def test_a_plain_buffer_is_stamped_with_both_sums() -> None:
    window = make_window(7, [30, 40])
    bare = bytearray(window.data)
    at = 0
    while at < len(bare):
        bare[at + 9 : at + 17], bare[at + 23 : at + 31], bare[at + 37 : at + 45] = (bytes(8),) * 3
        at += int.from_bytes(bare[at + 17 : at + 21], "big")
    ring_core.stamp(bare, 0, len(bare), 7, 7000)
    assert bytes(bare) == window.data
    with pytest.raises(ProtocolError, match="an event is cut"):
        ring_core.stamp(bare, 0, len(bare) - 1, 7, 7000)


class Asked(RingData):
    """Records the ranges that are asked for, and may hold back its answers."""

    def __init__(self, *_: object) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.knows = True
        self.may_end = threading.Event()
        self.may_end.set()

    def populate(self, position: int, size: int) -> bool:
        """Record a range."""
        self.ranges.append((position, position + size))
        self.may_end.wait(PATIENCE_S)
        return self.knows


def go_around(pages: PagesAhead, begin: int, end: int) -> None:
    """Let a writer get from one position to another, block by block."""
    for tail in range(begin, end, 32 << 10):
        if tail >= pages.due_at:
            if pages._thread is not None:
                pages._thread.join()
            pages.prepare(tail)


def test_each_page_of_the_first_lap_is_asked_for_once_and_before_the_writer_is_there() -> None:
    core = Asked(*DATA)
    pages = PagesAhead(core, LARGE)
    go_around(pages, LAP_BEGIN, LAP_BEGIN + 2 * LAP)
    assert core.ranges[0][0] - LAP_BEGIN in range(UNASKED_BYTES, UNASKED_BYTES + (32 << 10))
    assert [end for _, end in core.ranges[:-1]] == [begin for begin, _ in core.ranges[1:]]
    assert core.ranges[-1][1] == LAP_BEGIN + LAP
    assert pages.due_at == NEVER


def test_a_ring_never_has_more_pages_ahead_than_it_was_given_bytes() -> None:
    core = Asked(*DATA)
    pages = PagesAhead(core, LARGE)
    go_around(pages, LAP_BEGIN, LAP_BEGIN + UNASKED_BYTES)
    assert core.ranges == []
    for written in (
        UNASKED_BYTES,
        3 * UNASKED_BYTES,
        MOST_ASKED_BYTES // 2,
        MOST_ASKED_BYTES,
        20 * MOST_ASKED_BYTES,
    ):
        go_around(pages, LAP_BEGIN + written, LAP_BEGIN + written + 1)
        assert core.ranges[-1][1] - LAP_BEGIN <= written + min(written, MOST_ASKED_BYTES)


def test_a_writer_that_is_faster_asks_for_nothing_that_it_has_passed() -> None:
    core = Asked(*DATA)
    pages = PagesAhead(core, LARGE)
    core.may_end.clear()
    for tail in range(0, 8 * UNASKED_BYTES, UNASKED_BYTES):
        pages.prepare(tail)
    core.may_end.set()
    go_around(pages, 8 * UNASKED_BYTES, 8 * UNASKED_BYTES + 1)
    pages.prepare(8 * UNASKED_BYTES)
    pages.close()
    assert core.ranges[0] == (UNASKED_BYTES, 2 * UNASKED_BYTES)
    assert core.ranges[1:] == [(8 * UNASKED_BYTES, 16 * UNASKED_BYTES)]


def test_a_system_that_does_not_know_the_request_is_asked_once() -> None:
    core = Asked(*DATA)
    core.knows = False
    pages = PagesAhead(core, LARGE)
    go_around(pages, 0, LAP)
    assert len(core.ranges) == 1


def test_nothing_is_due_without_the_compiled_module() -> None:
    assert PagesAhead(None, LARGE).due_at == NEVER


@pytest.fixture
def ring_file(tmp_path: Path) -> Iterator[RingFile]:
    path = tmp_path / "shop.ring"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    layout = Layout.choose("shop", 8 * MiB, None)
    create_file(path, fd, layout, 0)
    opened = open_file(path, fd, writable=True)
    os.close(fd)
    yield opened
    opened.close()


def faults_of_writing(ring_file: RingFile, begin: int, end: int) -> int:
    """Store a byte on each page; return the page faults of that."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for position in range(begin, end, PAGE_BYTES):
        ring_file.mapping[ring_file.data_at + position % (8 * MiB)] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_pages_that_were_asked_for_are_written_without_faults(ring_file: RingFile) -> None:
    assert ring_file.core is not None
    assert ring_file.core.populate(6 * MiB + 100, 4 * MiB)  # around the end of the file
    assert faults_of_writing(ring_file, 6 * MiB + 100, 10 * MiB) < 32
    assert faults_of_writing(ring_file, 3 * MiB, 5 * MiB) >= 32


def test_bytes_that_were_written_stay_as_they_are(ring_file: RingFile) -> None:
    written = os.urandom(3 * MiB)
    ring_file.copy_in(7 * MiB, written)
    assert ring_file.core is not None
    assert ring_file.core.populate(0, 8 * MiB)
    assert ring_file.copy_out(7 * MiB, len(written)) == written
    assert not any(ring_file.copy_out(3 * MiB, MiB))


@pytest.mark.parametrize("size", [0, -1, 8 * MiB + 1])
def test_a_range_that_no_lap_has_is_refused(ring_file: RingFile, size: int) -> None:
    assert ring_file.core is not None
    with pytest.raises(ValueError, match="no lap has so many bytes"):
        ring_file.core.populate(0, size)


def test_a_ring_asks_on_its_first_lap_after_it_was_opened_and_after_it_was_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def populate(self: PagesAhead, position: int, size_bytes: int) -> None:
        asked.append(position)

    monkeypatch.setattr(ring_layout.PagesAhead, "_populate", populate)
    monkeypatch.setattr(ring_layout, "UNASKED_BYTES", 64 << 10)
    scn = 0

    def go_one_lap(ring: Ring) -> int:
        nonlocal scn
        asked.clear()
        for _ in range(4 * MiB // 1000):
            scn += 1
            ring.append([EncodedWindow(scn, bytes(1000), scn)])
        return len(asked)

    ring = Ring.open(tmp_path / "shop.ring", "shop", 4 * MiB, start_scn=0)
    assert go_one_lap(ring) > 1
    assert go_one_lap(ring) == 0
    ring.restart_after(scn)
    assert go_one_lap(ring) > 1
    ring.close()
    ring = Ring.open(tmp_path / "other.ring", "other", 4 * MiB)
    asked.clear()
    for at in (0, MiB):
        ring.extend(at, bytes(MiB))  # parts of a large window
    ring.close()
    assert asked == [MiB]
