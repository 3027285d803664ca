"""What a member of a group owns, between the member's threads and the one that consumes.

The member says at any moment what begins, and what is to be finished or aborted (`PartitionWork`).
The consuming thread looks between two streams, and reports what has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from databus.client.membership.member import Member


_SETTLE_S = 0.05


class Dropped(NamedTuple):
    """Partitions that are not to be read any more."""

    finishing: frozenset[int]
    """What was delivered of them may be stored, for they are owned still."""
    aborted: frozenset[int]


class OwnedPartitions:
    """A `PartitionWork`. Thread-safe."""

    def __init__(self, on_change: Callable[[], None], on_drop: Callable[[], None]) -> None:
        """`on_change` is called after anything has changed, `on_drop` if it is urgent.

        Both without a lock of this object, and they may not wait.
        """
        self.failure: Exception | None = None
        """Why the process is a member no more."""
        self.member: Member | None = None
        """Set it before the member is started."""
        self._on_change, self._on_drop = on_change, on_drop
        self._changed = threading.Condition()
        self._begun: set[int] = set()
        self._finishing: set[int] = set()
        self._aborted: set[int] = set()
        self._version = 0
        self._is_over = False

    # -- told by the member -----------------------------------------------------------------------

    def begin(self, partition: int, term: int) -> None:  # noqa: ARG002
        """Own a partition."""
        with self._changed:
            self._begun.add(partition)
            self._finishing.discard(partition)
            self._aborted.discard(partition)
        self._note(self._on_change)

    def finish(self, partition: int) -> None:
        """Have it consumed to the end of a window, and its checkpoint stored."""
        with self._changed:
            self._finishing.add(partition)
        self._drop()

    def abort(self, partition: int) -> None:
        """Have nothing more of it delivered or stored."""
        with self._changed:
            self._aborted.add(partition)
        self._drop()

    def fail(self, error: Exception) -> None:
        """Take note that the process is a member no more."""
        with self._changed:
            self.failure = error
        self._note(self._on_drop)

    def _drop(self) -> None:
        with self._changed:
            is_over = self._is_over
        if is_over:
            self.report(self.dropped())
        self._note(self._on_drop)

    def _note(self, then: Callable[[], None]) -> None:
        self.wake()
        then()

    # -- asked by the consuming thread ------------------------------------------------------------

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        return self._version

    @property
    def wanted(self) -> frozenset[int]:
        """The partitions to read."""
        with self._changed:
            return frozenset(self._begun - self._finishing - self._aborted)

    @property
    def has_dropped(self) -> bool:
        """Whether something must not be read any more, and is not reported yet."""
        with self._changed:
            return not self._begun.isdisjoint(self._finishing | self._aborted)

    @property
    def are_none(self) -> bool:
        """Whether nothing is owned, nor waits to be reported."""
        with self._changed:
            return not self._begun

    def wake(self) -> None:
        """End a `wait`."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def wait(self, version: int, timeout_s: float | None = None) -> None:
        """Wait until something has changed since `version`, or for `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)

    def dropped(self) -> Dropped:
        """Return what must not be read any more, and is not reported yet."""
        with self._changed:
            aborted = self._begun & self._aborted
            return Dropped(frozenset((self._begun & self._finishing) - aborted), frozenset(aborted))

    def settled_dropped(self) -> Dropped:
        """Return the same once no more follow: several are told one after another."""
        while True:
            version = self._version
            self.wait(version, _SETTLE_S)
            if version == self._version:
                return self.dropped()

    def report(self, dropped: Dropped) -> None:
        """Report that nothing of these runs any more."""
        member = self.member
        if member is None:
            return
        with self._changed:
            for partition in dropped.finishing | dropped.aborted:
                self._begun.discard(partition)
                self._finishing.discard(partition)
                self._aborted.discard(partition)
        for partition in sorted(dropped.finishing):
            # Aborted meanwhile: the same answer is right for both.
            member.finished(partition)
        for partition in sorted(dropped.aborted):
            member.stopped(partition)

    def end(self) -> None:
        """Take note that nothing will be read any more: whatever is to end has ended already."""
        with self._changed:
            self._is_over = True
        self.report(self.dropped())
