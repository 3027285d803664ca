"""Which epoch the relays of one source read a server with. Pure.

An epoch's number is in the top bits of the SCN, below it are file and offset in the server's log.
So relays that read one server with one number give a transaction the same SCN, whichever of them
began earlier, and with whatever window. They agree on the number by themselves:

    A relay that is to begin an epoch asks all the others, then says so (a *claim*), and asks them
    once more. It begins if none of them has that number for another server, and none claims it for
    one. What another relay has begun for this very server, it takes over.

    Of two that claim one number for two servers at the same time, at least one sees the other's
    claim, because each asks after it has claimed. The lower server in the order of text stays; it
    waits until the other one has given up its claim. A claim that was confirmed counts like an
    epoch that has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from databus.relay.sources.epochs import Epoch
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import binlog_position


class Claim(NamedTuple):
    """An epoch that is to begin at a server; `is_confirmed` if all other relays were asked."""

    number: int
    server: str
    uri: str
    is_confirmed: bool = False


@dataclass(frozen=True, slots=True)
class PeerTable:
    """What another relay of the source says of its epochs, without passwords.

    `mark` is the newest identity of the log that it reads.
    """

    url: str
    epochs: tuple[Epoch, ...] = ()
    claim: Claim | None = None
    mark: LogMark | None = None


class Taken(NamedTuple):
    """An epoch number that another relay has taken for a server."""

    number: int
    server: str
    uri: str
    url: str


class Decision(NamedTuple):
    """The number to read a server with, or why it is not read.

    `conflict`: a person must act. `elsewhere`: the others read another server, at `uri`. `wait`:
    another claim is in the way, and `keeps_claim` tells which of the two stays.
    """

    number: int
    conflict: str = ""
    elsewhere: str = ""
    uri: str = ""
    wait: str = ""
    keeps_claim: bool = True


def decide(own: Sequence[Epoch], number: int, server: str, peers: Sequence[PeerTable]) -> Decision:
    """Decide with which number to read a server; `number` is the one that this relay would take."""
    conflict = conflict_of(own, peers)
    if conflict:
        return Decision(number, conflict=conflict)
    newest = own[-1].number if own else -1
    ahead = newest_of(peers)
    if ahead is not None and ahead.number > newest and ahead.number >= number:
        if ahead.server == server:
            return Decision(ahead.number)
        text = (
            f"{ahead.url} reads epoch {ahead.number} of this source from server {ahead.server} at "
            f"{ahead.uri}, and here server {server} answers. Relays of one source read the same one"
        )
        return Decision(number, elsewhere=text, uri=ahead.uri)
    return _against_claims(number, server, peers) if number > newest else Decision(number)


def newest_of(peers: Iterable[PeerTable]) -> Taken | None:
    """Return the highest number that any of the others has taken; None without one."""
    return max((taken for peer in peers for taken in _taken_by(peer)), default=None)


def marks_of(peers: Iterable[PeerTable], number: int) -> tuple[LogMark, ...]:
    """Return the others' log marks of an epoch."""
    marks = (peer.mark for peer in peers)
    return tuple(
        mark for mark in marks if mark is not None and binlog_position(mark.scn).epoch == number
    )


def passed_places(own: Sequence[Epoch], peers: Iterable[PeerTable]) -> list[tuple[int, int]]:
    """Return ranges of SCNs, both ends included, that another relay alone has delivered.

    It read on from the server before an epoch, where this relay had already gone over. Its next
    server is the same, and is proved to have what it had delivered: so this relay has all of that,
    with SCNs of its epoch, and a client that has read there goes on at the epoch's first window.
    """
    found = []
    epochs = {epoch.number: epoch for epoch in own}
    for peer in peers:
        for theirs in peer.epochs:
            ours = epochs.get(theirs.number)
            if ours is None or ours.server != theirs.server or ours.after_scn < 0:
                continue
            is_of_one = _epoch_of(ours.after_scn) == _epoch_of(theirs.after_scn)
            if is_of_one and theirs.after_scn > ours.after_scn:
                found.append((ours.after_scn + 1, theirs.after_scn))
    return found


def conflict_of(own: Sequence[Epoch], peers: Iterable[PeerTable]) -> str:
    """Return which epoch has two servers; "" if none has."""
    here = [Taken(epoch.number, epoch.server, epoch.uri, "this relay") for epoch in own]
    known: dict[int, Taken] = {}
    for taken in [*here, *(taken for peer in peers for taken in _begun_by(peer))]:
        first = known.setdefault(taken.number, taken)
        if first.server != taken.server:
            return (
                f"epoch {taken.number} of this source is server {first.server} at {first.url}, and "
                f"server {taken.server} at {taken.url}: one SCN would name two transactions. "
                "Nothing is served here before they agree. Keep the relay whose clients matter "
                "most. Stop the other one, remove its data_dir and start it again: it takes over "
                "the epochs, and its clients bootstrap. Then resume capture here"
            )
    return ""


def _against_claims(number: int, server: str, peers: Sequence[PeerTable]) -> Decision:
    for peer in peers:
        claim = peer.claim
        if claim is None or claim.number != number or claim.server == server:
            continue
        if server < claim.server:
            return Decision(
                number,
                wait=f"waits for {peer.url} to give up epoch {number} at server {claim.server}",
            )
        return Decision(
            number,
            wait=f"waits for {peer.url} to begin epoch {number} at server {claim.server}, which "
            f"it asked for at the same time as this relay for server {server}",
            keeps_claim=False,
        )
    return Decision(number)


def _begun_by(peer: PeerTable) -> Iterator[Taken]:
    for epoch in peer.epochs:
        yield Taken(epoch.number, epoch.server, epoch.uri, peer.url)


def _taken_by(peer: PeerTable) -> Iterator[Taken]:
    yield from _begun_by(peer)
    claim = peer.claim
    if claim is not None and claim.is_confirmed:
        yield Taken(claim.number, claim.server, claim.uri, peer.url)


def _epoch_of(scn: int) -> int:
    return binlog_position(scn).epoch if scn >= 0 else -1
