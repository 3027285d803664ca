"""Runs the rounds: damage one file, open and read it, and judge the result.

Found: an error names the file. Repaired: what is right was put in its place, or comes
again from the source. Harmless: everything delivered and shown is byte for byte what
it was. Wrong is everything else, and so is a reader who does not come back (hang).
"""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from benchmarks.flipped_bytes import reading
from benchmarks.flipped_bytes.damage import CUT, FLIP, RUN, ZEROS, damaged
from benchmarks.flipped_bytes.files import WIDE_BYTES, make_files
from databus.relay.ring.layout import TAIL, open_file
from databus.schemas.errors import DatabusError

FOUND, REPAIRED, HARMLESS, WRONG, HANG = OUTCOMES = (
    "found", "repaired", "harmless", "wrong", "hang",
)  # fmt: skip
HANG_S = 60.0
OTHERS = (RUN, ZEROS, CUT)  # a tenth as many rounds as of flipped bytes

Span = Callable[[Path], tuple[int, int]]
Judge = Callable[[Path, Any, Any], str]


def _all_of(path: Path) -> tuple[int, int]:
    return 0, path.stat().st_size


def _header_of(path: Path) -> tuple[int, int]:
    return 0, _ring_marks(path)[0]


def _windows_of(path: Path) -> tuple[int, int]:
    return _ring_marks(path)


def _ring_marks(path: Path) -> tuple[int, int]:
    """Return the offsets in its file at which a ring's windows begin and end."""
    with path.open("rb") as file:
        ring_file = open_file(path, file.fileno(), writable=False)
        marks = ring_file.data_at, ring_file.data_at + ring_file.cells[TAIL]
        ring_file.close()
    return marks


def _never(_path: Path, _before: Any, _after: Any) -> str:
    return WRONG


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file: its place in the set, its reader, and how often it is damaged.

    With `has_others` not only flipped bytes are found: of the rest the end may have
    been lost by a crash, which the process has to take for one.
    """

    name: str
    pattern: str
    read: reading.Read
    weight: int = 10
    span: Span = _all_of
    judge: Judge = _never
    has_others: bool = True
    beside: Sequence[str] = ()  # files of the folder that are read with it


KINDS = (
    FileKind(
        "ring, windows", "relay/shop.ring", reading.read_ring, 20, _windows_of, reading.judge_ring
    ),
    FileKind(
        "ring, header and index", "relay/shop.ring", reading.read_ring, 10, _header_of,
        reading.judge_ring,
    ),
    FileKind("schemas.db", "relay/schemas.db", reading.read_schemas),
    FileKind(
        "schemas.db with its copy", "relay/schemas.db", reading.read_schemas,
        beside=("relay/schemas.db.copy",),
    ),
    FileKind("bootstrap store", "pair/shop.db", reading.read_store, 20),
    FileKind("checkpoint", "checkpoints/*.json", reading.read_checkpoint),
    FileKind("MaxSCN", "relay/shop.scn", reading.read_max_scn),
    FileKind("first SCNs", "relay/shop.sources.json", reading.read_first_scns),
    FileKind("MaxSCN in SQLite", "max_scn.db", reading.read_max_scn_database, 5, has_others=False),
    FileKind("definitions", "defined.history", reading.read_history, has_others=False),
)  # fmt: skip


class HangError(Exception):
    """A reader did not return."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding, with everything needed to repeat it."""

    kind: str
    damage: str
    text: str


class Rounds:
    """Damages copies of a set of files, one at a time."""

    def __init__(self, files: Path, work: Path, chosen: Random) -> None:
        self._files = files
        self._work = work
        self._chosen = chosen
        self._expected: dict[str, Any] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.findings: list[Finding] = []

    def round(self, kind: FileKind, what: str) -> str:
        """Run one round; return its result."""
        (original,) = self._files.glob(kind.pattern)
        before = self._expect(kind, original)
        path = self._copy(kind, original)
        low, high = kind.span(path)
        seed = self._chosen.randrange(1 << 32)
        data = path.read_bytes()
        changed = data[:low] + damaged(data[low:high], what, Random(seed)) + data[high:]
        if what == CUT:
            changed = changed[: len(changed) - (len(data) - high)]
        path.write_bytes(changed)
        outcome, text = self._look(kind, path, before, data)
        self.counts.setdefault(kind.name, Counter())[outcome] += 1
        if outcome in (WRONG, HANG):
            self.findings.append(Finding(kind.name, f"{what} of seed {seed}", text))
        return outcome

    def _expect(self, kind: FileKind, original: Path) -> Any:
        if kind.name not in self._expected:
            self._expected[kind.name] = kind.read(self._copy(kind, original))
        return self._expected[kind.name]

    def _copy(self, kind: FileKind, original: Path) -> Path:
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir()
        for name in kind.beside:
            shutil.copy(self._files / name, self._work)
        return Path(shutil.copy(original, self._work))

    def _look(self, kind: FileKind, path: Path, before: Any, data: bytes) -> tuple[str, str]:
        try:
            with _no_longer_than(HANG_S):
                after = kind.read(path)
        except (DatabusError, ValueError) as error:
            is_named = str(path) in str(error)
            return (FOUND if is_named else WRONG), f"{type(error).__name__}: {error}"
        except HangError:
            return HANG, "it did not come back"
        except Exception as error:
            return WRONG, f"{error!r} is no error of ours"
        if after == before:
            return (REPAIRED if path.read_bytes() == data else HARMLESS), ""
        return kind.judge(path, before, after), "something else is delivered or shown"


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise HangError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def do_rounds(rounds: Rounds, count: int, kinds: Sequence[FileKind], chosen: Random) -> None:
    """Flip `count` bytes, and do other damage a tenth as often, spread over all kinds of files."""
    weights = [kind.weight for kind in kinds]
    # One of each first, so that a short run leaves none out.
    flipped = [*kinds[:count], *chosen.choices(kinds, weights, k=max(0, count - len(kinds)))]
    for kind in flipped:
        rounds.round(kind, FLIP)
    others = [kind for kind in kinds if kind.has_others]
    for number in range(count // 10 if others else 0):
        rounds.round(chosen.choice(others), OTHERS[number % len(OTHERS)])


@click.command()
@click.option("--rounds", "count", default=1000, show_default=True, help="Flipped bytes.")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", multiple=True, help="Kinds of files, by a part of their name.")
@click.option("--wide-bytes", default=WIDE_BYTES, show_default=True, help="Rows to write.")
def main(count: int, seed: int, only: tuple[str, ...], wide_bytes: int) -> None:
    """Damage files at rest; exit 1 when damage is delivered or shown, or a reader hangs."""
    logging.getLogger("databus").setLevel(logging.CRITICAL)
    chosen = Random(seed)
    kinds = [kind for kind in KINDS if not only or any(part in kind.name for part in only)]
    with tempfile.TemporaryDirectory(prefix="databus-flipped-") as folder:
        files = Path(folder) / "files"
        files.mkdir()
        make_files(files, wide_bytes)
        rounds = Rounds(files, Path(folder) / "work", chosen)
        do_rounds(rounds, count, kinds, chosen)
    _publish(rounds, kinds)
    if rounds.findings:
        raise SystemExit(1)


def _publish(rounds: Rounds, kinds: Sequence[FileKind]) -> None:
    table = Table(title="Damaged files at rest", title_justify="left")
    table.add_column("file")
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    for kind in kinds:
        counts = rounds.counts.get(kind.name, Counter())
        table.add_row(kind.name, *(str(counts[outcome]) for outcome in OUTCOMES))
    total = sum(rounds.counts.values(), Counter())
    table.add_section()
    table.add_row("all", *(str(total[outcome]) for outcome in OUTCOMES))
    Console(width=100).print(table)
    for finding in rounds.findings[:20]:
        click.echo(f"{finding.kind}, {finding.damage}: {finding.text}")
    wrong = total[WRONG] + total[HANG]
    click.echo(f"{total.total()} rounds, {wrong or 'none'} wrong")
