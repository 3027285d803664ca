"""`python -m benchmarks` (`make bench`): every benchmark in short form, one table."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.shared.report import Figure, as_json, publish

MODULES = (
    "ring",
    "group_assignment",
    "group_rebalance",
    "serve",
    "serving_processes",
    "callback",
    "capture",
    "peers",
    "first_hour",
    "first_start",
    "growth",
    "history_speed",
    "huge_transaction",
    "latency",
    "memory",
    "power_cuts",
    "admin_load",
    "torture",
    "ladder",
    "stopped_table",
    "switch",
    "chain",
    "takeover",
    "sink_torture",
    "blocked_sink",
    "sink_speed",
    "canal_clients",
    "ptubes_clients",
    "canal_speed",
    "catch_up",
    "seeding",
    "bootstrap_torture",
    "cluster_torture",
    "spark_torture",
    "spark_speed",
    "spark_sql",
)


def measure(name: str, short: bool) -> list[Figure]:
    """Run one module's benchmark."""
    found: list[Figure] = module_of(name).figures(short=short)
    return found


def module_of(name: str) -> Any:
    """Return the module that has a benchmark's figures; of a folder it is `run`."""
    is_folder = (Path(__file__).parent / name).is_dir()
    return import_module(f"benchmarks.{name}.run" if is_folder else f"benchmarks.{name}")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(MODULES))
@click.option("--full", is_flag=True, help="Run the long forms: minutes instead of seconds each.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(names: tuple[str, ...], full: bool, json_file: Path | None) -> None:
    """Run the benchmarks NAMES (all when none is named) and print one table."""
    console = Console(stderr=True)
    figures: list[Figure] = []
    failed: list[str] = []
    for name in names or MODULES:
        with console.status(f"measuring {name} …"):
            # The figures of an hour are not lost to one that fails.
            try:
                figures += measure(name, short=not full)
            except Exception:
                console.print_exception()
                failed.append(name)
        if json_file is not None:
            json_file.write_text(as_json(figures), encoding="utf-8")
    publish("databus benchmarks", figures)
    if failed:
        raise click.ClickException(f"not measured: {', '.join(failed)}")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
