"""The kills are spread over the run, and the writer cannot outrun them."""

from __future__ import annotations

import pytest

from benchmarks.torture.kills import lead_of, plan_kills


@pytest.mark.parametrize(("transactions", "kills"), [(20_000, 20), (400, 3), (50, 5)])
def test_each_victim_dies_once_in_each_part_of_the_run(transactions: int, kills: int) -> None:
    spans = {"relay": (0.0, float(transactions)), "client": (transactions / 2, transactions * 0.75)}
    plan = plan_kills(7, spans, kills)
    assert plan == sorted(plan)
    for victim, (begin, end) in spans.items():
        part = (end - begin) / (kills + 1)
        points = [kill.at - begin for kill in plan if kill.victim == victim]
        assert all(part * n <= at <= part * (n + 1) for n, at in enumerate(points))
        assert len(points) == kills


def test_equal_seeds_make_equal_plans() -> None:
    spans = {"relay": (0.0, 3.0), "seeder": (0.0, 1.0)}
    assert plan_kills(7, spans, 9) == plan_kills(7, spans, 9)
    assert plan_kills(7, spans, 9) != plan_kills(8, spans, 9)


def test_no_kills_are_no_plan() -> None:
    assert plan_kills(1, {"relay": (0, 100)}, 0) == []


@pytest.mark.parametrize(("transactions", "kills"), [(20_000, 20), (400, 3), (10**6, 0)])
def test_the_writers_lead_is_less_than_a_part_of_the_run(transactions: int, kills: int) -> None:
    assert 5 <= lead_of(transactions, kills) <= min(1000, transactions / (kills + 1))
