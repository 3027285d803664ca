"""A row for each version of a row: the rules of mode `scd2`. Pure.

    _databus_scn      the SCN from which the version was the row
    _databus_to_scn   the SCN from which it was not any more; null: it is the row now
    _databus_from, _databus_to   the commit times of both
    _databus_index    the place in its window of the change that it begins with
    _databus_as_of    the newest SCN as of which it is known to have been the row

The table as of SCN X is what has `_databus_scn <= X` and no `_databus_to_scn <= X`.

- A change begins a version, which ends that before it. It may come late: then it ends
  where the next one begins, or where the one ended that it divides.
- A delete ends the version that was there at its SCN, a truncate all of its source.
- A row of a snapshot begins a version if it is newer than the newest one of its key, and
  has other values. That version begins behind what the table has followed already
  (`reached`): up to there every change is known, so the row cannot have been another.
- The end of a snapshot at SCN B ends the current versions up to B that are not known to
  have been the row as of B; also behind what the table has followed already.

So the versions are the same if a batch is applied again, or batches from an earlier one
on. What they tell of an SCN that the table has followed does not change any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from databus.client.spark.modes.every_change import LAST_INDEX, MOMENT, EveryChange, Told
from databus.client.spark.modes.facts import (
    NEVER,
    Fact,
    Kind,
    Values,
    facts_of,
    moments,
    scns,
)
from databus.client.spark.targets.changes import AS_OF, DELETE, SCN, SOURCE, Changes
from databus.client.spark.targets.merge_plan import Comparison, Condition
from databus.client.sql.modes import FROM, INDEX, TO, TO_SCN

EXTRAS = pa.schema(
    [
        (FROM, MOMENT), (TO, MOMENT), (SCN, pa.int64()), (TO_SCN, pa.int64()),
        (INDEX, pa.int32()), (AS_OF, pa.int64()),
    ]
)  # fmt: skip


@dataclass(slots=True)
class Version:
    """One version. `row`: its place in `Values`; `was_held`: the table has it already."""

    row: int
    scn: int
    to_scn: int
    begin: int
    end: int
    index: int
    as_of: int
    was_held: bool
    is_changed: bool = False
    is_gone: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it is the row now."""
        return self.to_scn == NEVER

    def holds(self, scn: int) -> bool:
        """Whether it was the row just before an SCN, and as of it unless it ends there."""
        return self.scn < scn and (self.is_open or self.to_scn > scn)

    def ends(self, scn: int, time: int) -> None:
        """End it; one that ends where it begins is no version."""
        self.to_scn, self.end, self.is_changed = scn, max(time, self.begin), True
        self.is_gone = scn <= self.scn

    def goes_on(self) -> None:
        """Let it be the row now: it had not ended."""
        self.to_scn, self.end, self.is_changed = NEVER, NEVER, True

    def is_proven(self, as_of: int) -> None:
        """Note that it is known to have been the row as of an SCN."""
        if as_of > self.as_of:
            self.as_of, self.is_changed = as_of, True


def others(told: Sequence[Told], has_source: bool) -> list[Condition]:
    """Return the conditions of the versions that truncates and ends of snapshots may end."""
    found: list[Condition] = []
    for one in told:
        tests = [Comparison(SOURCE, "=", one.source)] if has_source else []
        if one.is_truncate:
            tests += [
                Comparison(SCN, "<", one.scn), Comparison(TO_SCN, ">", one.scn, or_null=True),
            ]  # fmt: skip
        else:
            tests += [
                Comparison(SCN, "<=", one.scn),
                Comparison(TO_SCN, "null"),
                Comparison(AS_OF, "<", one.scn, or_null=True),
            ]
        found.append(tests)
    return found


def least(batch: EveryChange) -> Condition:
    """Return the condition of all versions that a batch may change."""
    oldest = [one.scn for one in batch.told]
    if batch.rows.num_rows:
        oldest.append(int(np.asarray(batch.rows[SCN]).min()))
    return [Comparison(TO_SCN, ">=", min(oldest, default=0), or_null=True)]


def changes_of(
    batch: EveryChange, held: pa.Table, reached: Mapping[str, int], uri: str = ""
) -> Changes:
    """Return the versions that a batch begins, ends or removes, as changes of the table.

    `held`: the table's versions of the batch's keys, and those of `others`. `reached`: by
    source, the SCN up to which the table has followed before.
    """
    values = Values.of(held, batch, EXTRAS, uri)
    line = _Line(values, batch, reached)
    found: list[Version] = []
    known = _by_code(values)
    for code, facts in facts_of(batch, values):
        versions = known.get(code, [])
        for fact in facts:
            line.add(versions, fact)
        found += [one for one in versions if one.is_changed and (one.was_held or not one.is_gone)]
        found += line.removed
        line.removed = []
    rows = _rows(found, values)
    keys = (*batch.keys, SCN)
    return Changes(rows, keys, (), batch.positions, batch.source, batch.mode)


def _by_code(values: Values) -> dict[int, list[Version]]:
    """Return the versions of each key, the oldest first, by the key's code."""
    columns = [values.numbers(name) for name in (SCN, TO_SCN, FROM, TO, INDEX, AS_OF)]
    known: dict[int, list[Version]] = {}
    codes = values.codes[: values.held].tolist()
    lines = zip(range(values.held), codes, *columns, strict=True)
    for row, code, scn, to_scn, begin, end, index, as_of in sorted(lines, key=lambda one: one[2]):
        versions = known.setdefault(code, [])
        # A database finds a version twice: by its key, and by what marks end.
        if not versions or versions[-1].scn != scn:
            versions.append(Version(row, scn, to_scn, begin, end, index, as_of, was_held=True))
    return known


class _Line:
    """Adds facts to the versions of a key."""

    def __init__(self, values: Values, batch: EveryChange, reached: Mapping[str, int]) -> None:
        self._reached = reached
        self._newest = batch.newest_us
        self._same: np.ndarray | None = None
        self._values, self._columns = values, batch.columns
        self.removed: list[Version] = []

    def add(self, versions: list[Version], fact: Fact) -> None:
        """Add a fact; versions stay ordered by their SCNs."""
        match fact.kind:
            case Kind.CHANGE:
                self._change(versions, fact)
            case Kind.SNAPSHOT:
                self._snapshot(versions, fact)
            case Kind.END:
                self._end(versions, fact)
            case _:
                self._gone(versions, fact)

    def _change(self, versions: list[Version], fact: Fact) -> None:
        at = bisect_left(versions, fact.scn, key=lambda one: one.scn)
        if at < len(versions) and versions[at].scn == fact.scn:
            self._is_read(versions[at], fact)
            return
        made = self._begun(fact, fact.scn)
        following = versions[at] if at < len(versions) else None
        before = versions[at - 1] if at else None
        if before is not None and before.holds(fact.scn):
            made.to_scn, made.end = before.to_scn, before.end
            before.ends(fact.scn, self._time(fact))
        elif following is not None:
            made.to_scn, made.end = following.scn, following.begin
        versions.insert(at, made)

    def _gone(self, versions: list[Version], fact: Fact) -> None:
        at = bisect_left(versions, fact.scn, key=lambda one: one.scn)
        if at and versions[at - 1].holds(fact.scn):
            versions[at - 1].ends(fact.scn, self._time(fact))
        is_here = at < len(versions) and versions[at].scn == fact.scn
        if is_here and fact.kind is Kind.DELETE:
            self._remove(versions, at)

    def _snapshot(self, versions: list[Version], fact: Fact) -> None:
        last = versions[-1] if versions else None
        if last is not None and last.scn >= fact.scn:
            if last.scn == fact.scn:
                self._is_read(last, fact)
                if not last.is_open and last.to_scn <= fact.as_of:
                    last.goes_on()
            if last.is_open:
                last.is_proven(fact.as_of)
            return
        if last is not None and (last.is_open or fact.scn < last.to_scn):
            if not last.is_open and last.to_scn > fact.as_of:
                return  # its end is newer than the snapshot
            if self._is_same(last.row, fact.row):
                if not last.is_open:
                    last.goes_on()
                last.is_proven(fact.as_of)
                return
        begin = self._behind(fact)
        if last is not None:
            begin = max(begin, last.scn + 1)
            if last.is_open or last.to_scn > begin:
                last.ends(begin, self._time(fact))
        versions.append(self._begun(fact, begin))

    def _is_read(self, one: Version, fact: Fact) -> None:
        """Take the values of a version from what tells it once more."""
        if not self._is_same(one.row, fact.row):
            one.row, one.is_changed = fact.row, True
        index = _index(fact)
        if index not in (NEVER, one.index):
            one.index, one.is_changed = index, True
        one.is_proven(fact.as_of)

    def _end(self, versions: list[Version], fact: Fact) -> None:
        last = versions[-1] if versions else None
        if last is None or not last.is_open or last.scn > fact.scn or last.as_of >= fact.as_of:
            return
        last.ends(self._behind(fact), self._time(fact))
        if last.is_gone:
            self._remove(versions, len(versions) - 1)

    def _remove(self, versions: list[Version], at: int) -> None:
        one = versions.pop(at)
        if one.was_held:
            one.is_gone = True
            self.removed.append(one)

    def _begun(self, fact: Fact, scn: int) -> Version:
        begin = fact.time if scn == fact.scn else self._time(fact)
        made = Version(
            fact.row, scn, NEVER, begin, NEVER, _index(fact), max(fact.as_of, scn), False
        )
        made.is_changed = True
        return made

    def _behind(self, fact: Fact) -> int:
        """Return the SCN from which on a snapshot may tell something new."""
        return max(fact.scn, self._reached.get(fact.source, NEVER) + 1)

    def _time(self, fact: Fact) -> int:
        """Return the time of a fact, or the newest that is known: what has ended has a time."""
        return self._newest if fact.time == NEVER else fact.time

    def _is_same(self, one: int, other: int) -> bool:
        if self._same is None:
            self._same = self._values.value_codes(self._columns)
        return bool(self._same[one] == self._same[other])


def _index(fact: Fact) -> int:
    return NEVER if fact.place == LAST_INDEX else fact.place


def _rows(found: Sequence[Version], values: Values) -> pa.Table:
    rows = values.taken([one.row for one in found])
    columns = {
        FROM: moments([one.begin for one in found]),
        TO: moments([one.end for one in found]),
        SCN: scns([one.scn for one in found]),
        TO_SCN: scns([one.to_scn for one in found]),
        INDEX: scns([one.index for one in found]).cast(pa.int32()),
        AS_OF: scns([one.as_of for one in found]),
        DELETE: pa.array([one.is_gone for one in found], pa.bool_()),
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows
