"""Writes each stretch once, lets all readers read it in turns, and prints a line for each."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.capture.log import BULK_ROWS, Kind, Stretch
from benchmarks.peers.log import mysql_with_log, write_stretch
from benchmarks.peers.programs import PEERS, Peer, buildable, command_of
from benchmarks.peers.table import COLUMNS, lines_of
from benchmarks.shared.report import PIPE_COLUMNS, Figure, as_json
from databus.demo.private_mariadb import HOST, PrivateMariaDB

OURS = {
    "raw": "raw stream",
    "library": "mysql-replication",
    "ring": "databus, into the ring",
    "key": "databus, callback that looks at keys",
    "row": "databus, callback with dict rows",
    "window": "databus, windows() with dict rows",
    "batch": "databus, batches() with dict rows",
}
SLOW_OURS = {"library": 20}  # it gets this factor fewer rows
NAMES = (*OURS, *PEERS)
KINDS: tuple[Kind, ...] = ("bulk", "single")
FEWEST_ROWS = 10 * BULK_ROWS
_TIMEOUT_S = 900.0


class ReaderError(Exception):
    """A reader failed; the text is the end of what it said."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reader printed."""

    rows: int
    seconds: float
    cpu_seconds: float
    peak_mb: float  # anonymous memory of all its processes


@dataclass(frozen=True, slots=True)
class Reader:
    """One program with its mode."""

    name: str

    @property
    def title(self) -> str:
        """What the table calls it."""
        return OURS[self.name] if self.name in OURS else PEERS[self.name].title

    def rows_of(self, stretch: Stretch) -> int:
        """Return how many rows it reads: a slow reader gets fewer, from the same begin."""
        slowness = SLOW_OURS.get(self.name, 1)
        if self.name in PEERS:
            slowness = PEERS[self.name].slowness
        return min(stretch.rows, max(FEWEST_ROWS, stretch.rows // slowness))

    def command(self) -> tuple[str, ...]:
        """Return the command up to the mode."""
        if self.name in OURS:
            return (sys.executable, "-m", "benchmarks.peers.ours", self.name)
        return command_of_peer(PEERS[self.name])

    def read(self, server: PrivateMariaDB, stretch: Stretch) -> Reading:
        """Run it; raises ReaderError."""
        place = (stretch.file, str(stretch.begin.offset), stretch.table.source)
        return run_reader(self.command(), server, place, self.rows_of(stretch))


def run_reader(
    command: Sequence[str], server: PrivateMariaDB, place: Sequence[str], rows: int
) -> Reading:
    """Run a reader's program; `place` is a log file, an offset in it and a table.

    Raises ReaderError.
    """
    login = (HOST, str(server.port), server.user, server.password)
    measured = (sys.executable, "-m", "benchmarks.peers.peak", *command)
    try:
        done = subprocess.run(
            [*measured, *login, *place, str(rows)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ReaderError(f"no result within {_TIMEOUT_S:g} s") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or len(lines) < 2:
        raise ReaderError(" / ".join((done.stderr + done.stdout).strip().splitlines()[-3:]))
    return Reading(**json.loads(lines[-2]), **json.loads(lines[-1]))


def command_of_peer(peer: Peer) -> tuple[str, ...]:
    """Return the command of a peer up to its mode; raises BuildError."""
    return (*command_of(peer.program), peer.mode)


Readings = dict[tuple[Kind, str], list[Reading]]
Tell = Callable[[str], None]


def measure(names: Sequence[str], rows: dict[Kind, int], repeats: int, tell: Tell) -> Readings:
    """Let readers read both kinds of stretch in turns; one that fails is told and left out."""
    readers = [Reader(name) for name in (*_ours(names), *buildable(_peers(names), tell))]
    found: Readings = {}
    with mysql_with_log() as server:
        for kind in KINDS:
            tell(f"{kind}: writing {rows[kind]:,} rows …")
            stretch = write_stretch(server, kind, rows[kind])
            failed: set[str] = set()
            for turn in range(repeats):
                for reader in readers:
                    if reader.name in failed:
                        continue
                    tell(f"{kind}, turn {turn + 1} of {repeats}: {reader.title} …")
                    try:
                        reading = reader.read(server, stretch)
                    except ReaderError as error:
                        failed.add(reader.name)
                        tell(f"{reader.title} failed: {error}")
                    else:
                        found.setdefault((kind, reader.name), []).append(reading)
    return found


def _ours(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in OURS]


def _peers(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in PEERS]


def table_figures(found: Readings) -> list[Figure]:
    """Return per reader the medians of rows a second, CPU seconds per million rows, and memory."""
    figures = []
    for (kind, name), readings in found.items():
        what = f"{kind}: {Reader(name).title}"
        rate = statistics.median(r.rows / r.seconds for r in readings)
        cpu = statistics.median(r.cpu_seconds / r.rows * 1e6 for r in readings)
        peak = statistics.median(r.peak_mb for r in readings)
        figures += [
            Figure(what, rate, "rows/s"),
            Figure(what, cpu, "CPU s/M rows"),
            Figure(what, peak, "MB"),
        ]
    return figures


def figures(short: bool = False) -> list[Figure]:
    """Measure every reader that can be built here."""
    rows: dict[Kind, int] = {"bulk": 200_000, "single": 20_000}
    if not short:
        rows = {"bulk": 2_000_000, "single": 300_000}
    return table_figures(measure(NAMES, rows, 1 if short else 3, lambda _: None))


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--rows", type=click.IntRange(FEWEST_ROWS), default=2_000_000, show_default=True)
@click.option(
    "--transactions", type=click.IntRange(FEWEST_ROWS), default=300_000, show_default=True
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    names: tuple[str, ...], rows: int, transactions: int, repeats: int, json_file: Path | None
) -> None:
    """Compare the readers NAMES of one MySQL's binlog, or all that can be built here.

    --rows go into transactions of a thousand rows, --transactions into ones of a single row.
    """
    console = Console(stderr=True, log_path=False)
    counts: dict[Kind, int] = {"bulk": rows, "single": transactions}
    began_s = time.monotonic()
    found = table_figures(measure(names or NAMES, counts, repeats, lambda text: console.log(text)))
    console.log(f"{time.monotonic() - began_s:.0f} s in all")
    output = Console(width=None if console.is_terminal else PIPE_COLUMNS)
    output.print(_table_of(found))
    if json_file is not None:
        json_file.write_text(as_json(found), encoding="utf-8")


def _table_of(found: Sequence[Figure]) -> Table:
    table = Table(title="readers of one binlog", title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == COLUMNS[0] else "right")
    for line in lines_of(found):
        table.add_row(*line)
    return table
