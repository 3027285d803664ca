"""`databus demo`."""

from __future__ import annotations

import click
from rich.console import Console

from databus.demo.processes import stopped_by_signals


@click.command()
@click.option("--changes", type=click.IntRange(1), help="Stop by itself after so many changes.")
@click.option("--mysql", is_flag=True, help="On a private MariaDB server instead of SQLite.")
@click.option("--rate", type=click.FloatRange(0.1, 10_000), help="Changes a second.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the relay; 0 = any.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of what happens in the shop.")
def demo(changes: int | None, mysql: bool, rate: float | None, port: int, seed: int) -> None:
    """Run a shop, a relay and a consumer, and show each change as it arrives.

    After 400 changes, or half of 800 or more, a late consumer starts, gets the
    past from a bootstrap server and catches up.

    With --changes it ends with one line that says whether all came, in order;
    it exits with 1 when they did not. Ctrl-C ends it; nothing stays.

    Example: `databus demo --changes 1000`
    """
    # Not at the top: `databus --help` lists this command and needs none of it.
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
    """Return how the command ends: stopping an endless demo is not a failure."""
    if is_interrupted and changes is not None:
        return 130
    return 0 if is_right else 1
