"""Lets a process join a group, leave it and die, and looks when all partitions are owned again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.group_rebalance import CREATE, SOURCE, TTL_S
from benchmarks.shared.report import Figure, command, percentile
from databus.demo.processes import Child, check_signals, python_module, stopped_by_signals
from databus.demo.stage import Stage
from tests.zookeeper_server import PrivateZookeeper

PROCESSES = 3
PARTITIONS = (32, 1024)
ROUNDS = 5
PATIENCE_S = 120.0
_LOOK_S = 0.02


class Group:
    """A group of processes, each with a file of the partitions that came and went."""

    def __init__(self, stage: Stage, coordinator: str, partitions: int) -> None:
        self._stage, self._coordinator, self._partitions = stage, coordinator, partitions
        self._made = 0
        self.members: dict[Path, Child] = {}

    def join(self) -> float:
        """Start a process; return the seconds until it has its share, from when it is loaded."""
        self._made += 1
        file = self._stage.folder / f"{self._partitions}-{self._made}.owned"
        file.touch()
        arguments = (self._stage.url, self._coordinator, self._partitions, file)
        member = self._stage.child(
            file.name, python_module("benchmarks.group_rebalance.process", *arguments)
        )
        self.members[file] = member
        member.start()
        self._wait(lambda: bool(file.read_text("ascii")), "a process")
        return self._until_even()

    def leave(self) -> float:
        """End a process; return the seconds until the others have its partitions."""
        _, member = self.members.popitem()
        began_s = time.monotonic()
        member.stop(PATIENCE_S)
        self._until_even()
        return time.monotonic() - began_s

    def die(self) -> float:
        """Kill a process; return the seconds until the others have its partitions."""
        _, member = self.members.popitem()
        began_s = time.monotonic()
        member.kill()
        self._until_even()
        return time.monotonic() - began_s

    def end(self) -> None:
        """End all processes."""
        for member in self.members.values():
            member.stop(PATIENCE_S)

    def _until_even(self) -> float:
        began_s = time.monotonic()
        self._wait(self._is_even, "equal shares")
        return time.monotonic() - began_s

    def _is_even(self) -> bool:
        owned = [_owned(file) for file in self.members]
        sizes = [len(one) for one in owned]
        is_whole = sum(sizes) == self._partitions == len(set().union(*owned))
        return is_whole and max(sizes) - min(sizes) <= 1

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_so():
            check_signals()
            assert time.monotonic() < end_s, f"waited in vain for {what}"
            time.sleep(_LOOK_S)


def _owned(file: Path) -> set[int]:
    found: set[int] = set()
    for line in file.read_text("ascii").splitlines(keepends=True):
        if line.endswith("\n") and line[0] in "+-":
            sign, number = line.split()
            (found.add if sign == "+" else found.discard)(int(number))
    return found


def figures(short: bool = False) -> list[Figure]:
    """Measure with a folder and with ZooKeeper, with few and with many partitions."""
    found = []
    with stopped_by_signals(), Stage("sqlite", [CREATE], [SOURCE]) as stage:
        stage.start_relay()
        for partitions in PARTITIONS[:1] if short else PARTITIONS:
            for store in ("folder", "ZooKeeper"):
                with _coordinator(store, stage.folder / f"of-{partitions}") as url:
                    group = Group(stage, url, partitions)
                    try:
                        found += _measure(group, 1 if short else ROUNDS, store, partitions)
                    finally:
                        group.end()
    return found


@contextlib.contextmanager
def _coordinator(store: str, folder: Path) -> Iterator[str]:
    if store == "folder":
        yield f"file:{folder}"
        return
    with PrivateZookeeper() as zookeeper:
        yield zookeeper.url()


def _measure(group: Group, rounds: int, store: str, partitions: int) -> list[Figure]:
    for _ in range(PROCESSES):
        group.join()
    times_s: dict[str, list[float]] = {"joins": [], "leaves": [], "dies": []}
    for _ in range(rounds):
        times_s["joins"].append(group.join())
        times_s["leaves"].append(group.leave())
        times_s["joins"].append(group.join())
        times_s["dies"].append(group.die())
    name = f"{PROCESSES + 1} processes, {partitions} partitions, {store}"
    return [
        Figure(f"{name}: one {what}{_of(what)}, median", percentile(values, 50), "s")
        for what, values in times_s.items()
    ]


def _of(what: str) -> str:
    return f" (group_ttl_s = {TTL_S:g})" if what == "dies" else ""


main = command("group rebalance", figures)
