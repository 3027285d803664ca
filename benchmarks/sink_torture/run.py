"""Kills a sink and its target under load, and compares the target with the source."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.shared.report import Figure, at_least, at_most, publish
from benchmarks.sink_torture.targets import TARGETS, Target
from benchmarks.sink_torture.workload import SOURCES, TABLES, Rows, Writer, rows_of
from databus.client.sinks.serving.positions import NAME, read_positions
from databus.demo.processes import Child, check_signals, python_module, stopped_by_signals
from databus.demo.stage import Stage

KILLS, SHORT_KILLS = 30, 3
OUTAGES, SHORT_OUTAGES = 10, 1
LANES = 4
_PAUSE_S = 0.004
_PATIENCE_S = 180.0
_ORDERS = ("transaction", "single-table", "table", "row")


@dataclass(slots=True)
class Findings:
    """What came of a run."""

    rows: int = 0
    wrong_rows: int = 0
    changes: int | None = None  # of an exactly-once target
    doubles: int | None = None
    transactions: int = 0
    caught_up_after_s: float = 0.0

    @property
    def problems(self) -> int:
        """Number of broken promises."""
        return self.wrong_rows + (self.doubles or 0)


def measure(
    sink: str, kills: int, outages: int, order: str, seed: int, tell: Callable[[str], None]
) -> Findings:
    """Run a sink; `tell` is called with the progress."""
    draw = random.Random(seed)
    with stopped_by_signals(), Stage("mysql", TABLES, SOURCES) as stage:
        stage.start_relay()
        with (
            closing(TARGETS[sink](stage.folder)) as target,
            closing(stage.database.connect()) as session,
        ):
            settings = _write_settings(stage, target, order)
            sinks = stage.child(
                "sinks", python_module("databus.cli.main", "sink", "run", "-c", settings)
            )
            writer = Writer(stage.database, seed, _PAUSE_S)
            writer.start()
            try:
                _torture(sinks, target, _plan(kills, outages, draw), draw, tell)
                read_positions(stage.folder / "state" / NAME)  # whole, whatever was cut off
            finally:
                writer.end()
            found = _judge(target, rows_of(session), writer.transactions, tell)
            if found.problems:
                print(f"the sink says: {sinks.log_tail()}", file=sys.stderr)
            return found


def _write_settings(stage: Stage, target: Target, order: str) -> Path:
    lanes = 1 if order == "transaction" else min(LANES, target.most_lanes)
    options = ", ".join(
        f"{name} = {json.dumps(value)}" for name, value in target.options_of(lanes).items()
    )
    path = stage.folder / "sink.toml"
    path.write_text(f"""
data_dir = "state"
relays = ["{stage.url}"]

[[sinks]]
name = "torture"
kind = "{target.kind}"
sources = ["shop.*"]
order = "{order}"
lanes = {lanes}
options = {{ {options} }}
flush = {{ rows = 50, seconds = 0.05 }}
failures = {{ fast_retries = 1, back_off = {{ first_s = 0.1, max_s = 1.0 }} }}
""")
    return path


def _plan(kills: int, outages: int, draw: random.Random) -> list[str]:
    faults = ["kill"] * kills + ["outage"] * outages
    draw.shuffle(faults)
    return faults


def _torture(
    sinks: Child,
    target: Target,
    faults: list[str],
    draw: random.Random,
    tell: Callable[[str], None],
) -> None:
    """Kill the sink or take its target away, while it writes."""
    sinks.start()
    for number, fault in enumerate(faults, 1):
        check_signals()
        tell(f"{fault} {number} of {len(faults)}")
        # Long enough to begin to write, and some time in it.
        time.sleep(1.0 + draw.random())
        if fault == "outage":
            with target.away(sinks, draw):
                if draw.random() < 0.5:  # and the sink dies while its target is away
                    sinks.kill()
                    sinks.start()
        else:
            sinks.kill()
            sinks.start()


def _judge(
    target: Target, wanted: Rows, transactions: int, tell: Callable[[str], None]
) -> Findings:
    tell("waiting for the last row")
    began_s = time.monotonic()
    held = target.held()
    while held.rows != wanted and time.monotonic() - began_s < _PATIENCE_S:
        check_signals()
        time.sleep(0.2)
        held = target.held()
    found = Findings(len(wanted), _wrong(held.rows, wanted), transactions=transactions)
    found.caught_up_after_s = time.monotonic() - began_s
    if held.ids is not None:
        found.changes = len(held.ids)
        found.doubles = len(held.ids) - len(set(held.ids))
    return found


def _wrong(held: Rows, wanted: Rows) -> int:
    return sum(held.get(place) != wanted.get(place) for place in {*held, *wanted})


def figures_of(sink: str, order: str, faults: int, found: Findings) -> list[Figure]:
    """Return the figures of a run."""
    name = f"sink {sink}, order {order}, {faults} kills and outages"
    shown = [
        Figure(f"{name}: rows wrong", found.wrong_rows, "rows", at_most(0)),
        Figure(f"{name}: rows compared", found.rows, "rows", at_least(1)),
    ]
    if found.changes is not None and found.doubles is not None:
        shown.append(Figure(f"{name}: changes", found.changes, "changes", at_least(1)))
        shown.append(Figure(f"{name}: changes twice", found.doubles, "changes", at_most(0)))
    return shown


def figures(short: bool = False) -> list[Figure]:
    """Torture each sink; return what its target had in the end."""
    kills, outages = (SHORT_KILLS, SHORT_OUTAGES) if short else (KILLS, OUTAGES)
    shown: list[Figure] = []
    for sink in TARGETS:
        found = measure(sink, kills, outages, "transaction", 1, lambda _text: None)
        shown += figures_of(sink, "transaction", kills + outages, found)
    return shown


@click.command()
@click.option("--sink", type=click.Choice(list(TARGETS)), required=True, help="Which sink.")
@click.option("--kills", default=KILLS, show_default=True, help="Kills of the sink.")
@click.option("--outages", default=OUTAGES, show_default=True, help="Outages of the target.")
@click.option("--order", type=click.Choice(_ORDERS), default="transaction", show_default=True)
@click.option("--seed", default=1, show_default=True, help="Transactions and times of the faults.")
def main(sink: str, kills: int, outages: int, order: str, seed: int) -> None:
    """Kill a sink and its target; exit 1 if the target does not end as the source."""
    with Console(stderr=True).status("starting") as status:
        found = measure(sink, kills, outages, order, seed, status.update)
    print(f"seed {seed}: {found}")
    publish("sink torture", figures_of(sink, order, kills + outages, found))
    raise SystemExit(found.problems > 0)
