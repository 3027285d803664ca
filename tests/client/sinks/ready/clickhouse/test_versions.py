"""The versions of rows: whatever comes again, and in what pieces, the newest change is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, strategies as st

from databus.client.sinks.contract import Change, TransactionInfo
from databus.client.sinks.ready.clickhouse.versions import version_of
from databus.client.sinks.ready.net_changes import net_changes
from tests.client.sinks.ready.sql.targets import Source

T = Source({"id": "int", "v": "int"})
Rows = dict[int, int]


class Replacing:
    """What ReplacingMergeTree keeps: of each key the greatest version, of equal ones the last."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, Change]] = {}

    def flush(self, changes: Sequence[Change]) -> None:
        """Take changes as the sink sends them, between TRUNCATEs."""
        waiting: list[Change] = []
        for change in changes:
            if change.op != "truncate":
                waiting.append(change)
                continue
            self._insert(waiting)
            waiting = []
            # Rows that are older are deleted with its version.
            gone = [key for key, (_, one) in self._held.items() if one.after is not None]
            rows = [replace(T.delete(key, 0), scn=change.scn, index=change.index) for key in gone]
            self._insert([one for one in rows if self._held[one.key["id"]][0] < version_of(one)])
        self._insert(waiting)

    def _insert(self, changes: Sequence[Change]) -> None:
        for one in net_changes(changes, 2):
            key, version = one.key["id"], version_of(one)
            if key not in self._held or self._held[key][0] <= version:
                self._held[key] = version, one

    @property
    def rows(self) -> Rows:
        """The rows that FINAL shows."""
        held = ((key, one.after) for key, (_, one) in self._held.items())
        return {key: row["v"] for key, row in held if row is not None}


Steps = list[list[tuple[int, int]]]  # transactions of (key, value); -1 deletes, key 9 empties
steps = st.lists(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 9]), st.integers(-1, 99)), min_size=1, max_size=5),
    max_size=12,
)


def transactions(made: Steps) -> tuple[list[list[Change]], list[Rows]]:
    """Return the changes of each transaction, and the rows after it."""
    found: list[list[Change]] = []
    rows: Rows = {}
    after: list[Rows] = []
    for scn, changes in enumerate(made, 1):
        told: list[Change] = []
        for index, (key, value) in enumerate(changes):
            place = {"scn": scn, "index": index}
            if key == 9:
                rows = {}
                told.append(T.made("truncate", **place))
            elif value < 0:
                told.append(T.delete(key, rows.pop(key, 0), **place))
            else:
                told.append(T.made("update" if key in rows else "insert", key, value, **place))
                rows = rows | {key: value}
        found.append(told)
        after.append(dict(rows))
    return found, after


@given(steps, st.data())
def test_replays_of_any_prefixes_end_with_the_rows_of_the_source(
    made: Steps, data: st.DataObject
) -> None:
    told, after = transactions(made)
    target = Replacing()
    reached = 0
    for _ in range(data.draw(st.integers(0, 4))):
        # A process goes on at or before where the last one was, and is killed anywhere.
        begin = data.draw(st.integers(0, reached))
        end = data.draw(st.integers(begin, len(told)))
        for cut in range(begin, end):
            target.flush(told[cut])
        reached = max(reached, end)
    target.flush([one for transaction in told for one in transaction])
    assert target.rows == (after[-1] if after else {})
    for late in data.draw(st.lists(st.sampled_from(told), max_size=5)) if told else []:
        target.flush(late)  # of a process that hung
    assert target.rows == (after[-1] if after else {})


@given(steps, st.data())
def test_rows_of_a_reload_win_over_older_changes_and_lose_to_newer_ones(
    made: Steps, data: st.DataObject
) -> None:
    told, after = transactions(made)
    target = Replacing()
    for at, transaction in enumerate(told):
        target.flush(transaction)
        if data.draw(st.booleans()):
            # As of this moment or an earlier one.
            seen = data.draw(st.integers(0, at))
            page = TransactionInfo(seen + 1, 1, phase="snapshot")
            shown = (T.made("snapshot", *row, scn=seen + 1) for row in after[seen].items())
            target.flush([replace(one, transaction=page, index=77) for one in shown])
            assert target.rows == after[at]


def test_the_later_change_of_a_transaction_has_the_greater_version() -> None:
    scn = (1 << 63) - 2
    versions = [
        version_of(T.insert(1, 1, scn=scn - 1, index=(1 << 31))),
        version_of(T.insert(1, 1, scn=scn, index=0)),
        version_of(T.update(1, 1, scn=scn, index=1)),
        version_of(T.made("snapshot", 1, 1, scn=scn)),
        version_of(T.update(1, 1, scn=scn + 1, index=0)),
    ]
    assert versions == sorted(set(versions))
    assert versions[-1] < 1 << 128
