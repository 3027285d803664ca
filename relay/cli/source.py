"""`databus source`: actions on a physical source of a running relay."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import IO

import click

from databus.cli.api_client import ApiClient, access_options, named_server
from databus.relay.admin.changes_api import Listing
from databus.relay.admin.models import PhysicalSources, PhysicalSourceView, Problems
from databus.relay.cli.source_changes import add, change, lines_of, remove
from databus.relay.cli.top import DEFAULT_RELAY

_POLL_S = 0.2
_REPAIR_S = 600.0  # the log is read for later statements about the table


@click.group()
def source() -> None:
    """Act on a physical source of a running relay.

    Example: `databus source switch shop mysql://databus@db2:3306`
    """


for command in (add, change, remove):
    source.add_command(command)


@source.command("list")
@click.option("--relay", default=DEFAULT_RELAY, show_default=True, help="URL of the relay.")
@access_options
def list_sources(relay: str, token_file: Path | None, tls_ca: Path | None) -> None:
    """List the physical sources of a running relay: state, epoch, server, role, and what is wrong.

    Under each are its tables and patterns, and the tables that those have found.

    Example: `databus source list --relay http://127.0.0.1:11115`
    """
    server = named_server(relay, token_file, tls_ca)
    found = server.get_json("/api/v1/physicalSources")
    for one in server.read(PhysicalSources, found).physical_sources:
        problem = f": {one.problem}" if one.problem else ""
        role = "" if one.role is None else f"  {one.role.words}"
        click.echo(f"{one.name}  {one.state}  epoch {one.epoch}  {one.uri}{role}{problem}")
        listing = server.get_json(f"/api/v1/physicalSources/{one.name}/sources")
        click.echo("\n".join(lines_of(server.read(Listing, listing))))


@source.command()
@click.argument("name")
@click.argument("uri")
@click.option("--relay", default=DEFAULT_RELAY, show_default=True, help="URL of the relay.")
@access_options
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait until the server is read.",
)
def switch(
    name: str, uri: str, relay: str, token_file: Path | None, tls_ca: Path | None, wait_s: float
) -> None:
    """Read the physical source NAME from the server URI, one of those in its setting `uri`.

    Nothing is lost and nothing comes twice: a server that lacks delivered transactions is not
    read. Then the relay goes on at another one, and this exits with 1. With a token, it must be
    one of an administrator.

    Example: `databus source switch shop mysql://databus@db2:3306`
    """
    server = named_server(relay, token_file, tls_ca)
    path = f"/api/v1/physicalSources/{name}"
    seen = server.read(PhysicalSourceView, server.post_json(f"{path}/switch", {"uri": uri}))
    end = time.monotonic() + wait_s
    while seen.state != "running" and seen.uri == uri and time.monotonic() < end:
        time.sleep(_POLL_S)
        seen = server.read(PhysicalSourceView, server.get_json(path))
    if seen.state != "running" or seen.uri != uri:
        problem = seen.problem or _newest_problem(server, name)
        raise click.ClickException(
            f"{uri} is not read; {seen.uri} is {seen.state}. The last problem: {problem}"
        )
    click.echo(f"{name} is read from {uri}")


@source.command()
@click.argument("name")
@click.argument("stopped", metavar="SOURCE")
@click.option("--relay", default=DEFAULT_RELAY, show_default=True, help="URL of the relay.")
@access_options
@click.option(
    "--scn",
    type=click.IntRange(min=1),
    help="Set the table's definition from this SCN on; the relay's problem names it.",
)
@click.option(
    "--create-table",
    type=click.File("r", encoding="utf-8"),
    help="File with a CREATE TABLE statement, `-` for stdin. Default: the "
    "database's definition, if the table was not altered since.",
)
def repair(
    name: str,
    stopped: str,
    relay: str,
    token_file: Path | None,
    tls_ca: Path | None,
    scn: int | None,
    create_table: IO[str] | None,
) -> None:
    """Take SOURCE of the physical source NAME in again, which has stopped alone.

    Its consumers get every row since its stop from the database's log; those of the other sources
    hardly notice it. With a token, it must be one of an administrator.

    Example: `databus source repair shop shop.orders --scn 4294968030`
    """
    server = replace(named_server(relay, token_file, tls_ca), timeout_s=_REPAIR_S)
    body = {
        "source": stopped,
        "scn": None if scn is None else str(scn),
        "createTable": "" if create_table is None else create_table.read(),
    }
    seen = server.read(
        PhysicalSourceView, server.post_json(f"/api/v1/physicalSources/{name}/repair", body)
    )
    click.echo(f"{stopped} is captured again; {name} is {seen.state}")


def _newest_problem(server: ApiClient, name: str) -> str:
    problems = Problems.model_validate(server.get_json("/api/v1/problems")).problems
    return next((one.text for one in problems if one.physical_source == name), "none")
