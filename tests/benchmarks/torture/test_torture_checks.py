"""The torture's own checks: each broken promise must be seen and named."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.torture.checks import Findings, check_log, check_rows, transactions_of
from benchmarks.torture.log import Delivery
from benchmarks.torture.workload import TABLES


def start(run: int, checkpoint: int) -> Delivery:
    return Delivery(run, "start", checkpoint, [])


def window(run: int, scn: int, *stamps: tuple[int, int, int]) -> Delivery:
    return Delivery(run, "window", scn, list(stamps))


def one(run: int, tx: int) -> Delivery:
    return window(run, tx * 10, (tx, 1, 1))


def rollback(run: int, scn: int) -> Delivery:
    return Delivery(run, "rollback", scn, [])


def problems(*deliveries: Delivery, committed: int) -> list[str]:
    findings = Findings()
    check_log(deliveries, committed, findings)
    return findings.problems


def test_a_run_in_order_has_no_problems() -> None:
    assert problems(start(1, -1), one(1, 1), one(1, 2), committed=2) == []


def test_redelivery_after_the_checkpoint_is_no_problem_and_is_counted() -> None:
    findings = Findings()
    log = [start(1, -1), one(1, 1), one(1, 2), one(1, 3), start(2, 10), one(2, 2), one(2, 3)]
    check_log([*log, one(2, 4)], 4, findings)
    assert findings.problems == []
    assert (findings.redelivered_windows, findings.windows, findings.runs) == (2, 6, 2)


def test_redelivery_after_an_announced_rollback_is_no_problem() -> None:
    log = [start(1, -1), one(1, 1), one(1, 2), rollback(1, 10), one(1, 2), one(1, 3)]
    assert problems(*log, committed=3) == []


BROKEN: list[tuple[str, Sequence[Delivery], str]] = [
    ("a lost transaction", [start(1, -1), one(1, 1), one(1, 3)], "transaction 3 came after 1"),
    ("a lost last one", [start(1, -1), one(1, 1), one(1, 2)], "1 transactions never came: 3"),
    ("one lost by a restart", [start(1, -1), one(1, 1), start(2, 10), one(2, 3)], "2 did not"),
    ("a cut window", [start(1, -1), window(1, 10, (1, 1, 2))], "instead of [(1, 2), (2, 2)]"),
    ("a hole", [start(1, -1), window(1, 10, (1, 1, 3), (1, 3, 3))], "has rows [(1, 3), (3, 3)]"),
    ("a double", [start(1, -1), window(1, 10, (1, 1, 1), (1, 1, 1))], "has rows"),
    ("a step back", [start(1, -1), one(1, 2), one(1, 1)], "went back from 20 unannounced"),
    (
        "more than was announced",
        [start(1, -1), one(1, 1), one(1, 2), rollback(1, 10), one(1, 1)],
        "went back from 10 unannounced",
    ),
    ("too much again", [start(1, -1), one(1, 1), start(2, 10), one(2, 1)], "before the checkp"),
    ("a checkpoint ahead", [start(1, -1), one(1, 1), start(2, 20)], "ahead of the newest"),
    ("a ghost", [start(1, -1), window(1, 10, (-1, 1, 1))], "transaction 1 was rolled back"),
    (
        "another scn",
        [start(1, -1), one(1, 1), start(2, -1), window(2, 11, (1, 1, 1))],
        "transaction 1 came at 10 before",
    ),
    ("what the client saw", [Delivery(1, "problem", 7, [], "no end")], "run 1, window 7: no end"),
]


@pytest.mark.parametrize(
    ("log", "named"), [case[1:] for case in BROKEN], ids=[c[0] for c in BROKEN]
)
def test_a_broken_promise_is_named(log: Sequence[Delivery], named: str) -> None:
    assert any(named in problem for problem in problems(*log, committed=3))


def test_a_window_of_several_transactions_is_cut_into_them() -> None:
    stamps = [(1, 1, 2), (1, 2, 2), (2, 1, 1)]
    assert transactions_of(stamps) == [(1, [(1, 2), (2, 2)]), (2, [(1, 1)])]


def test_each_row_that_differs_is_named() -> None:
    findings = Findings()
    applied = [(1, "a", 0, 1, 1, 1), (2, "b", 0, 1, 1, 1), (3, "c", 0, 1, 1, 1)]
    source = [(1, "a", 0, 1, 1, 1), (2, "B", 0, 1, 1, 1), (4, "d", 0, 1, 1, 1)]
    check_rows(TABLES[0], applied, source, findings)
    assert sorted(findings.problems) == [
        "accounts (2,): (2, 'b', 0, 1, 1, 1) instead of (2, 'B', 0, 1, 1, 1)",
        "accounts (3,): the consumer has it, the source does not",
        "accounts (4,): the consumer does not have it",
    ]


def test_only_the_first_problems_are_kept_and_all_are_counted() -> None:
    findings = Findings()
    check_rows(TABLES[0], [], [(n, None, 0, 1, 1, 1) for n in range(80)], findings)
    assert (findings.problem_count, len(findings.problems)) == (80, 50)
