"""`databus sink list|show|pause|resume|retry|skip`: sinks that run, seen and steered."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import click

from databus.cli.api_client import ApiClient, access_options
from databus.cli.daemon_options import config_option
from databus.client.sinks.serving.api import ROOT, Skipped
from databus.client.sinks.serving.pauses import NAME as PAUSES, read_pauses
from databus.client.sinks.serving.process import make_plans
from databus.client.sinks.serving.service import address_of
from databus.client.sinks.serving.views import (
    FailureView,
    IsolationView,
    RowView,
    SinksView,
    SinkView,
    problems_of,
)
from databus.conf.reference import kind_of
from databus.conf.server_settings import ServerAccessSettings
from databus.conf.sink_settings import SinksSettings
from databus.conf.sinks_beside import load_sinks
from databus.conf.units import duration_text
from databus.daemon.tokens import read_token
from databus.schemas.errors import SettingsError

Command = TypeVar("Command", bound=Callable[..., Any])

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")
name_argument = click.argument("name")
_UNKNOWN = "unknown"
_TRY_S, _LOOK_S = 3.0, 0.1  # how long `retry` waits for what comes of it
_FIND_S = 15.0  # how long `skip` waits for the row that fails to be found


class Access(NamedTuple):
    """The options that say how a process is asked."""

    token_file: Path | None
    tls_ca: Path | None


def process_of(settings: SinksSettings, access: Access) -> ApiClient | None:
    """Return a client of the process that runs the sinks, None if none does."""
    url = address_of(settings.data_dir)
    if not url:
        return None
    http = settings.http
    own = ServerAccessSettings(
        token_file=access.token_file or http.admin_tokens_file or http.reader_tokens_file,
        token_env=None
        if access.token_file or http.admin_tokens_file
        else http.admin_token_env or http.reader_token_env,
    )
    return ApiClient(url, read_token(own), access.tls_ca)


def running_process(config: Path, access: Access) -> ApiClient:
    """Return a client of the process that runs the sinks of a file; raise SettingsError."""
    settings = load_sinks(config)
    found = process_of(settings, access)
    if found is None:
        raise SettingsError(
            f"no process runs the sinks of {config} (data_dir {settings.data_dir}): start it with "
            f"`databus {_runner(config)} -c {config}`"
        )
    return found


def _runner(config: Path) -> str:
    return "run" if kind_of(config) == "relay" else "sink run"


def path_of(name: str, act: str = "") -> str:
    """Return the path of a sink in the API, or of what is done with it."""
    return f"{ROOT}/{quote(name, safe='')}" + (f"/{act}" if act else "")


@click.command("list")
@config_option("sink")
@json_option
@access_options
def list_(config: Path, is_json: bool, token_file: Path | None, tls_ca: Path | None) -> None:
    """List the sinks of a settings file, with their state if they run.

    Example: `databus sink list -c sink.toml`
    """
    settings = load_sinks(config)
    make_plans(settings, config.absolute())
    process = process_of(settings, Access(token_file, tls_ca))
    shown = None if process is None else process.read(SinksView, process.get_json(ROOT))
    running = {} if shown is None else {one.name: one for one in shown.sinks}
    paused = read_pauses(settings.data_dir / PAUSES)
    if is_json:
        found = [
            one.model_dump(include={"name", "kind", "sources", "order", "lanes"})
            | {
                "process": shown.process if shown and one.name in running else None,
                "state": running[one.name].state if one.name in running else None,
                "isPaused": one.name in paused,
            }
            for one in settings.sinks
        ]
        click.echo(json.dumps(found, indent=1))
        return
    for one in settings.sinks:
        state = _line(running[one.name]) if one.name in running else "does not run"
        if one.name in paused and one.name not in running:
            state += ", and is paused"
        click.echo(f"{one.name}  {one.kind}  {' '.join(one.sources)}  {state}")


@click.command()
@name_argument
@config_option("sink")
@json_option
@access_options
def show(
    name: str, config: Path, is_json: bool, token_file: Path | None, tls_ca: Path | None
) -> None:
    """Show all that a running sink NAME says of itself.

    Example: `databus sink show archive -c sink.toml`
    """
    process = running_process(config, Access(token_file, tls_ca))
    answer = process.get_json(path_of(name))
    if is_json:
        click.echo(json.dumps(answer, indent=1))
        return
    for line in _lines(process.read(SinkView, answer)):
        click.echo(line)


def _act(act: str, name: str, config: Path, access: Access) -> None:
    process = running_process(config, access)
    click.echo(_line(process.read(SinkView, process.post_json(path_of(name, act), {}))))


@click.command()
@name_argument
@config_option("sink")
@access_options
def pause(name: str, config: Path, token_file: Path | None, tls_ca: Path | None) -> None:
    """Have sink NAME read and write nothing more, also after a restart, until `resume`.

    Example: `databus sink pause archive -c sink.toml`
    """
    _act("pause", name, config, Access(token_file, tls_ca))


@click.command()
@name_argument
@config_option("sink")
@access_options
def resume(name: str, config: Path, token_file: Path | None, tls_ca: Path | None) -> None:
    """Have sink NAME go on after `pause`.

    Example: `databus sink resume archive -c sink.toml`
    """
    _act("resume", name, config, Access(token_file, tls_ca))


@click.command()
@name_argument
@config_option("sink")
@access_options
def retry(name: str, config: Path, token_file: Path | None, tls_ca: Path | None) -> None:
    """Have sink NAME try again now what fails, also if an error has stopped it.

    Example: `databus sink retry archive -c sink.toml`
    """
    process = running_process(config, Access(token_file, tls_ca))
    before = process.read(SinkView, process.get_json(path_of(name)))
    process.post_json(path_of(name, "retry"), {})
    end_s, shown = time.monotonic() + _TRY_S, before
    while _failures(shown) == _failures(before) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        shown = process.read(SinkView, process.get_json(path_of(name)))
    click.echo(_line(shown))


@click.command()
@name_argument
@config_option("sink")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@access_options
def skip(name: str, config: Path, yes: bool, token_file: Path | None, tls_ca: Path | None) -> None:
    """Drop the row that sink NAME fails with, after a yes, and no other row.

    The target never gets it, unless it changes again. If it is not known which row
    that is, it is looked for first: the rows are written one by one.

    Example: `databus sink skip archive -c sink.toml`
    """
    process = running_process(config, Access(token_file, tls_ca))
    physical, failure = _failing(process.read(SinkView, process.get_json(path_of(name))))
    row = failure.row
    if row is None:
        failure, row = _found(process, name, physical, failure)
    click.echo(f"{name} fails with {row.op} {row.source} {json.dumps(row.key)} ({row.id}):")
    click.echo(failure.problem)
    if not yes:
        click.confirm("Skip this row?", abort=True)
    body = {"physicalSource": physical, "id": row.id}
    gone = process.read(Skipped, process.post_json(path_of(name, "skip"), body)).row
    click.echo(f"skipped {gone.op} {gone.source} {json.dumps(gone.key)} ({gone.id})")


def _found(
    process: ApiClient, name: str, physical: str, failure: FailureView
) -> tuple[FailureView, RowView]:
    """Have the row looked for that fails; return it, or raise SettingsError if that takes long."""
    click.echo(f"{name} fails with one of {failure.rows} rows: {failure.problem}")
    click.echo("Which one is not known: the rows are written one by one now.")
    process.post_json(path_of(name, "find-row"), {"physicalSource": physical})
    end_s = time.monotonic() + _FIND_S
    while time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        sink = process.read(SinkView, process.get_json(path_of(name)))
        failing = {one.physical_source: one.failure for one in sink.physical_sources}
        now = failing.get(physical)
        if now is None:
            raise SettingsError(f"{name}: no row fails any more; it is {sink.state}")
        # Until it is final the target may only have been busy, and the row would be a good one.
        if now.row is not None and now.is_final:
            return now, now.row
    raise SettingsError(
        f"{name}: the row is not found yet, and nothing is skipped. It is looked for: call `skip` "
        f"again when `databus sink show {name}` has a row that fails"
    )


def _failures(sink: SinkView) -> list[object]:
    return [sink.state, *((one.state, one.failure) for one in sink.physical_sources)]


def _failing(sink: SinkView) -> tuple[str, FailureView]:
    for feed in sink.physical_sources:
        if feed.failure is not None:
            return feed.physical_source, feed.failure
    raise SettingsError(f"{sink.name}: no row fails; it is {sink.state}")


def _line(sink: SinkView) -> str:
    """Return the state of a sink as a line."""
    lags = [feed.lag_s for feed in sink.physical_sources]
    known = [lag for lag in lags if lag is not None]
    lag = duration_text(max(known)) if known and len(known) == len(lags) else _UNKNOWN
    held = sum(feed.held_rows for feed in sink.physical_sources)
    parts = [sink.state, f"lag {lag}", f"{held} rows to write"]
    if sink.dead_letters != 0:
        parts.append(f"{_shown(sink.dead_letters)} dead letters")
    # An error's text may have lines.
    return " ".join(", ".join([*parts, *problems_of(sink)[:1]]).split())


def _lines(sink: SinkView) -> Iterator[str]:
    """Yield all that a sink says of itself."""
    yield f"{sink.name}  {sink.kind}  {sink.state}"
    yield f"  sources       {' '.join(sink.sources)}"
    yield f"  order         {sink.order}, {sink.lanes} lanes"
    yield f"  dead letters  {_shown(sink.dead_letters)}"
    if sink.isolation is not None:
        yield f"  isolated      {_ends(sink.isolation)}"
    if sink.problem:
        yield f"  problem       {sink.problem}"
    for one in sink.reloads:
        where = f" where {one.where}" if one.where else ""
        yield f"  reloads       {one.source}{where}: {one.rows} rows so far"
        if one.problem:
            yield f"    problem     {one.problem}"
    for feed in sink.physical_sources:
        yield f"  physical source {feed.physical_source}: {feed.state}"
        yield f"    position    {_shown(feed.scn)}"
        yield f"    reads       {feed.phase} from {feed.server or 'no server'}"
        rate = _UNKNOWN if feed.rows_per_s is None else f"{feed.rows_per_s:g} rows/s"
        yield f"    written     {feed.rows} rows since the start, {rate}, {feed.skipped} skipped"
        seconds = _UNKNOWN if feed.lag_s is None else f"{feed.lag_s:.1f} s"
        yield f"    lag         {seconds}; windows: {_shown(feed.lag_windows)}"
        yield f"    to write    {feed.held_rows} rows of {feed.held_windows} windows"
        if feed.alert_s is not None:
            yield f"    ALERT       has failed for {duration_text(feed.alert_s)}"
        if feed.problem:
            yield f"    problem     {feed.problem}"
        if feed.failure is not None:
            yield from _failure_lines(feed.failure)


def _ends(isolation: IsolationView) -> str:
    count = sum(isolation.ends.values())
    if not count:
        return "in processes of its own"
    return f"its processes ended {count} times, last: {isolation.last_end}"


def _failure_lines(failure: FailureView) -> Iterator[str]:
    again = "waits for `retry` or `skip`" if failure.is_final else "tries again by itself"
    yield f"    fails       {failure.problem} ({failure.attempts} tries; it {again})"
    row = failure.row
    if row is None:
        yield f"    row         one of {failure.rows}; which one is not known, `skip` looks for it"
    else:
        yield f"    row         {row.op} {row.source} {json.dumps(row.key)} ({row.id})"


def _shown(value: int | None) -> str:
    return _UNKNOWN if value is None else str(value)
