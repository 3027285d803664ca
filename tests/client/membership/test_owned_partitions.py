"""What a member owns, between its threads and the one that consumes."""

from __future__ import annotations

import threading

from databus.client.membership.owned_partitions import Dropped, OwnedPartitions
from tests import PATIENCE_S


class Member:
    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def finished(self, partition: int) -> None:
        self.told.append(("finished", partition))

    def stopped(self, partition: int) -> None:
        self.told.append(("stopped", partition))


def owner() -> tuple[OwnedPartitions, Member, list[str]]:
    noted: list[str] = []
    owned = OwnedPartitions(lambda: noted.append("change"), lambda: noted.append("drop"))
    member = owned.member = Member()  # type: ignore[assignment]
    return owned, member, noted


def test_what_is_to_end_is_reported_once_nothing_of_it_runs() -> None:
    owned, member, noted = owner()
    for partition in range(4):
        owned.begin(partition, 1)
    owned.finish(1)
    owned.abort(2)
    owned.finish(3)
    owned.abort(3)  # it took too long
    assert noted == ["change"] * 4 + ["drop"] * 4
    assert [*owned.wanted, owned.has_dropped] == [0, True]
    assert owned.dropped() == Dropped(frozenset({1}), frozenset({2, 3}))
    assert member.told == []
    owned.report(owned.dropped())
    assert member.told == [("finished", 1), ("stopped", 2), ("stopped", 3)]
    assert [*owned.wanted, owned.has_dropped, owned.are_none] == [0, False, False]


def test_a_partition_that_begins_again_is_wanted_again() -> None:
    owned, _, _ = owner()
    owned.begin(1, 1)
    owned.abort(1)
    owned.report(owned.dropped())
    owned.abort(1)  # late
    assert owned.are_none
    owned.begin(1, 2)
    assert owned.wanted == {1}


def test_once_nothing_is_read_any_more_it_answers_at_once() -> None:
    owned, member, _ = owner()
    owned.begin(1, 1)
    owned.begin(2, 1)
    owned.finish(1)
    owned.end()
    owned.abort(2)
    assert member.told == [("finished", 1), ("stopped", 2)]
    assert owned.are_none


def test_a_wait_ends_with_any_change_since_the_version() -> None:
    owned, _, _ = owner()
    version = owned.version
    owned.begin(1, 1)
    owned.wait(version)  # not for ever
    version = owned.version
    waiting = threading.Thread(target=owned.wait, args=(version,))
    waiting.start()
    owned.fail(ValueError("x"))
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert isinstance(owned.failure, ValueError)
