"""Only the net change of each key: what several changes of a row do together. Pure.

For targets that hold rows by key and have no other unique key. Not across a truncate or a
statement, which concern all keys. An insert that is deleted again stays a delete: after a restart
the target may have the row.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

from databus.client.sinks.contract import MARKS, Change, ChangeOp, Row

_NEW = frozenset({ChangeOp.INSERT, ChangeOp.SNAPSHOT})  # the row was not there before


def compacted(changes: Iterable[Change]) -> list[Change]:
    """Return one change for each key between marks, in the order of the last changes.

    The position of the last change is on the last change that is returned.
    """
    found: list[Change] = []
    held: dict[Hashable, Change] = {}
    position = None
    for change in changes:
        position = change.position or position
        if change.op in MARKS:
            found += held.values()
            held.clear()
            found.append(change)
            continue
        key = (change.source, *(_hashable(value) for value in change.key.values()))
        before = held.pop(key, None)  # removed first, so that the key moves to the end
        if before is not None and before.schema != change.schema:
            found.append(before)  # rows of two schemas cannot be one
            before = None
        held[key] = change if before is None else merged(before, change)
    found += held.values()
    placed = [replace(one, position=None) if one.position else one for one in found[:-1]]
    return placed + [replace(one, position=position) for one in found[-1:]]


def merged(first: Change, then: Change) -> Change:
    """Return the change that does what two changes of one key do, one after the other."""
    was_there = first.op not in _NEW
    if then.after is None:
        return replace(then, before=first.before if was_there else then.before)
    if first.after is None or then.op in _NEW:
        after: Row = then.after
    else:
        after = {**first.after, **then.after}  # an update may have only some columns
    if was_there:
        return replace(then, op=ChangeOp.UPDATE, before=first.before, after=after)
    return replace(then, op=first.op, before=None, after=after)


def _hashable(value: object) -> Hashable:
    return repr(value) if isinstance(value, list | Mapping) else value
