"""Rounds: make a stream or page, damage it, and read it both ways. Both must agree."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import click
from rich.console import Console

from benchmarks.capture_fuzz.damage import cut, damage_bytes, damage_window
from benchmarks.client_fuzz.making import in_version_1, make_page, make_stream
from benchmarks.client_fuzz.reading import Outcome, Way, is_built
from benchmarks.shared.sanitized import run_sanitized

MADE = 300  # sound streams, and as many pages, that are damaged again and again
UNDAMAGED = 0.03  # share of the rounds that show that they can be read at all
MOST_SHOWN = 20


@dataclass
class Tally:
    """The results of the rounds."""

    rounds: int = 0
    pages: int = 0
    items: int = 0
    stopped: int = 0
    findings: list[str] = field(default_factory=list)


def fuzz(
    seed: int, rounds: Sequence[int], tell: Callable[[str], None], only_compiled: bool = False
) -> Tally:
    """Do the rounds; a round depends only on the seed and its number."""
    draw = random.Random(seed)
    sound = [(make_stream(draw, 3), make_page(draw, 8)) for _ in range(MADE)]
    ways = [Way(is_compiled=True)] + ([] if only_compiled else [Way(is_compiled=False)])
    tally, told_at = Tally(), time.monotonic()
    for number in rounds:
        try:
            _round(tally, random.Random(f"{seed} {number}"), sound, ways)
        except Exception:
            tally.findings.append(f"round {number}: {traceback.format_exc()}")
        tally.rounds += 1
        if time.monotonic() - told_at > 10:
            told_at = time.monotonic()
            tell(f"{tally.rounds:,} of {len(rounds):,} rounds, {len(tally.findings)} findings")
    return tally


def _round(
    tally: Tally, draw: random.Random, sound: Sequence[tuple[bytes, bytes]], ways: Sequence[Way]
) -> None:
    is_page = draw.random() < 0.3
    data = draw.choice(sound)[is_page]
    if draw.random() < 0.1:
        data = in_version_1(data)
        data = damage_bytes(draw, data)
    elif draw.random() >= UNDAMAGED:
        for _ in range(draw.choice((1, 1, 2))):
            data = damage_window(draw, data) if _is_whole(data) else damage_bytes(draw, data)
    chunks = cut(draw, data)
    first, *others = [way.read(chunks, is_page) for way in ways]
    tally.pages += is_page
    tally.items += len(first.found)
    tally.stopped += bool(first.problem)
    if any(other != first for other in others):
        raise AssertionError(_difference(first, others[0]))


def _is_whole(data: bytes) -> bool:
    """Whether the lengths of the events, of version 2, lead to the end."""
    at = 0
    while 0 <= at < len(data):
        length = int.from_bytes(data[at + 17 : at + 21], "big")
        at = at + length if length else -1
    return at == len(data) > 0


def _difference(compiled: Outcome, plain: Outcome) -> str:
    for one, two in zip(compiled.found, plain.found, strict=False):
        if one != two:
            return f"compiled code has\n{one!r:.3000}\nand Python\n{two!r:.3000}"
    return (
        f"compiled code has {len(compiled.found)} items and {compiled.problem!r}, Python "
        f"{len(plain.found)} and {plain.problem!r}"
    )


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--first", type=int, default=0, help="The first round, to do one again.")
@click.option(
    "--sanitize", is_flag=True, help="Run the compiled code alone, built with AddressSanitizer."
)
@click.option("--only-compiled", is_flag=True, help="Leave out what Python reads.")
def main(rounds: int, seed: int, first: int, sanitize: bool, only_compiled: bool) -> None:
    """Damage streams and pages at random; exit 1 for anything but equal rows and errors."""
    if sanitize:
        told = ["--rounds", str(rounds), "--seed", str(seed), "--first", str(first)]
        roots = ("schemas", "client")
        raise SystemExit(run_sanitized("benchmarks.client_fuzz.run", told, roots))
    if not is_built():
        raise click.ClickException("the readers were not compiled: there is nothing to compare")
    console, began_s = Console(stderr=True, log_path=False), time.monotonic()
    numbers = range(first, first + rounds)
    tally = fuzz(seed, numbers, lambda text: console.log(text), only_compiled)
    for finding in tally.findings[:MOST_SHOWN]:
        click.echo(f"FINDING: {finding}")
    click.echo(
        f"seed {seed}, {tally.rounds:,} rounds, {tally.pages:,} of them pages: {tally.items:,} "
        f"items, {tally.stopped:,} stopped, {time.monotonic() - began_s:.0f} s: "
        f"{len(tally.findings) or 'no'} findings"
    )
    raise SystemExit(1 if tally.findings else 0)
