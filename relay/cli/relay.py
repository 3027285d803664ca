"""`databus relay run`: a relay as a process."""

from __future__ import annotations

from pathlib import Path

import click

from databus.cli.daemon_options import config_option, prepare_daemon, serving_options
from databus.conf.settings import RelaySettings
from databus.daemon.log_setup import LogFormat
from databus.daemon.service import run as run_service
from databus.relay.relay import Relay
from databus.relay.service import make_service


@click.group()
def relay() -> None:
    """Capture change logs into rings and serve them.

    Example: `databus relay run -c relay.toml`
    """


@relay.command()
@config_option("relay")
@serving_options
def run(
    config: Path,
    host: str | None,
    port: int | None,
    verbose: bool,
    log_format: LogFormat | None,
) -> None:
    """Run a relay until SIGTERM or Ctrl-C.

    Example: `databus relay run -c relay.toml --port 11115`, then
    `curl localhost:11115/sources`.
    """
    running = Relay(prepare_daemon(config, RelaySettings, host, port, verbose, log_format))
    try:
        run_service(make_service(running))
    finally:
        running.stop()
