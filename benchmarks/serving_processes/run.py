"""Measure capture alone, and with readers of one and two serving processes."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from benchmarks.growth.processes import cpu_seconds
from benchmarks.serving_processes.copiers import Copiers, copiers
from benchmarks.serving_processes.readers import PROCESSES, readers_of
from benchmarks.shared.report import Figure, at_most, command
from databus.demo.processes import Child, free_port, python_module, wait_until

SETTINGS = """
data_dir = "data"
serving_processes = {processes}
[http]
port = {port}
[[physical_sources]]
name = "bench"
uri = "generator:?rate={rate}"
sources = ["shop.orders"]
ring_bytes = "64MiB"
"""
RATE = 300  # transactions a second, of a few rows each
MB = 1e6


@dataclass
class Measured:
    """What a relay with some serving processes does."""

    # CPU time of capture a row: alone, beside processes that copy memory, with readers of the
    # other relay, with its own.
    alone_us: list[float] = field(default_factory=list)
    copying_us: list[float] = field(default_factory=list)
    beside_us: list[float] = field(default_factory=list)
    read_us: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)


@contextmanager
def running(folder: Path, processes: int) -> Iterator[tuple[str, int]]:
    """Run a relay; yield its URL and the id of its capturing process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    folder.mkdir(parents=True)
    file = folder / "relay.toml"
    file.write_text(SETTINGS.format(processes=processes, port=port, rate=RATE), "utf-8")
    relay = Child("relay", python_module("databus.cli.main", "relay", "run", "-c", file), folder)
    relay.start()
    try:
        wait_until(lambda: _running(url) == processes, 60.0, "the serving processes")
        yield url, relay.pid
    finally:
        relay.stop()


def _running(url: str) -> int:
    try:
        with urlopen(f"{url}/health", timeout=10) as answer:
            return int(json.load(answer)["servingProcesses"]["running"])
    except (URLError, OSError):
        return -1


def _rows(url: str) -> int:
    with urlopen(f"{url}/containerStats/inbound/events/total", timeout=30) as answer:
        return int(json.load(answer)["events"])


def measure(folder: Path, processes: int, slices: int, slice_s: float) -> Measured:
    """Alternate slices of capture alone, with readers of another relay, and with its own."""
    found = Measured()
    with (
        running(folder / "read", processes) as (url, pid),
        running(folder / "other", processes) as (other_url, _),
        readers_of(url) as own,
        readers_of(other_url) as others,
        copiers(PROCESSES + processes) as copying,
    ):
        time.sleep(4 * slice_s)  # until the rings have some MB
        own.read(slice_s)
        others.read(slice_s)
        for _ in range(slices):
            for readers, into in (
                (None, found.alone_us),
                (copying, found.copying_us),
                (others, found.beside_us),
                (own, found.read_us),
            ):
                rows, cpu_s = _rows(url), cpu_seconds(pid)
                bytes_per_s = 0.0
                if readers is None:
                    time.sleep(slice_s)
                elif isinstance(readers, Copiers):
                    readers.copy(slice_s)
                else:
                    bytes_per_s = readers.read(slice_s)
                into.append(1e6 * (cpu_seconds(pid) - cpu_s) / (_rows(url) - rows))
                if readers is own:
                    found.bytes_per_s.append(bytes_per_s)
    return found


def figures(short: bool = False) -> list[Figure]:
    """Measure both numbers of processes."""
    slices, slice_s = (5, 1.5) if short else (15, 4.0)
    with tempfile.TemporaryDirectory(prefix="databus-bench-") as name:
        one, two = (measure(Path(name) / str(n), n, slices, slice_s) for n in (1, 2))
    found = []
    for count, measured in ((1, one), (2, two)):
        alone, copying, beside, read = map(
            statistics.median,
            (measured.alone_us, measured.copying_us, measured.beside_us, measured.read_us),
        )
        text = f"serving processes, {count}:"
        found += [
            Figure(f"{text} CPU of capture a million rows, alone", alone, "s"),
            Figure(f"{text} … with 8 readers / alone", read / alone, "x"),
            Figure(f"{text} … beside processes that copy memory / alone", copying / alone, "x"),
            Figure(
                f"{text} … with 8 readers / with 8 of another relay",
                read / beside,
                "x",
                at_most(1.05),
            ),
            Figure(
                f"{text} 8 readers at full speed",
                statistics.median(measured.bytes_per_s) / MB,
                "MB/s",
            ),
        ]
    ratio = statistics.median(two.bytes_per_s) / statistics.median(one.bytes_per_s)
    return [*found, Figure("serving processes: 2 / 1, bytes a second of 8 readers", ratio, "x")]


main = command("serving_processes", figures)
