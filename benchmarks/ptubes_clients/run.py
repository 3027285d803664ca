"""Kills relays and instances of Ptubes' stock client while it consumes, and judges what it has."""

from __future__ import annotations

import contextlib
import functools
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.ptubes_clients import sleeping
from benchmarks.ptubes_clients.every_type import change_of, wrong_columns
from benchmarks.ptubes_clients.judging import Findings, Floor, Seen, figures_of, floor_of, judge
from benchmarks.ptubes_clients.sdk import (
    PARTITIONS,
    READER,
    TASK,
    Handed,
    StockSdk,
    checkpoints,
    compiled,
)
from benchmarks.ptubes_clients.switching import switched
from benchmarks.shared.every_type import TABLE, Change, changes, make
from benchmarks.shared.report import Figure, publish
from databus.demo.private_mariadb import PrivateMariaDB
from databus.demo.processes import check_signals, free_port, stopped_by_signals
from tests.mariadb_server import Database
from tests.mysql_server import PrivateMySQL, initialize, mysql_basedir
from tests.promises.running import (
    RunningRelay,
    meanwhile,
    mysql_source,
    new_database,
    running,
    wait_until,
)
from tests.zookeeper_server import PrivateZookeeper
from tools import fetch_ptubes

CHANGES, SHORT_CHANGES = 100_000, 6_000
MYSQL_CHANGES = 12_000
FEW_PARTITIONS = 3
_PATIENCE_S = 600.0

Tell = Callable[[str], None]


def ptubes_table(port: int, **more: Any) -> dict[str, Any]:
    """Return `[ptubes]` of a relay's settings, with the reader task of these clients."""
    return {
        "port": port,
        "monitor_port": free_port(),
        "time_zone": "UTC",
        "heartbeat_s": 1.0,
        "reader_tasks": [{"name": READER, "physical_source": "shop"}],
    } | more


class Instance(StockSdk):
    """An instance whose events are judged as they come."""

    name = ""
    log: list[Seen]

    def take(self, event: Handed) -> None:
        """Remember what counts of an event."""
        if event.kind not in ("INSERT", "UPDATE", "DELETE"):
            return
        _, file, offset, index, time_ms = event.place
        place = (time_ms, file, offset, index)
        seen = Seen(self.name, change_of(event), place, tuple(wrong_columns(event)))
        self.log.append(seen)


class Run:
    """One run on a database."""

    def __init__(
        self, database: Database, folder: Path, zookeeper: str, count: int, tell: Tell
    ) -> None:
        self._database, self._folder, self._zookeeper = database, folder, zookeeper
        self._tell = tell
        (folder / "classes").mkdir(parents=True)
        self._class_path = compiled(folder / "classes")
        self._port = free_port()
        source = mysql_source(database, folder, sources=[f"{database.name}.every_type"])
        source |= {"ring_bytes": 256 << 20}
        self.relay = RunningRelay(folder, source, ptubes=ptubes_table(self._port))
        self.seen: list[Seen] = []
        self._floors: list[Floor] = []
        self._partitions = PARTITIONS
        transactions = list(changes(count))
        self.wanted = list(chain.from_iterable(transactions))
        self._left = iter(_parts(transactions, 6))
        self._made = 0
        self.shares: dict[str, int] = {}
        self.taken_over_s = 0.0

    def play(self, draw: random.Random) -> None:
        """Let instances come and go, and the relay die, while rows are changed."""
        self._make()
        self._tell("one instance")
        with self._instance("one") as one:
            self._wait("the changes from before its start")
            wait_until(lambda: floor_of(self._stored()) != (), "checkpoints", self._told, 120.0)
            self._step("two instances")
            with self._instance("two") as two:
                wait_until(lambda: sorted(self._owned()) == [5, 6], "5 and 6", self._told, 120.0)
                before = len(self.seen)
                self._make()
                self._wait("what they share")
                new = self.seen[before:]
                self.shares = {n: sum(s.instance == n for s in new) for n in ("one", "two")}
                self._step("kill of the relay")
                with self._making():
                    self._wait_for_some(draw)
                    self.relay.child.kill()
                    self.relay.start()
                self._wait("what came over the relay's kill")
                self._step("kill of an instance")
                with self._making():
                    self._wait_for_some(draw)
                    two.kill()
                    began_s = time.monotonic()
                self._wait("the partitions of the killed one")
                self.taken_over_s = time.monotonic() - began_s
            self._step("fewer partitions")
            self._partitions = FEW_PARTITIONS
            one.tell(f"partitions {FEW_PARTITIONS}")
            wait_until(self._has_few, "3 partitions", self._told, 120.0)
            self._make()
            self._wait("what comes in 3 partitions")
        self._step("start at the checkpoints")
        self._make()
        with self._instance("three"):
            self._wait("what came while there was none")

    def _instance(self, name: str) -> Instance:
        readers = f"127.0.0.1:{self._port}"
        table = f"{self._database.name}.every_type"
        made = Instance(self._class_path, self._zookeeper, readers, self._folder / name, table)
        made.name, made.log = name, self.seen
        made.using(mode="EARLIEST", partitions=self._partitions)
        return made

    def _make(self) -> None:
        part = next(self._left)
        make(self._database, part)
        self._made += sum(map(len, part))

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """Make the next changes meanwhile."""

        def run(_ended: threading.Event) -> None:
            self._make()

        with meanwhile(run):
            yield

    def _step(self, what: str) -> None:
        """Begin a step: what comes again in it comes from after the checkpoints of now."""
        self._tell(what)
        self._floors.append(Floor(len(self.seen), floor_of(self._stored())))

    def _stored(self) -> list[Any]:
        found = checkpoints(self._zookeeper, TASK, self._partitions)
        return [] if len(found) < self._partitions else list(found.values())

    def _sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.relay.get("/api/v1/ptubes").json()["sessions"]
        return found

    def _owned(self) -> list[int]:
        return [len(one["partitionSet"]) for one in self._sessions()]

    def _has_few(self) -> bool:
        wanted = (FEW_PARTITIONS, FEW_PARTITIONS)
        found = [(one["partitions"], len(one["partitionSet"])) for one in self._sessions()]
        return found == [wanted]

    def _wait_for_some(self, draw: random.Random) -> None:
        begin, some = len(self.seen), draw.randrange(20, 200)
        wait_until(lambda: len(self.seen) > begin + some, "some rows", self._told, _PATIENCE_S)

    def _wait(self, what: str) -> None:
        """Wait until all changes that were made have been taken."""

        def have() -> bool:
            check_signals()
            return len({one.change for one in self.seen[:]}) >= self._made

        wait_until(have, what, self._told, _PATIENCE_S)

    def _told(self) -> str:
        has = len({one.change for one in self.seen[:]})
        return f"{has} of {self._made} changes, {self._sessions()}, {self.relay.tell()}"

    def findings(self, server: str, seconds: float) -> Findings:
        """Return what came of it."""
        counts = judge(self.seen, self.wanted, self._floors)
        shares, after_s = self.shares, self.taken_over_s
        return Findings(
            server=server,
            changes=len(self.wanted),
            shares=shares,
            taken_over_s=after_s,
            seconds=seconds,
            **counts._asdict(),
        )


def _parts(transactions: Sequence[list[Change]], count: int) -> list[Sequence[list[Change]]]:
    size = -(-len(transactions) // count)
    return [transactions[at : at + size] for at in range(0, len(transactions), size)]


def measure(
    make_server: Callable[[], PrivateMariaDB], name: str, count: int, tell: Tell
) -> Findings:
    """Run with so many changes on a server; `tell` is called with the progress."""
    fetch_ptubes.fetch()
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="databus-ptubes-") as folder,
        make_server() as server,
        new_database(server, "ptubes_clients") as database,
        PrivateZookeeper() as zookeeper,
    ):
        database.run(TABLE)
        address = f"127.0.0.1:{zookeeper.port}"
        run = Run(database, Path(folder), address, count, lambda text: tell(f"{name}: {text}"))
        with running(run.relay):
            run.relay.start()
            run.play(random.Random(1))
        return run.findings(name, time.monotonic() - began_s)


@contextlib.contextmanager
def _mysql() -> Iterator[Callable[[], PrivateMariaDB]]:
    basedir = mysql_basedir()
    assert basedir is not None, "MySQL 8 is not there: python -m tools.fetch_test_servers"
    with tempfile.TemporaryDirectory(prefix="databus-mysql-") as folder:
        template = Path(folder) / "data"
        initialize(basedir, template)
        yield functools.partial(PrivateMySQL, basedir, template)


def all_findings(count: int, mysql_count: int, tell: Tell) -> list[Findings]:
    """Run on MariaDB, then on MySQL."""
    with stopped_by_signals():
        found = []
        if count:
            found.append(measure(PrivateMariaDB, "MariaDB", count, tell))
        if mysql_count:
            with _mysql() as mysql:
                found.append(measure(mysql, "MySQL 8", mysql_count, tell))
        return found


def figures(short: bool = False) -> list[Figure]:
    """Let the stock client consume under kills; return what it has."""
    count, mysql_count = (SHORT_CHANGES, 0) if short else (CHANGES, MYSQL_CHANGES)
    found = all_findings(count, mysql_count, lambda _text: None)
    rest = [] if short else [*switched(lambda _text: None), *sleeping.figures()]
    return [*chain.from_iterable(map(figures_of, found)), *rest]


@click.command()
@click.option("--short", is_flag=True, help="Few changes, on MariaDB alone.")
@click.option("--changes", "count", default=CHANGES, show_default=True, help="On MariaDB.")
@click.option("--mysql-changes", default=MYSQL_CHANGES, show_default=True, help="On MySQL 8.")
@click.option("--switch/--no-switch", default=True, help="Let the source go to another server.")
def main(short: bool, count: int, mysql_changes: int, switch: bool) -> None:
    """Let Ptubes' stock client consume while it and relays are killed; exit 1 on a loss."""
    if short:
        count, mysql_changes, switch = SHORT_CHANGES, 0, False
    with Console(stderr=True).status("starting") as status:
        found = all_findings(count, mysql_changes, status.update)
        rest = switched(status.update) if switch else []
        rest += [] if short else sleeping.figures()
    for one in found:
        print(one)
    publish("ptubes_clients", [*chain.from_iterable(map(figures_of, found)), *rest])
    is_bad = any(one.problems for one in found) or any(one.is_met is False for one in rest)
    raise SystemExit(is_bad)
