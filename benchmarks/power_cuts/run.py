"""A log that is written, while the power is cut again and again: nothing lost, nothing twice.

After each cut the ring is as it was, or as it was some windows ago, or has lost its end: it is
never synced, and the source sends again what it lacks. The log must have all that was said to be
durable, byte for byte, and go on from there.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import click

from benchmarks.power_cuts.disk import Disk, PowerCut
from benchmarks.shared.report import Figure, at_most, publish
from databus.relay.log.directory import folders_aside
from databus.relay.log.reader import LogReader
from databus.relay.ring import recovery
from databus.schemas.windows import EncodedWindow
from tests.relay.log.logs import events_in
from tests.relay.log.test_follower import FRAME_BYTES, RING_BYTES, Pair
from tests.relay.log.test_large_window import Written, large_window
from tests.relay.ring.model import split_events, window_of

CUTS_A_LOG = 25
MOST_STEPS = 60
LARGE_SHARE = 0.04


class LostError(Exception):
    """A window that was said to be durable is not there."""


@dataclass
class Outcome:
    """What was done, and what went wrong."""

    cuts: int = 0
    windows: int = 0
    large: int = 0
    steps: int = 0
    problems: list[str] = field(default_factory=list)


def window(scn: int) -> EncodedWindow:
    """Return *the* window of an SCN; some are larger than the ring."""
    is_large = random.Random(f"large {scn}").random() < LARGE_SHARE
    return large_window(scn) if is_large else window_of(scn)


def cut_often(cuts: int, seed: int, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Cut the power so many times."""
    outcome = Outcome()
    while outcome.cuts < cuts and not outcome.problems:
        with tempfile.TemporaryDirectory(prefix="databus-power-") as folder:
            rand = random.Random(f"{seed}/{outcome.cuts}")
            try:
                _OneLog(Path(folder), rand, outcome).run(min(CUTS_A_LOG, cuts - outcome.cuts))
            except LostError as error:
                outcome.problems.append(f"after {outcome.cuts} cuts: {error}")
        tell(f"{outcome.cuts} cuts")
    return outcome


class _OneLog:
    """A log and its ring, from their beginning on."""

    def __init__(self, folder: Path, rand: random.Random, outcome: Outcome) -> None:
        self._folder, self._rand, self._outcome = folder, rand, outcome
        self._log, self._ring = folder / "log", folder / "shop.ring"
        self._log.mkdir()
        self._durable = 0  # what was said to be on disk
        self._rings: list[bytes] = []

    def run(self, cuts: int) -> None:
        """Write and cut; then let the log get all, and look at it."""
        for number in range(cuts):
            disk = Disk(self._log, self._rand, self._rand.randrange(1, MOST_STEPS))
            # The machine begins anew: all of the ring is checked.
            with closing(disk), patch.object(recovery, "read_boot_id", partial(_boot, number)):
                with suppress(PowerCut), disk.watched(), ExitStack() as opened:
                    self._write(self._open(opened))
                disk.fall_back()
            self._outcome.cuts += 1
            self._outcome.steps += disk.steps
            if self._rings:
                self._ring.write_bytes(self._rand.choice(self._rings))
        with patch.object(recovery, "read_boot_id", partial(_boot, cuts)), ExitStack() as opened:
            pair = self._open(opened)
            while pair.ring.max_scn <= pair.writer.durable.scn:  # the ring may have been put back
                self._append(pair, pair.ring.max_scn + 1)
            pair.catch_up()
            self._check(pair.follower.gap == "", f"the log began anew: {pair.follower.gap}")
            newest = pair.ring.max_scn
        windows = [window(scn) for scn in range(1, newest + 1)]
        self._outcome.windows += newest
        self._outcome.large += sum(len(one.data) > RING_BYTES for one in windows)
        events = [event for one in windows for event in split_events(one.data)]
        self._check(events_in(self._log) == events, f"the log is not 1 to {newest}, once each")
        self._check(not folders_aside(self._log), "segments were moved aside")

    def _check(self, is_good: bool, problem: str) -> None:
        if not is_good:
            self._outcome.problems.append(f"after {self._outcome.cuts} cuts: {problem}")

    def _open(self, opened: ExitStack) -> Pair:
        pair = Pair(self._folder)
        opened.callback(pair.close)
        opened.callback(Written(pair, self._folder).discard)
        with closing(LogReader(pair.writer)) as reader:
            reached = max(reader.max_scn, 0)  # -1 in a log without a window
        if reached < self._durable:
            raise LostError(f"scn {self._durable} was durable, and {reached} is the newest now")
        return pair

    def _write(self, pair: Pair) -> None:
        """Capture and log for ever, from the newest window of the ring on."""
        self._rings = [self._ring.read_bytes()]
        while True:
            self._append(pair, pair.ring.max_scn + 1)
            most_bytes = self._rand.choice((None, None, 2 * FRAME_BYTES))
            pair.follower.copy(is_all=self._rand.random() < 0.7, most_bytes=most_bytes)
            rand = self._rand.random()
            if rand < 0.4:
                pair.follower.sync()
            elif rand < 0.6:
                pair.follower.begin_sync()
            self._durable = max(self._durable, pair.writer.durable.scn)
            self._rings = [*self._rings, self._ring.read_bytes()][-4:]

    def _append(self, pair: Pair, scn: int) -> None:
        for one in range(scn, scn + self._rand.randrange(1, 6)):
            pair.ring.append([window(one)])


def _boot(number: int) -> tuple[int, int]:
    """Return the id of a machine's boot."""
    return 1, number


def table_figures(outcome: Outcome) -> list[Figure]:
    """Return the lines of the table."""
    return [
        Figure("power cuts of a relay log", outcome.cuts, "cuts"),
        Figure("windows that it has, once each", outcome.windows, "windows"),
        Figure("of them larger than the ring", outcome.large, "windows"),
        Figure("problems", len(outcome.problems), "problems", at_most(0)),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Cut; the short form does so a tenth as often."""
    return table_figures(cut_often(100 if short else 1000, 1))


@click.command()
@click.option("--cuts", type=click.IntRange(1), default=1000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(cuts: int, seed: int) -> None:
    """Cut the power while a relay log is written; exit 1 if anything is lost or there twice."""
    outcome = cut_often(cuts, seed, lambda text: click.echo(text, err=True))
    publish("power cuts", table_figures(outcome))
    for problem in outcome.problems:
        click.echo(f"PROBLEM: {problem}")
    raise SystemExit(1 if outcome.problems else 0)
