"""The axes, and the command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
from rich.console import Console

from benchmarks.capture.log import server_with_log
from benchmarks.growth.consumers import consumers
from benchmarks.growth.curve import Curve, figures_of
from benchmarks.growth.rings import lookups, ring_size
from benchmarks.growth.rows import columns, row_width, transaction_size
from benchmarks.growth.sources import sources
from benchmarks.growth.tables import schema_versions, tables
from benchmarks.shared.report import Figure, publish
from databus.demo.private_mariadb import PrivateMariaDB

OF_A_LOG: dict[str, Callable[[PrivateMariaDB, bool], list[Curve]]] = {
    "tables": tables,
    "columns": columns,
    "transaction_size": transaction_size,
    "row_width": row_width,
    "schema_versions": schema_versions,
}
ALONE: dict[str, Callable[[bool], list[Curve]]] = {
    "ring_size": ring_size,
    "lookups": lookups,
    "consumers": consumers,
    "sources": sources,
}
AXES = (*OF_A_LOG, *ALONE)


def curves(names: Sequence[str], short: bool, tell: Callable[[str], None]) -> list[Curve]:
    """Measure axes one after another; those of a log have one server together."""
    found: list[Curve] = []
    with ExitStack() as stack:
        server: PrivateMariaDB | None = None
        for name in names:
            tell(f"{name} …")
            if name in ALONE:
                measured = ALONE[name](short)
            else:
                server = server or stack.enter_context(server_with_log("FULL"))
                measured = OF_A_LOG[name](server, short)
            for curve in measured:
                tell(f"{curve.name}: exponent {curve.exponent:.3f}")
            found += measured
    return found


def figures(short: bool = False) -> list[Figure]:
    """Measure every axis."""
    return figures_of_all(curves(AXES, short, lambda _: None))


def figures_of_all(found: Sequence[Curve]) -> list[Figure]:
    """Return the lines of the table."""
    return [figure for curve in found for figure in figures_of(curve)]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(AXES))
@click.option("--short", is_flag=True, help="Smaller sizes, once: under a minute for all.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def main(names: tuple[str, ...], short: bool, json_file: Path | None) -> None:
    """Measure how cost grows along the axes NAMES (all when none is named)."""
    console = Console(stderr=True, log_path=False)
    found = figures_of_all(curves(names or AXES, short, console.log))
    publish("growth", found, json_file)
    raise SystemExit(any(figure.is_met is False for figure in found))
