"""What the original's Java buffer classes were measured with, for `benchmarks.ring`.

Databus' DbusEventBuffer and its iterators, in Java on the same kind of machine,
with events of 161 bytes, one thread: the rates below. Here the same is asked of
the parts that a relay and a client are made of. Windows have ten rows and an
EOP, which is worked on but not counted.

* append: stamp the windows of a batch, with both CRCs of each event, and append
  it to a ring that is full and evicts, index entries included;
* scan: a stream request with a filter that one row in ten passes, in responses
  of 1 MiB, from the oldest window to the newest;
* validate and copy: the client's reader, which checks both CRCs of each event
  and makes a row of it, on such responses unfiltered;
* seek: find a random SCN and read 2 KB from there.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchmarks.shared.report import Figure, Target, at_least, at_most, median, seconds
from databus.relay.ring._core import stamp
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring, WindowBatch
from databus.relay.ring.selection import Selection
from databus.relay.serving.reading.stream import StreamJob, run
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode
from databus.schemas.filters import EventFilter, ModFilter
from databus.schemas.stream.row_reader import RowReader, RowWindow
from databus.schemas.windows import MARK

EVENT_BYTES = 161
EVENTS_PER_WINDOW = 10
BATCH_WINDOWS = 500
SRC_ID = 40
DIGEST = bytes(range(16))
RESPONSE_BYTES = 1 << 20
SEEK_BYTES = 2 << 10
ONE_IN_TEN: dict[int, EventFilter] = {SRC_ID: ModFilter(10, 0, 1)}
JAVA = "the original's Java"


class _Rate(NamedTuple):
    name: str
    unit: str
    java: float
    measure: Callable[[Ring, RingReader, int], float]

    def figures(self, ring: Ring, reader: RingReader, repeats: int) -> list[Figure]:
        ours = self.measure(ring, reader, repeats)
        is_time = self.unit == "µs"
        target: Target = at_most(self.java) if is_time else at_least(self.java)
        times_better = self.java / ours if is_time else ours / self.java
        return [
            Figure(self.name, ours, self.unit, target),
            Figure(f"{self.name}: {JAVA}", self.java, self.unit),
            Figure(f"{self.name}: times better", times_better, "x"),
        ]


class Batch:
    """Windows that are stamped repeatedly, with SCNs after the ring's newest."""

    def __init__(self, events: int = EVENTS_PER_WINDOW) -> None:
        self._events = events
        chosen = random.Random(3)
        window = b"".join(
            _event(key, chosen.randbytes(EVENT_BYTES - len(_event(key, b""))))
            for key in range(events)
        )
        self._window_bytes = len(window + encode(end_of_period(1, 0)))
        self._data = bytearray((window + encode(end_of_period(1, 0))) * BATCH_WINDOWS)

    def stamp(self, first_scn: int) -> WindowBatch:
        """Return the windows from `first_scn` on."""
        data, size, marks = self._data, self._window_bytes, []
        for number in range(BATCH_WINDOWS):
            end = (number + 1) * size
            scn = first_scn + number
            stamp(data, end - size, end, scn, scn)
            marks.append(MARK.pack(scn, end, scn, self._events))
        return WindowBatch(bytes(data), b"".join(marks))


def _event(key: int, data: bytes) -> bytes:
    row, metadata = Part(data, DIGEST, 1), Part(bytes(12), b"meta", 1)
    return encode(Event(1, 1, SRC_ID, 0, key, Opcode.UPSERT, row, metadata))


def rates(ring: Ring, reader: RingReader, repeats: int) -> list[Figure]:
    """Measure each rate; leaves the ring full."""
    return [figure for rate in _RATES for figure in rate.figures(ring, reader, repeats)]


def _append_rate(ring: Ring, reader: RingReader, repeats: int) -> float:  # noqa: ARG001
    batch = Batch()
    batches = ring.capacity_bytes // len(batch.stamp(1).data)

    def fill() -> None:
        for _ in range(batches):
            ring.append_batch(batch.stamp(ring.max_scn + 1))

    fill()  # the first lap only warms up every page
    return batches * BATCH_WINDOWS * EVENTS_PER_WINDOW / median(repeats, lambda: seconds(fill))


def _scan_rate(ring: Ring, reader: RingReader, repeats: int) -> float:
    windows = ring.max_scn - ring.prev_scn
    took = median(repeats, lambda: seconds(lambda: sum(map(len, _stream(reader, ONE_IN_TEN)))))
    return windows * EVENTS_PER_WINDOW / took


def _copy_rate(ring: Ring, reader: RingReader, repeats: int) -> float:
    windows = ring.max_scn - ring.prev_scn
    bodies = list(_stream(reader, {}))
    took = median(repeats, lambda: seconds(lambda: _validate(bodies)))
    return windows * EVENTS_PER_WINDOW / took


def _seek_time(ring: Ring, reader: RingReader, repeats: int) -> float:
    chosen = random.Random(2)
    times = []
    for _ in range(repeats * 1000):
        scn = chosen.randrange(ring.min_scn, ring.max_scn)
        started = time.perf_counter()
        position = reader.find(scn, -1)
        assert position is not None
        assert reader.read(position, SEEK_BYTES)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def _stream(reader: RingReader, filters: dict[int, EventFilter]) -> Iterator[bytes]:
    """Yield the bodies of a client's responses, from the oldest window to the newest."""
    checkpoint = Checkpoint.flexible()
    while True:
        selection = Selection("bench", checkpoint, filters=filters)
        response = run(StreamJob(reader, selection, RESPONSE_BYTES, None))
        if response.is_caught_up:
            return
        yield response.body
        assert response.resume is not None
        checkpoint = Checkpoint.at(response.resume[0])


def _validate(bodies: list[bytes]) -> None:
    reader = RowReader(RESPONSE_BYTES)
    reader.known = frozenset({(SRC_ID, DIGEST)})
    for body in bodies:
        for window in reader.receive(body):
            assert isinstance(window, RowWindow)
            assert len(window.events) == EVENTS_PER_WINDOW


_RATES = (
    _Rate("append with CRCs and index", "events/s", 1.25e6, _append_rate),
    _Rate("filter scan, one row in ten", "events/s", 20e6, _scan_rate),
    _Rate("validate and copy at the client", "events/s", 1.4e6, _copy_rate),
    _Rate("seek to any SCN and read 2 KB", "µs", 11, _seek_time),
)
