"""`databus sink`: sinks of a settings file, and where they are."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import click

from databus.cli.daemon_options import config_option, log_format_option
from databus.cli.signals import handling
from databus.client.cli.sink_letters import replay_dead_letters
from databus.client.cli.sink_reload import reload
from databus.client.cli.sink_steering import list_, pause, resume, retry, show, skip
from databus.client.cli.sink_transfer import export, import_
from databus.client.sinks.serving.garbage import collect_rarely
from databus.client.sinks.serving.positions import NAME, StoredPosition, read_positions
from databus.client.sinks.serving.process import SinkProcess, make_plans
from databus.client.sinks.serving.service import served
from databus.conf.loading import load_settings
from databus.conf.sink_settings import SinksSettings
from databus.conf.sinks_beside import load_sinks
from databus.daemon.descriptors import raise_limit
from databus.daemon.log_setup import LogFormat, set_up_logs

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@click.group()
def sink() -> None:
    """Write changes to other systems.

    Example: `databus sink run -c sink.toml`, then `databus sink list -c sink.toml`
    """


_STEERING = (list_, show, pause, resume, retry, skip, reload, replay_dead_letters)
for command in (*_STEERING, export, import_):
    sink.add_command(command)


@sink.command()
@config_option("sink")
@click.option("--only", multiple=True, metavar="NAME", help="Only this sink; repeatable.")
@click.option("-v", "--verbose", is_flag=True, help="Also log at level INFO.")
@log_format_option
def run(config: Path, only: tuple[str, ...], verbose: bool, log_format: LogFormat | None) -> None:
    """Run the sinks until SIGTERM or Ctrl-C, or until all are done.

    Exits with 0 once all sinks are done, which those with `until` are at their end; with 1 if an
    error has stopped one of them. Without `until` a stopped sink waits for `retry` or `skip`.
    Each sink goes on behind its position.

    Example: `databus sink run -c sink.toml --only archive`
    """
    settings = load_settings(config, SinksSettings)
    set_up_logs(log_format or settings.log_format, is_verbose=verbose)
    raise_limit()
    collect_rarely()
    process = SinkProcess(settings, make_plans(settings, config.absolute(), only))
    with _ends_at_a_signal(process), closing(process), served(process, settings):
        is_well = process.run()
    if not is_well:
        sys.exit(1)


@sink.command()
@config_option("sink")
@json_option
def positions(config: Path, is_json: bool) -> None:
    """Print the position of each sink in each physical source.

    Example: `databus sink positions -c sink.toml --json`
    """
    settings = load_sinks(config)
    found = read_positions(settings.data_dir / NAME)
    rows = [_shown(found[key]) for key in sorted(found)]
    if is_json:
        click.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        click.echo(f"{row['sink']}  {row['source']}  {row['phase']} {row['scn']}")
    without = [one.name for one in settings.sinks if one.name not in {row["sink"] for row in rows}]
    for name in without:
        click.echo(f"{name}  no position yet")


def _shown(position: StoredPosition) -> dict[str, Any]:
    checkpoint = position.checkpoint
    return {
        "sink": position.sink,
        "source": position.source,
        "sources": list(position.sources),
        "phase": "bootstrap" if checkpoint.is_bootstrap else "scn",
        "scn": checkpoint.window_scn if checkpoint.window_scn >= 0 else None,
        "checkpoint": json.loads(checkpoint.to_json()),
    }


def _ends_at_a_signal(process: SinkProcess) -> AbstractContextManager[None]:
    def end(number: int, _frame: object) -> None:
        logging.getLogger(__name__).info("signal %d: ending", number)
        process.end()

    return handling(end)
