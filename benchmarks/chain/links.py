"""What each link of a chain adds: from a window's place in one ring to that in the next one's.

The relays note when each window is in their ring and in their answer, and a client behind the last
one notes when its callback is called: what a relay adds for a client stands beside it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chain.writer import Writer
from benchmarks.growth.processes import cpu_seconds
from benchmarks.shared.load import read_numbers
from databus.daemon.http.encoding import BodyEncoder
from databus.demo.processes import Child, python_module
from databus.relay.sources.upstream.source import WAIT_MS
from tests.promises.chaining.chain import chain
from tests.promises.running import RunningRelay, wait_until

TRACED = "benchmarks.shared.traced_relay"
STAMPS = "relay.stamps"
WARM_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from ring to ring of each link, from the last ring to the client's callback.

    `cpu_us` is the CPU time of each relay a transaction, in microseconds; `wire_bytes` what its
    window takes, `packed_bytes` compressed.
    """

    links_s: list[list[float]] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    wire_bytes: float = 0.0
    packed_bytes: float = 0.0


def measure_links(
    first: RunningRelay, folder: Path, length: int, run: Writer, s: float, compression: str
) -> Latencies:
    """Write for so many seconds; return what came of them but for the first ones."""
    more = {"options": {"module": TRACED}, "upstream_compression": compression}
    with chain(first, folder, length, **more) as relays:
        with _client(relays[-1], folder) as client_stamps:
            with run.running():
                time.sleep(WARM_UP_S)
                begin, rows, begin_ns = _cpu_of(relays), run.rows, time.time_ns()
                time.sleep(s)
                end, written = _cpu_of(relays), run.rows - rows
            wait_until(lambda: len({one.max_scn() for one in relays}) == 1, "all windows")
            time.sleep(0.5)  # until the client has them
            windows = list(first.windows().values())
        stamps = [one.data_dir.parent / STAMPS for one in relays]
        for one in relays:
            one.child.stop()
        in_ring = [{scn: at for scn, at, _ in read_numbers(file, 3)} for file in stamps]
        called = {scn: at for _, scn, _, at in read_numbers(client_stamps, 4)}
    counted = [scn for scn, at in in_ring[0].items() if at >= begin_ns and scn in called]
    links = [
        [(after[scn] - before[scn]) / 1e9 for scn in counted]
        for before, after in itertools.pairwise(in_ring)
    ]
    client = [(called[scn] - in_ring[-1][scn]) / 1e9 for scn in counted]
    cpu = [1e6 * (after - before) / written for before, after in zip(begin, end, strict=True)]
    count = len(windows)
    packed = _packed_bytes(windows, int(run.rate * WAIT_MS / 1000))
    return Latencies(links, client, cpu, sum(map(len, windows)) / count, packed / count)


def _packed_bytes(windows: Sequence[bytes], each: int) -> int:
    """Return how many bytes windows take that are sent one by one, so many in an answer."""
    size_bytes = 0
    for begin in range(0, len(windows), each):
        encoder = BodyEncoder()
        size_bytes += sum(len(encoder.encode(one)) for one in windows[begin : begin + each])
        size_bytes += len(encoder.end())
    return size_bytes


def _cpu_of(relays: Sequence[RunningRelay]) -> list[float]:
    return [cpu_seconds(one.child.pid) for one in relays]


@contextlib.contextmanager
def _client(relay: RunningRelay, folder: Path) -> Iterator[Path]:
    """Run a client; yield the file that has its stamps afterwards."""
    stamps = folder / "client.stamps"
    (source, *_) = relay.physical[0]["sources"]
    command = python_module(
        "benchmarks.shared.probe", "--relay", relay.url, "--source", source, "--stamps", stamps
    )
    client = Child("client", command, folder)
    client.start()
    try:
        wait_until(
            lambda: relay.get("/api/v1/clients").json()["clients"], "the client", client.log_tail
        )
        yield stamps
    finally:
        client.stop()
