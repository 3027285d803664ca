"""Members of one group without threads, under one clock, over records that may be out of reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from databus.client.membership.member import Member
from databus.client.membership.membership import Membership
from databus.groups.group_record import GroupFacts, GroupRecord, Process
from databus.leases.errors import LeaseLostError, LeaseUnavailableError
from databus.leases.records import Records, Stored
from databus.leases.store import LeaseStore

TTL_S, FINISH_S, STEP_S = 10.0, 5.0, 0.5
FACTS = GroupFacts("billing", 8, ("shop.orders",))


@dataclass
class Clock:
    now_s: float = 1000.0

    def read(self) -> float:
        return self.now_s


class Counted:
    """Records that count requests, and that cannot be reached as long as `is_down`."""

    def __init__(self, records: Records) -> None:
        self.requests: Counter[str] = Counter()
        self.is_down = False
        self.loses_answers = False
        self.shown, self.poll_s = records.shown, records.poll_s
        self._records = records

    def read(self, name: str, on_change: Callable[..., None] | None = None) -> Stored | None:
        self._note("read")
        return self._records.read(name, on_change)

    def replace(self, name: str, data: bytes, before: Stored | None) -> bool:
        self._note("replace")
        is_written = self._records.replace(name, data, before)
        if self.loses_answers:
            raise LeaseUnavailableError(self.shown, "the answer was lost")
        return is_written

    def names(self, folder: str) -> list[str]:
        self._note("names")
        return self._records.names(folder)

    def close(self) -> None:
        self._records.close()

    def _note(self, kind: str) -> None:
        if self.is_down:
            raise LeaseUnavailableError(self.shown, "it is down")
        self.requests[kind] += 1


@dataclass
class Work:
    """What a member was told; it answers at once unless it is `is_slow`."""

    told: list[tuple[str, int]] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    is_slow: bool = False
    cannot_begin: int = -1
    failed: Exception | None = None
    member: Member | None = None

    def begin(self, partition: int, term: int) -> None:
        assert partition not in self.begun
        if partition == self.cannot_begin:
            raise ValueError("a mistake")
        self.told.append(("begin", partition))
        self.begun[partition] = term

    def finish(self, partition: int) -> None:
        self.told.append(("finish", partition))
        if not self.is_slow:
            self.end(partition)

    def abort(self, partition: int) -> None:
        self.told.append(("abort", partition))
        if not self.is_slow:
            self.end(partition)

    def fail(self, error: Exception) -> None:
        self.failed = error

    def end(self, partition: int) -> None:
        """Report that nothing of it runs, whichever was asked for."""
        assert self.member is not None
        del self.begun[partition]
        self.member.finished(partition)
        self.member.stopped(partition)


class Node:
    """One process of the group."""

    def __init__(self, name: str, records: Records, clock: Clock, facts: GroupFacts) -> None:
        self.records = Counted(records)
        self.is_frozen, self.clock = False, clock
        leases = LeaseStore(self.records, clock.read)
        self.membership = Membership(self.records, leases, facts, Process(name))
        self.work = Work()
        self.member = Member(self.membership, self.work, clock.read, TTL_S, FINISH_S)
        self.work.member = self.member

    def run(self) -> None:
        """Do all that is due now."""
        self.member.watch_time()
        for _ in range(200):
            if self.member.ask_store() > 0:
                return
        raise AssertionError("it asks for ever")

    def owned(self) -> set[int]:
        """Return the partitions that it may consume now, by its own account."""
        return set(self._owned())

    def _owned(self) -> Iterator[int]:
        for partition, term in self.work.begun.items():
            try:
                assert self.member.term(partition) == term
            except LeaseLostError:
                continue
            yield partition


class World:
    """A group; each step it is checked that no partition has two owners."""

    def __init__(self, open_records: Callable[[], Records]) -> None:
        self.clock = Clock()
        self.nodes: dict[str, Node] = {}
        self._open_records = open_records

    def start(self, name: str, facts: GroupFacts = FACTS) -> Node:
        self.nodes[name] = Node(name, self._open_records(), self.clock, facts)
        return self.nodes[name]

    def kill(self, name: str) -> None:
        del self.nodes[name]

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / STEP_S)):
            for node in self.nodes.values():
                if not node.is_frozen:
                    node.run()
            owners = Counter(one for node in self.nodes.values() for one in node.owned())
            assert not owners or max(owners.values()) == 1, owners
            self.clock.now_s += STEP_S

    def shares(self) -> list[int]:
        """Return how many partitions each one owns, after checking that all are owned."""
        owned = [one for node in self.nodes.values() for one in node.owned()]
        assert sorted(owned) == list(range(FACTS.partitions))
        return sorted(len(node.owned()) for node in self.nodes.values())

    def record(self) -> GroupRecord:
        return next(iter(self.nodes.values())).membership.look()
