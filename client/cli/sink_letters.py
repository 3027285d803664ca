"""`databus sink replay-dead-letters`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from databus.cli.daemon_options import config_option
from databus.client.sinks.running.dead_letters import Line
from databus.client.sinks.serving.positions import PositionFile, hold
from databus.client.sinks.serving.process import make_plans
from databus.client.sinks.serving.replay import Replayed, replay
from databus.conf.sinks_beside import load_sinks


@click.command("replay-dead-letters")
@click.argument("name")
@config_option("sink")
@click.option(
    "--forget-superseded",
    is_flag=True,
    help="Also take the letters out of the file that something newer supersedes.",
)
def replay_dead_letters(name: str, config: Path, forget_superseded: bool) -> None:
    """Write the dead letters of sink NAME again, while no process runs the sinks.

    A row of which the sink has written something newer is not written: its letter stays, unless
    it is to be forgotten. Those that are written leave the file; those that fail stay there, with
    the new error. Exits with 1 if one fails.

    Example: `databus sink replay-dead-letters archive -c sink.toml`
    """
    settings = load_sinks(config)
    (plan,) = make_plans(settings, config.absolute(), [name])
    let_go = hold(settings.data_dir)
    try:
        positions = PositionFile(settings.data_dir)
        found = replay(plan, positions, forgets_superseded=forget_superseded)
    finally:
        let_go()
    _tell(found, "forgotten" if forget_superseded else "not written")
    if found.failed or found.left:
        sys.exit(1)


def _tell(found: Replayed, what: str) -> None:
    _list("written", found.written)
    _list(f"{what}, as something newer of the row was", found.superseded)
    for line, problem in found.failed:
        click.echo(f"failed: {_row(line)}: {problem}")
    if found.left:
        click.echo(f"left: {len(found.left)} letters: {found.problem}")
    if not (found.written or found.superseded or found.failed or found.left):
        click.echo("there are no dead letters")


def _list(what: str, lines: Sequence[Line]) -> None:
    for line in lines:
        click.echo(f"{what}: {_row(line)}")


def _row(line: Line) -> str:
    values = line.values
    return f"{values['op']} {values['source']} {json.dumps(values['key'])} ({values['id']})"
