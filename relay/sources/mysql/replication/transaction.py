"""The current transaction, its savepoints and its rollbacks. Pure.

A server in row format logs rows of non-transactional tables (MyISAM, Aria) immediately, as a
group of their own that ends with COMMIT, whether or not the surrounding transaction commits. So
a ROLLBACK inside a group concerns transactional tables only. It is in the log because the server
could not remove a statement of the transaction any more.
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
    """A transaction that has begun and not ended; `begin` is the mark before its changes."""

    start_offset: int
    gtid: Gtid
    origin: Origin
    changes: Changes
    begin: Any
    is_begun: bool = False  # ends with a commit; otherwise after one statement
    is_prepared: bool = False
    _savepoints: dict[str, Any] = field(default_factory=dict)  # name → mark, in order

    def prepare(self) -> None:
        """Collect its changes in a list of their own, because they are valid only at XA COMMIT."""
        if self.changes.mark() != self.begin:
            raise ValueError("an XA transaction begins after rows")
        self.is_prepared = True
        self.changes = ChangeList()
        self.begin = self.changes.mark()

    def take_prepared(self) -> tuple[Change, ...]:
        """Remove and return its changes; raises ValueError if they are not in a list."""
        if isinstance(self.changes, ChangeList) and self.is_prepared:
            taken = tuple(self.changes.changes)
            self.changes.cut(self.begin)
            return taken
        if self.changes.mark() != self.begin:
            raise ValueError("XA PREPARE of a transaction that did not begin as one")
        return ()

    def mark(self, name: str) -> None:
        """Set a savepoint; it replaces one of the same name."""
        self._savepoints.pop(name, None)
        self._savepoints[name] = self.changes.mark()

    def roll_back(self, name: str | None = None) -> None:
        """Remove the changes since a savepoint, or all; raises ValueError without the savepoint."""
        if name is None:
            self.changes.cut(self.begin)
            return
        if name not in self._savepoints:
            raise ValueError(f"ROLLBACK TO {name}, a savepoint that was not set")
        self.changes.cut(self._savepoints[name])
        # SQL: ROLLBACK TO keeps the savepoint and removes those set after it.
        later = list(self._savepoints)
        for other in later[later.index(name) + 1 :]:
            del self._savepoints[other]


def first_scn_of(begin_scn: int) -> int:
    """Return the lowest SCN after every earlier window, given where a transaction begins.

    An earlier window may end exactly at that begin. A schema version that is found by the rows
    of the transaction is valid from this SCN, so it does not depend on which row is read first.
    """
    return begin_scn + 1


def savepoint_name(text: str) -> str:
    """Return a statement's savepoint in lower case, as servers compare it; raises ValueError."""
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
