"""Merges of one batch into tables of several sizes, on the driver and on executors.

For each form of a target: seconds, the most memory that its driver held (VmHWM of its Python
process and of its JVM), and the bytes that executors sent to it as results ("Result Size" of
each task in Spark's event log). Merged on executors, neither may grow with the table.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.shared.report import Figure, at_most
from benchmarks.spark_speed.merge_job import Merged, Plan
from benchmarks.spark_speed.merge_rows import KINDS, WARM_UP_ROWS, expected
from databus.demo.processes import Child, child_environment, python_module
from tools.repository import ROOT

# Both forms of a kind merge into the same tables, one after the other.
FORMS = ("delta+spark", "delta", "iceberg+spark", "iceberg")
JOB_S = 3600.0
SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    # Its own is 15 s, in which a busy machine may not get both ends of it to run.
    "spark.python.authenticate.socketTimeout": "120s",
}


@dataclass(frozen=True, slots=True)
class MergeSize:
    """The rows of the tables, in growing order, the changes of a batch, and the executors."""

    rows: tuple[int, ...] = (1_000_000, 5_000_000, 20_000_000)
    changes: int = 100_000
    executor_mb: int = 2048
    executor_options: str = ""

    def master(self) -> str:
        """Return the master of two executors, each a process with one core."""
        return f"local-cluster[2,1,{self.executor_mb}]"


# Its executors end before more compiling pays.
SHORT_MERGE = MergeSize((5_000, 20_000), 2_000, 1024, "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a merge has cost, and whether its table is the right one."""

    merged: Merged
    result_bytes: int
    tasks: int
    is_right: bool

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.merged.ended_ms - self.merged.began_ms) / 1e3


def measure_merges(size: MergeSize, forms: Sequence[str] = FORMS) -> list[Cost]:
    """Make the tables, and merge a batch into each of them, by each form."""
    # Workers find the packages of this process there.
    os.environ["PYTHONPATH"] = f"{child_environment()['PYTHONPATH']}{os.pathsep}{ROOT}"
    folder = Path(tempfile.mkdtemp(prefix="databus-merge-"))
    settings = SPARK | {
        "spark.master": size.master(),
        "spark.executor.memory": f"{size.executor_mb}m",
        "spark.executor.extraJavaOptions": size.executor_options,
        "spark.local.dir": str(folder / "spark"),
    }
    plan = Plan(str(folder), "", size.rows, size.changes, 0, settings)
    turns = dict.fromkeys(KINDS, 0)
    found = list[Cost]()
    try:
        # In a process of its own, as the targets' libraries keep threads.
        sizes = (folder, WARM_UP_ROWS, *size.rows)
        _end(Child("fill", python_module("benchmarks.spark_speed.merge_rows", *sizes), folder))
        for form in forms:
            kind = form.partition("+")[0]
            turns[kind] += 1
            mine = replace(plan, form=form, turn=turns[kind])
            events = _run(mine)
            found += [_cost(one, mine, events) for one in mine.results()]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _run(plan: Plan) -> list[tuple[float, int]]:
    """Run a plan's process to its end; return when each task ended, and the size of its result."""
    folder = Path(plan.folder)
    events = folder / f"events-{plan.form}"
    events.mkdir()
    given = replace(plan, settings=plan.settings | {"spark.eventLog.dir": events.as_uri()})
    _end(Child(plan.form, given.command(), folder))
    (file,) = [one for one in events.iterdir() if one.is_file() and not one.name.startswith(".")]
    return list(_results(file))


def _end(child: Child) -> None:
    """Run a process to its end; raises ChildError with its log if it fails."""
    child.start()
    try:
        child.wait(JOB_S)
        child.check()
    finally:
        child.stop()


def _results(file: Path) -> list[tuple[float, int]]:
    found = []
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if '"SparkListenerTaskEnd"' not in line[:60]:
                continue
            event = json.loads(line)
            size = event.get("Task Metrics", {}).get("Result Size", 0)
            found.append((float(event["Task Info"]["Finish Time"]), int(size)))
    return found


def _cost(merged: Merged, plan: Plan, events: Sequence[tuple[float, int]]) -> Cost:
    mine = [size for at, size in events if merged.began_ms <= at <= merged.ended_ms]
    wanted = expected(merged.rows, plan.changes, plan.turn)
    return Cost(merged, sum(mine), len(mine), merged.sums == wanted)


def merge_figures(size: MergeSize, forms: Sequence[str] = FORMS) -> list[Figure]:
    """Measure, and return the figures of each form and size, and how they grow."""
    costs = measure_merges(size, forms)
    found = [figure for cost in costs for figure in _figures(cost)]
    for form in forms:
        mine = [cost for cost in costs if cost.merged.form == form]
        found += _growth(form, mine[0], mine[-1])
    wrong = sum(not cost.is_right for cost in costs)
    return [*found, Figure("merge: tables that are not as they should be", wrong, "", at_most(0))]


def _figures(cost: Cost) -> list[Figure]:
    name = f"merge {cost.merged.form}, {cost.merged.rows:,} rows"
    return [
        Figure(name, cost.seconds, "s"),
        Figure(f"{name}: driver's Python", cost.merged.python_bytes / (1 << 20), "MiB"),
        Figure(f"{name}: driver's JVM", cost.merged.jvm_bytes / (1 << 20), "MiB"),
        Figure(f"{name}: results", cost.result_bytes / 1000, "kB"),
        Figure(f"{name}: tasks", cost.tasks, ""),
    ]


def _growth(form: str, least: Cost, most: Cost) -> list[Figure]:
    """Return by how much the driver's share grows from the smallest table to the largest."""
    name = f"merge {form}, {most.merged.rows:,} / {least.merged.rows:,} rows"
    is_flat = at_most(1.5) if form.endswith("+spark") else None
    pairs = {
        "driver's Python": (most.merged.python_bytes, least.merged.python_bytes),
        "driver's JVM": (most.merged.jvm_bytes, least.merged.jvm_bytes),
        "results": (most.result_bytes, least.result_bytes),
    }
    return [
        Figure(f"{name}: {what}", one / other, "x", is_flat) for what, (one, other) in pairs.items()
    ]
