"""Lets the consumers leave and come back, kills the relay meanwhile, and compares everything."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import click
from rich.console import Console
from rich.table import Table

from benchmarks.bootstrap_torture.checks import (
    BootstrapFindings,
    check_log as check_bootstrap_log,
    check_tables,
)
from benchmarks.ladder.rungs import AWAY, Held, Rung, misplaced, served
from benchmarks.ladder.stage import LadderStage, Reader
from benchmarks.shared.report import Figure, at_most
from benchmarks.torture.checks import Findings, check_log
from benchmarks.torture.log import Delivery
from benchmarks.torture.run import tell_and_exit
from benchmarks.torture.workload import End, Sizes, Workload
from benchmarks.torture.writer import run_transaction
from databus.conf.units import parse_size_bytes
from databus.demo.processes import ChildError, check_signals, stopped_by_signals
from databus.schemas.scn import BinlogPosition

FIRST = 50  # transactions that are there before anybody reads
BEGINNING = 4.0  # sizes of the ring that are written before the binlogs are purged
AT_ONCE = 10  # transactions between two looks
LEAD = 1000  # transactions that the writer is ahead of consumers at most
PATIENCE_S = 60.0
POLL_S = 0.05
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of the command line; `kills` of the relay, while the consumers catch up."""

    ring_bytes: int
    kills: int
    seed: int


@dataclass
class Outcome:
    """What each consumer was served after it came back, and all problems."""

    away: dict[Rung, float] = field(default_factory=dict)
    served: dict[Rung, Counter[Rung]] = field(default_factory=dict)
    pages: int = 0
    findings: dict[Rung, Findings] = field(default_factory=dict)
    transactions: int = 0
    catch_up_bytes: int = 0  # that consumers have read from it
    seconds: float = 0.0

    def problems(self) -> Findings:
        """Return the problems of all consumers."""
        found = Findings()
        for rung, one in self.findings.items():
            found.problem_count += one.problem_count
            found.problems += [f"{rung}: {problem}" for problem in one.problems]
        return found


class Ladder:
    """One run on an open stage."""

    def __init__(self, plan: Plan, stage: LadderStage, tell: Tell) -> None:
        self._plan, self._stage, self._tell = plan, stage, tell
        self._random = random.Random(f"ladder {plan.seed}")
        # No transaction as large as a small ring.
        self._works = Workload(plan.seed, Sizes(large_share=0.0)).transactions()
        self._session = stage.database.connect()
        self._committed = 0
        self._reading: list[Reader] = []
        self._left_scn: dict[Rung, int] = {}
        self._left_bytes: dict[Rung, int] = {}
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Run it; raises ChildError when a process fails or progress stops."""
        began = time.monotonic()
        self._stage.start_relay()
        self._begin()
        for rung in (Rung.ARCHIVE, Rung.LOG, Rung.RING):
            self._write_sizes(self._bytes_between(rung))
            self._leave(self._stage.readers[rung])
        self._write_sizes(AWAY[Rung.RING])
        held = self._await_retention()
        self._come_back()
        self.outcome.seconds = time.monotonic() - began
        self._check(held)
        self._session.close()
        return self.outcome

    def _begin(self) -> None:
        """Let all consumers read along; two of them leave, and the server purges what one lacks."""
        stage = self._stage
        self._tell("beginning")
        self._write(FIRST)
        stage.start_bootstrap()
        stage.await_seeded()
        stage.make_readers()
        readers = stage.readers
        for rung, reader in readers.items():
            if rung is not Rung.BOOTSTRAP:
                reader.child.start()
                self._reading.append(reader)
        readers[Rung.BOOTSTRAP].child.start()
        self._write_sizes(BEGINNING)
        self._leave(readers[Rung.BOOTSTRAP])
        self._write(AT_ONCE)
        self._purge()
        self._leave(readers[Rung.SOURCE])

    def _bytes_between(self, rung: Rung) -> float:
        """Return how much is written between the consumer that left before and this one."""
        before = {Rung.ARCHIVE: Rung.SOURCE, Rung.LOG: Rung.ARCHIVE, Rung.RING: Rung.LOG}
        return AWAY[before[rung]] - AWAY[rung]

    # Writing

    def _write(self, transactions: int) -> None:
        end = self._committed + transactions
        while self._committed < end:
            work = next(self._works)
            run_transaction(self._session, work)
            if work.end is End.COMMIT:
                self._committed = work.number

    def _write_sizes(self, sizes: float) -> None:
        """Write until the ring was given so many of its sizes; consumers that read keep up."""
        end = self._ring_bytes() + sizes * self._plan.ring_bytes
        while (now := self._ring_bytes()) < end:
            to_go = (end - now) / self._plan.ring_bytes
            self._tell(f"writing, {to_go:.0f} sizes of the ring to go")
            self._write(AT_ONCE)
            lead = self._committed - LEAD
            self._wait(lambda n=lead: all(one.applied >= n for one in self._reading), "a consumer")  # type: ignore[misc]

    def _ring_bytes(self) -> int:
        size: int = self._stage.view()["sizeBytes"]
        return size

    def _leave(self, reader: Reader) -> None:
        """Stop a consumer once it has applied everything."""
        if reader.rung is Rung.BOOTSTRAP:
            self._await_window(reader)
        self._wait(lambda: reader.applied >= self._committed, f"the consumer {reader.rung}")
        reader.leave()
        if reader in self._reading:
            self._reading.remove(reader)
        self._left_scn[reader.rung] = int(self._stage.view()["ring"]["maxScn"])
        self._left_bytes[reader.rung] = self._ring_bytes()

    def _purge(self) -> None:
        """Delete the server's binlogs but the newest, once relay and bootstrap pair have them."""
        self._session.execute("FLUSH BINARY LOGS")
        newest = self._session.rows("SHOW BINARY LOGS")[-1][0]
        begin_scn = BinlogPosition(0, int(newest.rpartition(".")[2]), 0).to_scn()
        self._write(1)
        self._wait(lambda: self._newest() > begin_scn, "the relay in the new file")
        self._wait(lambda: self._stage.stored_scn() > begin_scn, "the bootstrap pair there")
        self._wait(lambda: self._is_purged(newest), "the purge")

    def _is_purged(self, newest: str) -> bool:
        self._session.execute(f"PURGE BINARY LOGS TO '{newest}'")
        return len(self._session.rows("SHOW BINARY LOGS")) == 1

    def _newest(self) -> int:
        return int(self._stage.view()["ring"]["maxScn"])

    # Coming back

    def _await_retention(self) -> Held:
        """Wait until each rung holds what it is to hold, and no more."""
        self._tell("waiting for the retention of log and archive")
        self._wait(lambda: not misplaced(self._left_scn, self._held()), "each rung's place")
        now = self._ring_bytes()
        self.outcome.away = {
            rung: (now - left) / self._plan.ring_bytes for rung, left in self._left_bytes.items()
        }
        return self._held()

    def _held(self) -> Held:
        return Held.of(self._stage.view())

    def _come_back(self) -> None:
        """Start all consumers, kill the relay while they read, and let them read to the end."""
        stage, goal = self._stage, self._committed
        for reader in stage.readers.values():
            reader.child.start()
        for kill in range(self._plan.kills):
            self._tell(f"reading; kill {kill + 1} of {self._plan.kills}")
            end = time.monotonic() + self._random.uniform(0.3, 2.0)
            while time.monotonic() < end:
                self._look()
            stage.relay.kill()
            stage.start_relay()
        self._tell("reading")
        behind = [one for rung, one in stage.readers.items() if rung is not Rung.BOOTSTRAP]
        self._wait(lambda: all(one.applied >= goal for one in behind), "what was missed")
        self._await_window(stage.readers[Rung.BOOTSTRAP])
        self._write(AT_ONCE)
        for reader in stage.readers.values():
            self._wait(lambda r=reader: r.applied >= self._committed, reader.rung)  # type: ignore[misc]
            reader.leave()

    def _await_window(self, reader: Reader) -> None:
        """Write until a consumer that bootstraps has a window; a page does not say where it is."""
        before = self._committed

        def has_one() -> bool:
            self._write(1)
            return reader.applied > before

        self._wait(has_one, "a window after the bootstrap")

    def _look(self) -> None:
        """Note what the catch-up has served; the relay may be down."""
        with suppress(OSError):
            for one in self._stage.view()["catchUps"]:
                self.outcome.catch_up_bytes = max(self.outcome.catch_up_bytes, one["readBytes"])
        time.sleep(POLL_S)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            check_signals()
            self._stage.check()
            if time.monotonic() > end:
                raise ChildError(f"waited {PATIENCE_S:g} s in vain for {what}\n{self._where()}")
            self._look()

    def _where(self) -> str:
        """Return how far everybody is, and the ends of their logs."""
        tails = [f"--- {c.name}:\n{c.log_tail()}" for c in self._stage.children]
        applied = {str(rung): one.applied for rung, one in self._stage.readers.items()}
        names = ("state", "problem", "ring", "relayLog", "catchUps")
        view = {name: self._stage.view()[name] for name in names}
        counts = f"{self._committed} committed, applied: {applied}, left at {self._left_scn}"
        return "\n".join([*tails, counts, f"{view}"])

    # The end

    def _check(self, held: Held) -> None:
        self._tell("comparing")
        outcome = self.outcome
        outcome.transactions = self._committed
        for rung, reader in self._stage.readers.items():
            with closing(reader.log()) as log:
                deliveries = list(log.deliveries())
                found = outcome.findings[rung] = self._findings(rung, deliveries)
                check_tables(log, self._session, found)
            last_run = max(one.run for one in deliveries)
            last = [one for one in deliveries if one.run == last_run]
            outcome.served[rung] = served((one.scn for one in last if one.kind == "window"), held)
            if rung is Rung.BOOTSTRAP:
                outcome.pages = sum(one.kind == "page" for one in last)
            has_served = outcome.pages if rung is Rung.BOOTSTRAP else outcome.served[rung][rung]
            if not has_served:
                found.add("its rung has served nothing to it")
        if not outcome.catch_up_bytes:
            outcome.findings[Rung.SOURCE].add("no catch-up has served anything")

    def _findings(self, rung: Rung, deliveries: list[Delivery]) -> Findings:
        if rung is Rung.BOOTSTRAP:
            bootstrapped = BootstrapFindings()
            check_bootstrap_log(deliveries, self._committed, bootstrapped)
            return bootstrapped
        found = Findings()
        check_log(deliveries, self._committed, found)
        return found


def climb(plan: Plan, tell: Tell = lambda _: None) -> Outcome:
    """Make a stage, run it, clean up, and return the results."""
    with stopped_by_signals(), LadderStage(plan.ring_bytes) as stage:
        return Ladder(plan, stage, tell).run()


def table_of(outcome: Outcome) -> Table:
    """Return what each rung has served to each consumer."""
    table = Table("consumer", "away, ring sizes", title="Windows that each rung served")
    for rung in reversed(Rung):
        table.add_column("pages" if rung is Rung.BOOTSTRAP else rung, justify="right")
    table.add_column("problems", justify="right")
    for rung in reversed(Rung):
        counts = outcome.served[rung]
        pages = str(outcome.pages) if rung is Rung.BOOTSTRAP else "-"
        windows = [str(counts[one] or "-") for one in reversed(Rung) if one is not Rung.BOOTSTRAP]
        problems = str(outcome.findings[rung].problem_count or "no")
        table.add_row(rung, f"{outcome.away[rung]:.1f}", pages, *windows, problems)
    return table


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the counts."""
    problems = outcome.problems().problem_count or "no"
    return (
        f"seed {plan.seed}: {outcome.transactions} transactions, ring of {plan.ring_bytes} bytes, "
        f"{plan.kills} kills of the relay, {outcome.seconds:.0f} s: {problems} problems"
    )


def figures(short: bool = False) -> list[Figure]:
    """Run it with a fixed seed; return the number of problems."""
    plan = Plan(128 << 10 if short else 1 << 20, 1 if short else 4, 1)
    problems = climb(plan).problems().problem_count
    name = f"ladder (ring of {plan.ring_bytes >> 10} KiB, {plan.kills} kills)"
    return [Figure(name, problems, "problems", at_most(0))]


@click.command()
@click.option("--ring", default="1MiB", show_default=True, help="Size of the relay's ring.")
@click.option("--kills", type=click.IntRange(0), default=4, show_default=True)
@click.option("--seed", type=int, help="Repeats a plan; drawn when left out.")
def main(ring: str, kills: int, seed: int | None) -> None:
    """Read every rung of history at once; print problems, and exit 1 if there are any."""
    plan = Plan(parse_size_bytes(ring), kills, random.randrange(10**6) if seed is None else seed)
    click.echo(f"seed {plan.seed}")
    console = Console(stderr=True)
    with console.status("starting") as status:
        outcome = climb(plan, status.update)
    Console(width=None if console.is_terminal else 100).print(table_of(outcome))
    tell_and_exit(outcome.problems(), last_line(plan, outcome))
