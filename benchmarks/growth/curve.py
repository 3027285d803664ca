"""Curves of cost against size, and the exponent with which a cost grows.

The exponent is the slope of log cost over log size, by least squares: 0 for a cost that
is flat, 1 for one in proportion to the size, 2 for a quadratic one.

A part of most costs is the same at every size, and hides how the rest grows: 1 ms + 1 µs
for each of 1,000 tables has a slope of 0.1. So where a cost may grow, the exponent is that
of what was *added*: cost and size of the smallest size are subtracted from the others,
which gives exactly 1 for every straight line. Near the smallest size the difference is
mostly noise, so only sizes that cost at least `GROWN` times as much are fitted. A cost that
never gets there is mostly fixed; its exponent is the plain slope.

Where a cost should be flat, its fixed part is what it is compared with: the exponent is the
plain slope over all sizes. Cost that doubles over three decades has 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shared.report import Figure, at_most

FLAT, PROPORTIONAL = 0.05, 1.05
GROWN = 3.0


@dataclass(frozen=True, slots=True)
class Curve:
    """The CPU seconds at each size, and the largest exponent that is allowed."""

    name: str
    size_name: str
    costs: Mapping[int, float]
    limit: float = PROPORTIONAL

    def __post_init__(self) -> None:
        if len(self.costs) < 2 or min(self.costs) < 1 or min(self.costs.values()) <= 0:
            raise ValueError(f"{self.name}: two sizes and costs above 0 are needed: {self.costs}")

    @property
    def fixed(self) -> float:
        """The cost that is subtracted before the fit; 0 if none is."""
        return self.costs[min(self.costs)] if self._grown() else 0.0

    @property
    def exponent(self) -> float:
        """The exponent that is judged."""
        return slope(self._grown() or sorted(self.costs.items()))

    def _grown(self) -> list[tuple[int, float]]:
        """Return sizes and costs of what was added; nothing if the plain slope counts."""
        smallest = min(self.costs)
        fixed = self.costs[smallest]
        grown = [
            (size - smallest, cost - fixed)
            for size, cost in sorted(self.costs.items())
            if cost >= GROWN * fixed
        ]
        return grown if self.limit > FLAT and len(grown) > 1 else []


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Return the least-squares slope of log y over log x; at least two different x."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle_x = sum(x for x, _ in logs) / len(logs)
    middle_y = sum(y for _, y in logs) / len(logs)
    square = sum((x - middle_x) ** 2 for x, _ in logs)
    return sum((x - middle_x) * (y - middle_y) for x, y in logs) / square


def least(
    sizes: Sequence[int], repeats: int, measure: Callable[[int], Sequence[float]]
) -> list[dict[int, float]]:
    """Measure every size in turns; return the smallest cost of each, for each of its costs.

    CPU time only ever errs upwards, when another process takes caches and cores.
    """
    found: dict[int, Sequence[float]] = {}
    for _ in range(repeats):
        for size in sizes:
            costs = measure(size)
            found[size] = [min(pair) for pair in zip(costs, found.get(size, costs), strict=True)]
    return [dict(zip(found, column, strict=True)) for column in zip(*found.values(), strict=True)]


def figures_of(curve: Curve) -> Iterator[Figure]:
    """Yield the lines of a curve: each cost, the fixed part, the exponent with its limit."""
    for size, cost in sorted(curve.costs.items()):
        yield Figure(f"{curve.name}, {size:,} {curve.size_name}", cost * 1e6, "µs CPU")
    if curve.fixed:
        yield Figure(f"{curve.name}: of it fixed, not fitted", curve.fixed * 1e6, "µs CPU")
    yield Figure(f"{curve.name}: exponent", curve.exponent, "", at_most(curve.limit))
