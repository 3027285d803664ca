"""`databus sink reload`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from databus.cli.api_client import access_options
from databus.cli.daemon_options import config_option
from databus.client.cli.sink_steering import Access, name_argument, path_of, running_process
from databus.client.sinks.serving.views import ReloadView, SinkView
from databus.schemas.errors import RequestError

_LOOK_S = 0.5
_TAKES_NOTHING = ("stopped", "paused")


@click.command()
@name_argument
@click.argument("source")
@click.option("--where", default="", metavar="SQL", help="Only the rows that it holds for.")
@click.option("--cancel", "is_cancelled", is_flag=True, help="End the reload that runs.")
@click.option("--wait", "is_awaited", is_flag=True, help="Show how it gets on, until its end.")
@config_option("sink")
@access_options
def reload(
    name: str,
    source: str,
    where: str,
    is_cancelled: bool,
    is_awaited: bool,
    config: Path,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Have sink NAME write all rows of SOURCE again, while its changes go on.

    The rows are those of a bootstrap server. No older row overwrites a newer one, and rows that
    only the target has stay there. It goes on after a restart, until it has reached its end.

    Example: `databus sink reload archive shop.orders -c sink.toml`
    """
    if is_cancelled and (where or is_awaited):
        raise click.UsageError("--cancel is without --where and --wait")
    process = running_process(config, Access(token_file, tls_ca))
    act, body = ("cancel-reload", {}) if is_cancelled else ("reload", {"where": where})
    answer = process.post_json(path_of(name, act), {"source": source, **body})
    sink = process.read(SinkView, answer)
    click.echo(f"{name}: the reload of {source} {'is cancelled' if is_cancelled else 'has begun'}")
    if sink.state in _TAKES_NOTHING and not is_cancelled:
        click.echo(f"{name} is {sink.state}: the reload gets on when it runs again")
    if not is_awaited:
        return
    while (before := _of(sink, source)) is not None:
        time.sleep(_LOOK_S)
        sink = process.read(SinkView, process.get_json(path_of(name)))
        _tell(_of(sink, source), before)
    if not any(one.source == source and one.is_whole for one in sink.ended_reloads):
        raise RequestError(f"{name}: the reload of {source} was cancelled")
    click.echo(f"{name}: all rows of {source} are written")


def _tell(now: ReloadView | None, before: ReloadView) -> None:
    if now is not None and now != before:
        click.echo(f"{now.rows} rows" + (f"; {now.problem}" if now.problem else ""))


def _of(sink: SinkView, source: str) -> ReloadView | None:
    return next((one for one in sink.reloads if one.source == source), None)
