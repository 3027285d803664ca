"""The rows of the source, and those that were deleted: the rules of mode `soft_delete`. Pure.

    _databus_deleted   true: the source has the row no more; its values are the last ones
    _databus_time      the commit time of its last change, also of the delete

The rules are those of `targets.changes`, with two differences. Where a row would be
removed, it is marked, with the SCN of what removes it; a delete of a row that the table
does not have writes it, marked. So an older change that comes late does not bring it back.
The end of a snapshot marks a row too, but the row keeps its SCN, as the delete itself is
not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from databus.client.spark.modes.every_change import MOMENT, EveryChange, Told
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
from databus.client.sql.modes import DELETED, TIME

EXTRAS = pa.schema([(DELETED, pa.bool_()), (TIME, MOMENT), (SCN, pa.int64()), (AS_OF, pa.int64())])


@dataclass(slots=True)
class _Row:
    """The row of a key. `row`: its place in `Values`.

    `kept`: the place of the table's row, whose values stay in columns that a batch does not have;
    NEVER if the table has none, or a deleted one.
    """

    row: int
    scn: int
    as_of: int
    is_deleted: bool
    time: int
    kept: int = NEVER
    is_changed: bool = False

    def become(self, fact: Fact, *, row: int, is_deleted: bool) -> None:
        """Become what a fact tells."""
        self.row, self.scn, self.is_deleted, self.is_changed = row, fact.scn, is_deleted, True
        self.time = fact.time


def others(told: Sequence[Told], has_source: bool) -> list[Condition]:
    """Return the conditions of the rows that truncates and ends of snapshots may mark."""
    found: list[Condition] = []
    for one in told:
        tests = [Comparison(SOURCE, "=", one.source)] if has_source else []
        tests += [Comparison(SCN, "<=", one.scn), Comparison(DELETED, "=", False)]
        if not one.is_truncate:
            tests.append(Comparison(AS_OF, "<", one.scn, or_null=True))
        found.append(tests)
    return found


def least(batch: EveryChange) -> Condition:  # noqa: ARG001 - one shape for all modes
    """Return the condition of all rows that a batch may change: any."""
    return ()


def changes_of(
    batch: EveryChange,
    held: pa.Table,
    reached: Mapping[str, int],  # noqa: ARG001 - one shape for all modes
    uri: str = "",
) -> Changes:
    """Return the rows that a batch writes or marks, as changes of the table.

    `held`: the table's rows of the batch's keys, and those of `others`.
    """
    values = Values.of(held, batch, EXTRAS, uri)
    columns = [values.numbers(name) for name in (SCN, AS_OF, DELETED, TIME)]
    known: dict[int, _Row] = {}
    codes = values.codes[: values.held].tolist()
    for row, (code, scn, as_of, deleted, time) in enumerate(zip(codes, *columns, strict=True)):
        kept = NEVER if deleted == 1 else row
        known[code] = _Row(row, scn, as_of, deleted == 1, time, kept)
    found: list[_Row] = []
    for code, facts in facts_of(batch, values):
        last = known.get(code)
        for fact in facts:
            last = _after(last, fact)
        if last is not None and last.is_changed:
            found.append(last)
    rows = values.taken([one.row for one in found])
    kept = values.taken([one.row if one.kept == NEVER else one.kept for one in found])
    for place, name in enumerate(rows.column_names):
        if name not in (*batch.columns, *batch.keys):
            rows = rows.set_column(place, rows.schema.field(name), kept[name])
    for name, column in {
        DELETED: pa.array([one.is_deleted for one in found], pa.bool_()),
        TIME: moments([one.time for one in found]),
        SCN: scns([one.scn for one in found]),
        AS_OF: scns([one.as_of for one in found]),
        DELETE: pa.array([False] * len(found), pa.bool_()),
    }.items():
        rows = rows.append_column(name, column)
    return Changes(rows, batch.keys, (), batch.positions, batch.source, batch.mode)


def _after(last: _Row | None, fact: Fact) -> _Row | None:
    """Return the row of a key after a fact."""
    match fact.kind:
        case Kind.CHANGE | Kind.SNAPSHOT:
            if last is None:
                return _Row(fact.row, fact.scn, fact.as_of, False, fact.time, is_changed=True)
            if fact.scn >= last.scn:
                last.become(fact, row=fact.row, is_deleted=False)
                # A snapshot may have had the same row, as of a newer SCN.
                last.as_of = max(last.as_of, fact.as_of)
            elif fact.as_of > last.as_of:
                last.as_of, last.is_changed = fact.as_of, True
        case Kind.DELETE:
            if last is None:
                return _Row(fact.row, fact.scn, fact.as_of, True, fact.time, is_changed=True)
            if fact.scn > last.scn or (fact.scn == last.scn and not last.is_deleted):
                last.become(fact, row=last.row, is_deleted=True)
        case Kind.TRUNCATE:
            if last is not None and not last.is_deleted and last.scn <= fact.scn:
                last.become(fact, row=last.row, is_deleted=True)
        case Kind.END:
            is_gone = last is not None and last.scn <= fact.scn and last.as_of < fact.as_of
            if last is not None and is_gone and not last.is_deleted:
                last.is_deleted, last.is_changed = True, True
                last.time = fact.time
    return last
