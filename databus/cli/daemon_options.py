"""The common options of commands that run a daemon, and their effect on the settings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from databus.conf.loading import build_settings, load_settings
from databus.conf.settings import BootstrapSettings, RelaySettings
from databus.daemon.descriptors import raise_limit
from databus.daemon.log_setup import LogFormat, set_up_logs

# A thread with much to do would otherwise keep the loop waiting for 5 ms
# (Python's default) each time; see benchmarks/latency.
SWITCH_INTERVAL_S = 0.0005

Command = TypeVar("Command", bound=Callable[..., Any])
Model = TypeVar("Model", RelaySettings, BootstrapSettings)


def config_option(kind: str, *, required: bool = True) -> Callable[[Command], Command]:
    """Return the option for the settings file of a relay, a bootstrap pair or a client."""
    return click.option(
        "-c",
        "--config",
        type=click.Path(path_type=Path),
        required=required,
        help=f"TOML file with the settings; `databus config reference {kind}` lists all.",
    )


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Form of the log on stderr, instead of log_format.",
)


def serving_options(command: Command) -> Command:
    """Add the options of the commands that serve: `host`, `port`, `verbose`, `log_format`."""
    for option in (
        log_format_option,
        click.option(
            "-v", "--verbose", is_flag=True, help="Log refused requests and connections, too."
        ),
        click.option(
            "--port", type=click.IntRange(0, 65535), help="Port to bind, instead of http.port."
        ),
        click.option("--host", help="Address to bind, instead of http.host."),
    ):
        command = option(command)
    return command


def prepare_daemon(
    config: Path,
    model: type[Model],
    host: str | None,
    port: int | None,
    verbose: bool,
    log_format: LogFormat | None,
) -> Model:
    """Set up this process and return its settings; options override the file.

    Raises SettingsError.
    """
    settings = load_settings(config, model)
    set_up_logs(log_format or settings.log_format, is_verbose=verbose)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_limit()
    asked = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    http = build_settings(settings.http.model_dump() | asked, type(settings.http), "--host, --port")
    return settings.model_copy(update={"http": http})
