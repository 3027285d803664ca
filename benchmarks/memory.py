"""`python -m benchmarks.memory`: the memory of relay and client while a consumer sleeps.

A load goes on while the consumer's only callback does not return. The ring and
the client's buffer are small, so that both are full when the consumer falls
asleep for good; from then on the resident size of the relay and of the client
must stay flat. Resident size includes the pages of the mapped ring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from benchmarks.shared.load import SOURCE, create_table, read_numbers
from benchmarks.shared.report import Figure, at_least, at_most, publish
from databus.demo.databases import Dialect
from databus.demo.processes import Child, pause, python_module, stopped_by_signals
from databus.demo.stage import Stage

RATE = 500.0
ROW_BYTES = 2000
RING_BYTES = "4MiB"  # written over after about four seconds of this load
CLIENT_BUFFER_BYTES = 4 << 20
WARM_UP_S = 15.0
SAMPLE_S = 0.25
FLAT_PERCENT = 10.0
FOREVER = 10**9


@dataclass(frozen=True, slots=True)
class Sizes:
    """Resident sizes of one process while the consumer sleeps, in bytes, in time order."""

    samples: list[int]

    @property
    def spread_percent(self) -> float:
        """The difference of the largest from the smallest, in percent."""
        return 100.0 * (max(self.samples) / min(self.samples) - 1)


def resident_bytes(pid: int) -> int:
    """Return a process's resident size, from /proc."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no resident size: it has ended")


def sample(children: list[Child], seconds: float, sleep: Callable[[float], None]) -> list[Sizes]:
    """Sample the children's sizes for a time; raises ChildError when one ends."""
    found: list[list[int]] = [[] for _ in children]
    for _ in range(max(2, int(seconds / SAMPLE_S))):
        for child, samples in zip(children, found, strict=True):
            child.check()
            samples.append(resident_bytes(child.pid))
        sleep(SAMPLE_S)
    return [Sizes(samples) for samples in found]


def measure(dialect: Dialect, asleep_s: float) -> list[Figure]:
    """Run one source's load against a sleeping consumer."""
    with Stage(dialect, [create_table(dialect)], [SOURCE], ring_bytes=RING_BYTES) as stage:
        stage.start_relay()
        client, load = stage.child("client", _client(stage)), stage.child("load", _load(stage))
        client.start()
        load.start()
        pause(WARM_UP_S)
        asleep_from_ns = time.time_ns()
        relay_sizes, client_sizes = sample([stage.relay, client], asleep_s, pause)
        load.check()
        load.stop()
        commits = read_numbers(stage.folder / "load.stamps", 2)
    loaded = sum(committed > asleep_from_ns for _, committed in commits) / asleep_s
    return _figures(dialect, asleep_s, relay_sizes, client_sizes, loaded)


def _figures(
    dialect: Dialect, asleep_s: float, relay: Sizes, client: Sizes, loaded: float
) -> list[Figure]:
    flat = at_most(FLAT_PERCENT)
    asleep = f"{dialect}, consumer asleep {asleep_s:g} s"
    return [
        Figure(f"memory, {asleep}: relay grows or shrinks by", relay.spread_percent, "%", flat),
        Figure(f"memory, {asleep}: client grows or shrinks by", client.spread_percent, "%", flat),
        Figure(f"memory, {dialect}: relay's largest", max(relay.samples) / 2**20, "MiB"),
        Figure(f"memory, {dialect}: client's largest", max(client.samples) / 2**20, "MiB"),
        # A load that stopped would prove nothing.
        Figure(f"memory, {asleep}: load", loaded, "transactions/s", at_least(RATE / 2)),
    ]


def _client(stage: Stage) -> list[str]:
    return python_module(
        "benchmarks.shared.probe",
        *("--relay", stage.url, "--stamps", stage.folder / "client.stamps"),
        *("--asleep-after", 1, "--buffer-bytes", CLIENT_BUFFER_BYTES),
    )


def _load(stage: Stage) -> list[str]:
    return python_module(
        "benchmarks.shared.load",
        *stage.database.arguments(),
        *("--rate", RATE, "--transactions", FOREVER, "--row-bytes", ROW_BYTES),
        *("--stamps", stage.folder / "load.stamps"),
    )


def figures(short: bool = False) -> list[Figure]:
    """Measure both sources; the short form sleeps ten seconds instead of sixty."""
    return measure_all(10.0 if short else 60.0, ("sqlite", "mysql"))


def measure_all(asleep_s: float, dialects: Sequence[Dialect]) -> list[Figure]:
    """Measure these sources one after another; a signal stops it and cleans up."""
    with stopped_by_signals():
        return [figure for dialect in dialects for figure in measure(dialect, asleep_s)]


@click.command()
@click.option("--short", is_flag=True, help="Sleep for ten seconds.")
@click.option("--asleep", "asleep_s", type=float, help="Sleep for so many seconds.")
@click.option("--source", "dialect", type=click.Choice(["sqlite", "mysql"]), help="Only this one.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(
    short: bool, asleep_s: float | None, dialect: Dialect | None, json_file: Path | None
) -> None:
    """Measure the memory of relay and client while a consumer sleeps."""
    seconds = asleep_s or (10.0 if short else 60.0)
    dialects: tuple[Dialect, ...] = (dialect,) if dialect else ("sqlite", "mysql")
    with Console(stderr=True).status("measuring memory …"):
        found = measure_all(seconds, dialects)
    publish("memory", found, json_file)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.memory")
