"""`databus top`: the live state of a relay in the terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console
from rich.live import Live

from databus.cli.api_client import ApiClient, access_options, named_server
from databus.relay.admin.models import Clients, PhysicalSources, Problems, RelayView
from databus.relay.cli.top_cluster import ClusterPicture
from databus.relay.cli.top_view import Picture, draw
from databus.relay.cluster.models import Chains, GroupsView, LeasesView, ServersView
from databus.schemas.errors import ServerError

DEFAULT_RELAY = "http://127.0.0.1:11115"
PIPE_COLUMNS = 80
QUIT_KEYS = frozenset("qQ\x03\x04")

# Waits up to a number of seconds; returns whether to quit.
Wait = Callable[[float], bool]


@click.command()
@click.option("--relay", default=DEFAULT_RELAY, show_default=True, help="URL of the relay.")
@access_options
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--once", is_flag=True, help="Print the state once and exit.")
def top(
    relay: str, token_file: Path | None, tls_ca: Path | None, every_s: float, once: bool
) -> None:
    """Show a relay live: its databases, clients and problems. `q` quits.

    `lag` is from commit to ring; `unread` is the part of the database's log
    that is not in the ring yet; `may pause` is how long a consumer may be away
    before its next window is overwritten. Of a client, `left` is the share of
    the ring left until then (100 % at the newest window), and `lost in` the
    time. Where there is a coordinator or a relay above, groups, servers and
    leases are shown, too: `owned` partitions, and those that `moved` within a
    day; `depth` is how many relays are between a server and the database.

    Example: `databus top --relay http://127.0.0.1:11115`, or
    `databus top --once | head -4`.
    """
    server = named_server(relay, token_file, tls_ca)
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=PIPE_COLUMNS)
    if once:
        console.print(draw(relay, picture_of(server)))
        return
    with suppress(KeyboardInterrupt, BrokenPipeError), keys() as wait:
        if console.is_terminal:
            _show_live(server, console, every_s, wait)
        else:
            _print_on(server, console, every_s, wait)


def picture_of(server: ApiClient) -> Picture:
    """Return the current state; raise ServerError if the relay's answers are not valid."""
    try:
        return Picture(
            at_s=time.time(),
            relay=RelayView.model_validate(server.get_json("/api/v1/relay")),
            sources=PhysicalSources.model_validate(
                server.get_json("/api/v1/physicalSources")
            ).physical_sources,
            clients=Clients.model_validate(server.get_json("/api/v1/clients")).clients,
            problems=Problems.model_validate(server.get_json("/api/v1/problems")).problems,
            cluster=_cluster_of(server),
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"sends an answer that this version cannot read ({place}: {first['msg']})"
        raise ServerError(server.url, problem) from None


def _cluster_of(server: ApiClient) -> ClusterPicture | None:
    try:
        chains = Chains.model_validate(server.get_json("/api/v1/chain"))
    except ServerError as error:
        if " 404 " in str(error):
            return None  # a relay of an earlier version
        raise
    return ClusterPicture(
        GroupsView.model_validate(server.get_json("/api/v1/groups")),
        LeasesView.model_validate(server.get_json("/api/v1/leases")),
        ServersView.model_validate(server.get_json("/api/v1/servers")),
        chains,
    )


@contextmanager
def keys() -> Iterator[Wait]:
    """Yield a wait that a key of `QUIT_KEYS` ends; without a terminal it only sleeps."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield lambda seconds: _is_quit(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _is_quit(descriptor: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        readable, _, _ = select.select([descriptor], [], [], left)
        if readable:
            typed = os.read(descriptor, 64).decode(errors="replace")
            # Readable but empty: the terminal is closed.
            if not typed or QUIT_KEYS & set(typed):
                return True
    return False


def _pictures(server: ApiClient) -> Iterator[tuple[Picture | None, str]]:
    """Yield the newest picture, and the reason if it is old."""
    picture: Picture | None = None
    while True:
        trouble = ""
        try:
            picture = picture_of(server)
        except ServerError as error:
            trouble = str(error)
        yield picture, trouble


def _show_live(server: ApiClient, console: Console, every_s: float, wait: Wait) -> None:
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for picture, trouble in _pictures(server):
            live.update(draw(server.url, picture, trouble, console.height), refresh=True)
            if wait(every_s):
                return


def _print_on(server: ApiClient, console: Console, every_s: float, wait: Wait) -> None:
    for picture, trouble in _pictures(server):
        console.print(draw(server.url, picture, trouble))
        console.print()
        console.file.flush()
        if wait(every_s):
            return
