"""The servers that a physical source was read from, one after the other. Pure.

An epoch begins when the server behind a physical source is another one than before. Its number is
in the top bits of the SCN, so SCNs rise from server to server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from databus.schemas.errors import SourceStoppedError, SourceUnavailableError
from databus.schemas.log_mark import LogMark
from databus.schemas.scn import binlog_position, epoch_begin

_MOST_PEER_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch: its server, and where in that server's log it begins.

    `first_scn`, and `offset` in `file`, are those of its first window; `after_scn` is that of the
    last window of the epoch before. `executed` are the GTIDs of all that was delivered before, as
    the server writes them; None without a switch. `began_s` is in seconds since 1970.
    """

    number: int
    server: str
    uri: str
    first_scn: int
    after_scn: int
    file: str
    offset: int
    executed: str | None
    began_s: int


def parse_epoch(one: Any) -> Epoch:
    """Return an epoch as a relay's API tells it; raises ValueError, KeyError, TypeError."""
    after = one["afterScn"]
    return Epoch(
        number=int(one["number"]),
        server=str(one["server"]),
        uri=str(one["uri"]),
        first_scn=int(one["firstScn"]),
        after_scn=-1 if after is None else int(after),
        file=str(one["file"]),
        offset=int(one["offset"]),
        executed=one["executed"],
        began_s=int(one["beganAt"]),
    )


class Serving(NamedTuple):
    """The epoch and the server that an open source is read from; its first SCN comes with it."""

    number: int
    server: str
    executed: str | None = None  # before a switch
    file: str = ""  # of the log, where it is read


class Executed(NamedTuple):
    """GTIDs of all transactions up to window `scn`; others after it may be among them.

    Those have no watched rows.
    """

    scn: int
    gtids: str


class Agreed(NamedTuple):
    """An epoch on which all relays of a source agree, and the others' log marks of its server."""

    number: int
    marks: tuple[LogMark, ...] = ()


# Returns the epoch to read a server with, given the number that this relay would take. Raises
# EpochWaitError, PeersElsewhereError, SourceStoppedError.
Agree = Callable[[int, str], Agreed]


class Lineage(NamedTuple):
    """What a source must know to go on at another server: the newest epoch, and what is delivered.

    `executed` is None if that is not known. `more` are the GTIDs of the windows delivered since.
    `has_others` tells that capture may go on at another server than the one that answers.
    `agree` is None where no other relay captures the source. `epochs` are all that are known, the
    oldest first. `find_overlap` returns the SCN, as of
    an epoch, of the last delivered window in the log of the server that answers; it raises
    NoOverlapError.
    """

    newest: Epoch | None = None
    executed: Executed | None = None
    more: Sequence[str] = ()
    has_others: bool = False
    agree: Agree | None = None
    epochs: Sequence[Epoch] = ()
    find_overlap: Callable[[int], int] | None = None


class ServerRefusedError(SourceStoppedError):
    """Capture cannot go on at another server. Never leaves the relay."""


class EpochWaitError(SourceUnavailableError):
    """Capture waits for other relays of the source, as for them to agree on an epoch."""


def longest_wait_s(error: Exception, wait_s: float) -> float:
    """Return for how long capture waits at most after an error: peers are asked again soon."""
    return min(wait_s, _MOST_PEER_WAIT_S) if isinstance(error, EpochWaitError) else wait_s


class PeersElsewhereError(SourceUnavailableError):
    """The other relays of the source read another server, at `uri`."""

    def __init__(self, text: str, uri: str) -> None:
        super().__init__(text)
        self.uri = uri


class NoOverlapError(Exception):
    """The last delivered window is not found in a log for certain; the text says why."""


class Unread(NamedTuple):
    """Places in a server's log before what was read of it as `epoch`: `first` to `last`.

    What follows them there was partly delivered with SCNs of the server before.
    """

    first: int
    last: int
    epoch: int


def unread_places(epochs: Sequence[Epoch], oldest_scn: int) -> list[Unread]:
    """Return the places of later epochs that lie before these epochs' first windows.

    Epochs that were left out, because other relays alone read them, count. `oldest_scn` is that of
    the oldest window held, or of the one before it, whichever is known: where nothing is held of an
    earlier epoch, capture may have begun anew before that epoch's first window.
    """
    found = []
    for epoch in epochs:
        begin = epoch_begin(epoch.number)
        before = -1 if epoch.after_scn < 0 else binlog_position(epoch.after_scn).epoch
        if 0 <= before < epoch.number and 0 <= oldest_scn < begin:
            found.append(Unread(epoch_begin(before + 1), epoch.first_scn - 1, epoch.number))
    return found


def epoch_at(
    epochs: Sequence[Epoch], file: str, place: tuple[int, int], newest_scn: int
) -> Epoch | None:
    """Return the newest epoch whose log has a file number and offset; None if none has.

    `epochs` are in order, `newest_scn` is that of the newest window. The first of them begins with
    its server's log, because the relay may hold older windows than its table of epochs.
    """
    base = file.rpartition(".")[0]
    last_scn = newest_scn
    for index in range(len(epochs) - 1, -1, -1):
        epoch = epochs[index]
        first = (0, 0) if index == 0 else _place_of(epoch.first_scn)
        if first <= place <= _place_of(last_scn) and epoch.file.rpartition(".")[0] == base:
            return epoch
        last_scn = epoch.after_scn
    return None


def _place_of(scn: int) -> tuple[int, int]:
    return divmod(scn & (1 << 55) - 1, 1 << 32)
