"""`databus bootstrap …`: run a bootstrap pair, and show the status of its stores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from databus.bootstrap.admin.status import read_all, status_table
from databus.bootstrap.packs.thread import PackingThread
from databus.bootstrap.pair import Pair, store_paths
from databus.bootstrap.producer.producer import Producer
from databus.bootstrap.seeder.job import SeedingThread
from databus.bootstrap.service import make_service
from databus.cli.api_client import access_options, named_server
from databus.cli.daemon_options import config_option, prepare_daemon, serving_options
from databus.cli.main import CommandAt, LazyGroup
from databus.cli.signals import ended_by_signal
from databus.conf.loading import load_settings
from databus.conf.settings import BootstrapSettings
from databus.daemon.log_setup import LogFormat
from databus.daemon.service import run as run_service
from databus.schemas.errors import ServerError

PIPE_COLUMNS = 200

KIND = "bootstrap"


@click.group(
    cls=LazyGroup,
    lazy={
        "seed": CommandAt("databus.bootstrap.cli.tables:seed", "Read tables into the store."),
        "verify": CommandAt(
            "databus.bootstrap.cli.tables:verify", "Compare the store with the database."
        ),
    },
)
def bootstrap() -> None:
    """Store snapshots and long logs, and bring consumers up to date from them.

    Example: `databus bootstrap run -c bootstrap.toml`
    """


@bootstrap.command()
@config_option(KIND)
@serving_options
@click.option("--no-serve", is_flag=True, help="Only fill the stores; another process serves them.")
@click.option("--no-seed", is_flag=True, help="Do not seed; `databus bootstrap seed` does.")
def run(
    config: Path,
    host: str | None,
    port: int | None,
    verbose: bool,
    log_format: LogFormat | None,
    no_serve: bool,
    no_seed: bool,
) -> None:
    """Run producers, seeding and the HTTP server until SIGTERM or Ctrl-C.

    New tables are seeded from their database while everything else continues.

    Example: `databus bootstrap run -c bootstrap.toml --port 11116`, then
    `databus bootstrap status -c bootstrap.toml`.
    """
    settings = prepare_daemon(config, BootstrapSettings, host, port, verbose, log_format)
    seeding = None if no_seed else SeedingThread
    pair = Pair(settings, Producer, seeding, PackingThread)
    _run(pair, is_serving=not no_serve)


@bootstrap.command()
@config_option(KIND)
@serving_options
def serve(
    config: Path,
    host: str | None,
    port: int | None,
    verbose: bool,
    log_format: LogFormat | None,
) -> None:
    """Serve the stores that another process fills, until SIGTERM or Ctrl-C.

    Several may serve the same stores, each on its own port.

    Example: `databus bootstrap serve -c bootstrap.toml --port 11117`
    """
    settings = prepare_daemon(config, BootstrapSettings, host, port, verbose, log_format)
    _run(Pair(settings), is_serving=True)


@bootstrap.command()
@config_option(KIND, required=False)
@click.option("--url", help="Ask a running server instead of reading the files.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@access_options
def status(
    config: Path | None,
    url: str | None,
    is_json: bool,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Show the position of each producer and the status of each source.

    Example: `databus bootstrap status -c bootstrap.toml`, or
    `databus bootstrap status --url http://127.0.0.1:11116 --json`.
    """
    if (config is None) == (url is None):
        raise click.UsageError("give either -c FILE or --url URL")
    found = _read_status(config) if config else _ask_status(str(url), token_file, tls_ca)
    if is_json:
        click.echo(json.dumps(found))
        return
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    for name, values in found.items():
        console.print(status_table(name, values))


def _run(pair: Pair, *, is_serving: bool) -> None:
    try:
        if is_serving:
            run_service(make_service(pair))
        else:
            _run_workers(pair)
    finally:
        pair.stop()


def _run_workers(pair: Pair) -> None:
    with ended_by_signal() as ended:
        pair.start_workers()
        click.echo(f"filling {', '.join(str(path) for path in pair.paths.values())}")
        ended.wait()


def _read_status(config: Path) -> dict[str, Any]:
    settings = load_settings(config, BootstrapSettings)
    return {name: s.to_json_value() for name, s in read_all(store_paths(settings)).items()}


def _ask_status(url: str, token_file: Path | None, tls_ca: Path | None) -> dict[str, Any]:
    try:
        value = named_server(url, token_file, tls_ca).get_json("/bootstrapStatus")
        found: dict[str, Any] = value["physicalSources"]
    except (ServerError, KeyError, TypeError) as error:
        raise ServerError(url, f"does not report its status: {error}") from error
    return found
