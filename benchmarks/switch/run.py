"""Runs the rounds in a random order that has both outcomes, and reports."""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import click
from rich.console import Console

from benchmarks.shared.report import Figure, at_most, publish
from benchmarks.switch.rounds import Findings, Outcome, Rounds
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import check_signals, stopped_by_signals
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir
from tests.promises.running import Remembering, RunningRelay, consuming, running
from tests.promises.switching.server_pair import Load, MakeServer, ServerPair

Kind = Literal["mariadb", "mysql", "mysql-without-gtids"]
WITHOUT_GTIDS: Kind = "mysql-without-gtids"
KINDS: tuple[Kind, ...] = ("mariadb", "mysql", WITHOUT_GTIDS)
SWITCHES, SHORT_SWITCHES = 20, 2
SOURCE = "shop.orders"
PAUSE_S = 0.003  # between two rows


def measure(kind: Kind, switches: int, seed: int, tell: Callable[[str], None]) -> Findings:
    """Kill servers so often; `tell` is called with the progress. Returns what came of it."""
    outcomes = [outcome for _, outcome in zip(range(switches), [*Outcome] * switches, strict=False)]
    random.Random(seed).shuffle(outcomes)
    with stopped_by_signals(), tempfile.TemporaryDirectory(prefix="databus-switch-") as name:
        folder = Path(name)
        with _open(kind, folder) as rounds:
            for number, outcome in enumerate(outcomes, 1):
                check_signals()
                tell(f"{kind}: switch {number} of {switches}, the replica is {outcome}")
                try:
                    rounds.play(outcome)
                except AssertionError as error:
                    rounds.findings.problems.append(f"switch {number} ({outcome}): {error}")
                    break
            return rounds.findings


@contextmanager
def _open(kind: Kind, folder: Path) -> Iterator[Rounds]:
    """Start two servers, a relay and a client."""
    consumer = Remembering()
    make, has_gtids = _maker(kind, folder), kind != WITHOUT_GTIDS
    with (
        ServerPair(make, is_mariadb=kind == "mariadb", has_gtids=has_gtids) as pair,
        running(RunningRelay(folder, _settings(pair, folder))) as relay,
    ):
        pair.catch_up()
        relay.start()
        with consuming([relay.url], [SOURCE], consumer):
            yield Rounds(pair, relay, Load(pair, PAUSE_S), consumer, has_gtids=has_gtids)


def _maker(kind: Kind, folder: Path) -> MakeServer:
    if kind == "mariadb":
        return lambda options: PrivateMariaDB(options=options)
    basedir = mysql_basedir()
    if basedir is None:
        raise click.ClickException("there is no MySQL: make test fetches it")
    template = folder / "template"
    initialize(basedir, template)
    make = partial(PrivateMySQL, basedir, template)
    return lambda options: make(options=options)


def _settings(pair: ServerPair, folder: Path) -> dict[str, object]:
    password = folder / "password"
    password.write_text(pair.primary.password)
    return {
        "name": "shop",
        "uri": [pair.primary.uri, pair.replica.uri],
        "sources": [SOURCE],
        "start": "earliest",
        "password_file": str(password),
        "reconnect_min_s": 0.05,
        "reconnect_max_s": 0.2,
        "switch_after_s": 0.3,
    }


def figures_of(kind: Kind, switches: int, findings: Findings) -> list[Figure]:
    """Return the figures of one kind of server."""
    name = f"{kind}, {switches} servers killed"
    found = [
        Figure(f"{name} ({findings.rows} rows): lost", findings.lost, "rows", at_most(0)),
        Figure(f"{name}: twice", findings.twice, "rows", at_most(0)),
        Figure(f"{name}: missing ones that were named", findings.named, "transactions"),
        Figure(f"{name}", len(findings.problems), "problems", at_most(0)),
    ]
    if findings.switched_s:
        median_s = statistics.median(findings.switched_s)
        found.append(Figure(f"{name}: from kill to next row, median", median_s, "s"))
    return found


def figures(short: bool = False) -> list[Figure]:
    """Switch servers of both kinds; return rows lost, rows twice, and problems."""
    switches = SHORT_SWITCHES if short else SWITCHES
    found: list[Figure] = []
    for kind in KINDS:
        found += figures_of(kind, switches, measure(kind, switches, 1, lambda _text: None))
    return found


@click.command()
@click.option("--switches", default=SWITCHES, show_default=True, help="Servers that are killed.")
@click.option("--server", type=click.Choice(KINDS[:2]), default="mariadb", show_default=True)
@click.option("--without-gtids", is_flag=True, help="MySQL with gtid_mode = OFF.")
@click.option("--seed", default=1, show_default=True, help="Order of the outcomes.")
def main(switches: int, server: Kind, without_gtids: bool, seed: int) -> None:
    """Kill servers under load; print what was lost or came twice, exit 1 for problems."""
    server = WITHOUT_GTIDS if without_gtids else server
    with Console(stderr=True).status("starting") as status:
        findings = measure(server, switches, seed, status.update)
    for problem in findings.problems:
        click.echo(f"PROBLEM: {problem}")
    publish("switch", figures_of(server, switches, findings))
    raise SystemExit(bool(findings.problems))
