"""`databus relay run`: a relay as a process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from databus.conf.service import run as run_service
from databus.conf.settings import RelaySettings, load_settings
from databus.relay.http import make_service
from databus.relay.relay import Relay

# A capture thread with much to do would otherwise keep the loop waiting for
# 5 ms (Python's default) each time; see benchmarks/latency.
SWITCH_INTERVAL_S = 0.0005


@click.group()
def relay() -> None:
    """Capture change logs into rings and serve them."""


@relay.command()
@click.option(
    "-c",
    "--config",
    "config",
    type=click.Path(path_type=Path),
    required=True,
    help="TOML file with the settings; conf/relay.toml is a commented example.",
)
@click.option("--host", help="Address to bind, instead of http.host.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to bind, instead of http.port.")
@click.option("-v", "--verbose", is_flag=True, help="Log refused requests and connections, too.")
def run(config: Path, host: str | None, port: int | None, verbose: bool) -> None:
    """Run a relay until SIGTERM or Ctrl-C.

    Example: `databus relay run -c relay.toml --port 11115`, then
    `curl localhost:11115/sources`.
    """
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = load_settings(config, RelaySettings)
    asked = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    if asked:
        http = settings.http.model_copy(update=asked)
        settings = settings.model_copy(update={"http": http})
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    running = Relay(settings)
    try:
        run_service(make_service(running))
    finally:
        running.stop()
