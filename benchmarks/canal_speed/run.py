"""Lets Canal's stock client read one binlog through a relay and through Canal's own server.

Both are a process that begins at the same place of the same log; the client is the same program,
and parses every value. Relay and server take turns. `serving only` is a relay that had captured
all rows before the client came.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from benchmarks.canal_speed.building import cpu_s_per_million
from benchmarks.canal_speed.client import CLIENT, ClientError, Reading, read_all
from benchmarks.canal_speed.servers import SERVER, Serving, canal, relay
from benchmarks.capture.log import Kind, Stretch
from benchmarks.peers.log import mysql_with_log, write_stretch
from benchmarks.peers.ours import Job
from benchmarks.peers.programs import BuildError, command_of
from benchmarks.shared.report import Figure, at_least, at_most, publish
from databus.demo.private_mariadb import HOST, PrivateMariaDB

KINDS: tuple[Kind, ...] = ("bulk", "single")
SIZE = 1000  # KiB of the log in a batch
Side = Literal["relay", "Canal server", "relay, serving only"]
Serve = Callable[[Job, Path], AbstractContextManager[Serving]]
SIDES: Mapping[Side, Serve] = {
    "relay": relay,
    "Canal server": canal,
    "relay, serving only": partial(relay, is_filled=True),
}
Readings = dict[tuple[Kind, Side], list[Reading]]
Tell = Callable[[str], None]


def measure(rows: Mapping[Kind, int], repeats: int, size: int, tell: Tell) -> Readings:
    """Let the client read both kinds of stretch in turns; raises BuildError, ClientError."""
    for program in (SERVER, CLIENT):
        command_of(program)
    found: Readings = {}
    with mysql_with_log() as server:
        for kind in KINDS:
            tell(f"{kind}: writing {rows[kind]:,} rows …")
            stretch = write_stretch(server, kind, rows[kind])
            for turn in range(repeats):
                for side in SIDES:
                    tell(f"{kind}, turn {turn + 1} of {repeats}: {side} …")
                    reading = _read(server, stretch, side, size)
                    found.setdefault((kind, side), []).append(reading)
    return found


def _read(server: PrivateMariaDB, stretch: Stretch, side: Side, size: int) -> Reading:
    job = Job(
        "canal",
        HOST,
        server.port,
        server.user,
        server.password,
        stretch.file,
        stretch.begin.offset,
        stretch.table.source,
        stretch.rows,
    )
    with tempfile.TemporaryDirectory(prefix="databus-canal-speed-") as name:
        folder = Path(name)
        with SIDES[side](job, folder) as serving:
            return read_all(serving, job, size, folder)


def figures_of(found: Readings, size: int) -> list[Figure]:
    """Return the medians of both sides, and the ratios of the relay to Canal's server."""
    figures = []
    for (kind, side), readings in found.items():
        what = f"Canal's client, {kind}, batches of {size}, {side}"
        figures += [
            Figure(f"{what}: rows", _median(readings, rate), "rows/s"),
            Figure(f"{what}: server", _median(readings, cpu), "CPU s/M rows"),
            Figure(
                f"{what}: server, last three quarters", _median(readings, late_cpu), "CPU s/M rows"
            ),
            Figure(f"{what}: client", _median(readings, client_cpu), "CPU s/M rows"),
            Figure(f"{what}: server, resident", _median(readings, resident), "MB"),
            Figure(f"{what}: server, without mapped files", _median(readings, anonymous), "MB"),
        ]
    for kind in KINDS:
        ours, theirs = found[kind, "relay"], found[kind, "Canal server"]
        pairs = list(zip(ours, theirs, strict=True))
        ratio = statistics.median(rate(one) / rate(other) for one, other in pairs)
        # The relay's start counts, and Canal's does not: it is a virtual machine's.
        cpu_ratio = statistics.median(late_cpu(other) / cpu(one) for one, other in pairs)
        what = f"Canal's client, {kind}, batches of {size}"
        figures += [
            Figure(f"{what}: rows/s, relay / Canal server", ratio, "x", at_least(1)),
            Figure(f"{what}: CPU, Canal server / relay", cpu_ratio, "x", at_least(1)),
            Figure(f"{what}: runs with other values", _others([*ours, *theirs]), "", at_most(0)),
        ]
    return figures


def rate(one: Reading) -> float:
    """Rows a second."""
    return one.late_rows / one.late_s


def cpu(one: Reading) -> float:
    """CPU seconds of the server per million rows, its start among them."""
    return one.cpu_s / one.rows * 1e6


def late_cpu(one: Reading) -> float:
    """The same of the last three quarters."""
    return one.late_cpu_s / one.late_rows * 1e6


def client_cpu(one: Reading) -> float:
    """CPU seconds of the client per million rows."""
    return one.client_cpu_s / one.late_rows * 1e6


def resident(one: Reading) -> float:
    """Memory of the server at most, with the relay's ring."""
    return one.resident_mb


def anonymous(one: Reading) -> float:
    """Memory of the server at most, without mapped files."""
    return one.anonymous_mb


def _median(readings: Sequence[Reading], value: Callable[[Reading], float]) -> float:
    return statistics.median(map(value, readings))


def _others(readings: Sequence[Reading]) -> int:
    """Return how many readings of other rows or values there are, beside the first."""
    return len({(one.rows, one.columns, one.characters) for one in readings}) - 1


def building_figures(repeats: int) -> list[Figure]:
    """Return what building the entries costs alone."""
    return [
        Figure(
            f"building Canal's entries, {kind}", cpu_s_per_million(kind, repeats), "CPU s/M rows"
        )
        for kind in KINDS
    ]


def figures(short: bool = False) -> list[Figure]:
    """Measure both; without Java or the archives only what building entries costs."""
    rows: dict[Kind, int] = {"bulk": 40_000, "single": 10_000}
    if not short:
        rows = {"bulk": 1_000_000, "single": 200_000}
    built = building_figures(3 if short else 9)
    try:
        found = measure(rows, 1 if short else 3, SIZE, lambda _: None)
    except (BuildError, subprocess.TimeoutExpired) as error:
        print(f"not run: Canal's server and client, {error}")
        return built
    return [*figures_of(found, SIZE), *built]


@click.command()
@click.option("--short", is_flag=True, help="Trade precision for seconds.")
@click.option("--rows", default=1_000_000, show_default=True, help="Rows, a thousand at once.")
@click.option("--transactions", default=200_000, show_default=True, help="Rows, one at once.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--size", default=SIZE, show_default=True, help="KiB of the log in a batch.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    short: bool, rows: int, transactions: int, repeats: int, size: int, json_file: Path | None
) -> None:
    """Compare a relay with Canal's own server, both read by Canal's stock client."""
    console = Console(stderr=True, log_path=False)
    if short:
        publish("Canal's client", figures(short=True), json_file)
        return
    began_s = time.monotonic()
    counts: dict[Kind, int] = {"bulk": rows, "single": transactions}
    try:
        found = measure(counts, repeats, size, lambda text: console.log(text))
    except (BuildError, ClientError) as error:
        raise click.ClickException(str(error)) from error
    console.log(f"{time.monotonic() - began_s:.0f} s in all")
    publish("Canal's client", [*figures_of(found, size), *building_figures(repeats)], json_file)
