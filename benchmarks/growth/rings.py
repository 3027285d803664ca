"""How appending to a ring and finding an SCN grow with the ring.

Look-ups at every size are spread over as many rings as have the largest size together: the same
amount of memory is in use, so what they cost does not depend on how much of it is in the
processor's caches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack

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
    repeats = 1 if short else 3
    first, later = least(sizes, repeats, lambda size: apart(_full_ring, size))
    (found,) = least(
        sizes, repeats, lambda size: apart(_look_up_in, sizes[-1] // size, size * _MiB, 0)
    )
    return [
        Curve("ring size: append of a window, first lap", "MiB", first, FLAT),
        Curve("ring size: append of a window, later", "MiB", later, FLAT),
        Curve("ring size: look-up of an SCN", "MiB", found, FLAT),
    ]


def lookups(short: bool) -> list[Curve]:
    """Measure a look-up by the number of windows in a ring that holds them all."""
    # A ring of fewer windows has smaller blocks, and so less to search in each.
    sizes = (10_000, 100_000) if short else (10_000, 30_000, 100_000, 300_000, 1_000_000)
    (found,) = least(
        sizes,
        1 if short else 3,
        lambda size: apart(_look_up_in, sizes[-1] // size, _MiB + size * _SMALL_BYTES, size),
    )
    return [Curve("look-ups: an SCN", "windows", found, FLAT)]


def _full_ring(size: int) -> list[float]:
    """Return the CPU seconds of an append on the first lap and later."""
    with open_ring(size * _MiB) as (ring, _):
        batch = Batch()
        window_bytes = len(batch.stamp(1).data) // BATCH_WINDOWS
        return [
            _append(ring, batch, size * _MiB // window_bytes),
            _append(ring, batch, _MEASURED_BYTES // window_bytes),
        ]


def _look_up_in(rings: int, ring_bytes: int, windows: int) -> list[float]:
    """Return the CPU seconds of a look-up in one of several rings.

    Each has so many windows of one event, or, if 0, is full of windows of ten.
    """
    batch = Batch(events=1) if windows else Batch()
    count = windows or 2 * ring_bytes // (len(batch.stamp(1).data) // BATCH_WINDOWS)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_ring(ring_bytes)) for _ in range(rings)]
        for ring, _ in opened:
            _append(ring, batch, count)
        _look_up(opened)  # maps the pages
        return [_look_up(opened)]


def _append(ring: Ring, batch: Batch, windows: int) -> float:
    """Append about so many windows; return the CPU seconds of one of them."""
    times, used_s = max(1, windows // BATCH_WINDOWS), 0.0
    for _ in range(times):
        stamped = batch.stamp(ring.max_scn + 1)
        began_s = time.process_time()
        ring.append_batch(stamped)
        used_s += time.process_time() - began_s
    return used_s / (times * BATCH_WINDOWS)


def _look_up(rings: Sequence[tuple[Ring, RingReader]]) -> float:
    chosen = random.Random(1)
    wanted = [
        (reader, chosen.randrange(ring.min_scn, ring.max_scn))
        for ring, reader in chosen.choices(rings, k=_LOOKUPS)
    ]
    began_s = time.process_time()
    for reader, scn in wanted:
        reader.find(scn, -1)
    return (time.process_time() - began_s) / _LOOKUPS
