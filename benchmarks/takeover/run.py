"""Kills and freezes the relay that captures, under load, and looks at what consumers get."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from benchmarks.chain.writer import Writer
from benchmarks.shared.report import Figure, at_most, percentile, publish
from benchmarks.takeover.max_scn_watch import MaxScnWatch
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import check_signals, stopped_by_signals
from tests.mariadb_server import connect
from tests.promises.running import (
    Remembering,
    RunningRelay,
    consuming,
    mysql_source,
    new_database,
    sources_of,
    wait_until,
)
from tests.promises.standby.pair import Pair, is_active, paired, role
from tests.zookeeper_server import ZookeeperEnsemble

FAULTS, SHORT_FAULTS = 20, 2
TTL_S, SHORT_TTL_S = 3.0, 2.0
RATE = 100.0
_FROZEN_TTLS = 2.5  # for how long a relay is frozen, in `ttl`
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Findings:
    """What came of a run. Times are in seconds, from the kill or the stop."""

    captures_after_s: list[float] = field(default_factory=list)
    row_after_s: list[float] = field(default_factory=list)
    rows: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    windows_that_differ: int = 0
    went_back: int = 0
    most_dumps: int = 0
    terms: int = 0

    @property
    def problems(self) -> int:
        """Number of broken promises, but for those about time."""
        broken = self.lost + self.twice + self.out_of_order + self.windows_that_differ
        return broken + self.went_back + max(0, self.most_dumps - 1)


class _Run:
    """Two relays, a writer, a consumer and what was found so far."""

    def __init__(
        self,
        pair: Pair,
        server: PrivateMariaDB,
        writer: Writer,
        consumer: Remembering,
        ttl_s: float,
    ) -> None:
        self.found = Findings()
        self._pair, self._server, self._writer = pair, server, writer
        self._consumer, self._ttl_s = consumer, ttl_s

    def fault(self, number: signal.Signals, draw: random.Random) -> None:
        """Kill or freeze the relay that captures; bring it back once it has a successor."""
        active = self._pair.wait_for_active()
        other = self._pair.other(active)
        wait_until(lambda: role(other).get("owner") == active.url, "a standby", other.tell)
        time.sleep(draw.uniform(0.1, 1.5))
        began_s, row = time.monotonic(), self._writer.rows + 2
        if number is signal.SIGKILL:
            active.child.kill()
        else:
            os.kill(active.child.pid, number)
        wait_until(lambda: is_active(other), "a successor", other.tell, _PATIENCE_S)
        self.found.captures_after_s.append(time.monotonic() - began_s)
        wait_until(lambda: self._newest_row() >= row, "the next row", other.tell, _PATIENCE_S)
        self.found.row_after_s.append(time.monotonic() - began_s)
        self._bring_back(active, number, began_s, draw)
        wait_until(lambda: role(active).get("owner") == other.url, "to stand by", active.tell)
        self._count_dumps()

    def _bring_back(
        self, relay: RunningRelay, number: signal.Signals, began_s: float, draw: random.Random
    ) -> None:
        if number is signal.SIGKILL:
            time.sleep(draw.uniform(0, 1.0))
            relay.serve()
            return
        left_s = _FROZEN_TTLS * self._ttl_s - (time.monotonic() - began_s)
        time.sleep(max(0.0, left_s))
        os.kill(relay.child.pid, signal.SIGCONT)

    def _newest_row(self) -> int:
        windows = self._consumer.windows
        return int(windows[-1][1][-1].row["id"]) if windows else 0

    def _count_dumps(self) -> None:
        """Count the dump connections, once those that ended are gone at the server."""

        def count() -> int:
            # A connection of its own: the writer's thread uses the other one.
            with contextlib.closing(connect(self._server)) as connection:
                cursor = connection.cursor()
                cursor.execute("SHOW FULL PROCESSLIST")
                return sum("Binlog Dump" in str(row) for row in cursor.fetchall())

        with contextlib.suppress(AssertionError):
            wait_until(lambda: count() <= 1, "one dump connection", patience_s=5.0)
        self.found.most_dumps = max(self.found.most_dumps, count())


def measure(
    faults: int, ttl_s: float, nodes: int, seed: int, tell: Callable[[str], None]
) -> Findings:
    """Run two relays; half of the faults are kills. `tell` is called with the progress.

    With `nodes` of ZooKeeper; with none, leases are in a folder.
    """
    draw = random.Random(seed)
    with (
        stopped_by_signals(),
        tempfile.TemporaryDirectory(prefix="databus-takeover-") as name,
        _coordinator(Path(name), nodes) as coordinator,
        PrivateMariaDB() as server,
        new_database(server, "takeover") as database,
    ):
        folder, consumer, writer = Path(name), Remembering(), Writer(database, RATE)
        source = mysql_source(database, folder) | {"capture_lease_s": ttl_s}
        pair, watch = Pair(folder, source, coordinator), MaxScnWatch(coordinator, "shop")
        run = _Run(pair, server, writer, consumer, ttl_s)
        orders, urls = sources_of(database)[:1], [one.url for one in pair.relays]
        with watch.running(), paired(pair):
            with consuming(urls, orders, consumer, request_timeout_s=2.0):
                with writer.running():
                    for count in range(faults):
                        check_signals()
                        kind = signal.SIGSTOP if count % 2 else signal.SIGKILL
                        tell(f"fault {count + 1} of {faults}: {kind.name}")
                        run.fault(kind, draw)
                _wait_for_all(consumer, writer, pair)
            windows = [relay.windows() for relay in pair.relays]
        _judge(run.found, consumer, writer.rows, watch)
        run.found.windows_that_differ = _differing(*windows)
        return run.found


@contextlib.contextmanager
def _coordinator(folder: Path, nodes: int) -> Iterator[str]:
    if not nodes:
        yield f"file:{folder / 'leases'}"
        return
    with ZookeeperEnsemble(nodes) as ensemble:
        yield ensemble.url


def _wait_for_all(consumer: Remembering, writer: Writer, pair: Pair) -> None:
    def has_last() -> bool:
        return bool(consumer.events[-1].row["id"] == writer.rows)

    wait_until(has_last, "the last row", pair.relays[0].tell, _PATIENCE_S)
    first, second = pair.relays
    wait_until(lambda: first.windows().keys() == second.windows().keys(), "the newest window")


def _judge(found: Findings, consumer: Remembering, rows: int, watch: MaxScnWatch) -> None:
    ids = [event.row["id"] for event in consumer.events]
    found.rows = rows
    found.lost = rows - len(set(ids))
    found.twice = len(ids) - len(set(ids))
    found.out_of_order = sum(two < one for one, two in itertools.pairwise(ids))
    found.went_back = len(watch.went_back)
    found.terms = len({seen.term for seen in watch.seen})


def _differing(first: dict[int, bytes], second: dict[int, bytes]) -> int:
    return sum(first.get(scn) != second.get(scn) for scn in first.keys() | second.keys())


def figures_of(faults: int, ttl_s: float, found: Findings) -> list[Figure]:
    """Return the figures of a run."""
    name = f"relay that captures, killed or frozen {faults} times ({found.rows} rows)"
    limit_s = 2 * ttl_s
    return [
        Figure(f"{name}: rows lost", found.lost, "rows", at_most(0)),
        Figure(f"{name}: rows twice", found.twice, "rows", at_most(0)),
        Figure(f"{name}: rows out of order", found.out_of_order, "rows", at_most(0)),
        Figure(f"{name}: windows that differ", found.windows_that_differ, "windows", at_most(0)),
        Figure(f"{name}: MaxSCN or its term went back", found.went_back, "times", at_most(0)),
        Figure(f"{name}: dump connections", found.most_dumps, "connections", at_most(1)),
        Figure(f"{name}: terms", found.terms, "terms"),
        Figure(
            f"takeover, lease of {ttl_s:g} s: until it captures, median",
            percentile(found.captures_after_s, 50),
            "s",
        ),
        Figure(
            f"takeover, lease of {ttl_s:g} s: until it captures, longest",
            max(found.captures_after_s),
            "s",
            at_most(limit_s),
        ),
        Figure(
            f"takeover, lease of {ttl_s:g} s: until the next row, longest",
            max(found.row_after_s),
            "s",
        ),
    ]


def figures(short: bool = False) -> list[Figure]:
    """Kill and freeze the relay that captures; return what consumers got, and after how long."""
    faults, ttl_s = (SHORT_FAULTS, SHORT_TTL_S) if short else (FAULTS, TTL_S)
    found = measure(faults, ttl_s, 1, 1, lambda _text: None)
    return figures_of(faults, ttl_s, found)


@click.command()
@click.option("--faults", default=FAULTS, show_default=True, help="Kills and stops, by turns.")
@click.option("--ttl", default=TTL_S, show_default=True, help="`capture_lease_s`.")
@click.option("--zookeeper", default=1, show_default=True, help="Nodes; 0 = leases in a folder.")
@click.option("--seed", default=1, show_default=True, help="Times of the faults.")
def main(faults: int, ttl: float, zookeeper: int, seed: int) -> None:
    """Kill and freeze the relay that captures; exit 1 if a row is lost, twice or out of order."""
    with Console(stderr=True).status("starting") as status:
        found = measure(faults, ttl, zookeeper, seed, status.update)
    print(f"seed {seed}: {found}")
    publish("takeover", figures_of(faults, ttl, found))
    raise SystemExit(found.problems > 0)
