"""`databus run`: a relay, its bootstrap pair and sinks as one process."""

from __future__ import annotations

from pathlib import Path

import click

from databus.cli.daemon_options import config_option, prepare_daemon, serving_options
from databus.conf.settings import RelaySettings
from databus.daemon.log_setup import LogFormat
from databus.standalone.process import run_both


@click.command()
@config_option("relay")
@serving_options
@click.option(
    "--bootstrap-port",
    type=click.IntRange(0, 65535),
    help="Port of the bootstrap server, instead of bootstrap.port.",
)
def run(
    config: Path,
    host: str | None,
    port: int | None,
    verbose: bool,
    log_format: LogFormat | None,
    bootstrap_port: int | None,
) -> None:
    """Run a relay, its page and its bootstrap pair in one process.

    The settings are those of a relay; `[bootstrap]` in them is for the pair, and may be left out.
    Rows that are there at the first start are read by the pair, and clients with the bootstrap
    server's URL get them first, then the changes. `[[sinks]]` in the settings run in this process,
    too. SIGTERM and Ctrl-C end all.

    Example: `databus run -c relay.toml --port 11115`, then
    `databus tail shop.orders --from earliest`.
    """
    settings = prepare_daemon(config, RelaySettings, host, port, verbose, log_format)
    if bootstrap_port is not None:
        pair = settings.bootstrap.model_copy(update={"port": bootstrap_port})
        settings = settings.model_copy(update={"bootstrap": pair})
    run_both(settings, tell_urls, config.absolute())


def tell_urls(relay_url: str, bootstrap_url: str) -> None:
    """Print where the relay and the bootstrap server listen."""
    click.echo(f"listening on {relay_url}, the relay and its page")
    click.echo(f"listening on {bootstrap_url}, the bootstrap server")
