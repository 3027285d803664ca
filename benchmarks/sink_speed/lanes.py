"""What lanes gain where each flush waits 5 ms for its target: transactions a second by lanes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import click

from benchmarks.shared.report import Figure, at_least, publish
from databus.client.sinks.running.feed import Feed
from databus.testing.recorder import Recorder
from tests.client.sinks.changes import ListedStream, plan_of, window

LATENCY_S = 0.005
LANES = (1, 2, 4)
TRANSACTIONS, SHORT_TRANSACTIONS = 1000, 100
TURNS, SHORT_TURNS = 3, 1


def measure(lanes: int, transactions: int) -> float:
    """Return how many transactions a second, each of one row and a flush of its own."""
    recorder = Recorder(sleep_s=LATENCY_S)
    stream = ListedStream(*(window(scn, ("t", scn)) for scn in range(1, transactions + 1)))
    feed = Feed(plan_of(recorder, order="row", lanes=lanes), stream)
    began_s = time.perf_counter()
    feed.start()
    while feed.status.rows < transactions:
        time.sleep(0.001)
    took_s = time.perf_counter() - began_s
    feed.stop()
    return transactions / took_s


def figures(short: bool = False) -> list[Figure]:
    """Measure each number of lanes, by turns."""
    transactions, turns = (SHORT_TRANSACTIONS, SHORT_TURNS) if short else (TRANSACTIONS, TURNS)
    rates: dict[int, list[float]] = {lanes: [] for lanes in LANES}
    for _ in range(turns):
        for lanes, found in rates.items():
            found.append(measure(lanes, transactions))
    medians = {lanes: statistics.median(found) for lanes, found in rates.items()}
    return [*map(_rate, medians.items()), _gain([medians[1], medians[4]])]


def _rate(measured: tuple[int, float]) -> Figure:
    lanes, rate = measured
    return Figure(f"target with 5 ms latency, {lanes} lanes", rate, "transactions/s")


def _gain(rates: Sequence[float]) -> Figure:
    one, four = rates
    return Figure("target with 5 ms latency: 4 lanes / 1 lane", four / one, "x", at_least(3.0))


@click.command()
@click.option("--short", is_flag=True, help="Fewer transactions and turns.")
def main(short: bool) -> None:
    """Measure what lanes gain on a target with latency."""
    publish("lanes", figures(short))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.sink_speed.lanes")
