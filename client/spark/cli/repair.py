"""`databus spark repair`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from databus.client.spark.cli.verify import comparing_options, verify_session
from databus.client.spark.cli.verify_view import short, shown, shown_steps
from databus.client.spark.verify.repair import (
    How,
    NotMended,
    Repaired,
    RepairOptions,
    repair as repair_rows,
)
from databus.client.spark.verify.verify import VerifyOptions
from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings

MOST_KEYS = 20


@click.command()
@click.argument("report", type=click.Path(path_type=Path, dir_okay=False))
@comparing_options
@click.option(
    "--how",
    type=click.Choice([str(how) for how in How]),
    default=str(How.TARGET),
    show_default=True,
    help="`target`: write the database's rows to the target. `touch`: update them in the database, "
    "so that the stream brings them; rows that only the target has are deleted.",
)
@click.option("--touch-column", default="", help="The column into which `touch` writes the time.")
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for touched rows to arrive in the target.",
)
def repair(
    report: Path,
    settings_file: Path,
    relay: tuple[str, ...],
    bootstrap: tuple[str, ...],
    compare: tuple[str, ...],
    settle_s: float | None,
    how: str,
    touch_column: str,
    patience_s: float,
) -> None:
    """Repair the rows that `databus spark verify` wrote to REPORT.

    Values that the stream has brought since are newer, and stay. Then the same rows
    are compared again. The exit status is 1 if some still differ.

    Example: `databus spark repair differences.jsonl --settings relay.toml
    --relay http://127.0.0.1:11115`
    """
    verify = VerifyOptions(
        relays=relay, bootstrap_servers=bootstrap, compare=compare, settle_s=settle_s
    )
    options = RepairOptions(How(how), touch_column, verify, patience_s)
    settings = load_settings(settings_file, RelaySettings)
    with shown_steps() as on_step:
        done = repair_rows(report, settings, options, start_spark=verify_session, on_step=on_step)
    click.echo(outcome(done))
    # `left` is the comparison after the repair.
    if done.left is not None and not done.is_same:
        for one in done.not_mended:
            click.echo(not_mended(one))
        console = Console(highlight=False)
        for part in shown(done.left):
            console.print(part)
    if not done.is_same:
        sys.exit(1)


def not_mended(one: NotMended) -> str:
    """Return in a sentence which keys a repair has left, and what to do."""
    keys = [", ".join(map(short, key)) for key in one.keys[:MOST_KEYS]]
    more = len(one.keys) - len(keys)
    listed = "; ".join(keys) + (f"; and {more:,} more" if more else "")
    return f"not mended: {len(one.keys):,} keys ({listed}) {one.reason}"


def outcome(done: Repaired) -> str:
    """Return the result of a repair in one line."""
    parts = [f"{done.compared.source}: {done.keys:,} rows"]
    if done.how is How.TOUCH:
        parts.append(f"{done.touched:,} touched in the source")
    else:
        parts.append(f"{done.written:,} written in the target")
    parts.append(f"{done.deleted:,} deleted in the target")
    parts.append("no differences left" if done.is_same else "some still differ")
    return ", ".join(parts)
