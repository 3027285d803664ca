"""The versions of the rows of one table, for the mode `scd2`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from databus.client.sinks.contract import Change, ChangeOp, Row

Key = tuple[object, ...]


@dataclass(slots=True)
class Version:
    """What a row was from one change on, until another one."""

    change: Change
    row: Row  # as far as it is known
    until: Change | None = None  # None: it is the current one


def versions_of(changes: Sequence[Change]) -> list[Version]:
    """Return the versions that begin with changes, in their order."""
    found: list[Version] = []
    newest: dict[Key, Version] = {}
    for change in changes:
        key = tuple(change.key.values())
        before = newest.pop(key, None)
        if before is not None:
            before.until = change
        if change.after is None:
            continue
        # An update may not have all columns.
        known = before.row if before is not None and change.op is ChangeOp.UPDATE else {}
        version = newest[key] = Version(change, {**known, **change.key, **change.after})
        found.append(version)
    return found


def newer_than(changes: Sequence[Change], current: Mapping[Key, int]) -> list[Change]:
    """Return changes without rows of a snapshot that are no newer than the current version.

    `current`: the SCN of the current version, by key. The row is in it, or has changed since.
    """
    return [
        one
        for one in changes
        if one.op is not ChangeOp.SNAPSHOT or current.get(tuple(one.key.values()), -1) < one.scn
    ]
