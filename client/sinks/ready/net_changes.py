"""The net change of each key of one table: what several changes of a row do together. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from databus.client.sinks.contract import Change
from databus.client.sinks.rules.compaction import merged


def net_changes(changes: Sequence[Change], columns: int) -> list[Change]:
    """Return one change for each key; `columns`: so many has a row of which all were logged."""
    keys = [tuple(change.key.values()) for change in changes]
    if len(set(keys)) == len(keys):
        return list(changes)
    held: dict[Hashable, Change] = {}
    for key, change in zip(keys, changes, strict=True):
        before = held.get(key)
        if before is not None:
            change = _together(before, change, columns)
        held[key] = change
    return list(held.values())


def _together(first: Change, then: Change, columns: int) -> Change:
    if then.after is None:
        # An insert that is deleted again stays a delete: after a restart the row may be there.
        return then
    if len(then.after) >= columns:
        return then
    together = merged(first, then)
    # What is there afterwards counts, and the marks are those of the last change.
    return replace(together, op=first.op if first.after is not None else then.op)
