"""The kills are spread over the run, and the writer cannot outrun them."""

from __future__ import annotations

import pytest

from benchmarks.torture.kills import lead_of, plan_kills


@pytest.mark.parametrize(("transactions", "kills"), [(20_000, 20), (400, 3), (50, 5)])
def test_each_victim_dies_once_in_each_part_of_the_run(transactions: int, kills: int) -> None:
    plan = plan_kills(7, transactions, kills)
    part = transactions / (kills + 1)
    assert plan == sorted(plan)
    for victim in ("relay", "client"):
        points = [kill.at for kill in plan if kill.victim == victim]
        assert all(part * n <= at <= part * (n + 1) + 1 for n, at in enumerate(points))
        assert len(points) == kills
    assert all(kill.at < transactions for kill in plan)


def test_equal_seeds_make_equal_plans() -> None:
    assert plan_kills(7, 1000, 9) == plan_kills(7, 1000, 9)
    assert plan_kills(7, 1000, 9) != plan_kills(8, 1000, 9)


def test_no_kills_are_no_plan() -> None:
    assert plan_kills(1, 100, 0) == []


@pytest.mark.parametrize(("transactions", "kills"), [(20_000, 20), (400, 3), (10**6, 0)])
def test_the_writers_lead_is_less_than_a_part_of_the_run(transactions: int, kills: int) -> None:
    assert 5 <= lead_of(transactions, kills) <= min(1000, transactions / (kills + 1))
