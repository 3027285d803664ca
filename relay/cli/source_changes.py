"""`databus source add`, `change` and `remove`: what a running relay captures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from databus.cli.api_client import access_options, named_server
from databus.relay.admin.changes_api import Listing, RemovedSource
from databus.relay.cli.top import DEFAULT_RELAY

_ROOT = "/api/v1/physicalSources"
_relay = click.option("--relay", default=DEFAULT_RELAY, show_default=True, help="URL of the relay.")


@click.command()
@click.argument("name")
@click.argument("uri")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    help="File with the database's password, on the relay's machine.",
)
@click.option("--start", help="Where to begin: as `start` in the settings.")
@_relay
@access_options
def add(
    name: str,
    uri: str,
    sources: tuple[str, ...],
    password_file: Path | None,
    start: str | None,
    relay: str,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Capture the physical source NAME at URI, with the tables or patterns SOURCES, from now on.

    It is added to the relay's settings file, so it stays after a restart. The others do not
    notice it. The relay must have tokens, and this one be of an administrator: the settings
    name files that the relay reads and writes.

    Example: `databus source add crm mysql://databus@db2:3306 'crm.*' --password-file /etc/crm.pw`
    """
    settings: dict[str, Any] = {"name": name, "uri": uri, "sources": list(sources)}
    if password_file is not None:
        settings["password_file"] = str(password_file)
    if start is not None:
        settings["start"] = start
    server = named_server(relay, token_file, tls_ca)
    _print(server.read(Listing, server.post_json(_ROOT, {"settings": settings})))


@click.command()
@click.argument("name")
@click.option("--add", "added", multiple=True, metavar="TABLE", help="A table, or a pattern.")
@click.option(
    "--remove", "removed", multiple=True, metavar="TABLE", help="One that is listed; repeatable."
)
@_relay
@access_options
def change(
    name: str,
    added: tuple[str, ...],
    removed: tuple[str, ...],
    relay: str,
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Add and remove tables and patterns of the physical source NAME of a running relay.

    The relay's settings file is changed, so it stays after a restart. Capture of
    this physical source rests for a moment, that of the others does not. With a
    token, it must be one of an administrator.

    Example: `databus source change shop --add 'shop.*' --add '!shop.tmp_*' --remove shop.orders`
    """
    if not added and not removed:
        raise click.UsageError("say what to change: --add TABLE, --remove TABLE")
    server = named_server(relay, token_file, tls_ca)
    body = {"add": list(added), "remove": list(removed)}
    _print(server.read(Listing, server.post_json(f"{_ROOT}/{name}/sources", body)))


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_relay
@access_options
def remove(name: str, yes: bool, relay: str, token_file: Path | None, tls_ca: Path | None) -> None:
    """Capture the physical source NAME no more, and take it out of the relay's settings file.

    Consumers of its sources are refused from then on. Its ring and its log are put
    aside, not deleted: the answer names the folder. With a token, it must be one of
    an administrator.

    Example: `databus source remove crm --yes`
    """
    if not yes:
        click.confirm(f"Stop serving all sources of {name}?", abort=True)
    server = named_server(relay, token_file, tls_ca)
    found = server.read(RemovedSource, server.post_json(f"{_ROOT}/{name}/remove", {}))
    click.echo(f"{name} is removed; its files are in {found.files}")


def lines_of(found: Listing) -> list[str]:
    """Return what a physical source captures, and where that comes from, for a terminal."""
    lines = [f"  {name}" for name in found.listed]
    lines += [f"  {pattern}  (pattern)" for pattern in found.patterns]
    return [*lines, *(f"  {name}  (found by a pattern)" for name in found.found)]


def _print(found: Listing) -> None:
    click.echo(f"{found.name} captures, by {found.file}:")
    click.echo("\n".join(lines_of(found)))
