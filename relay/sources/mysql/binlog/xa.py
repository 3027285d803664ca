"""XA transactions between their XA PREPARE and what becomes of them. No I/O here.

The log has an XA transaction in two pieces: its rows, ended by XA PREPARE, and
later, anywhere behind, XA COMMIT or XA ROLLBACK of its xid. The rows are part
of the data from the XA COMMIT on, so they are held until then.

Nothing of it is kept on disk, for the log has it all: a relay that was started
between the two pieces looks for the first one in the log, backwards from the
XA COMMIT. The same way leads to the rows of transactions that were too many to
be held in memory.
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
        """Write it as the server does."""
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
    """What is asked of the log about XA transactions. Raises ValueError when it has no answer."""

    def find(self, xid: Xid, before_scn: int) -> Mapping[Xid, int]:
        """Return where transactions prepared before an SCN, this one among them, begin."""
        ...

    def rows(self, xid: Xid, start_scn: int) -> Sequence[Change]:
        """Return the changes of the prepared transaction that begins at an SCN."""
        ...


class _Held(NamedTuple):
    """A prepared transaction: where it begins, and its changes unless they were too many."""

    start_scn: int
    changes: Sequence[Change] | None


class PreparedTransactions:
    """The XA transactions that are prepared at one place of the log."""

    def __init__(self, log: XaLog | None = None, most_rows: int = MOST_HELD_ROWS) -> None:
        self._log = log
        self._most_rows = most_rows
        self._rows = 0
        self._held: dict[Xid, _Held] = {}

    def __contains__(self, xid: Xid) -> bool:
        return xid in self._held

    def hold(self, xid: Xid, start_scn: int, changes: Sequence[Change]) -> None:
        """Keep the changes of a transaction that was prepared."""
        self.drop(xid)
        is_small = self._rows + len(changes) <= self._most_rows
        if is_small:
            self._rows += len(changes)
        self._held[xid] = _Held(start_scn, changes if is_small else None)

    def drop(self, xid: Xid) -> None:
        """Forget a transaction that was rolled back, whether it is known or not."""
        held = self._held.pop(xid, None)
        if held is not None and held.changes is not None:
            self._rows -= len(held.changes)

    def take(self, xid: Xid, before_scn: int) -> Sequence[Change]:
        """Return the changes of a transaction that is committed at an SCN, and forget it.

        Raises ValueError when they are nowhere to be found.
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
