"""The oracle of the cluster torture sees each way in which a group could break its promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest

from benchmarks.cluster_torture.checks import ClusterFindings, Span, check
from benchmarks.cluster_torture.log import Entry, Kind
from benchmarks.cluster_torture.plan import FaultKind, Plan, plan_faults

A, B = "0.100", "1.200"
CHANGES = {1: [2, 4, 5], 2: [2]}


def began(run: str, at_s: float, term: int, scn: int) -> Entry:
    return Entry("began", run, at_s, at_s + 0.1, "0.3", term, scn)


def row(run: str, at_s: float, term: int, scn: int, serial: int, key: int = 1) -> Entry:
    return Entry("row", run, at_s, at_s, "0.3", term, scn, key, serial)


def kept(kind: Kind, run: str, at_s: float, term: int, scn: int) -> Entry:
    return Entry(kind, run, at_s, at_s + 0.1, "0.3", term, scn)


# A delivers windows 10 and 20 and stores the first one; B begins behind that.
HISTORY = (
    began(A, 1, 1, -1),
    row(A, 2, 1, 10, 2),
    row(A, 3, 1, 10, 2, key=2),
    kept("stored", A, 4, 1, 10),
    row(A, 5, 1, 20, 4),
    began(B, 9, 2, 10),
    row(B, 10, 2, 20, 4),
    row(B, 11, 2, 30, 5),
    kept("stored", B, 12, 2, 30),
)


def checked(
    *more: Entry,
    left_out: Sequence[Entry] = (),
    freezes: Sequence[Span] = (),
    clean: Sequence[Span] = (),
) -> ClusterFindings:
    entries = [entry for entry in (*HISTORY, *more) if entry not in left_out]
    return check(entries, CHANGES, freezes, clean, {A: 6.0})


def test_what_comes_twice_from_a_checkpoint_on_is_counted_and_is_no_problem() -> None:
    found = checked(kept("refused", A, 13, 1, 20))
    assert found.problems == []
    assert (found.rows, found.twice, found.terms) == (5, 1, 2)
    assert (found.stored, found.refused, found.late) == (2, 1, 0)
    assert found.takeovers_s == [pytest.approx(3.1)]


@pytest.mark.parametrize(
    ("more", "left_out", "said"),
    [
        ((), (HISTORY[7],), "key 1: 1 changes were lost"),
        ((), (HISTORY[4], HISTORY[6]), "change 5 of key 1 in window 30 came before 4"),
        ((row(B, 12, 2, 40, 6),), (), "was never committed"),
        ((row(B, 12, 2, 30, 5),), (), "came twice under one term"),
        ((row(B, 12, 2, 10, 2),), (), "its term began behind it, at 10"),
        ((began(A, 20, 2, 30),), (), f"both {B} and {A} have this term"),
        ((began(A, 20, 1, 30),), (), "after a greater one"),
        ((began(A, 20, 3, 20),), (), "began at 20, and 30 was stored before"),
        ((kept("stored", A, 13, 1, 20),), (), "20 was stored after a greater term"),
        ((row(A, 13, 1, 30, 5),), (), "3.900 s after partition 0.3, term 2"),
        ((row(A, 13, 9, 40, 5),), (), "came without a term"),
        ((Entry("problem", A, 1, 1, text="it stopped"),), (), f"process {A}: it stopped"),
    ],
)
def test_each_broken_promise_is_a_problem(
    more: Sequence[Entry], left_out: Sequence[Entry], said: str
) -> None:
    problems = checked(*more, left_out=left_out).problems
    assert any(said in problem for problem in problems), problems


def test_only_the_window_in_which_a_process_was_frozen_may_come_late() -> None:
    frozen = [Span(5.5, 12.5, A)]
    last = row(A, 13, 1, 20, 5)
    found = checked(last, freezes=frozen)
    assert (found.problems, found.late) == ([], 1)
    for span in (Span(5.5, 12.5, B), Span(9.5, 12.5, A)):
        assert checked(last, freezes=[span]).problem_count == 1
    (problem,) = checked(row(A, 13, 1, 20, 4), row(A, 14, 1, 30, 5), freezes=frozen).problems[1:]
    assert "window 30 came 4.900 s after" in problem


def test_nothing_may_come_twice_while_nothing_happens() -> None:
    assert checked(clean=[Span(0, 6)]).problem_count == 0
    (problem,) = checked(clean=[Span(9, 20)]).problems
    assert "came twice, and nothing had happened" in problem


def test_what_comes_after_a_rollback_may_come_twice_under_one_term() -> None:
    again = row(B, 13, 2, 30, 5)
    assert checked(kept("rollback", B, 12.5, 0, 20), again).problem_count == 0


def test_faults_are_drawn_from_the_seed_and_all_that_must_be_are_longer_than_a_lease() -> None:
    plan = Plan(6, 32, 50, 20, 10, 3, 1)
    faults = plan_faults(plan)
    assert faults == plan_faults(plan)
    kinds = [fault.kind for fault in faults]
    starts = Counter(kind.split()[0] for kind in kinds)
    assert starts == {"kill": 52, "stop": 20, "cut": 10}
    assert set(kinds) == set(get_args(FaultKind))
    long = [fault.lasts_s for fault in faults if not fault.kind.startswith("kill")]
    assert min(long) > 1.25 * plan.ttl_s
    assert long.count(10 * plan.ttl_s) == 4
    without = {fault.kind for fault in plan_faults(Plan(6, 32, 50, 20, 10, 0, 1))}
    assert without == {
        *("kill consumer", "kill relay", "stop consumer", "stop relay", "cut from relay")
    }
