"""A transaction under way, and what its statements say about its rows. Pure.

A server in row format writes rows of tables without transactions (MyISAM,
Aria) at once, as a group of their own that ends with COMMIT, whatever becomes
of the transaction around them. So what a ROLLBACK inside a group takes back is
taken back from tables that have transactions; it is in the log only because a
statement of the transaction could not be taken out of it any more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from databus.relay.sources.mysql.binlog.gtid import Gtid
from databus.relay.sources.mysql.replication.changes import ChangeList, Changes
from databus.relay.sources.source import Change, Origin

_SAVEPOINT = re.compile(
    r"(?:SAVEPOINT|ROLLBACK\s+(?:WORK\s+)?TO(?:\s+SAVEPOINT)?|RELEASE\s+SAVEPOINT)\s*"
    r"(?:`((?:[^`]|``)*)`|\"((?:[^\"]|\"\")*)\"|([^\s;]+))\s*;?\s*",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"/\*(?![!M+])\s*(.*?)\s*\*/", re.DOTALL)


@dataclass(slots=True)
class Group:
    """A transaction that has begun and not ended; `begin` marks what was there before it."""

    start_offset: int
    gtid: Gtid
    origin: Origin
    changes: Changes
    begin: Any
    is_begun: bool = False  # rows follow until a commit; else one statement does
    is_prepared: bool = False
    _savepoints: dict[str, Any] = field(default_factory=dict)  # name → mark of what is before it

    def prepare(self) -> None:
        """Keep its changes apart from now on: they are nobody's before its XA COMMIT."""
        if self.changes.mark() != self.begin:
            raise ValueError("an XA transaction begins behind rows")
        self.is_prepared = True
        self.changes = ChangeList()
        self.begin = self.changes.mark()

    def take_prepared(self) -> tuple[Change, ...]:
        """Return its changes and forget them; raises ValueError when they were not kept apart."""
        if isinstance(self.changes, ChangeList) and self.is_prepared:
            taken = tuple(self.changes.changes)
            self.changes.cut(self.begin)
            return taken
        if self.changes.mark() != self.begin:
            raise ValueError("XA PREPARE of a transaction that did not begin as one")
        return ()

    def mark(self, name: str) -> None:
        """Set a savepoint; one of the same name is gone."""
        self._savepoints.pop(name, None)
        self._savepoints[name] = self.changes.mark()

    def roll_back(self, name: str | None = None) -> None:
        """Take changes back, to a savepoint or all; raises ValueError when there is no such."""
        if name is None:
            self.changes.cut(self.begin)
            return
        if name not in self._savepoints:
            raise ValueError(f"ROLLBACK TO {name}, a savepoint that was not set")
        self.changes.cut(self._savepoints[name])
        later = list(self._savepoints)
        for other in later[later.index(name) + 1 :]:
            del self._savepoints[other]


def first_scn_of(begin_scn: int) -> int:
    """Return the lowest SCN behind every window before a transaction, given where it begins.

    That is where the window before it may end, and its own end is further on. A schema
    version that only rows show begins there: known with the first of them, and whichever
    of them is read first.
    """
    return begin_scn + 1


def savepoint_name(text: str) -> str:
    """Return the savepoint that a statement names, as servers compare it; raises ValueError."""
    found = _SAVEPOINT.fullmatch(text)
    if found is None:
        raise ValueError(f"the savepoint of {text[:80]!r} cannot be read")
    if found[1] is not None:
        return found[1].replace("``", "`").lower()
    if found[2] is not None:
        return found[2].replace('""', '"').lower()
    return found[3].lower()


def statement_comment(statement: bytes) -> str | None:
    """Return the comment that a statement begins or ends with."""
    if b"/*" not in statement:
        return None
    text = statement.decode("utf-8", "replace").strip().rstrip(";").rstrip()
    found = _COMMENT.match(text)
    if found is None and text.endswith("*/"):
        found = _COMMENT.fullmatch(text, text.rfind("/*"))
    return found[1] if found else None
