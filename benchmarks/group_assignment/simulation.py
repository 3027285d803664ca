"""A group of processes on a fake clock: real assignment and hand-over, invented delays."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from random import Random

from databus.client.group.handover import (
    Abort,
    Acquire,
    Assigned,
    Begin,
    Finish,
    Finished,
    Freed,
    Granted,
    Handover,
    Instruction,
    Message,
    Refused,
    Release,
    Stopped,
)
from databus.groups.assignment import assign, moves
from databus.leases.expiry import MARGIN

FINISH_S, ASK_AGAIN_S, TTL_S = 30.0, 1.0, 10.0
# What a round trip to the store, a watch and the end of a window take.
STORE_S, WATCH_S, WINDOW_S = (0.002, 0.01), (0.005, 0.05), (0.01, 0.5)


@dataclass(frozen=True, slots=True)
class Change:
    """What came of members that joined or left."""

    joined: int
    left: int
    moved: int
    fewest: int  # as few as any balanced assignment moves
    assign_s: float  # processor time
    settle_s: float  # on the fake clock


class Simulation:
    """The processes of one group, the leases of its partitions and what is under way."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._random = Random(seed)
        self._partitions = partitions
        self._machines: dict[str, Handover] = {}
        self._owners: dict[int, str] = {}
        self._leases: dict[int, str] = {}  # partition: its owner
        self._terms: Counter[int] = Counter()
        self._asking: dict[int, set[str]] = {}
        self._due: list[tuple[float, int, str, Message | Instruction]] = []
        self._order = count()
        self._names = count()
        self._now_s = self._settled_s = 0.0

    @property
    def members(self) -> list[str]:
        """The names of the processes."""
        return list(self._machines)

    def change(self, joins: int = 0, leaves: Collection[str] = (), kills: bool = False) -> Change:
        """Let processes join and leave, and run until nothing is under way.

        With `kills` those that leave do not give their partitions back: their leases run out.
        """
        began_s = self._now_s
        for _ in range(joins):
            self._machines[f"p{next(self._names):05}"] = Handover(FINISH_S, ASK_AGAIN_S)
        staying = [name for name in self._machines if name not in leaves]
        present = self._owners
        started = time.process_time()
        self._owners = assign(staying, self._partitions, present)
        assign_s = time.process_time() - started
        if kills:
            self._now_s += TTL_S * (1 + MARGIN)
            for name in leaves:
                del self._machines[name]
            gone = [one for one, owner in self._leases.items() if owner in leaves]
            for partition in gone:
                self._free(partition)
        self._tell_owners()
        self._run()
        for name in set(self._machines) - set(staying):
            assert not self._machines[name].states
            del self._machines[name]
        assert self._leases == self._owners
        moved = len(moves(present, self._owners))
        fewest = self._fewest(present, staying)
        settle_s = self._settled_s - began_s
        return Change(joins, len(leaves), moved, fewest, assign_s, settle_s)

    def _fewest(self, present: dict[int, str], staying: list[str]) -> int:
        held = Counter(present.values())
        least, remainder = divmod(self._partitions, len(staying))
        kept = sum(min(held[name], least) for name in staying)
        # One more may stay with as many of those who have it as there are larger shares.
        larger = sum(held[name] > least for name in staying)
        return self._partitions - kept - min(larger, remainder)

    def _tell_owners(self) -> None:
        assigned: dict[str, list[int]] = {name: [] for name in self._machines}
        for partition, owner in self._owners.items():
            assigned[owner].append(partition)
        for name, partitions in assigned.items():
            self._later(name, Assigned(frozenset(partitions)), WATCH_S)

    def _later(self, name: str, what: Message | Instruction, delay_s: tuple[float, float]) -> None:
        at_s = self._now_s + self._random.uniform(*delay_s)
        heapq.heappush(self._due, (at_s, next(self._order), name, what))

    def _run(self) -> None:
        while self._due:
            self._now_s, _, name, what = heapq.heappop(self._due)
            if isinstance(what, Acquire):
                self._acquire(name, what.partition)
            elif isinstance(what, Release):
                if self._terms[what.partition] == what.term:
                    self._free(what.partition)
            elif isinstance(what, Begin | Finish | Abort):
                raise TypeError(f"{what} is done at once")
            else:
                for instruction in self._machines[name].handle(what, self._now_s):
                    self._do(name, instruction)

    def _do(self, name: str, instruction: Instruction) -> None:
        match instruction:
            case Begin():
                self._settled_s = self._now_s
            case Finish(partition, _):
                self._later(name, Finished(partition), WINDOW_S)
            case Abort(partition):
                self._later(name, Stopped(partition), WINDOW_S)
            case Acquire() | Release():
                self._later(name, instruction, STORE_S)

    def _acquire(self, name: str, partition: int) -> None:
        if partition in self._leases:
            self._asking.setdefault(partition, set()).add(name)
            self._later(name, Refused(partition), STORE_S)
            return
        self._leases[partition] = name
        self._terms[partition] += 1
        self._later(name, Granted(partition, self._terms[partition]), STORE_S)

    def _free(self, partition: int) -> None:
        del self._leases[partition]
        for name in sorted(self._asking.pop(partition, ())):
            # The watch comes after the answer that it was set with.
            self._later(name, Freed(partition), (STORE_S[1], WATCH_S[1]))
