"""Relays of one source never give one epoch number to two servers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from databus.relay.capture.peers.agreement import (
    Claim,
    Decision,
    PeerTable,
    decide,
    marks_of,
    newest_of,
    passed_places,
)
from databus.relay.sources.epochs import Epoch
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import epoch_begin

B = "http://b:1"


def epoch(number: int, server: str, after_scn: int = -1) -> Epoch:
    scn = epoch_begin(number) + 1000
    return Epoch(number, server, f"mysql://{server}", scn, after_scn, "b.000001", 1000, None, 0)


def peer(*epochs: Epoch, claim: Claim | None = None, url: str = B) -> PeerTable:
    return PeerTable(url, epochs, claim)


def claim(number: int, server: str, *, is_confirmed: bool = False) -> Claim:
    return Claim(number, server, f"mysql://{server}", is_confirmed)


ZERO, ONE = epoch(0, "s0"), epoch(1, "s1")


@pytest.mark.parametrize(
    ("own", "wanted", "server", "other", "number"),
    [
        ((), 0, "s0", peer(), 0),
        ((), 3, "s0", peer(), 3),  # the setting `epoch`
        ((ZERO,), 0, "s0", peer(), 0),
        ((ZERO,), 1, "s1", peer(ZERO), 1),
        # What another relay has begun for this very server is taken over,
        ((), 0, "s1", peer(ZERO, ONE), 1),
        ((ZERO,), 1, "s1", peer(ZERO, ONE), 1),
        # also by one that stayed at a server to which the others came back,
        ((ZERO,), 0, "s0", peer(ZERO, ONE, epoch(2, "s0")), 2),
        # and what it is to begin.
        ((ZERO,), 1, "s1", peer(ZERO, claim=claim(1, "s1", is_confirmed=True)), 1),
        # One that is behind will take over from here.
        ((ZERO, ONE), 2, "s2", peer(ZERO), 2),
        # A raised setting is an operator's decision.
        ((ZERO,), 5, "s9", peer(ZERO, ONE), 5),
    ],
)
def test_the_number_is_that_of_all(
    own: tuple[Epoch, ...], wanted: int, server: str, other: PeerTable, number: int
) -> None:
    assert decide(own, wanted, server, [other]) == Decision(number)


@pytest.mark.parametrize(
    "other", [peer(ZERO, ONE), peer(ZERO, claim=claim(1, "s1", is_confirmed=True))]
)
def test_another_server_than_that_of_the_others_is_not_read(other: PeerTable) -> None:
    found = decide((ZERO,), 1, "s2", [other])
    assert found.uri == "mysql://s1"
    assert found.elsewhere.startswith(
        f"{B} reads epoch 1 of this source from server s1 at mysql://s1, and here server s2 answers"
    )


def test_an_epoch_of_two_servers_is_a_conflict_and_says_the_way_on() -> None:
    here = decide((ZERO, ONE), 1, "s1", [peer(ZERO, epoch(1, "s2"))])
    there = decide((ZERO,), 1, "s1", [peer(ZERO, ONE), peer(epoch(1, "s2"), url="http://c:1")])
    for found, server in ((here, "this relay"), (there, B)):
        assert f"epoch 1 of this source is server s1 at {server}, and server s2" in found.conflict
        assert "remove its data_dir and start it again" in found.conflict


def test_of_two_claims_the_lower_server_stays() -> None:
    wins = decide((ZERO,), 1, "s1", [peer(ZERO, claim=claim(1, "s2"))])
    loses = decide((ZERO,), 1, "s2", [peer(ZERO, claim=claim(1, "s1"))])
    assert (bool(wins.wait), wins.keeps_claim) == (True, True)
    assert (bool(loses.wait), loses.keeps_claim) == (True, False)


@dataclass
class Relay:
    """One that wants a server, as a process whose steps may be interleaved with another's."""

    server: str
    epochs: tuple[Epoch, ...] = (ZERO,)
    claim: Claim | None = None
    wanted: str = field(default="")

    def steps(self, other: Relay, tries: int) -> Iterator[None]:
        self.wanted = self.server
        for _ in range(tries):
            if self.epochs[-1].number == 1:
                return
            for has_claimed in (False, True):
                seen = peer(*other.epochs, claim=other.claim)
                yield  # what was seen may be old by now
                if not self.may_go_on(decide(self.epochs, 1, self.wanted, [seen])):
                    break
                self.claim = claim(1, self.wanted, is_confirmed=has_claimed)
                yield
                if has_claimed:
                    self.epochs, self.claim = (*self.epochs, epoch(1, self.wanted)), None
            yield

    def may_go_on(self, found: Decision) -> bool:
        if found.elsewhere:
            self.claim, self.wanted = None, found.uri.removeprefix("mysql://")
        elif found.wait and not found.keeps_claim:
            self.claim = None
        return not (found.elsewhere or found.wait)


@pytest.mark.parametrize("servers", [("s1", "s2"), ("s2", "s1"), ("s1", "s1")])
def test_two_that_begin_at_once_end_with_one_table_however_their_steps_fall(
    servers: tuple[str, str],
) -> None:
    ended = 0
    for choices in range(1 << 14):
        first, second = Relay(servers[0]), Relay(servers[1])
        running = [first.steps(second, 12), second.steps(first, 12)]
        order = [choices >> bit & 1 for bit in range(14)] + [0, 1] * 40
        for turn in order:
            next(running[turn], None)
        numbers = {one.number: one.server for one in (*first.epochs, *second.epochs)}
        for relay in (first, second):
            assert all(numbers[one.number] == one.server for one in relay.epochs), bin(choices)
        ended += first.epochs == second.epochs and len(first.epochs) == 2
    assert ended == 1 << 14


def test_marks_are_those_of_the_epoch() -> None:
    old, new = LogMark(1000, "{}"), LogMark(epoch_begin(1) + 5, "{}")
    tables = [PeerTable(B, mark=old), PeerTable(B, mark=new), PeerTable(B)]
    assert marks_of(tables, 1) == (new,)


def test_the_newest_of_the_others_is_the_highest_number() -> None:
    assert newest_of([]) is None
    found = newest_of([peer(ZERO, ONE), peer(ZERO, url="http://c:1")])
    assert found is not None
    assert (found.number, found.server, found.url) == (1, "s1", B)


def test_what_another_relay_alone_delivered_of_the_server_before_is_passed() -> None:
    ours, theirs = epoch(1, "s1", after_scn=980), epoch(1, "s1", after_scn=1000)
    assert passed_places((ZERO, ours), [peer(ZERO, theirs)]) == [(981, 1000)]
    assert passed_places((ZERO, theirs), [peer(ZERO, ours)]) == []
    # Of another epoch before, nothing is comparable.
    third = epoch(2, "s0", after_scn=epoch_begin(1) + 7)
    assert passed_places((ZERO, epoch(2, "s0", after_scn=900)), [peer(ZERO, third)]) == []
