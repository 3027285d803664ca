"""An update that changes the key is a delete, and an insert after it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from databus.client.sinks.contract import Change, ChangeOp, Row


def split_move(change: Change) -> Iterator[Change]:
    """Yield the change, or the two halves of an update whose row before had another key."""
    before = change.before if change.op is ChangeOp.UPDATE else None
    old = None if before is None else _old_key(change.key, before)
    if old is None:
        yield change
        return
    yield replace(change, op=ChangeOp.DELETE, key=old, after=None, is_move=True)
    yield replace(change, op=ChangeOp.INSERT, before=None, is_move=True)


def _old_key(key: Row, before: Row) -> Row | None:
    """Return the key before an update, None if it is the same, or not known."""
    if all(before.get(column, value) == value for column, value in key.items()):
        return None
    return {column: before.get(column, value) for column, value in key.items()}
