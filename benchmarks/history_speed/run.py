"""Runs all sides in turns, and computes medians and ratios."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.capture.log import server_with_log
from benchmarks.history_speed.capturing import Captured, capture, write_binlog
from benchmarks.history_speed.gtids import collecting, seeking, without_index
from benchmarks.history_speed.history import PHYSICAL, drop_from_memory, write_history, write_sparse
from benchmarks.history_speed.serving import (
    HistoryClient,
    Reading,
    begin_relay,
    parts_of,
    run_bare,
    run_relay,
)
from benchmarks.serve import started
from benchmarks.shared.report import Figure, at_least, at_most, command
from databus.daemon.http.client import HttpClient
from databus.relay.log.directory import find_segments
from databus.relay.log.reader import LogReader, SegmentTuple
from databus.relay.ring.event_selector import WINDOW_DONE

SEED = 20261125
SPARSE_BYTES = 100 << 30
FIRST_BYTES = 64 << 10
_JOINED_S = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured, and how often."""

    history_bytes: int
    repeats: int
    rows: int
    captures: int
    seeks: int


SHORT = Size(96 << 20, 5, 40_000, 1, 20)
LONG = Size(512 << 20, 15, 1_500_000, 5, 200)


def figures(short: bool = False) -> list[Figure]:
    """Measure all."""
    size = SHORT if short else LONG
    with tempfile.TemporaryDirectory(prefix="databus-history-") as name:
        folder = Path(name)
        found = list(_serving(folder / "served", size))
        found += _seeking(folder / "sparse", size)
    return [*found, *collecting(size.repeats), *_capturing(size)]


def _serving(folder: Path, size: Size) -> Iterator[Figure]:
    begin_relay(folder)
    log = write_history(folder, size.history_bytes)
    parts = parts_of(log)
    # The last parts are in the ring as well, which a relay reads first.
    with closing(LogReader(SegmentTuple(find_segments(log).log))) as reader:
        newest = reader.max_scn
    with started(run_relay, str(folder)) as relay, started(run_bare, str(log)) as bare:
        client = HistoryClient(relay)
        until = _first_in_ring(relay.url)
        parts = [part for part in parts if part.scn < until]
        yield from _stored(client, HistoryClient(bare), len(parts), parts[-1].scn, size.repeats)
        yield from _decoded(client, (parts[-1].scn, until, newest), size.repeats)
        client.close()
    yield from without_index(log, folder / f"{PHYSICAL}.ring")


def _first_in_ring(url: str) -> int:
    """Wait until the relay has joined ring and log; return the ring's first SCN."""
    with closing(
        HttpClient(url, connect_timeout_s=5, response_timeout_s=5, max_bytes=1 << 20)
    ) as http:

        def status() -> Any:
            return json.loads(http.get("/controlSources/status").body)[PHYSICAL]

        give_up = time.perf_counter() + _JOINED_S
        while status()["relayLog"]["minScn"] != 1:
            assert time.perf_counter() < give_up, "ring and log are not joined"
            time.sleep(0.05)
        return int(status()["minScn"])


def _stored(
    ours: HistoryClient, theirs: HistoryClient, count: int, until: int, repeats: int
) -> Iterator[Figure]:
    """History as it lies on disk, beside sendfile of the same bytes."""
    pairs = [
        (ours.read_history(-1, until, is_zstd=True), theirs.read_parts(count))
        for _ in range(repeats)
    ]
    theirs.close()
    assert all(one.size_bytes == other.size_bytes for one, other in pairs)
    yield from _sides("history as stored", "sendfile by tornado", pairs, 0.8)


def _decoded(client: HistoryClient, scns: tuple[int, int, int], repeats: int) -> Iterator[Figure]:
    """History that the relay decodes, beside the windows of its ring."""
    in_log, in_ring, newest = scns
    pairs: list[tuple[Reading, Reading]] = []
    for _ in range(repeats):
        ours = client.read_history(-1, in_log, is_zstd=False)
        pairs.append((ours, client.read_history(in_ring, newest, is_zstd=False)))
    yield from _sides("history decoded", "the ring", pairs, 0.5)


def _sides(
    name: str, beside: str, pairs: list[tuple[Reading, Reading]], least: float
) -> Iterator[Figure]:
    for title, readings in ((name, [p[0] for p in pairs]), (beside, [p[1] for p in pairs])):
        yield Figure(f"{title}", statistics.median(one.rate for one in readings), "MB/s")
        yield Figure(f"{title}, CPU", statistics.median(one.cost for one in readings), "s/GB")
    ratio = statistics.median(one.rate / other.rate for one, other in pairs)
    yield Figure(f"{name} / {beside}", ratio, "x", at_least(least))


def _seeking(folder: Path, size: Size) -> Iterator[Figure]:
    """The time from an SCN to the first windows behind it, out of memory and off the disk."""
    places = write_sparse(folder, SPARSE_BYTES, size.seeks, SEED)
    began = time.perf_counter()
    log = find_segments(folder).log
    yield Figure("100 GB of history: opening", (time.perf_counter() - began) * 1e3, "ms")
    for is_cold in (False, True):
        took = []
        for place in places:
            if is_cold:
                drop_from_memory(place.path)
            with closing(LogReader(SegmentTuple(log))) as reader:
                began = time.perf_counter()
                position = reader.find(place.scn, WINDOW_DONE)
                assert position is not None
                assert len(reader.read(position, FIRST_BYTES)) == FIRST_BYTES
                took.append((time.perf_counter() - began) * 1e3)
        where = "off the disk" if is_cold else "in memory"
        yield Figure(f"100 GB of history: seek, {where}, median", statistics.median(took), "ms")
        worst = statistics.quantiles(took, n=100)[98]
        yield Figure(f"100 GB of history: seek, {where}, p99", worst, "ms", at_most(10))
    yield from seeking(folder, log, places)


def _capturing(size: Size) -> Iterator[Figure]:
    pairs: list[tuple[Captured, Captured]] = []
    with server_with_log("FULL") as server:
        stretch = write_binlog(server, size.rows)
        for _ in range(size.captures):
            with_log = capture(server, stretch, has_log=True)
            pairs.append((with_log, capture(server, stretch, has_log=False)))
    for title, side in (("with a log", 0), ("without", 1)):
        rate = statistics.median(stretch.rows / pair[side].seconds for pair in pairs)
        yield Figure(f"capture {title}", rate, "rows/s")
        cost = statistics.median(pair[side].cpu_s for pair in pairs) / stretch.rows * 1e6
        yield Figure(f"capture {title}, CPU", cost, "s/M rows")
    ratio = statistics.median(plain.seconds / logged.seconds for logged, plain in pairs)
    yield Figure("capture with a log / without", ratio, "x", at_least(0.85))
    logged = pairs[-1][0]
    yield Figure("bytes of the log / the binlog", logged.log_bytes / stretch.size_bytes, "x")
    yield Figure("bytes of the log / its events", logged.log_bytes / logged.event_bytes, "x")


main = command("history", figures)
