"""The hand-over of partitions: instructions for messages, and whole groups with faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

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
    Lost,
    Message,
    Refused,
    Release,
    State,
    Stopped,
    Tick,
)
from databus.groups.assignment import assign

FINISH_S, ASK_AGAIN_S, TTL_S = 5.0, 1.0, 10.0


def handover(*partitions: int, now_s: float = 0) -> Handover:
    """Return one that owns these partitions, each under term 7."""
    made = Handover(FINISH_S, ASK_AGAIN_S)
    made.handle(Assigned(frozenset(partitions)), now_s)
    for partition in partitions:
        assert made.handle(Granted(partition, 7), now_s) == [Begin(partition, 7)]
    return made


def test_a_partition_begins_with_its_lease() -> None:
    made = Handover(FINISH_S, ASK_AGAIN_S)
    assert made.handle(Assigned(frozenset((3, 1))), 0) == [Acquire(1), Acquire(3)]
    assert made.handle(Tick(), 100) == [], "an answer is still to come"
    assert made.handle(Granted(3, 8), 100) == [Begin(3, 8)]
    assert made.renewed == {3: 8}
    assert made.states == {1: State.WAITING, 3: State.OWNED}


def test_a_lease_that_another_has_is_asked_for_again() -> None:
    made = Handover(FINISH_S, ASK_AGAIN_S)
    made.handle(Assigned(frozenset((1,))), 0)
    assert made.handle(Refused(1), 0) == []
    assert made.handle(Tick(), 0.9) == []
    assert made.handle(Tick(), 1.0) == [Acquire(1)]
    made.handle(Refused(1), 1.0)
    assert made.handle(Freed(1), 1.1) == [Acquire(1)], "at once if it is told that it is free"


def test_a_revoked_partition_is_finished_before_its_lease_is_released() -> None:
    made = handover(1, 2)
    assert made.handle(Assigned(frozenset((2,))), 10) == [Finish(1, 7)]
    assert made.renewed == {1: 7, 2: 7}
    assert made.handle(Tick(), 14.9) == []
    assert made.handle(Finished(1), 14.9) == [Release(1, 7)]
    assert made.states == {2: State.OWNED}


def test_a_partition_that_is_not_finished_in_time_is_aborted_and_its_lease_runs_out() -> None:
    made = handover(1)
    made.handle(Assigned(frozenset()), 10)
    assert made.handle(Tick(), 15) == [Abort(1)]
    assert made.renewed == {}
    assert made.handle(Tick(), 99) == []
    assert made.handle(Stopped(1), 99) == [Release(1, 7)]
    assert made.states == {}


@pytest.mark.parametrize("is_finishing", [False, True])
def test_a_lost_lease_aborts(is_finishing: bool) -> None:
    made = handover(1)
    if is_finishing:
        made.handle(Assigned(frozenset()), 10)
    assert made.handle(Lost(1), 11) == [Abort(1)]
    assert made.handle(Lost(1), 11) == []


@pytest.mark.parametrize("end", [Finished(1), Stopped(1)])
def test_a_partition_that_comes_back_waits_until_nothing_of_it_runs(
    end: Finished | Stopped,
) -> None:
    made = handover(1)
    made.handle(Assigned(frozenset()), 10)
    if isinstance(end, Stopped):
        made.handle(Tick(), 15)
    assert made.handle(Assigned(frozenset((1,))), 16) == []
    assert made.handle(end, 17) == [Release(1, 7), Acquire(1)]


@pytest.mark.parametrize("is_granted", [False, True])
def test_an_answer_for_a_partition_that_is_not_wanted_any_more(is_granted: bool) -> None:
    made = Handover(FINISH_S, ASK_AGAIN_S)
    made.handle(Assigned(frozenset((1,))), 0)
    assert made.handle(Assigned(frozenset()), 1) == []
    answer = Granted(1, 9) if is_granted else Refused(1)
    assert made.handle(answer, 2) == ([Release(1, 9)] if is_granted else [])
    assert made.states == {}


def test_a_partition_is_asked_for_once_at_a_time() -> None:
    made = Handover(FINISH_S, ASK_AGAIN_S)
    made.handle(Assigned(frozenset((1,))), 0)
    made.handle(Assigned(frozenset()), 1)
    assert made.handle(Assigned(frozenset((1,))), 2) == [], "the first one is not answered yet"
    assert made.handle(Granted(1, 9), 3) == [Begin(1, 9)]


@pytest.mark.parametrize("message", [Refused(1), Freed(1), Lost(1), Finished(1), Stopped(1)])
def test_messages_that_come_late_change_nothing(message: Message) -> None:
    made = Handover(FINISH_S, ASK_AGAIN_S)
    assert made.handle(message, 0) == []
    assert made.handle(Granted(1, 3), 0) == [Release(1, 3)]
    owner = handover(1)
    if not isinstance(message, Lost):
        assert owner.handle(message, 0) == []
        assert owner.states == {1: State.OWNED}


# -- a group of processes with faults ---------------------------------------------------------


@dataclass
class Store:
    """The leases and the checkpoints of a group; refuses a term after a newer one has begun."""

    ends_s: dict[int, float] = field(default_factory=dict)
    owner: dict[int, str] = field(default_factory=dict)
    term: Counter[int] = field(default_factory=Counter)
    checkpoint: Counter[int] = field(default_factory=Counter)
    written_term: Counter[int] = field(default_factory=Counter)
    refused: int = 0

    def acquire(self, partition: int, owner: str, now_s: float) -> int | None:
        if self.ends_s.get(partition, 0) > now_s:
            return None
        self.term[partition] += 1
        self.owner[partition], self.ends_s[partition] = owner, now_s + TTL_S
        return self.term[partition]

    def is_valid(self, partition: int, term: int, now_s: float) -> bool:
        return self.term[partition] == term and self.ends_s[partition] > now_s

    def renew(self, partition: int, term: int, now_s: float) -> bool:
        if self.is_valid(partition, term, now_s):
            self.ends_s[partition] = now_s + TTL_S
            return True
        return False

    def release(self, partition: int, term: int) -> None:
        if self.term[partition] == term:
            self.ends_s[partition] = 0

    def save(self, partition: int, term: int, scn: int) -> bool:
        if term < self.written_term[partition]:
            self.refused += 1
            return False
        assert scn >= self.checkpoint[partition]
        self.checkpoint[partition], self.written_term[partition] = scn, term
        return True


@dataclass
class Process:
    """One process: consumes a row of each of its partitions a step, unless it is frozen."""

    name: str
    store: Store
    random: Random
    log: list[tuple[int, int, int]]  # partition, term, SCN
    last_scn: int
    machine: Handover = field(default_factory=lambda: Handover(FINISH_S, ASK_AGAIN_S))
    running: dict[int, tuple[int, int]] = field(default_factory=dict)  # partition: term, SCN
    ending: dict[int, Instruction] = field(default_factory=dict)
    frozen_until_s: float = 0.0
    is_slow: bool = False

    def tell(self, message: Message, now_s: float) -> None:
        for instruction in self.machine.handle(message, now_s):
            match instruction:
                case Acquire(partition):
                    term = self.store.acquire(partition, self.name, now_s)
                    answer = Refused(partition) if term is None else Granted(partition, term)
                    self.tell(answer, now_s)
                case Begin(partition, term):
                    scn = self.store.checkpoint[partition]
                    self.store.save(partition, term, scn)
                    self.running[partition] = term, scn
                case Finish(partition, _) | Abort(partition):
                    self.ending[partition] = instruction
                case Release(partition, term):
                    self.store.release(partition, term)

    def step(self, now_s: float) -> None:
        if now_s < self.frozen_until_s:
            return
        self._consume()
        # The renewal comes after a callback: one that was frozen delivers before it notices.
        for partition, term in self.machine.renewed.items():
            if not self.store.renew(partition, term, now_s):
                self.tell(Lost(partition), now_s)
        for partition in list(self.ending):
            if self.random.random() < (0.02 if self.is_slow else 0.5):
                self._end(partition, self.ending.pop(partition), now_s)
        self.tell(Tick(), now_s)

    def _consume(self) -> None:
        for partition, (term, scn) in sorted(self.running.items()):
            if scn < self.last_scn and partition not in self.ending:
                self.running[partition] = term, scn + 1
                self.log.append((partition, term, scn + 1))
                if self.random.random() < 0.3:
                    self.store.save(partition, term, scn + 1)

    def _end(self, partition: int, instruction: Instruction, now_s: float) -> None:
        term, scn = self.running.pop(partition)
        if isinstance(instruction, Abort):
            self.tell(Stopped(partition), now_s)
        elif self.store.save(partition, term, scn):
            self.tell(Finished(partition), now_s)
        else:
            self.running[partition] = term, scn
            self.tell(Lost(partition), now_s)


class Cluster:
    """Processes under one assignment, with steps of a tenth of a second."""

    def __init__(self, seed: int, partitions: int = 8, last_scn: int = 400) -> None:
        self.random, self.store, self.now_s = Random(seed), Store(), 100.0
        self.log: list[tuple[int, int, int]] = []
        self.partitions, self.last_scn = partitions, last_scn
        self.processes: dict[str, Process] = {}
        self.owners: dict[int, str] = {}

    def start(self, name: str) -> None:
        self.processes[name] = Process(name, self.store, self.random, self.log, self.last_scn)

    def assign(self) -> None:
        self.owners = assign(self.processes, self.partitions, self.owners)
        for name, process in self.processes.items():
            own = frozenset(one for one, owner in self.owners.items() if owner == name)
            process.tell(Assigned(own), self.now_s)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            for process in self.random.sample(list(self.processes.values()), len(self.processes)):
                process.step(self.now_s)
            self.check_owners()

    def check_owners(self) -> None:
        """No partition is renewed by two processes, and who runs it with its lease is one."""
        holders = Counter(
            partition
            for process in self.processes.values()
            for partition, (term, _) in process.running.items()
            if self.store.is_valid(partition, term, self.now_s)
        )
        assert all(count == 1 for count in holders.values())

    def deliveries(self) -> Iterator[tuple[int, list[tuple[int, int]]]]:
        for partition in range(self.partitions):
            yield partition, [(term, scn) for one, term, scn in self.log if one == partition]

    def check_settled(self) -> None:
        for partition, owner in self.owners.items():
            assert self.processes[owner].machine.states[partition] is State.OWNED
        for partition, delivered in self.deliveries():
            assert {scn for _, scn in delivered} == set(range(1, self.last_scn + 1)), partition
            by_term: dict[int, list[int]] = {}
            for term, scn in delivered:
                by_term.setdefault(term, []).append(scn)
            for scns in by_term.values():
                assert scns == list(range(scns[0], scns[0] + len(scns))), "in order, none skipped"


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_every_row_comes_once_however_often_members_change(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(6):
        name = f"p{cluster.random.randrange(5)}"
        if name not in cluster.processes:
            cluster.start(name)
        elif len(cluster.processes) > 1:
            leaving = cluster.processes[name]
            leaving.tell(Assigned(frozenset()), cluster.now_s)
            cluster.run(FINISH_S)
            del cluster.processes[name]
        cluster.assign()
        cluster.run(cluster.random.uniform(0.1, 4))
    cluster.run(60)
    cluster.check_settled()
    for _, delivered in cluster.deliveries():
        assert [scn for _, scn in delivered] == list(range(1, cluster.last_scn + 1))


@pytest.mark.parametrize("seed", range(30))
def test_with_kills_and_freezes_nothing_is_lost_and_no_late_checkpoint_counts(seed: int) -> None:
    cluster = Cluster(seed)
    for number in range(4):
        cluster.start(f"p{number}")
    cluster.assign()
    for _ in range(12):
        name = cluster.random.choice(sorted(cluster.processes))
        fault = cluster.random.choice(["kill", "freeze", "slow", "start"])
        if fault == "kill" and len(cluster.processes) > 1:
            del cluster.processes[name]
        elif fault == "freeze":
            cluster.processes[name].frozen_until_s = cluster.now_s + 3 * TTL_S
        elif fault == "slow":
            cluster.processes[name].is_slow ^= True
        elif len(cluster.processes) < 6:
            cluster.start(f"n{len(cluster.log)}")
        cluster.assign()
        cluster.run(cluster.random.uniform(0.1, 1.5 * TTL_S))
    for process in cluster.processes.values():
        process.is_slow, process.frozen_until_s = False, 0
    cluster.run(100)
    cluster.check_settled()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_revoked_partition_begins_elsewhere_in_bounded_time(is_frozen: bool) -> None:
    cluster = Cluster(seed=1, last_scn=10_000)
    cluster.start("a")
    cluster.assign()
    cluster.run(1)
    cluster.start("b")
    cluster.processes["a"].is_slow = True
    if is_frozen:
        cluster.processes["a"].frozen_until_s = cluster.now_s + 1000
    cluster.assign()
    cluster.run(FINISH_S + TTL_S + ASK_AGAIN_S + 0.2)
    moved = [one for one, owner in cluster.owners.items() if owner == "b"]
    assert len(moved) == 4
    assert all(cluster.processes["b"].machine.states[one] is State.OWNED for one in moved)


def test_a_frozen_owner_that_wakes_stores_nothing() -> None:
    cluster = Cluster(seed=2, last_scn=10_000)
    cluster.start("a")
    cluster.assign()
    cluster.run(1)
    cluster.processes["a"].frozen_until_s = cluster.now_s + 3 * TTL_S
    cluster.start("b")
    cluster.owners = dict.fromkeys(range(8), "b")
    cluster.processes["b"].tell(Assigned(frozenset(range(8))), cluster.now_s)
    cluster.run(2 * TTL_S)
    stored = dict(cluster.store.checkpoint)
    a = cluster.processes["a"]
    a.frozen_until_s = 0
    a.random = Random(5)
    for _ in range(3):
        a.step(cluster.now_s)
    assert cluster.store.refused > 0
    assert cluster.store.checkpoint == stored
    assert set(a.machine.states.values()) <= {State.ABORTING, State.WAITING}
