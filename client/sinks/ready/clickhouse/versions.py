"""The version of a row: a change that is newer has a greater one, and it is always the same. Pure.

    SCN, 64 bits | place, 64 bits

The place is that of the change in its transaction, so the second of two changes of one row wins. A
row of a snapshot is as its transaction left it: it comes after all changes of its SCN. Pages of
changes from a bootstrap server have other places after a restart: there the one that came last
counts, and it comes after the live ones of its SCN, which it includes.
"""

from __future__ import annotations

from databus.client.sinks.contract import Change, ChangeOp

VERSION_TYPE = "UInt128"
_LIVE = "live"
_OF_A_PAGE = 1 << 63
_LAST = (1 << 64) - 1


def version_of(change: Change) -> int:
    """Return the version of the row after a change."""
    return change.scn << 64 | _place(change)


def _place(change: Change) -> int:
    if change.op is ChangeOp.SNAPSHOT:
        return _LAST
    return change.index if change.transaction.phase == _LIVE else _OF_A_PAGE
