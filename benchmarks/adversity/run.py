"""The command: one attack after another, a line for each, and the count as the last line."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import click

from benchmarks.adversity.attacks import Attack, all_attacks
from benchmarks.adversity.disarming import CHECKS
from benchmarks.adversity.processes import Setting
from benchmarks.adversity.servers import KINDS, Kind, Servers
from benchmarks.adversity.stage import Broken, Scene
from databus.demo.processes import stopped_by_signals

TRIALS = 3  # of an attack that must succeed
PROBLEMS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one attack on one kind of source."""

    attack: Attack
    kind: Kind
    seed: int
    saw: str
    problems: Sequence[str]
    seconds: float

    @property
    def name(self) -> str:
        """The attack and the source."""
        return f"{self.attack.name}/{self.kind}"

    def lines(self) -> Iterable[str]:
        """Yield a line for people, and one for each of the first problems."""
        word = "FAILED" if self.problems else "held  "
        yield (
            f"{word} {self.name} (seed {self.seed}, {self.seconds:.1f} s): "
            f"wanted: {self.attack.wanted}; seen: {self.saw or 'nothing'}"
        )
        for problem in self.problems[:PROBLEMS_SHOWN]:
            yield f"       {problem}"


def attack_once(
    attack: Attack,
    kind: Kind,
    seed: int,
    servers: Servers,
    *,
    without: str = "",
    logs: Path | None = None,
) -> Verdict:
    """Run one attack on one kind of source; only `logs` remain."""
    begun_s = time.monotonic()
    named = {field.name for field in fields(Setting)} & attack.setting.keys()
    setting = replace(
        Setting(kind, seed, without=without), **{name: attack.setting[name] for name in named}
    )
    with Scene(attack.name, setting, servers) as scene:
        try:
            attack.run(scene)
        except Broken as broken:
            scene.found(str(broken))
        except Exception as error:  # counted, so that the others are run and the last line is true
            scene.found(f"it could not be done: {error!r}")
        problems = scene.verdict()
        if logs is not None and problems:
            scene.keep_logs(logs / f"{attack.name}-{kind}")
        saw = scene.saw or scene.tell()
    return Verdict(attack, kind, seed, saw, problems, time.monotonic() - begun_s)


def last_line(verdicts: Sequence[Verdict]) -> str:
    """Return the counts."""
    failed = [verdict.name for verdict in verdicts if verdict.problems]
    text = f"{len(verdicts)} attacks: {len(verdicts) - len(failed)} held"
    return f"{text}, {len(failed)} failed: {', '.join(failed)}" if failed else text


def chosen_attacks(
    only: Sequence[str] = (),
    sections: Sequence[int] = (),
    sources: Sequence[Kind] = KINDS,
    *,
    is_short: bool = False,
) -> list[tuple[Attack, Kind]]:
    """Return the attacks that the command line asks for, each with its source."""
    return [
        (attack, kind)
        for attack in all_attacks()
        for kind in attack.kinds
        if kind in sources
        and (not only or any(word in f"{attack.name}/{kind}" for word in only))
        and (not sections or attack.section in sections)
        and (not is_short or attack.is_short)
    ]


def prove_that_it_can_fail(checks: Sequence[str], seed: int, *, is_short: bool = False) -> None:
    """Switch off each check in turn; exit with 1 when an attack is withstood without it each time.

    The short form runs one attack for each check, and skips slow ones.
    """
    checks = [name for name in checks if CHECKS[name].is_short or not is_short]
    blind = []
    known = {f"{attack.name}/{kind}": (attack, kind) for attack, kind in chosen_attacks()}
    with tempfile.TemporaryDirectory(prefix="databus-servers-") as folder, stopped_by_signals():
        servers = Servers(Path(folder))
        for name in checks:
            for place in CHECKS[name].attacks[: 1 if is_short else None]:
                # What is lost without the check may by chance be caught elsewhere: a server refuses
                # a position at which no event of its new log begins.
                for trial in range(TRIALS):
                    found = attack_once(*known[place], seed + trial, servers, without=name)
                    is_seen = any(CHECKS[name].because in problem for problem in found.problems)
                    if is_seen:
                        break
                word = "seen" if is_seen else "NOT SEEN"
                click.echo(f"without {name}: {word}: {found.name} ({found.seconds:.1f} s)")
                for problem in found.problems[:PROBLEMS_SHOWN] or [f"it held: {found.saw}"]:
                    click.echo(f"       {problem}")
                blind += [] if is_seen else [name]
    seen = len(checks) - len(set(blind))
    click.echo(f"{len(checks)} checks switched off: {seen} seen" + f", not: {blind}" * bool(blind))
    raise SystemExit(1 if blind else 0)


@click.command()
@click.option("--seed", type=int, help="Repeats a run; drawn when left out.")
@click.option("--rounds", type=click.IntRange(1), default=1, help="Each with another seed.")
@click.option(
    "--source", "sources", multiple=True, type=click.Choice(KINDS), help="All when left out."
)
@click.option("--section", "sections", multiple=True, type=int, help="Of 1, 3, 4, 5.")
@click.option("--only", multiple=True, help="Attacks with this in their name; checks.")
@click.option("--short", "is_short", is_flag=True, help="The few that the tests run.")
@click.option("--list", "is_list", is_flag=True, help="Say which there are.")
@click.option("--without", default="", help="Switch this check of the product off.")
@click.option(
    "--can-fail", is_flag=True, help="Switch each check off in turn: its attack must succeed."
)
@click.option("--logs", type=click.Path(path_type=Path), help="Keep the logs of what failed here.")
def main(
    seed: int | None,
    rounds: int,
    sources: tuple[Kind, ...],
    sections: tuple[int, ...],
    only: tuple[str, ...],
    is_short: bool,
    is_list: bool,
    without: str,
    can_fail: bool,
    logs: Path | None,
) -> None:
    """Attack running processes; exit 1 for anything lost, wrong, stuck, or falsely healthy."""
    if can_fail:
        wanted = [name for name in CHECKS if not only or name in only]
        prove_that_it_can_fail(wanted, 1 if seed is None else seed, is_short=is_short)
        return
    chosen = chosen_attacks(only, sections, sources or KINDS, is_short=is_short)
    if is_list:
        for attack, kind in chosen:
            click.echo(f"{attack.section} {attack.name}/{kind}: {attack.wanted}")
        click.echo(f"{len(chosen)} attacks")
        return
    if not chosen:
        raise click.UsageError("no attack has such a name: --list")
    first = random.randrange(10**6) if seed is None else seed
    click.echo(f"seed {first}")
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="databus-servers-") as folder, stopped_by_signals():
        servers = Servers(Path(folder))
        for number in range(first, first + rounds):
            for attack, kind in chosen:
                found = attack_once(attack, kind, number, servers, without=without, logs=logs)
                verdicts.append(found)
                for line in found.lines():
                    click.echo(line)
    click.echo(last_line(verdicts))
    raise SystemExit(1 if any(verdict.problems for verdict in verdicts) else 0)
