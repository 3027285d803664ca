"""Lets the target of one sink hang for minutes, and looks at the two others, and at the memory.

The relay keeps its history in a log: what waits for the sink is beyond the ring. So the sink reads
it from there, and nothing is collected in its process meanwhile.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.memory import resident_bytes
from benchmarks.shared.report import Figure, at_least, at_most, publish
from benchmarks.sink_torture.targets import RedisTarget, SqlTarget
from benchmarks.sink_torture.workload import SOURCES, TABLES, Rows, Writer, rows_of
from databus.cli.api_client import ApiClient
from databus.client.sinks.serving.api import ROOT
from databus.client.sinks.serving.service import address_of
from databus.client.sinks.serving.views import SinksView
from databus.demo.processes import Child, check_signals, python_module, stopped_by_signals
from databus.demo.stage import Stage
from tests.client.sinks.serving.test_killed import archived

MINUTES, SHORT_MINUTES = 10.0, 0.2
RING = "1MiB"  # seconds of the load
_PAUSE_S = 0.004
_PATIENCE_S = 600.0
_WARM_UP_S = 10.0
_OTHERS = ("files", "sql")
_BLOCKED = "redis"
_MIB = 1 << 20
# What a sink may hold by its settings: 8 MiB that wait undecoded, and 20,000 small rows.
_GROWTH_MIB = 64


@dataclass(slots=True)
class Findings:
    """What came of a run."""

    worst_lag_s: dict[str, float]  # of the two others
    unknown: int  # times that a lag was not known
    grown_mib: float  # of the process of sinks, while one was blocked
    transactions: int = 0
    beyond_ring: int = 0  # how far its SCN was behind the ring when the target came back
    caught_up_after_s: float = 0.0
    rows: int = 0
    wrong_rows: int = 0


def measure(minutes: float, seed: int, tell: Callable[[str], None]) -> Findings:
    """Run three sinks, and block one; `tell` is called with the progress."""
    with ExitStack() as opened:
        opened.enter_context(stopped_by_signals())
        stage = opened.enter_context(Stage("mysql", TABLES, SOURCES, ring_bytes=RING))
        with stage.settings_file.open("a", encoding="utf-8") as file:
            file.write("log = {}\n")
        stage.start_relay()
        redis, sql = RedisTarget(stage.folder), SqlTarget(stage.folder)
        opened.callback(redis.close)
        opened.callback(sql.close)
        settings = _write_settings(stage, redis, sql)
        command = python_module("databus.cli.main", "sink", "run", "-c", settings)
        sinks = stage.child("sinks", command)
        sinks.start()
        writer = Writer(stage.database, seed, _PAUSE_S)
        writer.start()
        try:
            tell("warming up")
            time.sleep(_WARM_UP_S)
            with redis.hanging():
                found = _watch(stage, sinks, minutes * 60, tell)
                found.beyond_ring = _beyond_the_ring(stage)
        finally:
            writer.end()
        found.transactions = writer.transactions
        session = opened.enter_context(closing(stage.database.connect()))
        wanted = rows_of(session)
        copies: dict[str, Callable[[], Rows]] = {
            "redis": lambda: redis.held().rows,
            "sql": lambda: sql.held().rows,
            "files": lambda: archived(stage.folder / "archive")[0],
        }
        _judge(found, wanted, copies, tell)
        return found


def _write_settings(stage: Stage, redis: RedisTarget, sql: SqlTarget) -> Path:
    options = {
        "redis": {**redis.options_of(1), "timeout_s": 5},
        "sql": sql.options_of(1),
        "files": {"folder": "archive"},
    }
    text = f'data_dir = "state"\nrelays = ["{stage.url}"]\n'
    for kind, given in options.items():
        shown = ", ".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
        text += f'\n[[sinks]]\nname = "{kind}"\nkind = "{kind}"\nsources = ["shop.*"]\n'
        text += f"options = {{ {shown} }}\nflush = {{ rows = 500, seconds = 0.2 }}\n"
        text += "failures = { back_off = { first_s = 0.1, max_s = 5.0 } }\n"
    path = stage.folder / "sink.toml"
    path.write_text(text)
    return path


def _watch(stage: Stage, sinks: Child, seconds: float, tell: Callable[[str], None]) -> Findings:
    """Look each second at the lags of the two others, and at the memory."""
    found = Findings(dict.fromkeys(_OTHERS, 0.0), 0, 0.0)
    began_s, began_bytes = time.monotonic(), resident_bytes(sinks.pid)
    api = ApiClient(address_of(stage.folder / "state"))
    while (passed_s := time.monotonic() - began_s) < seconds:
        check_signals()
        time.sleep(1.0)
        shown = {one.name: one for one in api.read(SinksView, api.get_json(ROOT)).sinks}
        for name in _OTHERS:
            lags = [feed.lag_s for feed in shown[name].physical_sources]
            known = [lag for lag in lags if lag is not None]
            found.unknown += not known
            found.worst_lag_s[name] = max(found.worst_lag_s[name], *known, 0.0)
        grown = (resident_bytes(sinks.pid) - began_bytes) / _MIB
        found.grown_mib = max(found.grown_mib, grown)
        tell(f"{passed_s:.0f} of {seconds:.0f} s: {_BLOCKED} is {shown[_BLOCKED].state}, {found}")
    return found


def _beyond_the_ring(stage: Stage) -> int:
    """Return how far the position of the blocked sink is behind the oldest window of the ring."""
    file = stage.folder / "state" / "positions.json"
    held = json.loads(file.read_text())["positions"][_BLOCKED]["shop"]["checkpoint"]["windowScn"]
    return max(0, int(stage.view()["ring"]["minScn"]) - int(held))


def _judge(
    found: Findings,
    wanted: Rows,
    copies: dict[str, Callable[[], Rows]],
    tell: Callable[[str], None],
) -> None:
    began_s = time.monotonic()
    held = {name: read() for name, read in copies.items()}
    while any(rows != wanted for rows in held.values()):
        if time.monotonic() - began_s > _PATIENCE_S:
            break
        check_signals()
        tell(f"catching up for {time.monotonic() - began_s:.0f} s")
        time.sleep(0.5)
        held = {name: read() for name, read in copies.items()}
    found.caught_up_after_s = time.monotonic() - began_s
    found.rows = len(wanted) * len(held)
    found.wrong_rows = sum(
        rows.get(place) != wanted.get(place) for rows in held.values() for place in {*rows, *wanted}
    )


def figures_of(minutes: float, found: Findings) -> list[Figure]:
    """Return the figures of a run."""
    name = f"a sink blocked for {minutes:g} minutes"
    lags = [
        Figure(f"{name}: worst lag of the sink {other} beside it", lag, "s", at_most(2.0))
        for other, lag in found.worst_lag_s.items()
    ]
    return [
        *lags,
        Figure(f"{name}: times that a lag was not known", found.unknown, "times", at_most(0)),
        Figure(
            f"{name}: memory of the process grown by", found.grown_mib, "MiB", at_most(_GROWTH_MIB)
        ),
        Figure(f"{name}: caught up after", found.caught_up_after_s, "s"),
        Figure(f"{name}: rows compared", found.rows, "rows", at_least(1)),
        Figure(f"{name}: rows wrong", found.wrong_rows, "rows", at_most(0)),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Block a sink for minutes."""
    minutes = SHORT_MINUTES if short else MINUTES
    return figures_of(minutes, measure(minutes, 1, lambda _text: None))


@click.command()
@click.option("--minutes", default=MINUTES, show_default=True, help="For how long it is blocked.")
@click.option("--seed", default=1, show_default=True, help="Of the transactions.")
def main(minutes: float, seed: int) -> None:
    """Block one of three sinks; exit 1 if a promise is broken."""
    with Console(stderr=True).status("starting") as status:
        found = measure(minutes, seed, status.update)
    print(f"seed {seed}: {found}")
    shown = figures_of(minutes, found)
    publish("blocked sink", shown)
    raise SystemExit(any(one.is_met is False for one in shown))
