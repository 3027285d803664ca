"""What isolation costs: the same class in databus and in a process of its own, by turns.

And what a sink that does harm costs others: one writes alone, and while another one eats
memory, dies, and is started again, and a third leaves children.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from benchmarks.shared.report import Figure, at_least, publish
from benchmarks.sink_speed.rows import FLUSH, changes, parts
from databus.client.sinks.contract import Change, Opening, Sink
from databus.client.sinks.errors import SinkError
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.loading import MakeSink, sink_maker
from databus.conf.loading import build_settings
from databus.conf.sink_settings import SinkSettings

ROWS, SHORT_ROWS = 50_000, 10_000
TURNS, SHORT_TURNS = 7, 2
_OPENING = Opening("speed", "shop")
_ILL = "tests.client.sinks.isolated.ill_sinks:IllSink"
_CLASSES: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "one that does nothing": lambda _: (_ILL, {"harm": "nothing"}),
    "a copy in SQLite": lambda folder: (
        "tests.client.sinks.copy_sink:UpsertCopy",
        {"path": str(folder / "copy.db")},
    ),
}
_AGAIN_S = 1.0  # as the back-off of sinks begins


def _isolated(kind: str, options: dict[str, Any], **limits: Any) -> MakeSink:
    raw = {"name": "speed", "kind": kind, "sources": ["x.y"], "options": options}
    return IsolatedMaker(build_settings({**raw, "limits": limits}, SinkSettings))


def _rate(sink: Sink, listed: Sequence[Change]) -> float:
    began_s = time.perf_counter()
    for flush in parts(list(listed), FLUSH):
        sink.write(flush)
        sink.flush()
    return len(listed) / (time.perf_counter() - began_s)


def measure(name: str, rows: int, turns: int) -> list[Figure]:
    """Return the rates of a class in databus and in its own process, and what a row costs more."""
    with tempfile.TemporaryDirectory(prefix="databus-isolated-") as folder:
        kind, options = _CLASSES[name](Path(folder))
        sinks = {"in databus": sink_maker(kind, options)(), "isolated": _isolated(kind, options)()}
        starts = {}
        for where, sink in sinks.items():
            began_s = time.perf_counter()
            sink.open(_OPENING)
            starts[where] = time.perf_counter() - began_s
        rates: dict[str, list[float]] = {where: [] for where in sinks}
        for turn in range(turns + 1):
            made = changes(turn, rows)
            for where, sink in sinks.items():
                rates[where].append(_rate(sink, made))
        for sink in sinks.values():
            sink.close()
    medians = {where: statistics.median(found[1:]) for where, found in rates.items()}
    more_us = 1e6 / medians["isolated"] - 1e6 / medians["in databus"]
    return [
        *(Figure(f"{name}, {where}", rate, "rows/s") for where, rate in medians.items()),
        Figure(f"{name}: isolated, more for each row", more_us, "us"),
        Figure(f"{name}: isolated / in databus", medians["isolated"] / medians["in databus"], "x"),
        Figure(f"{name}: start of its process", starts["isolated"], "s"),
    ]


def cpu(rows: int) -> list[Figure]:
    """Return the CPU of both processes for each row, without that of the start: of any load."""
    kind, options = _CLASSES["one that does nothing"](Path())
    totals = []
    for count in (1, rows):
        made = changes(0, count)
        began_s = _cpu_s()
        sink = _isolated(kind, options)()
        sink.open(_OPENING)
        _rate(sink, made)
        sink.close()  # then the CPU of the child counts
        totals.append(_cpu_s() - began_s)
    return [
        Figure("isolated: CPU of both for each row", (totals[1] - totals[0]) / rows * 1e6, "us")
    ]


def _cpu_s() -> float:
    found = (resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in found)


@contextmanager
def _harm(harm: str) -> Iterator[None]:
    """Run a sink that does harm, and start it again after 1, 2, 4 … seconds, as sinks are."""
    is_over = threading.Event()
    make = _isolated(_ILL, {"harm": harm}, memory_bytes="256MiB", call_s=5)

    def run() -> None:
        wait_s = _AGAIN_S
        while not is_over.wait(wait_s):
            wait_s *= 2
            sink = make()
            with suppress(SinkError):
                sink.open(_OPENING)
                sink.write(changes(0, 1))
                sink.flush()
            sink.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def beside(rows: int, turns: int) -> list[Figure]:
    """Return the rate of a sink while others do harm, over its rate alone."""
    ratios = []
    with tempfile.TemporaryDirectory(prefix="databus-isolated-") as folder:
        kind, options = _CLASSES["a copy in SQLite"](Path(folder))
        sink = sink_maker(kind, options)()
        sink.open(_OPENING)
        _rate(sink, changes(0, rows))
        for turn in range(turns):
            made = changes(turn, rows)
            alone = _rate(sink, made)
            with _harm("memory"), _harm("children"):
                time.sleep(_AGAIN_S)
                between = _rate(sink, made)
            ratios.append(between / statistics.mean((alone, _rate(sink, made))))
        sink.close()
    ratio = statistics.median(ratios)
    return [Figure("a sink beside others that do harm / alone", ratio, "x", at_least(0.95))]


def figures(short: bool = False) -> list[Figure]:
    """Measure all."""
    rows, turns = (SHORT_ROWS, SHORT_TURNS) if short else (ROWS, TURNS)
    found = [figure for name in _CLASSES for figure in measure(name, rows, turns)]
    return found + cpu(4 * rows) + beside(4 * rows, turns)


@click.command()
@click.option("--short", is_flag=True, help="Fewer rows and turns.")
def main(short: bool) -> None:
    """Measure what isolation costs, and what it saves others from."""
    publish("isolated sinks", figures(short))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.sink_speed.isolated")
