"""The ring against plain memory: `python -m benchmarks.ring [--short] [--json FILE]`.

Windows of 10 events of 160 bytes and an EOP are appended one a call, and in
batches as capture does it; both are compared with copying the same bytes,
window by window, into a plain buffer of the ring's size. The three take turns,
1000 windows at a time, in one process, so that what else the machine does hits
them alike; a repeat is a lap around the ring, and the first one warms up every
page. A figure is the median of the repeats, a ratio that of their ratios.

Then the rates of the original's Java buffer classes, and ours: `buffer_rates`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.shared.buffer_rates import rates
from benchmarks.shared.report import Figure, at_least, command, median, seconds
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import EncodedWindow, Ring
from databus.schemas.event.control import end_of_period
from databus.schemas.event.event import Event, Opcode, Part
from databus.schemas.event.v2 import encode

CAPACITY_BYTES = 64 << 20
EVENTS_PER_WINDOW = 10
EVENT_BYTES = 160
BATCH_WINDOWS = 100
CHUNK_WINDOWS = 1000
READ_BYTES = 1 << 20
MB = 1e6
TARGET = at_least(0.30)


def make_windows(count: int) -> list[EncodedWindow]:
    """Return windows with the SCNs 1 to `count`, each with bytes of its own."""
    room = EVENT_BYTES - len(_event(1, 1, b""))
    chosen = random.Random(1)
    windows = []
    for scn in range(1, count + 1):
        rows = [_event(scn, key, chosen.randbytes(room)) for key in range(EVENTS_PER_WINDOW)]
        windows.append(EncodedWindow(scn, b"".join((*rows, encode(end_of_period(scn, scn)))), scn))
    return windows


def _event(scn: int, key: int, data: bytes) -> bytes:
    return encode(Event(scn, scn, 40, 0, key, Opcode.UPSERT, Part(data, bytes(16), 1), None))


@contextmanager
def open_ring(capacity_bytes: int = CAPACITY_BYTES) -> Iterator[tuple[Ring, RingReader]]:
    """A ring in a temporary folder, and its reader."""
    with tempfile.TemporaryDirectory(prefix="databus-bench-") as folder:
        path = Path(folder) / "bench.ring"
        ring = Ring.open(path, "bench", capacity_bytes, start_scn=0)
        reader = RingReader.open(path)
        try:
            yield ring, reader
        finally:
            reader.close()
            ring.close()


class Lap:
    """Goes around the ring and the plain buffer in turns, and measures the times."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._windows = make_windows(CHUNK_WINDOWS)
        self._buffer = memoryview(bytearray(CAPACITY_BYTES))
        self._at = 0
        self.chunk_mb = sum(len(window.data) for window in self._windows) / MB
        self._chunks = int(CAPACITY_BYTES / MB / self.chunk_mb)

    def run(self) -> tuple[float, float, float]:
        """Return the seconds a chunk took to copy, to append singly and in batches."""
        copied = singly = batched = 0.0
        self._at = 0
        for _ in range(self._chunks):
            singly += seconds(partial(self._append_singly, self._next_windows()))
            copied += seconds(self._copy)
            batched += seconds(partial(self._append_in_batches, self._next_windows()))
        return copied / self._chunks, singly / self._chunks, batched / self._chunks

    def _next_windows(self) -> list[EncodedWindow]:
        """Return the windows with SCNs after the ring's newest; their other bytes stay the same."""
        first = self._ring.max_scn + 1
        return [
            EncodedWindow(scn, window.data, scn) for scn, window in enumerate(self._windows, first)
        ]

    def _copy(self) -> None:
        at, buffer = self._at, self._buffer
        for _, data, _ in self._windows:
            end = at + len(data)
            buffer[at:end] = data
            at = end
        self._at = at

    def _append_singly(self, windows: list[EncodedWindow]) -> None:
        append = self._ring.append
        for window in windows:
            append((window,))

    def _append_in_batches(self, windows: list[EncodedWindow]) -> None:
        for at in range(0, len(windows), BATCH_WINDOWS):
            self._ring.append(windows[at : at + BATCH_WINDOWS])


def figures(short: bool = False) -> list[Figure]:
    """Measure appending, finding and reading."""
    with open_ring() as (ring, reader):
        appending = _measure_appending(ring, 5 if short else 21)
    with open_ring() as (ring, reader):
        ring.append(make_windows(CAPACITY_BYTES // 2000))
        reading = _measure_reading(ring, reader, 2000 if short else 20_000)
    with open_ring() as (ring, reader):
        return appending + reading + rates(ring, reader, 5 if short else 21)


def _measure_appending(ring: Ring, repeats: int) -> list[Figure]:
    lap = Lap(ring)
    lap.run()
    laps = [lap.run() for _ in range(repeats)]
    copied, singly, batched = (statistics.median(times) for times in zip(*laps, strict=True))
    single_ratio = statistics.median(copy / single for copy, single, _ in laps)
    batch_ratio = statistics.median(copy / batch for copy, _, batch in laps)
    events = CHUNK_WINDOWS * EVENTS_PER_WINDOW
    batch = f"ring append, {BATCH_WINDOWS} windows a call"
    return [
        Figure("plain copy of the windows", lap.chunk_mb / copied, "MB/s"),
        Figure("ring append, one window a call", events / singly, "events/s"),
        Figure("ring append, one window a call", lap.chunk_mb / singly, "MB/s"),
        Figure("ring append, one window a call / plain copy", single_ratio, "x", TARGET),
        Figure(batch, events / batched, "events/s"),
        Figure(batch, lap.chunk_mb / batched, "MB/s"),
        Figure(f"{batch} / plain copy", batch_ratio, "x", TARGET),
    ]


def _measure_reading(ring: Ring, reader: RingReader, seeks: int) -> list[Figure]:
    chosen = random.Random(2)
    scns = [chosen.randrange(ring.min_scn, ring.max_scn) for _ in range(seeks)]
    anywhere = _microseconds(reader, scns)
    newest = _microseconds(reader, [ring.max_scn] * seeks)
    read = median(5, lambda: seconds(lambda: _read_all(reader, ring)))
    held_mb = (ring.tail - ring.head) / MB
    return [
        Figure("seek to any SCN", anywhere, "µs"),
        Figure("seek to the newest SCN", newest, "µs"),
        Figure("read whole windows in 1 MiB pieces", held_mb / read, "MB/s"),
    ]


def _microseconds(reader: RingReader, scns: list[int]) -> float:
    return statistics.median(seconds(partial(reader.find, scn, -1)) for scn in scns) * 1e6


def _read_all(reader: RingReader, ring: Ring) -> None:
    position = ring.head
    while (end := reader.end_of_windows(position, READ_BYTES)) > position:
        assert len(reader.read(position, end - position)) == end - position
        position = end


main = command("ring", figures)

if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ring")
