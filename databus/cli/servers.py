"""`databus servers`: the relays and bootstrap servers that a coordinator lists."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from databus.conf.units import duration_text
from databus.servers.directory import SILENT_S
from databus.servers.entry import ServerEntry
from databus.servers.places import open_directory

_PIPE_COLUMNS = 200
_TITLES = ("kind", "url", "room", "connections", "physical source", "after scn", "to scn", "state")


@click.group()
def servers() -> None:
    """Show the relays and bootstrap servers that clients find by a coordinator.

    Example: `databus servers list --coordinator zookeeper://zk-1:2181/databus`
    """


@servers.command("list")
@click.option(
    "--coordinator",
    required=True,
    metavar="URL",
    help="As in the servers' settings: file:FOLDER, zookeeper://… or a URL of SQLAlchemy.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def list_servers(coordinator: str, is_json: bool) -> None:
    """List the servers, with what each says of itself.

    In a folder or an SQL database a server that was killed stays listed until
    somebody watches. One that has not renewed its entry for 10 s, by the clocks
    of both machines, is not known to be alive, and `state` says so.

    Example: `databus servers list --coordinator file:/var/lib/databus --json`
    """
    with closing(open_directory(coordinator)) as directory:
        found = sorted(directory.entries(), key=lambda one: (one.kind, one.room, one.url))
    if is_json:
        now_s = time.time()
        click.echo(json.dumps([_values(entry, now_s) for entry in found]))
        return
    if not found:
        click.echo(f"no server is listed at {directory.shown}")
        return
    Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS).print(_table(found))


def _table(found: Sequence[ServerEntry]) -> Table:
    table = Table(*_TITLES, box=SIMPLE_HEAD)
    for entry in found:
        for row in _rows(entry, time.time()):
            table.add_row(*row)
    return table


def _values(entry: ServerEntry, now_s: float) -> dict[str, Any]:
    silent_s = _silent_s(entry, now_s)
    return entry.values() | {"silentS": round(silent_s, 1), "isRenewed": silent_s <= SILENT_S}


def _silent_s(entry: ServerEntry, now_s: float) -> float:
    return max(0.0, now_s - entry.renewed)


def _state(entry: ServerEntry, now_s: float) -> str:
    silent_s = _silent_s(entry, now_s)
    if silent_s <= SILENT_S:
        return f"renewed {silent_s:.0f} s ago"
    return f"not known to be alive: not renewed for {duration_text(silent_s)}"


def _rows(entry: ServerEntry, now_s: float) -> Iterator[tuple[str, ...]]:
    state = _state(entry, now_s)
    own: tuple[str, ...] = (entry.kind, entry.url, entry.room, str(entry.connections))
    for name, held in sorted(entry.physical_sources.items()):
        scns = (_scn(held.oldest_scn), _scn(held.newest_scn))
        yield (*own, name, *scns, state)
        own, state = ("", "", "", ""), ""


def _scn(scn: int) -> str:
    return "" if scn < 0 else str(scn)
