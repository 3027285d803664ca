"""The servers that a physical source was read from, one after the other. Pure.

An epoch begins when the server behind a physical source is another one than before. Its number is
in the top bits of the SCN, so SCNs rise from server to server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from databus.schemas.errors import SourceStoppedError


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


class Lineage(NamedTuple):
    """What a source must know to go on at another server: the newest epoch, and what is delivered.

    `executed` is None if that is not known. `more` are the GTIDs of the windows delivered since.
    `has_others` tells that capture may go on at another server than the one that answers.
    """

    newest: Epoch | None = None
    executed: Executed | None = None
    more: Sequence[str] = ()
    has_others: bool = False


class ServerRefusedError(SourceStoppedError):
    """Capture cannot go on at another server. Never leaves the relay."""


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
