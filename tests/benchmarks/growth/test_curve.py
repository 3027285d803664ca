"""The exponent of a curve, and what is fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from benchmarks.growth.curve import FLAT, PROPORTIONAL, Curve, figures_of, least, slope

SIZES = (1, 10, 100, 1000)


def curve(cost: Callable[[int], float], limit: float = PROPORTIONAL) -> Curve:
    return Curve("work", "rows", {size: cost(size) for size in SIZES}, limit)


@pytest.mark.parametrize("power", [0, 0.5, 1, 2])
def test_the_slope_is_the_power(power: float) -> None:
    assert slope((size, 3 * size**power) for size in SIZES) == pytest.approx(power)


@pytest.mark.parametrize("fixed", [0, 0.1, 5, 30])
def test_a_straight_line_has_the_exponent_1_whatever_part_of_it_is_fixed(fixed: float) -> None:
    assert curve(lambda size: fixed + 2 * size).exponent == pytest.approx(1)


def test_a_fixed_cost_does_not_hide_quadratic_growth() -> None:
    grown = curve(lambda size: 50 + size * size / 50)
    assert grown.exponent > 1.9
    assert grown.fixed == pytest.approx(50.02)


def test_only_sizes_that_cost_more_than_noise_are_fitted() -> None:
    # The second size has a tenth of noise on a cost that is nearly all fixed.
    noisy = {1: 100.0, 10: 112.0, 100: 300.0, 1000: 2098.0, 10_000: 20_098.0}
    assert Curve("work", "rows", noisy).exponent == pytest.approx(1, abs=0.01)


def test_a_cost_that_hardly_grows_has_its_plain_slope() -> None:
    hardly = curve(lambda size: 1 + size / 1000)
    assert hardly.fixed == 0
    assert 0 < hardly.exponent < 0.2


def test_a_cost_that_should_be_flat_is_judged_with_its_fixed_part() -> None:
    flat = curve(lambda size: 1 + size / 100_000, FLAT)
    assert flat.fixed == 0
    assert flat.exponent < FLAT
    assert curve(lambda size: 1 + size, FLAT).exponent > 0.8


def test_the_exponent_is_judged_against_its_limit() -> None:
    for cost, limit, is_met in (
        (lambda size: size, PROPORTIONAL, True),
        (lambda size: size**1.1, PROPORTIONAL, False),
        (lambda size: size**0.04, FLAT, True),
        (lambda size: size**0.1, FLAT, False),
    ):
        *_, exponent = figures_of(curve(cost, limit))
        assert exponent.is_met is is_met


def test_the_table_has_every_cost_and_the_fixed_part() -> None:
    names = [figure.name for figure in figures_of(curve(lambda size: 5 + size))]
    assert names[0] == "work, 1 rows"
    assert names[3:] == ["work, 1,000 rows", "work: of it fixed, not fitted", "work: exponent"]


@pytest.mark.parametrize("costs", [{}, {1: 1.0}, {0: 1.0, 1: 1.0}, {1: 0.0, 2: 1.0}])
def test_a_curve_needs_two_sizes_and_costs(costs: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="two sizes"):
        Curve("work", "rows", costs)


def test_the_least_of_repeats_that_take_turns_is_kept() -> None:
    asked: list[int] = []
    costs: Iterator[list[float]] = iter([[5.0, 1.0], [7.0, 9.0], [4.0, 2.0], [8.0, 3.0]])

    def measure(size: int) -> list[float]:
        asked.append(size)
        return next(costs)

    assert least((1, 10), 2, measure) == [{1: 4.0, 10: 7.0}, {1: 1.0, 10: 3.0}]
    assert asked == [1, 10, 1, 10]
