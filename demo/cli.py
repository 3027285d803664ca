"""`databus demo`."""

from __future__ import annotations

import click
from rich.console import Console

from databus.demo.processes import stopped_by_signals


@click.command()
@click.option("--changes", type=click.IntRange(1), help="Stop after this many changes.")
@click.option("--mysql", is_flag=True, help="Use a private MariaDB server instead of SQLite.")
@click.option("--rate", type=click.FloatRange(0.1, 10_000), help="Changes per second.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port of the relay; 0 = any free one. Default: 11115, or a free one where that is in use.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the shop's random transactions."
)
def demo(changes: int | None, mysql: bool, rate: float | None, port: int | None, seed: int) -> None:
    """Run a shop, a relay and a consumer, and show each change as it arrives.

    After 400 changes, or after half of 800 or more, a late consumer starts, reads the
    past from a bootstrap server and catches up.

    With --changes it ends with one line that says whether all changes came in order, and
    exits with 1 when they did not. Ctrl-C ends it and removes all its files.

    Example: `databus demo`, then `databus tail shop.orders` in another terminal; or
    `databus demo --changes 1000`.
    """
    # Imported here, because `databus --help` lists this command and needs none of it.
    from databus.demo.show import Plan, Show

    show = Show(Plan("mysql" if mysql else "sqlite", changes, rate, port, seed), Console())
    is_interrupted = False
    with stopped_by_signals():
        try:
            show.run()
        except KeyboardInterrupt:
            is_interrupted = True
    click.echo(show.arrivals.last_line())
    is_right = show.arrivals.is_right and show.is_late_one_right
    raise SystemExit(exit_code(is_right, changes, is_interrupted))


def exit_code(is_right: bool, changes: int | None, is_interrupted: bool) -> int:
    """Return the exit code: stopping an endless demo is not a failure."""
    if is_interrupted and changes is not None:
        return 130
    return 0 if is_right else 1
