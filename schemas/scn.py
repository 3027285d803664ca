"""System change numbers: where a window stands in its source's log.

An SCN is a positive signed 64-bit integer. A MySQL or MariaDB source packs
its binlog position into one (see architecture.md); an SQLite source counts
commits. Nothing here reads a clock: an SCN is never invented.
"""

from __future__ import annotations

from typing import NamedTuple

from databus.schemas.errors import ProtocolError

MAX_SCN = (1 << 63) - 1

# 63 bits: epoch 8 | binlog file number 23 | offset 32. With epoch 0 it is the
# 64-bit position of Databus itself.
_EPOCH_SHIFT = 55
_FILE_SHIFT = 32
MAX_EPOCH = (1 << 8) - 1
MAX_FILE_NUMBER = (1 << 23) - 1
MAX_OFFSET = (1 << 32) - 1


class BinlogPosition(NamedTuple):
    """A place in a binlog: the end offset of a commit event, under one epoch."""

    epoch: int
    file_number: int
    offset: int

    def to_scn(self) -> int:
        """Pack into an SCN; raises ProtocolError for a part that has no room."""
        _check("epoch", self.epoch, MAX_EPOCH)
        _check("binlog file number", self.file_number, MAX_FILE_NUMBER)
        _check("binlog offset", self.offset, MAX_OFFSET)
        return self.epoch << _EPOCH_SHIFT | self.file_number << _FILE_SHIFT | self.offset


def binlog_position(scn: int) -> BinlogPosition:
    """Unpack an SCN of a MySQL or MariaDB source; raises ProtocolError out of range."""
    _check("scn", scn, MAX_SCN)
    return BinlogPosition(
        scn >> _EPOCH_SHIFT, scn >> _FILE_SHIFT & MAX_FILE_NUMBER, scn & MAX_OFFSET
    )


def epoch_begin(epoch: int) -> int:
    """Return the SCN before all windows of an epoch; raises ProtocolError out of range."""
    return BinlogPosition(epoch, 0, 0).to_scn()


def _check(name: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        raise ProtocolError(f"{name} {value} is outside 0..{largest}")
