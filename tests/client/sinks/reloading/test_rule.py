"""Which rows of a snapshot may be written between changes that go on."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, strategies as st

from databus.client.sinks.reloading.rule import ReloadRule
from databus.testing import change, make_event, make_window

SOURCE = "shop.t"


def test_a_row_that_has_changed_since_is_not_fresh_and_one_at_its_change_is() -> None:
    rule = ReloadRule(SOURCE, 4)
    rule.passes(make_window(change(SOURCE, {"id": 1, "v": 2}), scn=7))
    assert [
        rule.is_fresh(make_event(change(SOURCE, {"id": 1, "v": 1}), scn=n)) for n in (6, 7, 8)
    ] == [
        False,
        True,
        True,
    ]
    assert rule.is_fresh(make_event(change(SOURCE, {"id": 2, "v": 1}), scn=1))


def test_a_row_that_was_deleted_or_has_got_another_key_is_not_fresh() -> None:
    rule = ReloadRule(SOURCE, -1)
    rule.passes(make_window(change(SOURCE, {"id": 1}, "delete"), scn=7))
    moved = change(SOURCE, {"id": 3}, "update", before={"id": 2})
    rule.passes(make_window(moved, scn=8))
    old = [make_event(change(SOURCE, {"id": key}), scn=5) for key in (1, 2, 3, 4)]
    assert [rule.is_fresh(one) for one in old] == [False, False, False, True]


def test_changes_of_other_tables_are_not_counted() -> None:
    rule = ReloadRule(SOURCE, -1)
    rule.passes(make_window(change("shop.other", {"id": 1}), scn=7))
    assert (rule.keys, rule.is_broken) == (0, False)


def test_a_truncate_breaks_it() -> None:
    rule = ReloadRule(SOURCE, -1)
    rule.passes(make_window(change("shop.other", {}, "truncate"), scn=6))
    assert not rule.is_broken
    rule.passes(make_window(change(SOURCE, {}, "truncate"), scn=7))
    assert rule.is_broken


@dataclass
class Table:
    """A table, its log, and its rows at each moment: SCN → key → (SCN of the row, value)."""

    states: list[dict[int, tuple[int, int]]] = field(default_factory=lambda: [{}])
    log: list[tuple[int, int | None]] = field(default_factory=list)

    def write(self, key: int, value: int | None) -> None:
        self.log.append((key, value))
        rows = dict(self.states[-1])
        rows.pop(key, None)
        if value is not None:
            rows[key] = (len(self.log), value)
        self.states.append(rows)


KEYS = range(4)


@given(
    before=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=6),
    after=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=12),
    lag=st.integers(0, 6),
    pauses=st.lists(st.integers(0, 4), min_size=len(KEYS), max_size=len(KEYS)),
    lost=st.sets(st.sampled_from(KEYS)),
)
def test_the_target_ends_as_the_source_whatever_moments_pages_are_of(
    before: list[tuple[int, bool]],
    after: list[tuple[int, bool]],
    lag: int,
    pauses: list[int],
    lost: set[int],
) -> None:
    table = Table()
    for number, (key, is_delete) in enumerate([*before, *after]):
        table.write(key, None if is_delete else number)
    passed = len(before)
    target = {key: row for key, row in table.states[passed].items() if key not in lost}
    rule = ReloadRule(SOURCE, passed)

    def pass_one() -> None:
        nonlocal passed
        key, value = table.log[passed]
        passed += 1
        what = change(SOURCE, {"id": key}, "delete" if value is None else "insert")
        rule.passes(make_window(what, scn=passed))
        target.pop(key, None)
        if value is not None:
            target[key] = (passed, value)

    moment = min(passed + lag, len(table.log))  # of the first page; those after it are newer
    for key, pause in zip(KEYS, pauses, strict=True):
        moment = max(moment, min(moment + pause, len(table.log)))
        row = table.states[moment].get(key)
        if row is None:
            continue
        while passed < row[0] or (pause % 2 and passed < len(table.log)):
            pass_one()
        if rule.is_fresh(make_event(change(SOURCE, {"id": key}), scn=row[0])):
            assert target.get(key, row)[0] <= row[0], "an older row overwrites a newer one"
            target[key] = row
    while passed < len(table.log):
        pass_one()
    assert target == table.states[-1]
