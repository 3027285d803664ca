"""Holds prepared XA transactions until they are committed or rolled back. No I/O here.

The log has an XA transaction in two parts: its rows, ended by XA PREPARE, and at any
later place XA COMMIT or XA ROLLBACK with its xid. The rows take effect at the XA COMMIT,
so they are held until then.

Nothing is written to disk, because the log has everything. A relay that starts between
the two parts searches the log backwards from the XA COMMIT for the first part. So does
one that did not hold the rows because they were too many for its memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from databus.relay.sources.mysql.rows.columns import ByteReader
from databus.relay.sources.source import Change

MOST_HELD_ROWS = 100_000


class Xid(NamedTuple):
    """The name of an XA transaction."""

    format_id: int
    global_part: bytes
    branch: bytes

    def __str__(self) -> str:
        """Return the xid in the server's notation."""
        return f"X'{self.global_part.hex()}',X'{self.branch.hex()}',{self.format_id}"


def parse_xa_prepare(body: bytes) -> Xid | None:
    """Read an XA_PREPARE event; None when it is XA COMMIT … ONE PHASE, a plain commit.

    One phase (1), format (4), lengths of the two parts (4, 4), the parts.
    """
    reader = ByteReader(body)
    is_one_phase = bool(reader.number(1))
    format_id, global_size, branch_size = (reader.number(4) for _ in range(3))
    xid = Xid(format_id, reader.take(global_size), reader.take(branch_size))
    return None if is_one_phase else xid


_XID = re.compile(
    r"XA\s+(?:COMMIT|ROLLBACK)\s+X'([0-9A-F]*)'\s*,\s*X'([0-9A-F]*)'\s*,\s*(\d+)\s*",
    re.IGNORECASE,
)


def parse_xa_end(text: str) -> Xid | None:
    """Read the xid of an XA COMMIT or XA ROLLBACK; None for ONE PHASE. Raises ValueError."""
    if text.upper().endswith("ONE PHASE"):
        return None
    found = _XID.fullmatch(text)
    if found is None:
        raise ValueError(f"the xid of {text[:80]!r} cannot be read")
    return Xid(int(found[3]), bytes.fromhex(found[1]), bytes.fromhex(found[2]))


class XaLog(Protocol):
    """Searches the log for XA transactions; raises ValueError when it does not have them."""

    def find(self, xid: Xid, before_scn: int) -> Mapping[Xid, int]:
        """Return the start SCNs of transactions prepared before an SCN, including this one."""
        ...

    def rows(self, xid: Xid, start_scn: int) -> Sequence[Change]:
        """Return the changes of the prepared transaction that begins at an SCN."""
        ...


class _Held(NamedTuple):
    """A prepared transaction: its first SCN, and its changes unless they were too many."""

    start_scn: int
    changes: Sequence[Change] | None


class PreparedTransactions:
    """The XA transactions that are prepared but not ended at one position of the log."""

    def __init__(self, log: XaLog | None = None, most_rows: int = MOST_HELD_ROWS) -> None:
        self._log = log
        self._most_rows = most_rows
        self._rows = 0
        self._held: dict[Xid, _Held] = {}

    def __contains__(self, xid: Xid) -> bool:
        return xid in self._held

    def hold(self, xid: Xid, start_scn: int, changes: Sequence[Change]) -> None:
        """Hold the changes of a prepared transaction."""
        self.drop(xid)
        is_small = self._rows + len(changes) <= self._most_rows
        if is_small:
            self._rows += len(changes)
        self._held[xid] = _Held(start_scn, changes if is_small else None)

    def drop(self, xid: Xid) -> None:
        """Forget a transaction that was rolled back; an unknown one is ignored."""
        held = self._held.pop(xid, None)
        if held is not None and held.changes is not None:
            self._rows -= len(held.changes)

    def take(self, xid: Xid, before_scn: int) -> Sequence[Change]:
        """Remove and return the changes of a transaction that is committed at an SCN.

        Raises ValueError when they are not found.
        """
        if xid not in self._held:
            for other, start_scn in self._ask().find(xid, before_scn).items():
                self._held.setdefault(other, _Held(start_scn, None))
        start_scn, changes = self._held[xid]
        if changes is None:
            changes = self._ask().rows(xid, start_scn)
        self.drop(xid)
        return changes

    def _ask(self) -> XaLog:
        if self._log is None:
            raise ValueError("the log was not read from where this XA transaction was prepared")
        return self._log
