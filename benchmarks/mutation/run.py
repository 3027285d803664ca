"""The command: runs a sample of mutants of the core's rules, and lists the survivors.

A survivor is a test that is missing, or a mutant that behaves as the module does:
such are named in `equivalent.toml`, each with the reason, and do not count.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.mutation.mutants import Mutant, difference, mutants_of, mutate, sample
from benchmarks.mutation.trial import Outcome, Verdict, try_tests
from tools.repository import ROOT

FOLDER = Path(__file__).resolve().parent
TARGET = 0.95
_SLOWER = 5.0  # than without a change, before the tests are taken to hang
_LEAST_S = 30.0
# Imported once, before anything is forked: none of them imports `databus`.
_WARM = ("pytest", "hypothesis", "fastavro", "tornado.web", "pydantic", "sqlite_utils", "click")


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutant and its outcome. `reason` says why a survivor is accepted."""

    mutant: Mutant
    change: str
    verdict: Verdict
    took_s: float
    reason: str = ""

    @property
    def counts(self) -> bool:
        """Whether its behaviour differs from the module's."""
        return not self.reason


def held_by() -> dict[str, list[str]]:
    """Return the tests of each module's rules."""
    with (FOLDER / "rules.toml").open("rb") as file:
        return {one["path"]: one["tests"] for one in tomllib.load(file)["module"]}


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Return the changes that change no behaviour, each with the reason.

    By module, function, operator (of any occurrence) and the lines before and after it: a
    change further up moves none of them.
    """
    with (FOLDER / "equivalent.toml").open("rb") as file:
        found = tomllib.load(file).get("mutant", [])
    return {
        (one["path"], one["function"], one["operator"], one["change"].strip()): one["reason"]
        for one in found
    }


def killed_share(tried: Iterable[Tried]) -> float:
    """Return the share of behaviour-changing mutants that were noticed; 1.0 without any."""
    counted = [one.verdict for one in tried if one.counts]
    survived = sum(verdict is Verdict.SURVIVED for verdict in counted)
    return 1.0 - survived / len(counted) if counted else 1.0


class Runner:
    """Runs mutants, each against the tests of its module."""

    def __init__(self, tests: Mapping[str, Sequence[str]], folder: Path) -> None:
        self._tests = tests
        self._log = folder / "tests.log"
        self._limits_s: dict[str, float] = {}
        self._equivalents = equivalents()

    def run(self, mutant: Mutant, source: str) -> Tried:
        """Run one mutant; raises click.ClickException when the tests fail without a change."""
        changed = mutate(source, mutant)
        if changed is None:
            raise click.ClickException(f"{mutant.name}: nothing is changed there")
        outcome = self._try(mutant.path, changed, self._limit_s(mutant.path, source))
        change = difference(source, changed)
        key = mutant.path, mutant.function, mutant.operator, change
        reason = self._equivalents.get(key, "")
        if outcome.verdict is not Verdict.SURVIVED:
            reason = ""
        return Tried(mutant, change, outcome.verdict, outcome.took_s, reason)

    def _limit_s(self, path: str, source: str) -> float:
        if path not in self._limits_s:
            outcome = self._try(path, source, 600.0)
            if outcome.verdict is not Verdict.SURVIVED:
                text = outcome.output[-3000:]
                raise click.ClickException(f"{path}: its tests fail without a mutant\n{text}")
            self._limits_s[path] = max(_LEAST_S, _SLOWER * outcome.took_s)
        return self._limits_s[path]

    def _try(self, path: str, source: str, limit_s: float) -> Outcome:
        return try_tests(ROOT / path, source, self._tests[path], ROOT, self._log, limit_s)


def show(tried: Sequence[Tried], console: Console) -> None:
    """Print a table by module."""
    table = Table("module", "mutants", "killed", "timed out", "survived", "equivalent", "share")
    for path in [*dict.fromkeys(one.mutant.path for one in tried), ""]:
        of_path = [one for one in tried if path in ("", one.mutant.path)]
        counts = Counter(one.verdict for one in of_path if one.counts)
        numbers = [len(of_path), *(counts[verdict] for verdict in _COLUMNS)]
        equivalent = sum(not one.counts for one in of_path)
        share = f"{killed_share(of_path):.1%}"
        table.add_row(path or "all", *map(str, numbers), str(equivalent), share)
    console.print(table)


_COLUMNS = (Verdict.KILLED, Verdict.TIMED_OUT, Verdict.SURVIVED)


def _sources(paths: Iterable[str]) -> dict[str, str]:
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def _chosen(sources: Mapping[str, str], count: int, seed: int, every: bool) -> list[Mutant]:
    if not every:
        return sample(sources, count, seed)
    found = [m for path, source in sources.items() for m in mutants_of(path, source)]
    return [mutant for mutant in found if mutate(sources[mutant.path], mutant) is not None]


def _try_all(
    chosen: Sequence[Mutant],
    sources: Mapping[str, str],
    tests: Mapping[str, Sequence[str]],
    console: Console,
) -> Iterator[Tried]:
    # The bar has no thread and leaves stdout alone: a fork would have half of the one
    # and print through the other.
    bar = Progress(
        console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )
    with tempfile.TemporaryDirectory() as folder, bar:
        runner = Runner(tests, Path(folder))
        task = bar.add_task("mutants", total=len(chosen))
        for mutant in chosen:
            bar.update(task, description=mutant.path, refresh=True)
            one = runner.run(mutant, sources[mutant.path])
            if one.verdict is Verdict.SURVIVED and one.counts:
                console.print(f"[red]survived[/] {mutant.name}", highlight=False)
                console.print(one.change, highlight=False, markup=False, soft_wrap=True)
            yield one
            bar.advance(task)


@click.command()
@click.option("--sample", "count", default=400, show_default=True, help="How many mutants.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--only", multiple=True, metavar="PATH", help="Of these modules alone.")
@click.option("--every", is_flag=True, help="Every mutant there is, not a sample.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write all verdicts there.")
def main(count: int, seed: int, only: tuple[str, ...], every: bool, file: Path | None) -> None:
    """Change the core's rules, one at a time, and check whether the tests notice.

    \b
    python -m benchmarks.mutation --sample 400 --seed 1
    python -m benchmarks.mutation --only client/machines/connection.py --every
    """
    tests = {p: t for p, t in held_by().items() if not only or p in only}
    if not tests:
        raise click.BadParameter(f"one of {', '.join(held_by())}", param_hint="--only")
    for name in _WARM:
        importlib.import_module(name)
    assert not any(name.split(".")[0] == "databus" for name in sys.modules)
    console = Console()
    sources = _sources(tests)
    chosen = sorted(_chosen(sources, count, seed, every), key=lambda m: (m.path, m.line))
    tried = list(_try_all(chosen, sources, tests, console))
    show(tried, console)
    if file is not None:
        file.write_text(json.dumps([asdict(one) for one in tried], indent=1) + "\n")
    share = killed_share(tried)
    click.echo(
        f"seed {seed}: {len(tried)} mutants, {share:.1%} of those that change behaviour "
        f"were killed (target {TARGET:.0%})"
    )
    sys.exit(share < TARGET)
