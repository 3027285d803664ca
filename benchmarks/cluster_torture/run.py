"""Kills and freezes the processes of a group while a writer runs; then reads what they noted."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.cluster_torture.checks import ClusterFindings, Span, check
from benchmarks.cluster_torture.cluster import Cluster, Member
from benchmarks.cluster_torture.plan import Fault, FaultKind, Plan, plan_faults
from benchmarks.shared.report import PIPE_COLUMNS, Figure, at_most
from benchmarks.torture.run import tell_and_exit
from databus.demo.processes import ChildError, check_signals, stopped_by_signals
from databus.leases.clock import steady_s

POLL_S = 0.05
STALLED_S = 120.0  # without what is waited for, something hangs
LEAST_RUNNING = 2
FIRST_SHARE = 0.5  # of a lease: how long rows flow before and after all faults

Tell = Callable[[int, str], None]


class Outcome(NamedTuple):
    """The results."""

    findings: ClusterFindings
    faults: Counter[str]
    changes: int
    seconds: float


class Torture:
    """One run on an open cluster."""

    def __init__(self, plan: Plan, cluster: Cluster, tell: Tell) -> None:
        self._plan, self._cluster, self._tell = plan, cluster, tell
        self._faults: Counter[str] = Counter()
        self._freezes: list[Span] = []
        self._kills: dict[str, float] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []  # when something is back
        self._done = 0
        self._has_node_down = False
        self._at_member: dict[FaultKind, Callable[[Member, Fault], None]] = {
            "kill consumer": self._kill_member,
            "stop consumer": self._freeze,
            "cut from nodes": partial(self._cut, "nodes"),
            "cut from relay": partial(self._cut, "relay"),
        }

    def run(self) -> Outcome:
        """Run the torture; raises ChildError when a process fails or nothing goes on."""
        began_s = steady_s()
        cluster = self._cluster
        cluster.writer.start()
        for member in cluster.members:
            member.start()
            self._pause(0.2)
        self._settle()
        before = Span(0.0, steady_s())
        faults = plan_faults(self._plan)
        for number, fault in enumerate(faults):
            if number == len(faults) // 2:
                cluster.begin_resize(self._plan.partitions * 3 // 2)
            self._pause(fault.gap_s)
            self._wait_for_rows()
            self._hit(fault)
        self._wait(lambda: not self._due, "all to be back")
        self._wait(cluster.is_resized, "the end of the resize")
        self._settle()
        settled_s = steady_s()
        cluster.begin_resize(self._plan.partitions // 2)
        self._wait(cluster.is_resized, "the end of the resize")
        self._settle()
        self._leave_and_join(cluster.members[-1])
        cluster.writer.stop(STALLED_S)
        self._wait(self._is_drained, "the last changes")
        for member in cluster.members:
            member.leave()
        cluster.read()
        found = check(
            cluster.entries,
            cluster.changes,
            self._freezes,
            (before, Span(settled_s, steady_s())),
            self._kills,
        )
        self._faults["resize"] = cluster.resizes_begun
        return Outcome(found, self._faults, cluster.committed, steady_s() - began_s)

    # -- waiting ----------------------------------------------------------------------------------

    def _step(self) -> None:
        check_signals()
        self._cluster.read()
        now_s = steady_s()
        for one in [one for one in self._due if one[0] <= now_s]:
            self._due.remove(one)
            one[1]()
        self._cluster.is_resized()
        time.sleep(POLL_S)

    def _pause(self, seconds: float) -> None:
        end_s = steady_s() + seconds
        while steady_s() < end_s:
            self._step()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end_s = steady_s() + STALLED_S
        while not condition():
            self._step()
            if steady_s() > end_s:
                raise ChildError(f"{STALLED_S:g} s in vain for {what}: {self._cluster.shown}")

    def _wait_for_rows(self) -> None:
        """Wait until a row comes, so that each fault hits a group at work."""
        before = len(self._cluster.came)
        self._wait(lambda: len(self._cluster.came) > before, "a new row")

    def _settle(self) -> None:
        """Wait until all have their shares, and what was committed before has come."""
        cluster = self._cluster
        self._wait(lambda: cluster.has_settled, "equal shares")
        committed = {(key, one) for key, serials in cluster.changes.items() for one in serials}
        self._wait(lambda: committed <= cluster.came, "the changes before")
        self._pause(self._plan.ttl_s * FIRST_SHARE)

    def _is_drained(self) -> bool:
        self._cluster.read()
        return len(self._cluster.came) == self._cluster.committed

    # -- faults -----------------------------------------------------------------------------------

    def _hit(self, fault: Fault) -> None:
        cluster = self._cluster
        if fault.kind in self._at_member:
            self._wait(lambda: len(self._hittable) > LEAST_RUNNING, "enough processes that run")
            victim = self._hittable[int(fault.pick * len(self._hittable))]
            self._at_member[fault.kind](victim, fault)
        elif fault.kind in ("kill relay", "stop relay"):
            self._wait(lambda: cluster.is_relay_up, "the relay")
            hit = self._kill_relay if fault.kind == "kill relay" else self._freeze_relay
            hit(fault)
        else:
            self._wait(lambda: not self._has_node_down, "all nodes")
            self._hit_nodes(fault)
        self._faults[fault.kind] += 1
        self._done += 1
        self._tell(self._done, fault.kind)

    @property
    def _hittable(self) -> list[Member]:
        return [member for member in self._cluster.members if member.can_be_hit]

    def _later(self, fault: Fault, back: Callable[[], None]) -> None:
        self._due.append((steady_s() + fault.lasts_s, back))

    def _kill_member(self, victim: Member, fault: Fault) -> None:
        self._kills[victim.run] = steady_s()
        victim.kill()
        self._later(fault, victim.start)

    def _freeze(self, victim: Member, fault: Fault) -> None:
        victim.freeze()
        self._later(fault, lambda: self._freezes.append(victim.wake()))

    def _cut(self, what: Literal["nodes", "relay"], victim: Member, fault: Fault) -> None:
        victim.cut(what)
        self._later(fault, lambda: victim.cut(what, is_cut=False))

    def _freeze_relay(self, fault: Fault) -> None:
        self._cluster.freeze_relay()
        self._later(fault, lambda: self._cluster.freeze_relay(is_frozen=False))

    def _kill_relay(self, fault: Fault) -> None:
        def start() -> None:
            relay.start()
            cluster.is_relay_up = True

        cluster = self._cluster
        relay = cluster.stage.relay
        cluster.is_relay_up = False
        relay.kill()
        self._later(fault, start)

    def _hit_nodes(self, fault: Fault) -> None:
        def start() -> None:
            for node in nodes:
                back = node.wake if is_frozen else node.launch
                back()
            self._has_node_down = False

        nodes, is_frozen = self._cluster.nodes, fault.kind == "stop node"
        if fault.kind != "kill all nodes":
            nodes = [nodes[int(fault.pick * len(nodes))]]
        self._has_node_down = True
        for node in nodes:
            hit = node.freeze if is_frozen else node.kill
            hit()
        self._later(fault, start)

    def _leave_and_join(self, member: Member) -> None:
        """Let a process leave in peace, and join again: nothing may come twice by that."""
        member.leave()
        self._settle()
        member.start()
        self._settle()


def torture(plan: Plan, tell: Tell = lambda _done, _kind: None) -> Outcome:
    """Make a cluster, torture it, clean up, and return the results."""
    with stopped_by_signals(), Cluster(plan) as cluster:
        return Torture(plan, cluster, tell).run()


def figures(short: bool = False) -> list[Figure]:
    """Torture a group with a fixed seed; return the number of problems."""
    plan = Plan(3, 8, 4, 2, 2, 1, 1) if short else Plan(6, 32, 50, 20, 10, 3, 1)
    problems = torture(plan).findings.problem_count
    name = f"cluster torture ({plan.kills} kills, {plan.stops} stops, {plan.cuts} cuts)"
    return [Figure(name, problems, "problems", at_most(0))]


def table_of(outcome: Outcome) -> Table:
    """Return the counts, for people."""
    found = outcome.findings
    table = Table("what", "how many")
    rows = {
        **{f"{kind}": count for kind, count in sorted(outcome.faults.items())},
        "changes committed": outcome.changes,
        "rows delivered": found.rows,
        "of them twice, behind a checkpoint": found.twice,
        "of them late, in the window in which a process was frozen": found.late,
        "terms of partitions": found.terms,
        "checkpoints stored": found.stored,
        "checkpoints refused, for a greater term had begun": found.refused,
        "a killed process's partition begins elsewhere after": found.takeover_text,
    }
    for what, count in rows.items():
        table.add_row(what, str(count))
    return table


def last_line(plan: Plan, outcome: Outcome) -> str:
    """Return the shortest form."""
    found = outcome.findings
    faults = outcome.faults.total() - outcome.faults["resize"]
    return (
        f"{plan.processes} processes, {plan.partitions} partitions, seed {plan.seed}: "
        f"{faults} faults, {outcome.changes} changes, {found.rows} rows, "
        f"{found.twice} of them twice, {found.terms} terms, {outcome.seconds:.0f} s: "
        f"{found.problem_count or 'no'} problems"
    )


@click.command()
@click.option("--processes", type=click.IntRange(3), default=6, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=32, show_default=True)
@click.option("--kills", type=click.IntRange(0), default=50, help="Of consumers, relay and nodes.")
@click.option(
    "--stops", type=click.IntRange(0), default=20, help="Longer than the lease, of the same."
)
@click.option(
    "--cuts", type=click.IntRange(0), default=10, help="From ZooKeeper or relay, as long."
)
@click.option("--zookeeper", type=click.IntRange(0), default=3, help="Nodes; 0 = files instead.")
@click.option("--seed", type=int, help="Repeats the faults; drawn when left out.")
@click.option("--ttl", "ttl_s", type=float, default=3.0, show_default=True, help="Of the lease.")
@click.option("--rate", type=float, default=100.0, help="Transactions a second.")
def main(
    processes: int,
    partitions: int,
    kills: int,
    stops: int,
    cuts: int,
    zookeeper: int,
    seed: int | None,
    ttl_s: float,
    rate: float,
) -> None:
    """Kill and freeze a group's processes; print problems, and exit 1 if there are any."""
    drawn = random.randrange(10**6) if seed is None else seed
    plan = Plan(processes, partitions, kills, stops, cuts, zookeeper, drawn, ttl_s, rate)
    click.echo(f"seed {plan.seed}")
    outcome = _torture_with_bar(plan)
    # On a pipe a table is not cut to 80 columns.
    console = Console()
    console = console if console.is_terminal else Console(width=PIPE_COLUMNS)
    console.print(table_of(outcome))
    tell_and_exit(outcome.findings, last_line(plan, outcome))


def _torture_with_bar(plan: Plan) -> Outcome:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=len(plan_faults(plan)))
        return torture(plan, lambda done, kind: bar.update(task, completed=done, description=kind))
