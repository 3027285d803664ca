"""Stops a table, repairs it, and compares what its consumers and those of the others got."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console

from benchmarks.shared.report import Figure, at_most, publish
from benchmarks.stopped_table.load import CREATE, RATE, TABLES, Load, Reader
from databus.client.client import DatabusClient
from databus.demo.processes import ChildError, check_signals, stopped_by_signals
from databus.demo.stage import Stage

PHASE_S, SHORT_PHASE_S = 10.0, 3.0
PATIENCE_S = 60.0
POLL_S = 0.05
MOST_LAG_MS = at_most(2000.0)


@dataclass
class Outcome:
    """The longest lags of the other tables' consumer, in ms by phase, and all problems."""

    lags_ms: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    problems: list[str] = field(default_factory=list)


class Run:
    """One run on an open stage."""

    def __init__(self, stage: Stage, phase_s: float) -> None:
        self._stage, self._phase_s = stage, phase_s
        self._others, self._third = Reader(), Reader()
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run it; raises ChildError if something does not happen."""
        stage, outcome = self._stage, self.outcome
        stage.start_relay()
        load = Load(stage.database)
        with ExitStack() as stack:
            stack.callback(load.stop)
            for reader, tables in ((self._others, TABLES[:2]), (self._third, TABLES[2:])):
                stack.enter_context(self._client(reader, [f"shop.{table}" for table in tables]))
            self._wait(lambda: len(self._third.ids["items"]) > RATE, "the first rows")
            self._others.take_longest_ms()
            time.sleep(self._phase_s)
            outcome.lags_ms["before"] = self._others.take_longest_ms()
            load.alter()
            self._wait(lambda: self._stop() is not None, "the table to be stopped")
            time.sleep(self._phase_s)
            outcome.lags_ms["stopped"] = self._others.take_longest_ms()
            self._repair()
            goal = load.committed
            self._wait(lambda: max(self._third.ids["items"]) >= goal, "the table's rows")
            time.sleep(self._phase_s / 2)
            outcome.lags_ms["repair"] = self._others.take_longest_ms()
            load.stop()
            last = [(self._others, "orders"), (self._others, "people"), (self._third, "items")]
            for reader, table in last:
                self._wait(lambda r=reader, t=table: r.ids[t][-1] >= load.committed, table)  # type: ignore[misc]
                self._compare(table, reader.ids[table], load.committed)
        outcome.rows = load.committed
        outcome.problems += self._others.problems + self._third.problems
        return outcome

    def _client(self, reader: Reader, sources: Sequence[str]) -> DatabusClient:
        client = DatabusClient([self._stage.url], start="earliest")
        client.register(reader, sources)
        return client

    def _stop(self) -> dict[str, Any] | None:
        stops = self._stage.view()["stoppedTables"]
        return stops[0] if stops else None

    def _repair(self) -> None:
        """Do what the relay's advice says."""
        stop = self._stop()
        assert stop is not None
        scn = stop["problem"].partition("--scn ")[2].split()[0]
        body = json.dumps({"source": "shop.items", "scn": scn}).encode()
        url = f"{self._stage.url}/api/v1/physicalSources/shop/repair"
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE_S):
            pass

    def _compare(self, table: str, ids: Sequence[int], committed: int) -> None:
        if ids != list(range(1, committed + 1)):
            wrong = next((n for n, one in enumerate(ids, 1) if n != one), len(ids))
            self.outcome.problems.append(f"{table}: row {wrong} of {committed} did not come then")

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            check_signals()
            self._stage.check()
            if time.monotonic() > end:
                said = self._stage.relay.log_tail()
                raise ChildError(f"waited {PATIENCE_S:g} s in vain for {what}:\n{said}")
            time.sleep(POLL_S)


def measure(phase_s: float) -> Outcome:
    """Make a stage, run it, clean up, and return the results."""
    creates = [CREATE.format(table) for table in TABLES]
    sources = [f"shop.{table}" for table in TABLES]
    with stopped_by_signals(), Stage("mysql", creates, sources) as stage:
        return Run(stage, phase_s).run()


def figures_of(outcome: Outcome) -> list[Figure]:
    """Return the lags and the number of problems."""
    found = [
        Figure(f"lag of the other tables, {phase}", lag_ms, "ms", MOST_LAG_MS)
        for phase, lag_ms in outcome.lags_ms.items()
    ]
    name = f"stopped table ({outcome.rows} rows of each)"
    return [*found, Figure(name, len(outcome.problems), "problems", at_most(0))]


def figures(short: bool = False) -> list[Figure]:
    """Run it; return the lags and the number of problems."""
    return figures_of(measure(SHORT_PHASE_S if short else PHASE_S))


@click.command()
@click.option("--seconds", default=PHASE_S, show_default=True, help="Length of each phase.")
def main(seconds: float) -> None:
    """Stop one table of three under load; print lags and problems, exit 1 for problems."""
    with Console(stderr=True).status("running"):
        outcome = measure(seconds)
    for problem in outcome.problems:
        click.echo(f"PROBLEM: {problem}")
    publish("stopped table", figures_of(outcome))
    raise SystemExit(bool(outcome.problems))
