"""`databus tail` and `databus client run`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

import click
from rich.console import Console

from databus.cli.api_client import access_options
from databus.cli.daemon_options import config_option, log_format_option
from databus.cli.signals import handling
from databus.client.cli.processes import run_processes
from databus.client.cli.tail import json_of, line_of
from databus.client.client import DatabusClient
from databus.client.consumer import Consumer, DataEvent, DdlEvent, Result, StatementEvent
from databus.client.impatient_client import ImpatientClient
from databus.client.machines.position import parse_start
from databus.conf.loading import load_settings
from databus.conf.settings import ClientSettings
from databus.daemon.descriptors import raise_limit
from databus.daemon.log_setup import LogFormat, set_up_logs
from databus.schemas.errors import SettingsError

DEFAULT_RELAY = "http://127.0.0.1:11115"
STREAM_COLUMNS = 1 << 20  # a line is never folded


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--relay",
    "relays",
    multiple=True,
    default=(DEFAULT_RELAY,),
    show_default=True,
    help="URL of a relay; give several to move between them.",
)
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    help="Where to start: earliest, latest, the SCN to start after, a time "
    "(time:2026-11-21T10:00:00Z), a transaction (gtid:0-1-17) or the end of one in a binlog "
    "(binlog:mysql-bin.000012:4567).",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many rows.")
@access_options
def tail(
    sources: tuple[str, ...],
    relays: tuple[str, ...],
    start: str,
    is_json: bool,
    count: int | None,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Print the changes of each SOURCE as they arrive, until Ctrl-C.

    All SOURCEs must belong to one physical source of the relay. No checkpoint
    is saved.

    Example: `databus tail shop.orders --from earliest --count 10`, or
    `databus tail shop.orders --json | jq .row`.
    """
    # Checked first: a wrong value fails before the client starts.
    parse_start(start)
    _log_to_stderr()
    access = {"token_file": token_file, "tls_ca": tls_ca}
    client = ImpatientClient(relays, start=start, access=access)
    with _ends_quietly(), client:
        events = _events(client, sources)
        _print(islice(events, count), is_json)


def _events(
    client: DatabusClient, sources: tuple[str, ...]
) -> Iterator[DataEvent | StatementEvent]:
    for window in client.windows(*sources, name="tail"):
        for change in window.changes if window.statements else window.events:
            if not isinstance(change, DdlEvent):
                yield change


def _print(events: Iterator[DataEvent | StatementEvent], is_json: bool) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else STREAM_COLUMNS)
    for event in events:
        if is_json:
            sys.stdout.write(json_of(event) + "\n")
        else:
            console.print(line_of(event), soft_wrap=True)
        # Also into a pipe: its reader wants each row at once.
        sys.stdout.flush()


@contextmanager
def _ends_quietly() -> Iterator[None]:
    """End without a traceback on Ctrl-C, or when the reader of a pipe has gone (`| head`).

    SIGTERM and SIGHUP do the same, so that the client says goodbye to its relay.
    """
    try:
        with handling(signal.default_int_handler, (signal.SIGTERM, signal.SIGHUP)):
            yield
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Otherwise Python reports the broken pipe again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group()
def client() -> None:
    """Run your own consumer.

    Example: `databus client run -c client.toml --consumer shop.sync:changed --source shop.orders`
    """


@client.command()
@config_option("client")
@click.option(
    "--consumer",
    "target",
    required=True,
    metavar="MODULE:OBJECT",
    help="A Consumer, a class of one, or a function that takes an event.",
)
@click.option(
    "--source", "sources", multiple=True, required=True, help="A source to read; repeatable."
)
@click.option(
    "--name", default="default", show_default=True, help="Name of the registration's checkpoint."
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Processes of the settings' `group`, which share the rows.",
)
@click.option("-v", "--verbose", is_flag=True, help="Also log at level INFO.")
@log_format_option
def run(
    config: Path,
    target: str,
    sources: tuple[str, ...],
    name: str,
    processes: int,
    verbose: bool,
    log_format: LogFormat | None,
) -> None:
    """Call a consumer with every change until SIGTERM or Ctrl-C.

    Exits with 1 and prints the error if an error stops the client. With `[http]` in
    the settings it serves /health, /metrics and /api/v1/client; -v prints the URL.

    Example: `databus client run -c client.toml --consumer shop.sync:OrderSync
    --source shop.orders`.
    """
    settings = load_settings(config, ClientSettings)
    if processes > 1:
        sys.exit(run_processes(settings, processes))
    set_up_logs(log_format or settings.log_format, is_verbose=verbose)
    raise_limit()
    running = DatabusClient(settings=settings)
    consumer = load_consumer(target)
    if isinstance(consumer, Consumer):
        running.register(consumer, sources, name=name)
    else:
        running.on(*sources, name=name)(consumer)
    with _stops_at_a_signal(running):
        running.run()


def load_consumer(target: str) -> Consumer | Callable[[DataEvent], Result | None]:
    """Import `module:object`, also from the working directory; raise SettingsError."""
    module_name, _, attribute = target.partition(":")
    # An installed command does not have the working directory on its path.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"--consumer {target}: {error}") from error
    if isinstance(found, type) and issubclass(found, Consumer):
        found = found()
    if isinstance(found, Consumer):
        return found
    if not callable(found):
        raise SettingsError(f"--consumer {target}: is neither a Consumer nor a function")
    return cast("Callable[[DataEvent], Result | None]", found)


def _stops_at_a_signal(running: DatabusClient) -> AbstractContextManager[None]:
    def stop(number: int, frame: object) -> None:  # noqa: ARG001
        # On another thread: a signal handler must not wait for the code that it interrupted.
        threading.Thread(target=running.stop, name="databus-stop").start()

    return handling(stop)


def _log_to_stderr() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
