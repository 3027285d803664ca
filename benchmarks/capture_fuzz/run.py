"""Rounds: damage a stretch of a recording, and read it by every path. All must agree."""

from __future__ import annotations

import pickle
import random
import resource
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from benchmarks.capture_fuzz.damage import (
    cut,
    damage_bytes,
    damage_events,
    damage_window,
    framed,
    stretch as stretch_of,
)
from benchmarks.capture_fuzz.reading import (
    UNFIT_ROW,
    Outcome,
    cutters,
    paths,
    read_in_python,
    read_rows,
)
from benchmarks.capture_fuzz.recording import Recording, record_all
from benchmarks.capture_fuzz.rings import look_at
from benchmarks.capture_fuzz.searching import in_python, search, searches, walk_along
from benchmarks.shared.sanitized import run_sanitized
from databus.relay.sources.mysql.search.transaction_walk import NO_END
from databus.schemas.scn import binlog_position

UNDAMAGED = 0.03  # share of the rounds that show that a stretch can be read at all
MOST_TRANSACTIONS = 4
SLOW_S = 5.0
MOST_FINDINGS_SHOWN = 20


class Problem(NamedTuple):
    """A finding: its text, and the part that all findings of its kind share."""

    text: str
    kind: str


@dataclass
class Tally:
    """The results of the rounds."""

    rounds: int = 0
    windows: int = 0
    stopped: int = 0
    other_words: int = 0  # streams that both paths refused with different messages
    problems: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    finding_count: int = 0
    only_compiled: bool = False  # Python's code is not run
    kept: list[bytes] = field(default_factory=list)  # windows, for the client's side
    _seen: set[str] = field(default_factory=set)

    def add(self, finding: str, kind: str = "") -> None:
        """Record a finding; the first of each kind is printed."""
        self.finding_count += 1
        kind = kind or finding
        if kind not in self._seen and len(self.findings) < MOST_FINDINGS_SHOWN:
            self._seen.add(kind)
            self.findings.append(finding)


def fuzz(
    recordings: Sequence[Recording],
    seed: int,
    rounds: Sequence[int],
    tell: Callable[[str], None],
    only_compiled: bool = False,
) -> Tally:
    """Run the rounds; a round depends only on its number, the seed and the recordings."""
    tally = Tally(only_compiled=only_compiled, kept=_windows_of(recordings))
    told_at = time.monotonic()
    for number in rounds:
        draw = random.Random(f"{seed} {number}")
        started = time.monotonic()
        capture = partial(_capture_round, tally, recordings, draw)
        _guarded(tally, f"round {number}, capture", capture)
        _guarded(tally, f"round {number}, client", partial(_client_round, tally, draw))
        _guarded(tally, f"round {number}, ring", partial(_ring_round, tally, draw))
        tally.rounds += 1
        now = time.monotonic()
        if now - started > SLOW_S:
            tally.add(f"round {number} took {now - started:.1f} s")
        if now - told_at > 10:
            tell(f"{tally.rounds:,} of {len(rounds):,} rounds, {tally.finding_count} findings")
            told_at = now
    return tally


def _guarded(tally: Tally, name: str, work: Callable[[], Problem | None]) -> None:
    try:
        problem = work()
    except Exception as error:
        # The line that raised it: the rest of the traceback varies.
        kind = str(traceback.extract_tb(error.__traceback__)[-1])
        problem = Problem(traceback.format_exc(), kind)
    if problem is not None:
        tally.add(f"{name}: {problem.text}", problem.kind)


def _windows_of(recordings: Sequence[Recording]) -> list[bytes]:
    """Return the relay's windows of whole recordings, for the client to read."""
    found: list[bytes] = []
    for recording in recordings:
        for first in range(0, len(recording.beginnings), MOST_TRANSACTIONS):
            events = stretch_of(recording.events, recording.beginnings, first, MOST_TRANSACTIONS)
            dialect = replace(recording.dialect, delivers_partial_rows=True)
            windows = read_in_python(recording, dialect, [framed(events)]).found
            found.append(b"".join(window.data for window in windows))
    return [data for data in found if data]


def _capture_round(
    tally: Tally, recordings: Sequence[Recording], draw: random.Random
) -> Problem | None:
    recording = draw.choice(recordings)
    count = draw.randrange(1, MOST_TRANSACTIONS + 1)
    first = draw.randrange(len(recording.beginnings))
    events = stretch_of(recording.events, recording.beginnings, first, count)
    is_damaged = draw.random() >= UNDAMAGED
    data = framed(damage_events(draw, events) if is_damaged else events)
    if is_damaged and draw.random() < 0.05:
        data = damage_bytes(draw, data)
    chunks = cut(draw, data)
    dialect = replace(recording.dialect, delivers_partial_rows=draw.random() < 0.5)
    ways = paths()[1:] if tally.only_compiled else paths()
    outcome, *others = [read(recording, dialect, chunks) for read in ways]
    tally.windows += len(outcome.found)
    if outcome.problem:
        tally.stopped += 1
        tally.problems[_kind_of(outcome.problem)] += 1
    tally.other_words += sum(other.problem != outcome.problem for other in others)
    wrong = [_difference(outcome, other) for other in others if not _agree(outcome, other)]
    wrong += _search_wrong(tally, recording, draw, chunks)
    return Problem("; ".join(wrong), _kind_of(wrong[0])) if wrong else None


def _search_wrong(
    tally: Tally, recording: Recording, draw: random.Random, chunks: Sequence[bytes]
) -> list[str]:
    """Search a stream for statements by every path; return the differences."""
    ways = searches()[-1:] if tally.only_compiled else searches()
    end = draw.choice([recording.definitions.scn, *recording.altered.values()])
    plain, *others = [search(way, recording, chunks, end) for way in ways]
    found = [_difference(plain, other) for other in others if other != plain]
    until_ns = draw.choice([1, 1 << 62])
    end_offset = draw.choice([binlog_position(end).offset, NO_END])
    plain, *others = [
        walk_along(chunks, until_ns, end_offset, is_compiled=way is not in_python) for way in ways
    ]
    return [*found, *(_difference(plain, other) for other in others if other != plain)]


def _agree(plain: Outcome, other: Outcome) -> bool:
    """Return whether both stop, or neither; their messages may differ.

    A row that does not fit and is rolled back later stops only the path that encodes rows at once.
    """
    if other.problem == UNFIT_ROW and plain.found[: len(other.found)] == other.found:
        return True
    return plain.found == other.found and bool(plain.problem) is bool(other.problem)


def _client_round(tally: Tally, draw: random.Random) -> Problem | None:
    data = damage_window(draw, draw.choice(tally.kept))
    chunks = cut(draw, data)
    ways = cutters()[-1:] if tally.only_compiled else cutters()
    plain, *others = [read_rows(cutter, chunks) for cutter in ways]
    wrong = [_difference(plain, other) for other in others if other != plain]
    return Problem("; ".join(wrong), "client") if wrong else None


def _ring_round(tally: Tally, draw: random.Random) -> Problem | None:
    data = damage_window(draw, draw.choice(tally.kept))
    ways = (True,) if tally.only_compiled else (False, True)
    for name, (plain, *others) in look_at(draw, data, ways):
        for compiled in others:
            if plain != compiled:
                text = f"{name} says {compiled!r:.1000} and not {plain!r:.1000}"
                return Problem(text, f"ring {name}")
    return None


def _difference(plain: Outcome, other: Outcome) -> str:
    for number, (one, two) in enumerate(zip(plain.found, other.found, strict=False)):
        if one != two:
            return f"item {number} is\n{two!r:.2000}\ninstead of\n{one!r:.2000}\n"
    return (
        f"{len(other.found)} instead of {len(plain.found)} items, and "
        f"{other.problem!r} instead of {plain.problem!r}"
    )


def _kind_of(problem: str) -> str:
    """Return a problem's text without numbers and names, to count kinds."""
    return " ".join(word for word in problem.split()[:6] if word.isalpha())


def report(tally: Tally, seconds: float) -> str:
    """Return the last line."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{tally.rounds:,} rounds: {tally.windows:,} windows, {tally.stopped:,} streams stopped "
        f"with {len(tally.problems)} kinds of problems, {tally.other_words:,} of them said "
        f"otherwise by another path, {seconds:.0f} s, {peak:.0f} MiB at most: "
        f"{tally.finding_count or 'no'} findings"
    )


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--first", type=int, default=0, help="The first round, to do one again.")
@click.option(
    "--recordings",
    "file",
    type=click.Path(path_type=Path),
    help="Keep the servers' logs here, and take them from here when they are there.",
)
@click.option(
    "--sanitize", is_flag=True, help="Run the compiled code alone, built with AddressSanitizer."
)
@click.option("--only-compiled", is_flag=True, help="Leave out what Python reads.")
def main(
    rounds: int, seed: int, first: int, file: Path | None, sanitize: bool, only_compiled: bool
) -> None:
    """Damage binlogs and windows at random; exit 1 for anything but a clean error."""
    if sanitize:
        with tempfile.TemporaryDirectory(prefix="databus-recordings-") as folder:
            file = file or Path(folder) / "recordings"
            load_recordings(file)
            told = ["--rounds", str(rounds), "--seed", str(seed), "--first", str(first)]
            told += ["--recordings", str(file)]
            raise SystemExit(run_sanitized("benchmarks.capture_fuzz.run", told))
    raise SystemExit(run(rounds, seed, first, load_recordings(file), only_compiled))


def run(
    rounds: int,
    seed: int,
    first: int,
    recordings: Sequence[Recording],
    only_compiled: bool = False,
) -> int:
    """Run the rounds and print the findings; return the exit status."""
    console, started = Console(stderr=True, log_path=False), time.monotonic()
    console.log(", ".join(f"{r.name}: {len(r.events)} events" for r in recordings))
    console.log(f"{len(paths())} ways to capture, {len(cutters())} ways to read as a client")
    numbers = range(first, first + rounds)
    tally = fuzz(recordings, seed, numbers, lambda text: console.log(text), only_compiled)
    for finding in tally.findings:
        click.echo(f"FINDING: {finding}")
    click.echo(f"seed {seed}, " + report(tally, time.monotonic() - started))
    return 1 if tally.finding_count else 0


def load_recordings(file: Path | None) -> list[Recording]:
    """Return the recordings of a file; record them if the file does not exist."""
    if file is not None and file.exists():
        found: list[Recording] = pickle.loads(file.read_bytes())
        return found
    recordings = record_all()
    if file is not None:
        file.write_bytes(pickle.dumps(recordings))
    return recordings
