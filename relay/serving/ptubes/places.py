"""The places of Ptubes' checkpoints, and which SCN each of them is. Pure.

    binlogFile, binlogOffset    file and offset of an SCN, without its epoch
    serverId                    which epoch that is: a number made of the server's identity
    eventIndex                  number of the row in its window; -1 in front of all rows
    timestamp                   commit time, ms
    uuid, transactionId         GTID, and by which window the log is known again (`marks`)

A row's place is one before its window's SCN, with its number: reading begins with its window
again, and the rows up to that number are dropped. What ends a window has the window's SCN and
number -1. So the order of places is that of the log, also by the client's own rule. The offset is
not that of the transaction's begin, which Ptubes itself takes, but it is compared with its own
kind only: the server number is never that of a Ptubes reader, whose places are looked up by time.

The client puts its partitions' places in order by their times first, and goes on at the oldest.
Commit times do not always grow along the log, and those of two servers are no order at all. So a
place has the newest time of all windows up to it, and one more where another server begins.

An SCN that is not a place in a binlog, as SQLite's, has the file number `PLAIN_FILE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from databus.relay.sources.epochs import Epoch
from databus.schemas.scn import MAX_FILE_NUMBER, MAX_OFFSET, BinlogPosition, binlog_position

NO_UUID = "00000000-0000-0000-0000-000000000000"
PLAIN_FILE = MAX_FILE_NUMBER + 1
BEFORE_ROWS = -1
NOT_MARKED = 0x7FFFFFFF  # of a source that is known by its name alone
_OURS, _BITS = 0x40000000, 0x3FFFFFFE
_MOST_SWITCHES_A_SECOND = 10


class Mode(StrEnum):
    """What a checkpoint stands for."""

    NORMAL = "NORMAL"
    EARLIEST = "EARLIEST"
    LATEST = "LATEST"


class PtubesCheckpoint(NamedTuple):
    """A checkpoint, as a client sends it. Numbers that are not known are -1."""

    mode: Mode = Mode.LATEST
    server_id: int = -1
    file: int = -1
    offset: int = -1
    row_index: int = BEFORE_ROWS
    timestamp_ms: int = -1
    uuid: str = NO_UUID
    transaction_id: int = 0


class Place(NamedTuple):
    """A place, as a client is sent it."""

    file: int
    offset: int
    row_index: int
    server_id: int
    timestamp_ms: int
    uuid: str = NO_UUID
    transaction_id: int = 0


class PlaceTimes:
    """The times of one session's places, which go on in the order of the log."""

    def __init__(self, start: PtubesCheckpoint, epoch: int | None) -> None:
        """`start` is where the session begins, and `epoch` its epoch; None = not one of ours."""
        self._newest_ms = start.timestamp_ms if start.mode is Mode.NORMAL else 0
        self._epoch = epoch

    def of(self, epoch: int, commit_ms: int) -> int:
        """Return the time of a place in a window of this commit time, in milliseconds."""
        is_next = epoch != self._epoch and self._newest_ms > 0
        self._epoch = epoch
        self._newest_ms = max(commit_ms, self._newest_ms + is_next, 1)
        return self._newest_ms


class SkippedRows(NamedTuple):
    """What a client has of a window: its rows up to a number."""

    scn: int
    last_index: int


def server_number(epochs: Sequence[Epoch], number: int) -> int:
    """Return the server number of an epoch."""
    for epoch in epochs:
        if epoch.number == number:
            return _number_of(epoch)
    return NOT_MARKED


def _number_of(epoch: Epoch) -> int:
    return _OURS | crc32(epoch.server.encode()) & _BITS


def split_scn(scn: int) -> tuple[int, int, int]:
    """Return the epoch, the file number and the offset that stand for an SCN."""
    epoch, file, offset = binlog_position(scn)
    return (epoch, PLAIN_FILE, offset) if epoch == file == 0 else (epoch, file, offset)


def scn_of(checkpoint: PtubesCheckpoint, epochs: Sequence[Epoch]) -> int | None:
    """Return the SCN of a place; None if its server is not known here."""
    file, offset = checkpoint.file, checkpoint.offset
    if not 0 < file <= PLAIN_FILE or not 0 <= offset <= MAX_OFFSET:
        return None
    if checkpoint.server_id == NOT_MARKED:
        epoch = 0
    else:
        same = [e for e in epochs if _number_of(e) == checkpoint.server_id]
        begun = [e for e in same if e is epochs[0] or _begins(e) <= (file, offset)]
        if not begun:
            return None
        epoch = begun[-1].number
    return BinlogPosition(epoch, 0 if file == PLAIN_FILE else file, offset).to_scn()


def epoch_of(checkpoint: PtubesCheckpoint, epochs: Sequence[Epoch]) -> int | None:
    """Return the epoch of a place; None if it is not one of ours."""
    scn = scn_of(checkpoint, epochs) if checkpoint.mode is Mode.NORMAL else None
    return None if scn is None else split_scn(scn)[0]


def first_commit_ms(checkpoint: PtubesCheckpoint) -> int:
    """Return a commit time before which a place of a server that is not known here cannot be.

    That of another relay may be some milliseconds more than its commit (`PlaceTimes`).
    """
    time_ms = checkpoint.timestamp_ms
    if time_ms <= 0 or not checkpoint.server_id & _OURS or checkpoint.server_id < 0:
        return time_ms
    return max((time_ms - _MOST_SWITCHES_A_SECOND) // 1000 * 1000, 1)


def _begins(epoch: Epoch) -> tuple[int, int]:
    """Return a place in front of an epoch's first row, whose own is one before the SCN."""
    _, file, offset = binlog_position(max(epoch.first_scn - 1, 0))
    return file, offset


def gtid_members(gtid: str | None) -> tuple[str, int]:
    """Return the UUID and the transaction number of a GTID: MariaDB's have no UUID."""
    if not gtid:
        return NO_UUID, 0
    uuid, colon, number = gtid.rpartition(":")
    if not colon:
        uuid, number = NO_UUID, gtid.rpartition("-")[2]
    return (uuid, int(number)) if number.isdecimal() and len(number) < 19 else (NO_UUID, 0)
