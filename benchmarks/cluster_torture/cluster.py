"""The processes: a group, its relay and database, its ZooKeeper; and what they have noted."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal, Self

from benchmarks.adversity.proxy import WireProxy
from benchmarks.cluster_torture.checks import Span
from benchmarks.cluster_torture.consumer import GROUP
from benchmarks.cluster_torture.log import Entry, Follower
from benchmarks.cluster_torture.plan import Plan
from benchmarks.cluster_torture.writer import CREATE, SOURCE
from databus.demo.private_mariadb import HOST
from databus.demo.processes import Child, ChildError, python_module
from databus.demo.stage import Stage
from databus.leases.clock import steady_s
from tests.zookeeper_server import PrivateZookeeper, ZookeeperEnsemble

# A consumer that is away has its windows in the ring when it comes back.
RING_BYTES = "64MiB"
LEAVES_WITHIN_S = 60.0


class Member:
    """One process of the group, over its lives, and its ways to the nodes and to the relay."""

    def __init__(
        self,
        child: Child,
        follower: Follower,
        slot: int,
        to_nodes: Sequence[WireProxy],
        to_relay: WireProxy,
    ) -> None:
        self.child, self.follower, self.slot = child, follower, slot
        self.is_cut = False
        self._to_nodes, self._to_relay = to_nodes, to_relay
        self.frozen_s: float | None = None
        self.is_up = False

    @property
    def run(self) -> str:
        """The name of its present life."""
        return f"{self.slot}.{self.child.pid}"

    @property
    def can_be_hit(self) -> bool:
        """Whether it runs and can reach the others."""
        return self.is_up and self.frozen_s is None and not self.is_cut

    def start(self) -> None:
        """Start it."""
        self.child.start()
        self.is_up = True

    def kill(self) -> None:
        """Kill it."""
        self.is_up = False
        self.child.kill()

    def freeze(self) -> None:
        """Stop it with SIGSTOP."""
        self.frozen_s = steady_s()
        os.kill(self.child.pid, signal.SIGSTOP)

    def wake(self) -> Span:
        """Let it go on; return the time in which it was frozen."""
        assert self.frozen_s is not None
        span = Span(self.frozen_s, steady_s(), self.run)
        self.frozen_s = None
        os.kill(self.child.pid, signal.SIGCONT)
        return span

    def cut(self, what: Literal["nodes", "relay"], is_cut: bool = True) -> None:
        """Lose all that goes between it and the nodes, or the relay; it still has the other."""
        self.is_cut = is_cut
        for link in self._to_nodes if what == "nodes" else (self._to_relay,):
            if not is_cut:
                link.cut()  # what was lost on a connection would not come again
            link.is_swallowing = is_cut

    def leave(self) -> None:
        """Let it give back its partitions and end; raise ChildError if it does not."""
        os.kill(self.child.pid, signal.SIGTERM)
        self.is_up = False
        code = self.child.wait(LEAVES_WITHIN_S)
        if code != 0:
            raise ChildError(f"{self.child.name} left with {code}:\n{self.child.log_tail()}")


class Cluster:
    """All processes; a context manager. The relay runs from the beginning, the members do not."""

    def __init__(self, plan: Plan) -> None:
        self.entries: list[Entry] = []
        self.changes: dict[int, list[int]] = defaultdict(list)  # the serials of each key
        self.came: set[tuple[int, int]] = set()
        self.committed = 0
        self.nodes: list[PrivateZookeeper] = []
        self.is_relay_up = True
        self._is_relay_frozen = False
        self.partitions = plan.partitions
        self.resizes_begun = 0
        self._plan = plan
        self._resizing: Child | None = None
        self._coordinator = ""
        self._generation = 0
        self._owners: dict[str, tuple[int, str]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for member in getattr(self, "members", ()):
            if member.frozen_s is not None:
                member.kill()
        if self._is_relay_frozen:
            self.freeze_relay(is_frozen=False)
        self._stack.close()

    def _open(self) -> None:
        plan = self._plan
        enter = self._stack.enter_context
        self.stage = stage = enter(Stage("mysql", [CREATE], (SOURCE,), ring_bytes=RING_BYTES))
        coordinator = f"file:{stage.folder / 'group'}"
        if plan.zookeeper:
            ensemble = enter(ZookeeperEnsemble(plan.zookeeper))
            self.nodes, coordinator = ensemble.nodes, ensemble.url
        self._coordinator = coordinator
        written = stage.folder / "written"
        self.writer = stage.child(
            "writer",
            python_module(
                "benchmarks.cluster_torture.writer",
                *stage.database.arguments(),
                *("--seed", plan.seed, "--rate", plan.rate, "--file", written),
            ),
        )
        self._written = Follower(written)
        self.members = [self._member(slot) for slot in range(plan.processes)]
        stage.start_relay()

    def _member(self, slot: int) -> Member:
        enter = self._stack.enter_context
        to_relay = enter(WireProxy(self.stage.port))
        links = [enter(WireProxy(node.port)) for node in self.nodes]
        places = ",".join(f"{HOST}:{link.port}" for link in links)
        coordinator = f"zookeeper://{places}" if links else self._coordinator
        file = self.stage.folder / f"rows-{slot}"
        command = python_module(
            "benchmarks.cluster_torture.consumer",
            *("--relay", f"http://{HOST}:{to_relay.port}", "--coordinator", coordinator),
            *("--partitions", self._plan.partitions, "--ttl", self._plan.ttl_s),
            *("--slot", slot, "--file", file),
        )
        child = self.stage.child(f"consumer-{slot}", command)
        return Member(child, Follower(file), slot, links, to_relay)

    def freeze_relay(self, *, is_frozen: bool = True) -> None:
        """Stop the relay with SIGSTOP, or let it go on."""
        self._is_relay_frozen = is_frozen
        os.kill(self.stage.relay.pid, signal.SIGSTOP if is_frozen else signal.SIGCONT)
        self.is_relay_up = not is_frozen

    def begin_resize(self, partitions: int) -> None:
        """Give the group another number of partitions, by the command."""
        command = python_module(
            "databus.cli.main",
            *("group", "resize", GROUP, partitions, "--coordinator", self._coordinator),
        )
        self.partitions = partitions
        self._resizing = self.stage.child(f"resize-{partitions}", command)
        self._resizing.start()
        self.resizes_begun += 1

    def is_resized(self) -> bool:
        """Return whether it has that number; a command that met an error is given again."""
        if self._resizing is None or self._resizing.exit_code is None:
            return self._resizing is None
        if self._resizing.exit_code != 0:
            self._resizing.start()
            self.resizes_begun += 1
            return False
        self._resizing = None
        return True

    # -- what they have noted ---------------------------------------------------------------------

    def read(self) -> None:
        """Read what was noted since the last time; raise ChildError if a process has failed."""
        for line in self._written.lines():
            key, serial = map(int, line.split())
            self.changes[key].append(serial)
            self.committed += 1
        for member in self.members:
            for entry in member.follower.entries():
                self._take(entry)
            if member.is_up:
                member.child.check()
        self.writer.check()
        if self.is_relay_up:
            self.stage.relay.check()

    def _take(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.kind == "row":
            self.came.add((entry.key, entry.serial))
        elif entry.kind == "began":
            self._take_begin(entry)
        elif entry.kind == "problem":
            raise ChildError(f"process {entry.run}: {entry.text}")

    def _take_begin(self, entry: Entry) -> None:
        generation = int(entry.place.partition(".")[0])
        if generation > self._generation:
            self._generation = generation
            self._owners.clear()
        known_term, _ = self._owners.get(entry.place, (0, ""))
        if generation == self._generation and entry.term > known_term:
            self._owners[entry.place] = entry.term, entry.run

    @property
    def has_settled(self) -> bool:
        """Whether all partitions are owned, and the processes that run have equal shares."""
        running = {member.run for member in self.members if member.can_be_hit}
        shares = Counter(run for _, run in self._owners.values())
        sizes = [shares[run] for run in running]
        is_owned = len(self._owners) == self.partitions and shares.keys() <= running
        return is_owned and max(sizes) - min(sizes) <= 1

    @property
    def shown(self) -> str:
        """The state of the group, and what its processes have printed."""
        shares = Counter(run for _, run in self._owners.values())
        text = f"{len(self.came)} of {self.committed} changes came; shares {dict(shares)}"
        children = [self.stage.relay, *(member.child for member in self.members)]
        children += [] if self._resizing is None else [self._resizing]
        return "\n".join([text, *(f"--- {one.name}:\n{one.log_tail()}" for one in children)])
