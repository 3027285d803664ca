"""The windows by which the log of a Ptubes checkpoint is known again. Pure.

A file and an offset exist in other logs, too: in that of the same server after it was reset. So a
checkpoint says of a window with rows of its client's tables that it was sent, and when that window
was committed. The stock client keeps `uuid` and `transactionId` and sends them back:

    uuid of a server                    row of a transaction with that GTID
    00000000-0000-0002-TTTT-TTTT…       row of a transaction whose GTID has a number alone
    00000000-0000-0001-TTTT-TTTT…       `transactionId` is the window's SCN, without its epoch
    all zeros                           of a row: what older relays wrote; else no window is known

T is the commit time in nanoseconds, in hexadecimal digits. Where it is not there, the window was
committed at `timestamp` or before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from databus.relay.serving.ptubes.places import (
    BEFORE_ROWS,
    NO_UUID,
    PtubesCheckpoint,
    gtid_members,
)
from databus.relay.sources.epochs import Epoch
from databus.schemas.scn import MAX_SCN, BinlogPosition, binlog_position

Mark = tuple[int, int]  # SCN of a window with rows, and its commit time in ns
_MS_NS = 1_000_000
_MARKED = re.compile(r"00000000-0000-000([12])-([0-7][0-9a-f]{3})-([0-9a-f]{12})")
_OTHER_WINDOW, _OWN_WINDOW = 1, 2


class Claim(NamedTuple):
    """What a checkpoint says of a window with rows; unknown are -1 and None."""

    scn: int
    timestamp_ns: int = -1
    newest_ms: int = -1
    gtid: tuple[str, int] | None = None

    @property
    def mark(self) -> Mark | None:
        """The window, if its time is known exactly."""
        return None if self.timestamp_ns < 0 else (self.scn, self.timestamp_ns)

    def is_refuted(self, held: Mark, gtid: str | None) -> bool:
        """Whether the newest window up to there, and the GTID of its rows, say otherwise."""
        scn, timestamp_ns = held
        if scn != self.scn or self.timestamp_ns not in (-1, timestamp_ns):
            return True
        if 0 < self.newest_ms < timestamp_ns // _MS_NS:
            return True
        return None not in (gtid, self.gtid) and gtid_members(gtid) != self.gtid


def members_of_mark(mark: Mark | None, epoch: int) -> tuple[str, int]:
    """Return UUID and transaction number of a place of an epoch."""
    if mark is None or not 0 <= mark[1] <= MAX_SCN:
        return NO_UUID, 0
    of, file, offset = binlog_position(mark[0])
    # Another relay may number epochs differently; the place's server says which one it is.
    return (
        (_uuid(_OTHER_WINDOW, mark[1]), _packed(0, file, offset)) if of == epoch else (NO_UUID, 0)
    )


def members_of_row(gtid: str | None, mark: Mark, epoch: int) -> tuple[str, int]:
    """Return UUID and transaction number of a row's place; `mark` is the row's own window."""
    uuid, number = gtid_members(gtid)
    if number and uuid == NO_UUID and 0 <= mark[1] <= MAX_SCN:
        return _uuid(_OWN_WINDOW, mark[1]), number
    return (uuid, number) if number else members_of_mark(mark, epoch)


def claim_of(at: PtubesCheckpoint, scn: int, epochs: Sequence[Epoch]) -> Claim | None:
    """Return what a checkpoint whose place is `scn` says of its log; None if it says nothing."""
    is_row, found = at.row_index > BEFORE_ROWS, _MARKED.fullmatch(at.uuid)
    if found is None:
        # A statement's place has no GTID; other relays may have no window for it.
        if not is_row or at.transaction_id <= 0:
            return None
        gtid = None if at.uuid == NO_UUID else (at.uuid, at.transaction_id)
        return Claim(scn + 1, newest_ms=at.timestamp_ms, gtid=gtid)
    timestamp_ns = int(found[2] + found[3], 16)
    if int(found[1]) == _OWN_WINDOW:
        return Claim(scn + 1, timestamp_ns) if is_row else None
    if not 0 < at.transaction_id <= MAX_SCN:
        return None
    of, file, offset = binlog_position(at.transaction_id)
    number = binlog_position(scn).epoch
    marked = _packed(number, file, offset)
    first_scn = next((one.first_scn for one in epochs if one.number == number), 0)
    # One before the epoch is of an earlier one of the same server, as another relay counts them.
    return Claim(marked, timestamp_ns) if of == 0 and first_scn <= marked <= scn + 1 else None


def _uuid(kind: int, timestamp_ns: int) -> str:
    digits = f"{timestamp_ns:016x}"
    return f"00000000-0000-{kind:04x}-{digits[:4]}-{digits[4:]}"


def _packed(epoch: int, file: int, offset: int) -> int:
    return BinlogPosition(epoch, file, offset).to_scn()
