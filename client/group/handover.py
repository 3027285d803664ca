"""When a process begins and ends to consume a partition: messages in, instructions out.

    WAITING ── Granted ──> OWNED ── Assigned without it ──> FINISHING ── Finished ──> (none)
       ^                     │                                  │
       └─ Refused, then Freed│or Tick             Lost, or Tick │after the deadline
                             └────────── Lost ──> ABORTING <────┘
                                                     └── Stopped ──> (none)

A partition is consumed under its lease only, and one process has that at a time. The process that
is to have it asks for the lease until the one that had it has finished, which has `finish_s` for
that: it consumes to the end of a window, tells its consumer and stores the checkpoint. Then it
releases the lease. If it does not get there in time, or if it lost its lease, it aborts: it renews
the lease no more, and stores nothing. The lease runs out after its time to live and the margin of
`databus/leases/expiry.py`, so the other process begins at most `finish_s`, that time and
`ask_again_s` after the assignment, at the last checkpoint. What nothing can prevent: a process that
was frozen, or whose callback takes longer than all that, may still be in that callback when the
next one begins. Its checkpoint is refused, because a newer term has been written.

A partition that is assigned again meanwhile is asked for once nothing of it runs any more: until
`Finished` or `Stopped`, one of its callbacks may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

# -- messages ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions that this process is to own, by the newest assignment; none when it leaves."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class Granted:
    """An answer to `Acquire`: the lease is this process's, under this term."""

    partition: int
    term: int


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer to `Acquire`: another process has the lease, or the store did not answer."""

    partition: int


@dataclass(frozen=True, slots=True)
class Freed:
    """A lease may have no owner any more."""

    partition: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease ran out, or could not be renewed in time."""

    partition: int


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer to `Finish`: nothing of the partition runs, and its checkpoint is stored."""

    partition: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """An answer to `Abort`: nothing of the partition runs."""

    partition: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Message = Assigned | Granted | Refused | Freed | Lost | Finished | Stopped | Tick

# -- instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask for the lease of a partition; answered by `Granted` or `Refused`, once."""

    partition: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Call `on_add_partition`, consume from the checkpoint on, store checkpoints under `term`.

    The checkpoint comes from `FencedCheckpointStore.begin_term`: from then on that of an owner
    before is refused.
    """

    partition: int
    term: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Consume to the end of a window, call `on_drop_partition`, store the checkpoint."""

    partition: int
    term: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Deliver nothing more, store nothing, and report when the last callback has returned."""

    partition: int


@dataclass(frozen=True, slots=True)
class Release:
    """Give the lease back. If another process has it by now, the store ignores this term."""

    partition: int
    term: int


Instruction = Acquire | Begin | Finish | Abort | Release


class State(StrEnum):
    """The state of a partition in one process; a partition without one does not concern it."""

    WAITING = "waiting"
    OWNED = "owned"
    FINISHING = "finishing"
    ABORTING = "aborting"


@dataclass(slots=True)
class _Partition:
    state: State
    term: int = 0
    is_asked: bool = False  # an `Acquire` is not answered yet
    deadline_s: float = 0.0  # when FINISHING: for `Finished`; when WAITING: to ask again


class Handover:
    """The partitions of one process. Not thread-safe; `now_s` is a monotonic clock in seconds."""

    def __init__(self, finish_s: float, ask_again_s: float) -> None:
        """`ask_again_s` is at most a quarter of the time to live, as `LeaseStore.acquire` needs."""
        self._finish_s = finish_s
        self._ask_again_s = ask_again_s
        self._assigned: frozenset[int] = frozenset()
        self._partitions: dict[int, _Partition] = {}

    @property
    def states(self) -> dict[int, State]:
        """The state of each partition that has one."""
        return {number: one.state for number, one in self._partitions.items()}

    @property
    def renewed(self) -> dict[int, int]:
        """The partitions whose lease is to be renewed, with its term."""
        return {
            number: one.term
            for number, one in self._partitions.items()
            if one.state in (State.OWNED, State.FINISHING)
        }

    def handle(self, message: Message, now_s: float) -> list[Instruction]:
        """Return what is to be done, in this order. A message that comes late changes nothing."""
        match message:
            case Assigned(partitions):
                self._assigned = partitions
                return [*self._drop(now_s), *self._ask(partitions, now_s)]
            case Tick():
                return [*self._abort_late(now_s), *self._ask(self._assigned, now_s)]
        found = self._partitions.get(message.partition)
        if found is None:
            if isinstance(message, Granted):
                # Otherwise the lease would be held, and nobody would use it.
                return [Release(message.partition, message.term)]
            return []
        asked = self._assigned & {message.partition}
        return [*self._handle_one(message, found, now_s), *self._ask(asked, now_s)]

    def _handle_one(
        self, message: Message, found: _Partition, now_s: float
    ) -> Iterator[Instruction]:
        match message, found.state:
            case Granted(partition, term), State.WAITING:
                if partition in self._assigned:
                    self._partitions[partition] = _Partition(State.OWNED, term)
                    yield Begin(partition, term)
                else:
                    del self._partitions[partition]
                    yield Release(partition, term)
            case Refused(partition), State.WAITING:
                found.is_asked, found.deadline_s = False, now_s + self._ask_again_s
                if partition not in self._assigned:
                    del self._partitions[partition]
            case Freed(_), State.WAITING:
                found.deadline_s = now_s
            case Lost(partition), State.OWNED | State.FINISHING:
                found.state = State.ABORTING
                yield Abort(partition)
            case (Finished(partition), State.FINISHING | State.ABORTING) | (
                Stopped(partition),
                State.ABORTING,
            ):
                del self._partitions[partition]
                yield Release(partition, found.term)

    def _drop(self, now_s: float) -> Iterator[Instruction]:
        """Let go of what is not assigned any more."""
        for number in sorted(self._partitions.keys() - self._assigned):
            one = self._partitions[number]
            if one.state is State.OWNED:
                one.state, one.deadline_s = State.FINISHING, now_s + self._finish_s
                yield Finish(number, one.term)
            elif one.state is State.WAITING and not one.is_asked:
                del self._partitions[number]

    def _abort_late(self, now_s: float) -> Iterator[Instruction]:
        for number, one in sorted(self._partitions.items()):
            if one.state is State.FINISHING and now_s >= one.deadline_s:
                one.state = State.ABORTING
                yield Abort(number)

    def _ask(self, assigned: frozenset[int], now_s: float) -> Iterator[Instruction]:
        for number in sorted(assigned):
            one = self._partitions.setdefault(number, _Partition(State.WAITING, deadline_s=now_s))
            if one.state is State.WAITING and not one.is_asked and now_s >= one.deadline_s:
                one.is_asked = True
                yield Acquire(number)
