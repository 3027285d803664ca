"""The options of commands that start Spark, its session, and its log."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from pyspark import accumulators
from pyspark.sql import SparkSession

from databus.client.spark.session import job_session
from databus.daemon.log_setup import set_up_logs

log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])

_META = "databus.spark.settings"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOG_CONFIGURATION = "log4j2.configurationFile"
_LOG = Path(__file__).with_name("log4j2.properties")


def spark_options(command: Command) -> Command:
    """Add the options for Spark's master and settings, which `command_session` takes."""
    for option in (
        click.option(
            "--conf",
            multiple=True,
            metavar="KEY=VALUE",
            expose_value=False,
            callback=_keep_settings,
            help="A setting of Spark, e.g. spark.executor.memory=4g; repeatable.",
        ),
        click.option(
            "--master",
            envvar="SPARK_MASTER",
            expose_value=False,
            callback=_keep_master,
            help="Spark's master, e.g. spark://host:7077, yarn, k8s://…, local[4]; default: that "
            "of spark-submit or SPARK_CONF_DIR, else all cores of this machine.",
        ),
    ):
        command = option(command)
    return command


def format_options(command: Command) -> Command:
    """Add `--option NAME=VALUE`, which the command gets as the mapping `options`."""
    return click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_pairs,
        help="One more option of format databus, e.g. fetchBytes=1048576; repeatable.",
    )(command)


def _pairs(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            raise click.UsageError(f"--option {text}: must be NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def command_session(name: str) -> SparkSession:
    """Return the session for a command, with its options; logs go to stderr from then on.

    Spark logs one line for each event, without tracebacks, unless the user has a
    configuration of its own. This process logs Spark's whole text once, behind the line
    that names the problem; on a terminal only the line.
    """
    settings: dict[str, str] = dict(_settings(click.get_current_context()))
    if not _has_log_configuration(settings):
        options = f"{settings.get(_JAVA_OPTIONS, '')} -D{_LOG_CONFIGURATION}={_LOG.as_uri()}"
        settings[_JAVA_OPTIONS] = options.strip()
    set_up_logs("text")
    if not sys.stderr.isatty():
        logging.getLogger("databus.client.spark").setLevel(logging.INFO)
    _quiet_lost_connections()
    return job_session(name, settings)


def _quiet_lost_connections() -> None:
    """Keep tracebacks of connections to a lost JVM off stderr: an error says that it is lost."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # The gateway logs those of its own calls by the root logger.
    logging.getLogger().addFilter(lambda record: Path(record.pathname).parent.name != "py4j")
    for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        server.handle_error = _log_lost_accumulators  # type: ignore[assignment, method-assign]


def _log_lost_accumulators(*_: object) -> None:
    """Log on one line what a server of sockets would print with a traceback."""
    log.warning("lost a connection of Spark's accumulators: %r", sys.exception())


def _has_log_configuration(settings: dict[str, str]) -> bool:
    folder = os.environ.get("SPARK_CONF_DIR")
    return (
        not _LOG.is_file()  # in a zip
        or _LOG_CONFIGURATION in settings.get(_JAVA_OPTIONS, "")
        or (folder is not None and any(Path(folder).glob("log4j2.*")))
    )


def _settings(context: click.Context) -> dict[str, str]:
    found: dict[str, str] = context.meta.setdefault(_META, {})
    return found


def _keep_settings(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> None:
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.UsageError(f"--conf {text}: must be spark.…=VALUE")
        _settings(context)[key] = value


def _keep_master(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value:
        _settings(context)["spark.master"] = value
