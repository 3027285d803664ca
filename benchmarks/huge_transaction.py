"""One transaction of millions of rows: `python -m benchmarks.huge_transaction --rows 5000000`.

First into a ring that holds it: the memory of the capturing process must stay flat once its
buffers are full, so it is looked at all along. Pages of the ring are mapped file memory, which the
system takes back when it likes; what counts is anonymous memory.

Then into a ring that does not: capture must stop and say which transaction,
which sizes and which setting, readers must see nothing of it, and once the
ring is larger, capture must go on.

Then through a small ring into its relay log, by a relay that is killed while the transaction comes
and while it is written (`huge_in_log`): memory must stay near that of an idle relay and the buffers
of any bulk load, and the log must have every row once. Anything else is a problem, and exit 1.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from benchmarks.capture.log import (
    NARROW,
    Stretch,
    begin_stretch,
    end_stretch,
    log_end,
    server_with_log,
    session_of,
    write_huge,
)
from benchmarks.capture.readers import PHYSICAL, check_counts, keys_held, settings_of
from benchmarks.huge_in_log import IntoLog, capture_into_log
from benchmarks.shared.report import Figure, as_json, at_most, publish
from databus.conf.settings import RelaySettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.relay.capture.status import State
from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay

SAMPLE_S = 0.02
GIVE_UP_S = 600.0
FLAT_BYTES = 32 << 20  # allocators keep or return a few MiB at random
# Buffers of a fixed number and size fill while the first rows are read: some 200,000 of them.
WARM_SHARE = 0.5
EVENT_BYTES = 400  # more than an event of a narrow row has in the ring
SMALL_SHARE = 8  # the small ring holds this fraction of the transaction
LITTLE = 10  # rows of the transactions before and after


@dataclass
class Memory:
    """Memory sizes of this process during capture, in bytes, in time order."""

    anonymous: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def sample(self) -> None:
        """Look once."""
        anonymous, resident = memory_bytes()
        self.anonymous.append(anonymous)
        self.resident.append(resident)


@dataclass
class Outcome:
    """The cost of both captures, and all problems."""

    rows: int
    seconds: float = 0.0
    ring_bytes: int = 0
    memory: Memory = field(default_factory=Memory)
    stop_text: str = ""
    log: IntoLog = field(default_factory=IntoLog)
    problems: list[str] = field(default_factory=list)

    def check(self, is_good: bool, problem: str) -> None:
        """Record a problem unless the condition is true."""
        if not is_good:
            self.problems.append(problem)


def memory_bytes() -> tuple[int, int]:
    """Return this process's anonymous and its whole resident memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {name: rest for name, _, rest in (line.partition(":") for line in lines)}
    anonymous, resident = (int(found[name].split()[0]) << 10 for name in ("RssAnon", "VmRSS"))
    return anonymous, resident


def growth_bytes(samples: list[int]) -> int:
    """Return the largest growth over an earlier minimum, in the second half of the samples."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    smallest, most = warm[0], 0
    for size in warm:
        smallest = min(smallest, size)
        most = max(most, size - smallest)
    return most


def measure(rows: int, tell: Callable[[str], None], most_growth_bytes: int = FLAT_BYTES) -> Outcome:
    """Write a transaction of a number of rows between two small ones; capture all three."""
    outcome = Outcome(rows)
    with server_with_log("FULL") as server:
        tell(f"writing {rows:,} rows in one transaction …")
        stretch, huge_scn, before_scn = _write(server, rows)
        tell(f"{stretch.size_bytes / 1e6:,.0f} MB of binlog; into a ring that is large enough …")
        _capture_into_large(outcome, server, stretch)
        growth = growth_bytes(outcome.memory.anonymous)
        outcome.check(
            growth <= most_growth_bytes,
            f"anonymous memory grew by {growth:,} bytes, more than {most_growth_bytes:,}",
        )
        tell("into a ring that is too small …")
        _capture_into_small(outcome, server, stretch, huge_scn, before_scn)
        tell("through a small ring into its log, with kills …")
        with _folder() as folder:
            outcome.log = capture_into_log(server, folder, stretch, tell)
        outcome.problems += outcome.log.problems
    return outcome


def _write(server: PrivateMariaDB, rows: int) -> tuple[Stretch, int, int]:
    """Write; return the counts, and the SCNs of the huge transaction and of the one before."""
    with session_of(server) as cursor:
        begun = begin_stretch(cursor, NARROW)
        write_huge(cursor, NARROW, LITTLE)
        before = log_end(cursor)[1].to_scn()
        write_huge(cursor, NARROW, rows, LITTLE)
        huge = log_end(cursor)[1].to_scn()
        write_huge(cursor, NARROW, LITTLE, LITTLE + rows)
        return end_stretch(cursor, NARROW, begun, rows + 2 * LITTLE, 3), huge, before


@contextmanager
def _capturing(settings: RelaySettings) -> Iterator[PhysicalSource]:
    relay = Relay(settings)
    try:
        relay.start()
        yield relay.physical_sources[PHYSICAL]
    finally:
        relay.stop(GIVE_UP_S)


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="databus-huge-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _capture_into_large(outcome: Outcome, server: PrivateMariaDB, stretch: Stretch) -> None:
    outcome.ring_bytes = max(1 << 20, outcome.rows * EVENT_BYTES)
    with _folder() as folder:
        started = time.monotonic()
        with _capturing(settings_of(server, folder, stretch, outcome.ring_bytes)) as source:
            _wait(source, stretch.end.to_scn(), outcome.memory)
            outcome.seconds = time.monotonic() - started
            problem = source.capture.status.problem
            outcome.check(not problem, f"the large ring: {problem}")
            if not problem:
                check_counts(source, stretch)


def _capture_into_small(
    outcome: Outcome, server: PrivateMariaDB, stretch: Stretch, huge_scn: int, before_scn: int
) -> None:
    with _folder() as folder:
        small = max(64 << 10, stretch.size_bytes // SMALL_SHARE)
        with _capturing(settings_of(server, folder, stretch, small)) as source:
            _wait(source, stretch.end.to_scn(), Memory())
            _check_stop(outcome, source, huge_scn, before_scn)
        with _capturing(settings_of(server, folder, stretch, outcome.ring_bytes)) as source:
            _wait(source, stretch.end.to_scn(), Memory())
            status = source.capture.status
            outcome.check(not status.problem, f"after the ring was enlarged: {status.problem}")
            keys = list(keys_held(source.reader))
            # The little one before may have been evicted to make room in vain.
            wanted = range(LITTLE + 1, stretch.rows + 1)
            outcome.check(
                keys[-len(wanted) :] == list(wanted),
                f"after the ring was enlarged it holds {len(keys):,} rows and not the right ones",
            )


def _check_stop(outcome: Outcome, source: PhysicalSource, huge_scn: int, before_scn: int) -> None:
    status = source.capture.status
    outcome.stop_text = status.problem
    outcome.check(status.state is State.ERROR, f"the small ring: capture is {status.state.value}")
    # Its own SCN if all of it arrived before it was too large, else the one before it.
    is_placed = any(str(scn) in status.problem for scn in (huge_scn, before_scn))
    outcome.check(is_placed, f"the error does not say where: {status.problem}")
    is_told = "ring_bytes" in status.problem
    outcome.check(is_told, f"the error does not name ring_bytes: {status.problem}")
    newest = source.reader.max_scn
    outcome.check(newest == before_scn, f"readers see scn {newest}, and not {before_scn}")
    beyond = [key for key in keys_held(source.reader) if key > LITTLE]
    outcome.check(not beyond, f"readers see {len(beyond):,} rows of the transaction")


def _wait(source: PhysicalSource, scn: int, memory: Memory) -> None:
    """Wait until the ring has an SCN or capture has stopped; sample the memory meanwhile."""
    deadline = time.monotonic() + GIVE_UP_S
    while source.reader.max_scn < scn and source.capture.status.state is not State.ERROR:
        if time.monotonic() > deadline:
            raise click.ClickException(f"capture is not done after {GIVE_UP_S:.0f} s")
        memory.sample()
        time.sleep(SAMPLE_S)
    memory.sample()


def table_figures(outcome: Outcome, most_growth_bytes: int = FLAT_BYTES) -> list[Figure]:
    """Return the lines of the table."""
    what = f"one transaction of {outcome.rows:,} rows"
    memory = outcome.memory
    flat = at_most(most_growth_bytes / 1e6)
    return [
        Figure(f"{what}: into a ring that holds it", outcome.seconds, "s"),
        Figure(f"{what}: rows", outcome.rows / max(outcome.seconds, 1e-9), "rows/s"),
        Figure(
            f"{what}: anonymous memory grew by", growth_bytes(memory.anonymous) / 1e6, "MB", flat
        ),
        Figure(f"{what}: anonymous memory at most", max(memory.anonymous) / 1e6, "MB"),
        Figure(
            f"{what}: resident, ring included, grew by", growth_bytes(memory.resident) / 1e6, "MB"
        ),
        Figure(f"{what}: the ring", outcome.ring_bytes / 1e6, "MB"),
        *outcome.log.figures(what, flat),
        Figure(f"{what}: problems", len(outcome.problems), "problems", at_most(0)),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Measure; the short form has a tenth of the rows."""
    return table_figures(measure(500_000 if short else 5_000_000, lambda _: None))


@click.command()
@click.option("--rows", type=click.IntRange(1000), default=5_000_000, show_default=True)
@click.option(
    "--most-growth-mib", type=float, default=FLAT_BYTES / 2**20, show_default=True,
    help="Most that anonymous memory may grow by in the second half.",
)  # fmt: skip
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(rows: int, most_growth_mib: float, json_file: Path | None) -> None:
    """Capture one huge transaction, with and without room for it; exit 1 on a problem."""
    console = Console(stderr=True, log_path=False)
    most_growth_bytes = int(most_growth_mib * 2**20)
    outcome = measure(rows, lambda text: console.log(text), most_growth_bytes)
    found = table_figures(outcome, most_growth_bytes)
    publish("one huge transaction", found)
    click.echo(f"without room: {outcome.stop_text}")
    for problem in outcome.problems:
        click.echo(f"PROBLEM: {problem}")
    if json_file is not None:
        memory = outcome.memory
        told = {
            "rows": rows,
            "seconds": outcome.seconds,
            "anonymous_growth_bytes": growth_bytes(memory.anonymous),
            "anonymous_peak_bytes": max(memory.anonymous),
            "resident_growth_bytes": growth_bytes(memory.resident),
            "stop_text": outcome.stop_text,
            "log_seconds": outcome.log.seconds,
            "log_above_idle_bytes": outcome.log.above_bytes,
            "log_kills": outcome.log.kills,
            "problems": outcome.problems,
            **json.loads(as_json(found)),
        }
        json_file.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    raise SystemExit(1 if outcome.problems else 0)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.huge_transaction")
