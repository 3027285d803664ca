"""Any sequence of appends, evictions, restarts and reads, against a plain list.

The two defects of the original buffer cannot come back unseen here: windows
silently missing after an eviction, and a filtered window that was cut coming
again and again.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.stream import StreamJob, run
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.errors import ScnNotFoundError
from databus.schemas.event.control import ddl_event, dml_event, end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from databus.schemas.filters import EventFilter, ModFilter, RangeFilter
from databus.schemas.stream.stream_reader import walk
from tests.relay.ring.compiled import ring_work

CAPACITY_BYTES = 4096
LARGEST_EVENT_BYTES = 220  # a DDL statement of 90 characters
SIZES = st.one_of(st.integers(1, 300), st.integers(300, 2 * CAPACITY_BYTES))
WINDOWS = st.lists(
    st.tuples(
        st.integers(1, 4),  # how much the SCN rises
        st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 9), st.integers(0, 90)), max_size=12),
    ),
    min_size=1,
    max_size=6,
)
FILTERS: list[dict[int, EventFilter]] = [
    {},
    {1: ModFilter(3, 0, 1)},
    {1: RangeFilter(0, 2), 2: ModFilter(2, 1, 2)},
    {3: ModFilter(5, 4, 5), 2: RangeFilter(100, 200), 1: RangeFilter(100, 200)},
]
SELECTED = st.sampled_from([None, frozenset({1}), frozenset({2, 3}), frozenset({9})])


class Entry(NamedTuple):
    scn: int
    offset: int  # in its window, from 1
    event: Event


class Client:
    """Follows the resume header, as a client must."""

    def __init__(
        self,
        scn: int,
        offset: int,
        selected: frozenset[int] | None,
        index: int,
        wants_ddl: bool,
    ) -> None:
        self.scn, self.offset = scn, offset
        self.wants_ddl = wants_ddl
        self.selected = selected
        self.filters = FILTERS[index]
        self.has_fallen_behind = False

    def wants(self, event: Event) -> bool:
        if event.is_control:
            return self.wants_ddl or not event.is_statement
        if self.selected is not None and event.src_id not in self.selected:
            return False
        wanted = self.filters.get(event.src_id)
        return wanted is None or event.key == b"" or wanted.matches(event.key)

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(ConsumptionMode.ONLINE, self.scn, self.offset, prev_scn=self.scn)


def make_events(scn: int, rows: list[tuple[int, int, int]]) -> list[Event]:
    """Make a window: rows of src_ids 1 to 3; 0 is a statement, 4 an emptied table."""
    events = []
    for src_id, key, size in rows:
        if src_id == 0:
            events.append((dml_event if key % 2 else ddl_event)(scn, scn, 0, (), "", "x" * size))
        elif src_id == 4:
            emptied = 1 + key % 3
            events.append(Event(scn, scn, emptied, 0, b"", Opcode.DELETE, None, None))
        else:
            row = Part(bytes(size), b"m" * 16, 1)
            events.append(Event(scn, scn, src_id, 0, key, Opcode.UPSERT, row, None))
    return [*events, end_of_period(scn, scn)]


class StreamMachine(RuleBasedStateMachine):
    way = "compiled"

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(ring_work(self.way))
        self.folder = Path(tempfile.mkdtemp())
        self.reference: list[Entry] = []
        self.clients: list[Client] = []
        self.scn = 0
        self.ring: Ring | None = None

    @initialize()
    def open(self) -> None:
        self.ring = Ring.open(
            self.folder / "a.ring", "a", CAPACITY_BYTES, block_bytes=256, start_scn=0
        )
        self.reader = RingReader.open(self.folder / "a.ring")

    @rule(windows=WINDOWS)
    def append(self, windows: list[tuple[int, list[tuple[int, int, int]]]]) -> None:
        assert self.ring is not None
        encoded = []
        for rise, rows in windows:
            self.scn += rise
            events = make_events(self.scn, rows)
            self.reference += [Entry(self.scn, n, e) for n, e in enumerate(events, 1)]
            data = b"".join(map(encode, events))
            encoded.append(EncodedWindow(self.scn, data, self.scn))
        self.ring.append(encoded)

    @rule()
    def restart(self) -> None:
        self.reader.close()
        assert self.ring is not None
        self.ring.close()
        self.open()

    @rule(
        data=st.data(),
        selected=SELECTED,
        index=st.integers(0, len(FILTERS) - 1),
        wants_ddl=st.booleans(),
    )
    def connect(
        self, data: st.DataObject, selected: frozenset[int] | None, index: int, wants_ddl: bool
    ) -> None:
        scn = data.draw(st.integers(0, self.scn))
        offset = data.draw(st.integers(-1, 13))
        self.clients.append(Client(scn, offset, selected, index, wants_ddl))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), size=SIZES)
    def read(self, data: st.DataObject, size: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        expected = self.left_for(client)
        try:
            response = run(self.job(client, size))
        except ScnNotFoundError:
            assert client.scn < self.reader.min_scn
            self.clients.remove(client)
            return
        assert len(response.body) <= size
        got = list(walk(response.body))
        assert got == expected[: len(got)]
        if response.pending_event_bytes is not None:
            assert not got
            assert response.pending_event_bytes > size
        elif not got:
            assert not expected, "nothing was sent though there is something"
        assert response.resume is not None
        client.scn, client.offset = response.resume
        assert self.left_for(client) == expected[len(got) :]

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), size=st.integers(LARGEST_EVENT_BYTES, 600))
    def read_to_the_end(self, data: st.DataObject, size: int) -> None:
        client = data.draw(st.sampled_from(self.clients))
        expected = self.left_for(client)
        got: list[Event] = []
        for _ in range(10_000):
            try:
                response = run(self.job(client, size))
            except ScnNotFoundError:
                assert not got
                self.clients.remove(client)
                return
            assert response.pending_event_bytes is None
            if response.is_caught_up:
                break
            got += walk(response.body)
            assert response.resume is not None
            client.scn, client.offset = response.resume
        assert got == expected

    @invariant()
    def whole_windows_are_copied_when_nothing_is_filtered(self) -> None:
        if self.ring is None or not self.reference:
            return
        selection = Selection("a", Checkpoint.flexible())
        response = run(StreamJob(self.reader, selection, 1000, None))
        events = list(walk(response.body))
        assert [e for e in events if e.is_eop] or response.resume[1] > 0  # type: ignore[index]
        if events[-1].is_eop:
            assert response.resume == (events[-1].scn, -1)

    def job(self, client: Client, size: int) -> StreamJob:
        selection = Selection(
            "a",
            client.checkpoint(),
            client.selected,
            client.filters,
            wants_ddl=client.wants_ddl,
        )
        return StreamJob(self.reader, selection, size, None)

    def left_for(self, client: Client) -> list[Event]:
        return [
            entry.event
            for entry in self.reference
            if client.wants(entry.event)
            and (
                entry.scn > client.scn
                or (entry.scn == client.scn and -1 < client.offset < entry.offset)
            )
        ]

    def teardown(self) -> None:
        if self.ring is not None:
            self.reader.close()
            self.ring.close()
        shutil.rmtree(self.folder)
        self.patches.close()


class PlainStreamMachine(StreamMachine):
    """The same where the compiled module was not built."""

    way = "python"


TestStreamAgainstAPlainList = StreamMachine.TestCase
TestPlainStreamAgainstAPlainList = PlainStreamMachine.TestCase
for case in (TestStreamAgainstAPlainList, TestPlainStreamAgainstAPlainList):
    case.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
