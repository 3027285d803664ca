"""How appending to a ring and finding an SCN grow with the ring."""

from __future__ import annotations

import random
import time

from benchmarks.growth.curve import FLAT, Curve, least
from benchmarks.growth.processes import apart
from benchmarks.ring import open_ring
from benchmarks.shared.buffer_rates import BATCH_WINDOWS, Batch
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring

_MiB = 1 << 20
_MEASURED_BYTES = 64 * _MiB
_LOOKUPS = 20_000
_SMALL_BYTES = 300  # more than a window of one event


def ring_size(short: bool) -> list[Curve]:
    """Measure an append and a look-up by the size of a full ring."""
    sizes = (16, 64) if short else (16, 64, 256, 1024)
    first, later, found = least(sizes, 1 if short else 3, lambda size: apart(_full_ring, size))
    return [
        Curve("ring size: append of a window, first lap", "MiB", first, FLAT),
        Curve("ring size: append of a window, later", "MiB", later, FLAT),
        Curve("ring size: look-up of an SCN", "MiB", found, FLAT),
    ]


def lookups(short: bool) -> list[Curve]:
    """Measure a look-up by the number of windows in a ring that holds them all."""
    # A ring of fewer windows has smaller blocks, and so less to search in each.
    sizes = (10_000, 100_000) if short else (10_000, 30_000, 100_000, 300_000, 1_000_000)
    (found,) = least(sizes, 1 if short else 3, lambda size: apart(_ring_of, size))
    return [Curve("look-ups: an SCN", "windows", found, FLAT)]


def _full_ring(size: int) -> list[float]:
    """Return the CPU seconds of an append on the first lap and later, and of a look-up."""
    with open_ring(size * _MiB) as (ring, reader):
        batch = Batch()
        window_bytes = len(batch.stamp(1).data) // BATCH_WINDOWS
        first = _append(ring, batch, size * _MiB // window_bytes)
        later = _append(ring, batch, _MEASURED_BYTES // window_bytes)
        return [first, later, _look_up(ring, reader)]


def _ring_of(count: int) -> list[float]:
    """Return the CPU seconds of a look-up among a number of windows of one event."""
    with open_ring(_MiB + count * _SMALL_BYTES) as (ring, reader):
        _append(ring, Batch(events=1), count)
        return [_look_up(ring, reader)]


def _append(ring: Ring, batch: Batch, windows: int) -> float:
    """Append about so many windows; return the CPU seconds of one of them."""
    times, used_s = max(1, windows // BATCH_WINDOWS), 0.0
    for _ in range(times):
        stamped = batch.stamp(ring.max_scn + 1)
        began_s = time.process_time()
        ring.append_batch(stamped)
        used_s += time.process_time() - began_s
    return used_s / (times * BATCH_WINDOWS)


def _look_up(ring: Ring, reader: RingReader) -> float:
    chosen = random.Random(1)
    scns = [chosen.randrange(ring.min_scn, ring.max_scn) for _ in range(_LOOKUPS)]
    began_s = time.process_time()
    for scn in scns:
        reader.find(scn, -1)
    return (time.process_time() - began_s) / _LOOKUPS
